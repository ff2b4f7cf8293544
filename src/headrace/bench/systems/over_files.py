"""The systems of `headrace bench scaling`, each over files with the same rows; results are dropped.

headrace reads Arrow files through its public API. Its peers are stock Spark, which reads Parquet files instead: a batch query of
plain Spark SQL, and Structured Streaming with a streaming query for each query. A peer has its own process and its own JVM:

    python -m headrace.bench.systems.over_files spark_sql|structured_streaming FOLDER ROWS QUERIES
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.backends.spark.environment import STOCK_SETTINGS, start_spark
from headrace.bench.queries.aggregations import FieldAggregations
from headrace.bench.queries.query import BenchQuery
from headrace.connectors import GENERATORS, FileSource
from headrace.session import Session

_MEASURED_RUNS = 3


@dataclass(frozen=True, slots=True)
class ScalingFigures:
    """Source rows/s, and the resident MiB of the Spark driver (Python and JVM, without workers) before and after."""

    rows_per_second: float
    driver_mib_before: float
    driver_mib_after: float


def measure_headrace(
    spark: Any, warm_up: Path, folder: Path, queries: Sequence[BenchQuery], rows_per_batch: int, tell: Callable[[str], None]
) -> ScalingFigures:
    """Measure over the Arrow files of `folder` after reading those of `warm_up`, one per batch, untimed."""
    inbox = folder / "inbox"
    shutil.rmtree(inbox, ignore_errors=True)
    inbox.mkdir()
    with Session(spark=spark, rows_per_batch=rows_per_batch) as session:
        session.create_stream("fields", FileSource(inbox, schema=GENERATORS["fields"].schema), time="time")
        for query in queries:
            session.add(query.sql["headrace"], sink="noop")
        for file in sorted(warm_up.glob("*.arrow")):
            (inbox / f"warm-{file.name}").hardlink_to(file)
            session.advance()
        for file in sorted(folder.glob("*.arrow")):
            (inbox / file.name).hardlink_to(file)
        mib_before, rows, started = measure_driver_mib(), 0, time.perf_counter()
        while (report := session.advance()).rows:
            rows += report.rows
            rate = rows / (time.perf_counter() - started)
            tell(f"headrace, {len(queries)} queries: {rows / 1e6:.0f} M rows, {rate / 1e6:.1f} M rows/s")
        figures = ScalingFigures(rows / (time.perf_counter() - started), mib_before, measure_driver_mib())
    shutil.rmtree(inbox, ignore_errors=True)
    return figures


def measure_driver_mib() -> float:
    """Return the resident memory of this process and its JVM in MiB."""
    process = psutil.Process()
    rss = process.memory_info().rss
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # Python workers come and go
            rss += child.memory_info().rss if child.name() == "java" else 0
    return float(rss) / 2**20


def measure_spark_sql(spark: Any, folder: Path, query: BenchQuery, rows: int) -> float:
    """Return source rows/s of one plain batch query over Parquet files: the median of a few runs after a warm-up run."""
    spark.read.parquet(str(folder)).createOrReplaceTempView("fields")
    durations = []
    for number in range(_MEASURED_RUNS + 1):
        started = time.perf_counter()
        spark.sql(query.sql["spark"]).write.format("noop").mode("overwrite").save()
        if number:
            durations.append(time.perf_counter() - started)
    return rows / statistics.median(durations)


def measure_structured_streaming(
    spark: Any, folder: Path, queries: Sequence[BenchQuery], rows: int, files_per_trigger: int = 2
) -> float:
    """Return source rows/s with one streaming query for each query, all concurrent; the first file is warm-up."""
    scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    inbox = scratch / "inbox"
    inbox.mkdir()
    files = sorted(folder.glob("*.parquet"))
    shutil.copy(files[0], inbox / files[0].name)
    schema = spark.read.parquet(str(files[0])).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_trigger).parquet(str(inbox))
    source.withWatermark("time", "0 seconds").createOrReplaceTempView("fields")
    streaming_queries = []
    try:
        for number, query in enumerate(queries):
            writer = spark.sql(query.sql["spark"]).writeStream.format("noop").outputMode("append")
            streaming_queries.append(writer.option("checkpointLocation", str(scratch / f"check-{number}")).start())
        for streaming_query in streaming_queries:
            streaming_query.processAllAvailable()
        started = time.perf_counter()
        for file in files[1:]:
            shutil.copy(file, inbox / f".{file.name}")
            (inbox / f".{file.name}").rename(inbox / file.name)
        for streaming_query in streaming_queries:
            streaming_query.processAllAvailable()
        return rows / (time.perf_counter() - started)
    finally:
        for streaming_query in streaming_queries:
            streaming_query.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def main(system: str, folder: str, rows: str, queries: str) -> None:
    """Measure a peer, and print its rows/s."""
    spark, benchmark = start_spark("local[*]", STOCK_SETTINGS), FieldAggregations().queries(int(queries))
    if system == "spark_sql":
        print(measure_spark_sql(spark, Path(folder), benchmark[0], int(rows)))
    else:
        print(measure_structured_streaming(spark, Path(folder), benchmark, int(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
