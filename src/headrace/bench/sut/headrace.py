"""headrace itself, through its public API: Arrow files in, every query evaluated, results dropped by the workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.bench.workload import FieldQuery
from headrace.connectors import FileSource
from headrace.session import Session


def rows_per_second(spark: Any, folder: Path, warm_up: int, queries: Sequence[FieldQuery], rows_per_batch: int, tell: Callable[[str], None]) -> float:
    """Return source rows/s over all Arrow files of `folder` but the first `warm_up`, which are read before the clock starts."""
    files = sorted(folder.glob("*.arrow"))
    inbox = folder / "inbox"
    shutil.rmtree(inbox, ignore_errors=True)
    inbox.mkdir()
    with Session(spark=spark, rows_per_batch=rows_per_batch) as session:
        _place(files[:warm_up], inbox)
        session.create_stream("s", FileSource(inbox), time="time")
        for query in queries:
            session.add(query.headrace("s"), sink="noop")
        while session.advance().rows:
            pass
        _place(files[warm_up:], inbox)
        rows, begun = 0, time.perf_counter()
        while (report := session.advance()).rows:
            rows += report.rows
            tell(f"headrace, {len(queries)} queries: {rows / 1e6:.0f} M rows, {rows / (time.perf_counter() - begun) / 1e6:.1f} M rows/s")
        elapsed = time.perf_counter() - begun
    shutil.rmtree(inbox, ignore_errors=True)
    return rows / elapsed


def _place(files: Sequence[Path], inbox: Path) -> None:
    for file in files:
        (inbox / file.name).hardlink_to(file)
