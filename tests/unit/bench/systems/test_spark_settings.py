"""How Spark is set up for Structured Streaming."""

from __future__ import annotations

import pytest

from headrace.bench.systems.spark import make_spark_settings
from headrace.errors import HeadraceError


def test_spark_is_stock_but_for_memory_partitions_and_store():
    found = make_spark_settings({"state_store": "rocksdb", "settings": {"spark.sql.shuffle.partitions": "7"}})
    assert found["spark.sql.shuffle.partitions"] == "7"
    assert found["spark.sql.streaming.stateStore.providerClass"].endswith("RocksDBStateStoreProvider")
    assert found["spark.sql.adaptive.enabled"] == "true"
    assert "TieredStopAtLevel" not in found["spark.driver.extraJavaOptions"]


def test_an_unknown_store_is_named():
    with pytest.raises(HeadraceError, match="unknown spark state store 'redis'\ndetail: state stores: hdfs, rocksdb"):
        make_spark_settings({"state_store": "redis"})
