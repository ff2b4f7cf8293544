"""The scaling benchmark: source rows/s against the number of queries.

Rates are end to end, for headrace over Arrow files with 1 … 1,000 queries, and in the same run over the same rows for plain
Spark SQL (one query) and for stock Structured Streaming with one streaming query per query (up to 32).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.backends.spark.environment import start_spark
from headrace.bench.queries.aggregations import FieldAggregations, write_workload_files
from headrace.bench.result import current_commit, describe_machine, list_versions
from headrace.bench.systems.over_files import measure_headrace
from headrace.errors import HeadraceError

ROWS_PER_FILE = 1_000_000
STREAMING_FILE_ROWS = 250_000
WARM_UP_FILES, WARM_UP_ROWS = 15, 600_000  # several ranges per file, so that every worker is warm
WARM_UP_RUNS = 2  # with one query, not counted: the JVM compiles hot code
MAX_STREAMING_QUERIES = 32


def measure_scaling(
    counts: Sequence[int], rows: int, rows_per_batch: int, streaming_rows: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measure, and return the document that `headrace bench scaling --json` prints."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        report(f"writing {rows / 1e6:.0f} M rows")
        write_workload_files(folder / "warm", 0, WARM_UP_FILES * WARM_UP_ROWS, WARM_UP_ROWS, parquet=False)
        write_workload_files(folder / "arrow", WARM_UP_FILES * WARM_UP_ROWS, rows, ROWS_PER_FILE, parquet=False)
        write_workload_files(folder / "parquet", 0, rows, ROWS_PER_FILE, parquet=True)
        write_workload_files(folder / "stream", 0, streaming_rows + STREAMING_FILE_ROWS, STREAMING_FILE_ROWS, parquet=True)
        os.sync()  # so that write-back of these files is not measured
        rates: dict[str, dict[str, float]] = {"headrace": {}, "spark_sql": {}, "structured_streaming": {}}
        memory: dict[str, dict[str, float]] = {}
        rates["spark_sql"]["1"] = measure_in_subprocess("spark_sql", folder / "parquet", rows, 1)
        spark = start_spark("local[*]")
        report(f"plain Spark SQL, 1 query: {rates['spark_sql']['1'] / 1e6:.1f} M rows/s")
        max_streaming = min(MAX_STREAMING_QUERIES, max(counts))
        for number, count in enumerate([counts[0]] * WARM_UP_RUNS + sorted({*counts, max_streaming})):
            figures = measure_headrace(
                spark, folder / "warm", folder / "arrow", FieldAggregations().queries(count), rows_per_batch, report
            )
            rate = figures.rows_per_second
            if number >= WARM_UP_RUNS:
                rates["headrace"][str(count)] = rate
                memory[str(count)] = {"before": figures.driver_mib_before, "after": figures.driver_mib_after}
            report(f"headrace, {count} queries: {rate / 1e6:.1f} M rows/s{'' if number >= WARM_UP_RUNS else ' (warm-up)'}")
        spark.stop()
        for count in sorted({1, min(8, max_streaming), max_streaming}):
            rate = measure_in_subprocess("structured_streaming", folder / "stream", streaming_rows, count)
            rates["structured_streaming"][str(count)] = rate
            report(f"Structured Streaming, {count} queries: {rate / 1e3:.0f} k rows/s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "rows_per_second": rates,
        "driver_mib": memory,
        "workload": {
            "rows": rows,
            "rows_per_batch": rows_per_batch,
            "streaming_rows": streaming_rows,
            "generator": "fields",
            "seed": 7,
        },
        "machine": describe_machine(),
        "versions": list_versions(),
        "commit": current_commit(),
    }


def measure_in_subprocess(system: str, *arguments: object) -> float:
    """Measure a peer in its own process with its own JVM, and return its rows/s."""
    command = [sys.executable, "-m", "headrace.bench.systems.over_files", system, *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own module
    if completed.returncode:
        raise HeadraceError(f"{system} failed: no result", detail=completed.stderr[-2000:])
    return float(completed.stdout.split()[-1])
