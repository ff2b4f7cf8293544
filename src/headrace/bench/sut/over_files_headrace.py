"""headrace itself, through its public API: Arrow files in, every query evaluated, results dropped by the workers."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.bench.query import BenchQuery
from headrace.connectors import GENERATORS, FileSource
from headrace.session import Session


@dataclass(frozen=True, slots=True)
class Figures:
    """Source rows/s, and the resident MiB of the driver – its Python and its JVM, not the workers – before and after."""

    rows_per_second: float
    driver_mib_before: float
    driver_mib_after: float


def measure(
    spark: Any, warm_up: Path, folder: Path, queries: Sequence[BenchQuery], rows_per_batch: int, tell: Callable[[str], None]
) -> Figures:
    """Measure over the Arrow files of `folder`; those of `warm_up`, one a batch, are read untimed."""
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
        before, rows, begun = driver_mib(), 0, time.perf_counter()
        while (report := session.advance()).rows:
            rows += report.rows
            rate = rows / (time.perf_counter() - begun)
            tell(f"headrace, {len(queries)} queries: {rows / 1e6:.0f} M rows, {rate / 1e6:.1f} M rows/s")
        figures = Figures(rows / (time.perf_counter() - begun), before, driver_mib())
    shutil.rmtree(inbox, ignore_errors=True)
    return figures


def driver_mib() -> float:
    """Return the resident memory of this process and of its JVM."""
    here = psutil.Process()
    found = here.memory_info().rss
    for child in here.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # Python workers come and go
            found += child.memory_info().rss if child.name() == "java" else 0
    return float(found) / 2**20
