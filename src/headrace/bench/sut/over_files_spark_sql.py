"""Plain Spark SQL: one batch query over the same rows as Parquet (Spark cannot read Arrow files), results dropped."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from headrace.backends.spark.environment import STOCK, start_spark
from headrace.bench.queries.aggregations import Fields
from headrace.bench.query import BenchQuery

_REPEATS = 3


def rows_per_second(spark: Any, folder: Path, query: BenchQuery, rows: int) -> float:
    """Return source rows/s: the median of a few runs after one that warms up."""
    spark.read.parquet(str(folder)).createOrReplaceTempView("fields")
    found = []
    for number in range(_REPEATS + 1):
        begun = time.perf_counter()
        spark.sql(query.sql["spark"]).write.format("noop").mode("overwrite").save()
        if number:
            found.append(time.perf_counter() - begun)
    return rows / statistics.median(found)


if __name__ == "__main__":
    print(rows_per_second(start_spark("local[*]", STOCK), Path(sys.argv[1]), Fields().queries(1)[0], int(sys.argv[2])))
