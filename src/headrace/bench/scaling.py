"""A first measurement: whether the rate stays when the number of queries grows.

Source rows/s end to end, for headrace over Arrow files with 1 … 1,000 queries, and in the same run over the same rows for
plain Spark SQL (one query) and for stock Structured Streaming with one streaming query each (up to 32).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from headrace.backends.spark.environment import start_spark
from headrace.bench.sut import headrace
from headrace.bench.workload import field_queries, write_files
from headrace.errors import HeadraceError

ROWS_PER_FILE = 1_000_000
STREAMING_FILE_ROWS = 250_000
WARM_UP_FILES, WARM_UP_ROWS = 15, 600_000  # several ranges each, so that every worker is warm
WARM_UP_RUNS = 2  # of one query, not counted: the JVM compiles what it runs often
MAX_STREAMING = 32


def scaling(
    counts: Sequence[int], rows: int, rows_per_batch: int, streaming_rows: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Measure and return the document that `headrace bench scaling --json` prints."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        tell(f"writing {rows / 1e6:.0f} M rows")
        write_files(folder / "warm", 0, WARM_UP_FILES * WARM_UP_ROWS, WARM_UP_ROWS, parquet=False)
        write_files(folder / "arrow", WARM_UP_FILES * WARM_UP_ROWS, rows, ROWS_PER_FILE, parquet=False)
        write_files(folder / "parquet", 0, rows, ROWS_PER_FILE, parquet=True)
        write_files(folder / "stream", 0, streaming_rows + STREAMING_FILE_ROWS, STREAMING_FILE_ROWS, parquet=True)
        os.sync()  # or writing back the files just made would be measured
        found: dict[str, dict[str, float]] = {"headrace": {}, "spark_sql": {}, "structured_streaming": {}}
        found["spark_sql"]["1"] = apart("spark_sql", folder / "parquet", rows)
        spark = start_spark("local[*]")
        tell(f"plain Spark SQL, 1 query: {found['spark_sql']['1'] / 1e6:.1f} M rows/s")
        for number, count in enumerate([counts[0]] * WARM_UP_RUNS + list(counts)):
            rate = headrace.rows_per_second(spark, folder / "warm", folder / "arrow", field_queries(count), rows_per_batch, tell)
            if number >= WARM_UP_RUNS:
                found["headrace"][str(count)] = rate
            tell(f"headrace, {count} queries: {rate / 1e6:.1f} M rows/s{'' if number >= WARM_UP_RUNS else ' (warm-up)'}")
        spark.stop()
        for count in sorted({1, min(8, max(counts)), min(MAX_STREAMING, max(counts))}):
            rate = apart("structured_streaming", folder / "stream", streaming_rows, count)
            found["structured_streaming"][str(count)] = rate
            tell(f"Structured Streaming, {count} queries: {rate / 1e3:.0f} k rows/s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "rows_per_second": found,
        "workload": {
            "rows": rows,
            "rows_per_batch": rows_per_batch,
            "streaming_rows": streaming_rows,
            "generator": "fields",
            "seed": 7,
        },
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }


def apart(system: str, *arguments: object) -> float:
    """Measure a peer in a process of its own, with a JVM of its own, and return its rows/s."""
    command = [sys.executable, "-m", f"headrace.bench.sut.{system}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own module
    if done.returncode:
        raise HeadraceError(f"{system} failed and gives no number", detail=done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "processor": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Return the versions of what was measured."""
    names = ("headrace", "pyspark", "pyarrow", "numpy", "numba")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def commit() -> str:
    """Return the commit this runs from, with '+' when files are changed; 'unknown' outside a checkout."""
    root = Path(__file__).parent
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S607
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True).stdout  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found + ("+" if changed.strip() else "")
