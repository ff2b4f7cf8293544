"""Run stock Spark Structured Streaming: a streaming query with its own scan for each query.

A native Spark source pulls Arrow batches from the driver, and a sink counts the results in the tasks. Options: "rows_per_batch"
(maximum rows of a micro-batch), "state_store" ("hdfs" or "rocksdb"), "settings" (further Spark settings by name).
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

from headrace.backends.spark.environment import STOCK_SETTINGS, start_spark
from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import NO_TEXT, Started, SutConfig, SutStream, Teller
from headrace.bench.sut.connector import connector
from headrace.bench.sut.process import serve
from headrace.connectors.tcp_protocol import TcpConnection
from headrace.errors import HeadraceError

_SOURCE, _SINK = "headrace.bench.spark.DriverSource", "headrace.bench.spark.CollectorSink"
_ROWS_PER_BATCH = 8_000_000  # bounds a batch after the queue has grown; two seconds at the highest rate
_STARTERS = 4  # threads that start queries
_STORES = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


class Spark:
    """The adapter of Spark Structured Streaming."""

    def __init__(self) -> None:
        """Create the adapter; `start` starts Spark."""
        self._spark: Any = None
        self._running: dict[str, tuple[Any, str]] = {}  # the streaming query and its consumer group, by name
        self._started = 0
        self._lock = threading.Lock()

    def start(self, config: SutConfig, reporter: Teller) -> Started:
        """See `SutAdapter`."""
        self._config, self._tell, self._driver = config, reporter, TcpConnection(config.driver)
        settings = spark_settings(config.options)
        jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
        jar = connector("spark", pyspark.__version__, jars, {})
        paths = {"spark.driver.extraClassPath": str(jar), "spark.local.dir": str(config.scratch)}
        self._spark = start_spark("local[*]", {**settings, **paths})
        self._starters = ThreadPoolExecutor(_STARTERS)
        list(self._starters.map(self._add, config.queries))
        description = {
            **settings,
            "rows_per_batch": self._most,
            "trigger": "as soon as the previous batch is done",
            "source": "Arrow batches pulled by a Java source (MicroBatchStream, columnar)",
        }
        return Started({"pyspark": importlib.metadata.version("pyspark")}, description)

    @property
    def _most(self) -> int:
        return int(self._config.options.get("rows_per_batch", _ROWS_PER_BATCH))

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`; a few threads start and stop queries concurrently."""
        for name in removed:
            self._starters.submit(self._remove, name)
        for query in added:
            self._starters.submit(self._add_and_tell, query)

    def _add_and_tell(self, query: BenchQuery) -> None:
        if self._add(query):
            self._tell.live(query.name)

    def _add(self, query: BenchQuery) -> bool:
        """Start a streaming query; return False if Spark rejects it."""
        if not query.sql.get("spark"):
            self._tell.refused(query.name, NO_TEXT)
            return False
        try:
            with self._lock:  # the SQL text refers to temporary views by name
                self._started += 1
                group = f"spark-{self._started}"
                for name in query.streams:
                    self._view(self._config.stream(name), group)
                result = self._spark.sql(query.sql["spark"])
            checkpoint = self._config.scratch / "checkpoints" / group
            writer = result.writeStream.format(_SINK).outputMode("append").option("checkpointLocation", str(checkpoint))
            running = writer.option("address", self._config.collector).option("query", query.name).start()
        except Exception as error:  # noqa: BLE001  any error of Spark is a refusal
            self._tell.refused(query.name, str(error).partition("\n")[0])
            return False
        self._running[query.name] = (running, group)
        return True

    def _view(self, stream: SutStream, group: str) -> None:
        options = {"address": self._config.driver, "stream": stream.name, "group": group}
        reader = self._spark.readStream.format(_SOURCE).schema(stream.schema.to_ddl()).options(**options)
        rows = reader.option("rows", self._most).option("tasks", os.cpu_count() or 1).load()
        rows.withWatermark(stream.spec.time_column, f"{stream.spec.watermark} seconds").createOrReplaceTempView(stream.name)

    def _remove(self, name: str) -> None:
        """Stop a query and remove its consumer group, so that the driver stops retaining rows for it."""
        running, group = self._running.pop(name)
        running.stop()
        for stream in self._config.streams:
            self._driver.send_request("leave", stream=stream.name, group=group)
        self._tell.removed(name)

    def check(self) -> None:
        """See `SutAdapter`."""
        for name, (running, _) in list(self._running.items()):
            if not running.isActive and name in self._running:
                raise HeadraceError(f"streaming query '{name}' ended", detail=str(running.exception())[:2000])

    def close(self) -> None:
        """See `SutAdapter`."""
        if self._spark is not None:
            self._spark.stop()


def spark_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the Spark settings for this machine that are not defaults; docs/benchmark-systems.md gives the reasons."""
    store = options.get("state_store", "hdfs")
    if store not in _STORES:
        raise HeadraceError(f"unknown spark state store '{store}'", detail=f"state stores: {', '.join(_STORES)}")
    return {
        **STOCK_SETTINGS,
        "spark.driver.memory": f"{max(2048, psutil.virtual_memory().total // 4 >> 20)}m",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.streaming.stateStore.providerClass": _STORES[store],
        **options.get("settings", {}),
    }


if __name__ == "__main__":
    serve(Spark())
