"""Spark settings for Structured Streaming."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.bench.cluster import BenchCluster
from headrace.bench.systems.adapter import SutConfig
from headrace.bench.systems.spark import make_spark_settings
from headrace.errors import HeadraceError


def make_config(cluster: BenchCluster | None = None, **options: str) -> SutConfig:
    return SutConfig("127.0.0.1:1", "127.0.0.1:2", Path("scratch"), (), (), options, cluster)


def test_spark_settings_change_only_memory_partitions_and_state_store():
    settings = make_spark_settings(make_config(state_store="rocksdb"))
    assert settings["spark.sql.shuffle.partitions"] == str(os.cpu_count())
    assert settings["spark.sql.streaming.stateStore.providerClass"].endswith("RocksDBStateStoreProvider")
    assert settings["spark.sql.adaptive.enabled"] == "true"
    assert "TieredStopAtLevel" not in settings["spark.driver.extraJavaOptions"]


def test_partitions_are_the_tasks_of_the_nodes_or_those_of_the_cluster():
    assert make_spark_settings(make_config(BenchCluster(3, 1.5)))["spark.sql.shuffle.partitions"] == "6"
    assert "spark.sql.shuffle.partitions" not in make_spark_settings(make_config(BenchCluster(master="spark://127.0.0.1:7077")))


def test_an_unknown_state_store_is_refused():
    with pytest.raises(HeadraceError, match="unknown spark state store 'redis'\ndetail: state stores: hdfs, rocksdb"):
        make_spark_settings(make_config(state_store="redis"))
