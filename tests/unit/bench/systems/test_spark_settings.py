"""Spark settings for Structured Streaming."""

from __future__ import annotations

import pytest

from headrace.bench.systems.spark import make_spark_settings
from headrace.errors import HeadraceError


def test_spark_settings_change_only_memory_partitions_and_state_store():
    settings = make_spark_settings({"state_store": "rocksdb", "settings": {"spark.sql.shuffle.partitions": "7"}})
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.sql.streaming.stateStore.providerClass"].endswith("RocksDBStateStoreProvider")
    assert settings["spark.sql.adaptive.enabled"] == "true"
    assert "TieredStopAtLevel" not in settings["spark.driver.extraJavaOptions"]


def test_an_unknown_state_store_is_refused():
    with pytest.raises(HeadraceError, match="unknown spark state store 'redis'\ndetail: state stores: hdfs, rocksdb"):
        make_spark_settings({"state_store": "redis"})
