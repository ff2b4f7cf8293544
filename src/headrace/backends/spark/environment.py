"""Start Spark with the settings of headrace: on the loopback interface, with errors only in the log, in UTC, with this Python."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from headrace.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Mapping


_LOG_OPTION = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
SPARK_SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.shuffle.compress": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",  # over TCP, small messages of a task were sometimes delayed by 40 ms
    "spark.log.level": "ERROR",
    # The JVM only schedules, so C1 suffices: a second compilation takes cores from the workers. VFORK because Hadoop forks chmod
    # for every log file.
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Djdk.lang.Process.launchMechanism=VFORK {_LOG_OPTION}",
}


# Workers need the same large arrays in every batch. By default the allocator returns them to the system each time, and the page
# faults of the next allocation took a quarter of a batch with 1,000 queries (docs/performance.md).
ALLOCATOR_SETTINGS: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


# Spark's own defaults, for jobs that the JVM executes: the baseline in benchmarks.
STOCK_SETTINGS: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": _LOG_OPTION,
    "spark.sql.adaptive.enabled": "true",
    "spark.shuffle.compress": "true",
}


def start_spark(master: str, overrides: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark (5–10 s) with the settings above and the overrides; raises SessionError if Java is not installed."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise SessionError(
            "Java is not installed, and Spark needs it",
            hint="install a JDK ≥ 17 ('apt-get install openjdk-17-jre-headless', 'brew install openjdk@17'), or set JAVA_HOME",
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("headrace")
    for name, value in ALLOCATOR_SETTINGS.items():
        os.environ.setdefault(name, value)  # inherited by the workers of a local master
        builder = builder.config(f"spark.executorEnv.{name}", value)
    for name, value in {**SPARK_SETTINGS, **(overrides or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
