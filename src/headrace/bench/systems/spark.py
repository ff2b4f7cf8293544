"""Run stock Spark Structured Streaming: a streaming query with its own scan for each query.

A native Spark source pulls Arrow batches from the driver, and a sink counts the results in the tasks. Options: "rows_per_batch"
(maximum rows of a micro-batch), "state_store" ("hdfs" or "rocksdb"), and those of `SparkDeployment`.
"""

from __future__ import annotations

import importlib.metadata
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyspark

from headrace.backends.spark.environment import STOCK_SETTINGS
from headrace.bench.queries.query import BenchQuery
from headrace.bench.systems.adapter import NO_DIALECT_TEXT, QueryStatusReporter, SutConfig, SutDescription, SutStream
from headrace.bench.systems.jvm_connector import build_connector
from headrace.bench.systems.process import serve
from headrace.bench.systems.spark_deployment import SparkDeployment
from headrace.connectors.tcp import TcpConnection
from headrace.errors import HeadraceError

_SOURCE_CLASS, _SINK_CLASS = "headrace.bench.spark.DriverSource", "headrace.bench.spark.CollectorSink"
_DEFAULT_ROWS_PER_BATCH = 8_000_000  # bounds a batch after the queue has grown; two seconds at the highest rate
_STARTER_THREADS = 4  # threads that start queries
_STATE_STORE_CLASSES = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


class SparkAdapter:
    """The adapter of Spark Structured Streaming."""

    def __init__(self) -> None:
        """Create the adapter; `start` starts Spark."""
        self._spark: Any = None
        self._deployment: SparkDeployment | None = None
        self._running_queries: dict[str, tuple[Any, str]] = {}  # the streaming query and its consumer group, by name
        self._started_count = 0
        self._lock = threading.Lock()

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """See `SutAdapter`."""
        self._config, self._reporter, self._driver = config, reporter, TcpConnection(config.driver)
        settings = make_spark_settings(config)
        jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
        jar = build_connector("spark", pyspark.__version__, jars, {})
        self._deployment = SparkDeployment(config)
        self._spark = self._deployment.start(settings, jar)
        self._task_slots = self._deployment.task_slots
        self._starter_pool = ThreadPoolExecutor(_STARTER_THREADS)
        list(self._starter_pool.map(self._start_query, config.queries))
        description = {
            **settings,
            **self._deployment.describe(),
            "rows_per_batch": self._max_batch_rows,
            "trigger": "as soon as the previous batch is done",
            "source": "Arrow batches pulled by a Java source (MicroBatchStream, columnar)",
        }
        return SutDescription({"pyspark": importlib.metadata.version("pyspark")}, description)

    @property
    def _max_batch_rows(self) -> int:
        return int(self._config.options.get("rows_per_batch", _DEFAULT_ROWS_PER_BATCH))

    def limit_nodes(self) -> None:
        """See `SutAdapter`."""
        assert self._deployment is not None
        self._deployment.limit_nodes()

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`; a few threads start and stop queries concurrently."""
        for name in removed:
            self._starter_pool.submit(self._remove_query, name)
        for query in added:
            self._starter_pool.submit(self._start_and_report, query)

    def _start_and_report(self, query: BenchQuery) -> None:
        if self._start_query(query):
            self._reporter.report_live(query.name)

    def _start_query(self, query: BenchQuery) -> bool:
        """Start a streaming query; return False if Spark rejects it."""
        if not query.sql.get("spark"):
            self._reporter.report_refused(query.name, NO_DIALECT_TEXT)
            return False
        try:
            with self._lock:  # the SQL text refers to temporary views by name
                self._started_count += 1
                group = f"spark-{self._started_count}"
                for name in query.streams:
                    self._register_view(self._config.get_stream(name), group)
                result = self._spark.sql(query.sql["spark"])
            assert self._deployment is not None
            writer = result.writeStream.format(_SINK_CLASS).outputMode("append")
            writer = writer.option("checkpointLocation", self._deployment.make_checkpoint(group))
            running = writer.option("address", self._config.collector).option("query", query.name).start()
        except Exception as error:  # noqa: BLE001  any error of Spark is a refusal
            self._reporter.report_refused(query.name, str(error).partition("\n")[0])
            return False
        self._running_queries[query.name] = (running, group)
        return True

    def _register_view(self, stream: SutStream, group: str) -> None:
        options = {"address": self._config.driver, "stream": stream.name, "group": group}
        reader = self._spark.readStream.format(_SOURCE_CLASS).schema(stream.schema.to_ddl()).options(**options)
        rows = reader.option("rows", self._max_batch_rows).option("tasks", self._task_slots).load()
        rows.withWatermark(stream.spec.time_column, f"{stream.spec.watermark} seconds").createOrReplaceTempView(stream.name)

    def _remove_query(self, name: str) -> None:
        """Stop a query and remove its consumer group, so that the driver stops retaining rows for it."""
        running, group = self._running_queries.pop(name)
        running.stop()
        for stream in self._config.streams:
            self._driver.send_request("leave", stream=stream.name, group=group)
        self._reporter.report_removed(name)

    def read_component_seconds(self) -> Mapping[str, float]:
        """See `SutAdapter`; this system does not measure them."""
        return {}

    def check(self) -> None:
        """See `SutAdapter`."""
        assert self._deployment is not None
        self._deployment.check()
        for name, (running, _) in list(self._running_queries.items()):
            if not running.isActive and name in self._running_queries:
                raise HeadraceError(f"streaming query '{name}' ended", detail=str(running.exception())[:2000])

    def close(self) -> None:
        """See `SutAdapter`."""
        if self._deployment is not None:
            self._deployment.close()


def make_spark_settings(config: SutConfig) -> dict[str, str]:
    """Return the Spark settings that are not defaults; docs/benchmark-systems.md gives the reasons.

    On the cluster of a user, the number of shuffle partitions is Spark's default, unless the option "settings" has another.
    """
    store, cluster = config.options.get("state_store", "hdfs"), config.cluster
    if store not in _STATE_STORE_CLASSES:
        raise HeadraceError(f"unknown spark state store '{store}'", detail=f"state stores: {', '.join(_STATE_STORE_CLASSES)}")
    settings = {
        **STOCK_SETTINGS,
        "spark.driver.memory": f"{max(2048, psutil.virtual_memory().total // 4 >> 20)}m",
        "spark.sql.streaming.stateStore.providerClass": _STATE_STORE_CLASSES[store],
    }
    slots = (os.cpu_count() or 1) if cluster is None else cluster.nodes * cluster.slots
    return {**settings, "spark.sql.shuffle.partitions": str(slots)} if slots else settings


if __name__ == "__main__":
    serve(SparkAdapter())
