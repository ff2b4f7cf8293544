"""Everything a run needs, started and ended together: the driver, the collector, and the system under test."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bench.collector import Collector
from headrace.bench.driver_client import DriverProcess
from headrace.bench.query import BenchQuery
from headrace.bench.stream import StreamSpec
from headrace.bench.sut.adapter import SutConfig, SutStream
from headrace.bench.sut.process import SutProcess
from headrace.bench.trial import Bench
from headrace.errors import HeadraceError

CAPACITY_ROWS = 60_000_000  # of a partition: eight bytes each, and more than any queue that is tolerated
READY_SECONDS = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Rig:
    """A bench that is ready, and what the system said of itself."""

    bench: Bench
    versions: Mapping[str, str]
    settings: Mapping[str, Any]


@contextlib.contextmanager
def rig(sut: str, streams: Sequence[StreamSpec], queries: Sequence[BenchQuery], options: Mapping[str, Any]) -> Iterator[Rig]:
    """Start all of it; raises HeadraceError with the reason where the system cannot run, or not these queries."""
    with contextlib.ExitStack() as stack:
        scratch = tempfile.mkdtemp(prefix="headrace-bench-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        driver = stack.enter_context(DriverProcess(streams, CAPACITY_ROWS))
        collector = stack.enter_context(Collector())
        offered = tuple(SutStream(stream, tuple(driver.line_ports[stream.name])) for stream in streams)
        config = SutConfig(driver.address, collector.address, Path(scratch), offered, tuple(queries), options)
        subject = stack.enter_context(SutProcess(sut, config))
        ready = subject.wait_ready(READY_SECONDS)
        for event in subject.events():
            if event.event == "refused":
                raise HeadraceError(f"{sut} cannot run query '{event.query}'", detail=event.reason)
        yield Rig(Bench(driver, collector, subject, {query.name: query for query in queries}), ready.versions, ready.settings)
