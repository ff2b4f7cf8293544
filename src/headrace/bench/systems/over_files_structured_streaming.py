"""Measure stock Structured Streaming: a streaming query for each query over the same rows as Parquet, results dropped."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.backends.spark.environment import STOCK_SETTINGS, start_spark
from headrace.bench.queries.aggregations import FieldAggregations
from headrace.bench.queries.query import BenchQuery


def measure_rows_per_second(
    spark: Any, folder: Path, queries: Sequence[BenchQuery], rows: int, files_per_trigger: int = 2
) -> float:
    """Return source rows/s with all queries running concurrently; the first file is warm-up and does not count."""
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


if __name__ == "__main__":
    print(
        measure_rows_per_second(
            start_spark("local[*]", STOCK_SETTINGS),
            Path(sys.argv[1]),
            FieldAggregations().queries(int(sys.argv[3])),
            int(sys.argv[2]),
        )
    )
