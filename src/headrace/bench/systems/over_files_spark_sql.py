"""Measure plain Spark SQL: one batch query over the same rows as Parquet files, results dropped; Spark reads no Arrow files."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from headrace.backends.spark.environment import STOCK_SETTINGS, start_spark
from headrace.bench.queries.aggregations import FieldAggregations
from headrace.bench.queries.query import BenchQuery

_MEASURED_RUNS = 3


def measure_rows_per_second(spark: Any, folder: Path, query: BenchQuery, rows: int) -> float:
    """Return source rows/s: the median of a few runs after a warm-up run."""
    spark.read.parquet(str(folder)).createOrReplaceTempView("fields")
    durations = []
    for number in range(_MEASURED_RUNS + 1):
        started = time.perf_counter()
        spark.sql(query.sql["spark"]).write.format("noop").mode("overwrite").save()
        if number:
            durations.append(time.perf_counter() - started)
    return rows / statistics.median(durations)


if __name__ == "__main__":
    print(
        measure_rows_per_second(
            start_spark("local[*]", STOCK_SETTINGS), Path(sys.argv[1]), FieldAggregations().queries(1)[0], int(sys.argv[2])
        )
    )
