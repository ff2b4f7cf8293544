"""headrace itself, through its public API: Arrow files in, every query evaluated, results dropped by the workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.bench.workload import FieldQuery
from headrace.connectors import GENERATORS, FileSource
from headrace.session import Session


def rows_per_second(
    spark: Any, warm_up: Path, folder: Path, queries: Sequence[FieldQuery], rows_per_batch: int, tell: Callable[[str], None]
) -> float:
    """Return source rows/s over the Arrow files of `folder`; those of `warm_up`, one a batch, are read untimed."""
    inbox = folder / "inbox"
    shutil.rmtree(inbox, ignore_errors=True)
    inbox.mkdir()
    with Session(spark=spark, rows_per_batch=rows_per_batch) as session:
        session.create_stream("s", FileSource(inbox, schema=GENERATORS["fields"].schema), time="time")
        for query in queries:
            session.add(query.headrace("s"), sink="noop")
        for file in sorted(warm_up.glob("*.arrow")):
            (inbox / f"warm-{file.name}").hardlink_to(file)
            session.advance()
        for file in sorted(folder.glob("*.arrow")):
            (inbox / file.name).hardlink_to(file)
        rows, begun = 0, time.perf_counter()
        while (report := session.advance()).rows:
            rows += report.rows
            rate = rows / (time.perf_counter() - begun)
            tell(f"headrace, {len(queries)} queries: {rows / 1e6:.0f} M rows, {rate / 1e6:.1f} M rows/s")
        elapsed = time.perf_counter() - begun
    shutil.rmtree(inbox, ignore_errors=True)
    return rows / elapsed
