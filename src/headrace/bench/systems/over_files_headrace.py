"""Measure headrace over Arrow files through its public API; the workers drop the results."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.bench.queries.query import BenchQuery
from headrace.connectors import GENERATORS, FileSource
from headrace.session import Session


@dataclass(frozen=True, slots=True)
class ScalingFigures:
    """Source rows/s, and the resident MiB of the Spark driver (Python and JVM, without workers) before and after."""

    rows_per_second: float
    driver_mib_before: float
    driver_mib_after: float


def measure_throughput(
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
