"""The rig of a run: starts the driver, the collector and the system under test, and ends them together."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bench.collector import ResultCollector
from headrace.bench.driver_client import DriverProcess
from headrace.bench.query import BenchQuery
from headrace.bench.stream import StreamSpec
from headrace.bench.sut.adapter import SutConfig, SutStream
from headrace.bench.sut.process import SutProcess
from headrace.bench.trial import TrialRunner
from headrace.errors import HeadraceError

QUEUE_CAPACITY_ROWS = 60_000_000  # per partition, eight bytes a row; more than any tolerated backlog
READY_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class BenchRig:
    """A running rig, with the versions and settings that the system reported."""

    trial_runner: TrialRunner
    versions: Mapping[str, str]
    settings: Mapping[str, Any]


@contextlib.contextmanager
def start_rig(
    sut: str, streams: Sequence[StreamSpec], queries: Sequence[BenchQuery], options: Mapping[str, Any]
) -> Iterator[BenchRig]:
    """Start all parts; raise HeadraceError with the reason if the system cannot run, or rejects one of the queries."""
    with contextlib.ExitStack() as stack:
        scratch = tempfile.mkdtemp(prefix="headrace-bench-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        driver = stack.enter_context(DriverProcess(streams, QUEUE_CAPACITY_ROWS))
        collector = stack.enter_context(ResultCollector())
        sut_streams = tuple(SutStream(stream, tuple(driver.line_ports[stream.name])) for stream in streams)
        config = SutConfig(driver.address, collector.address, Path(scratch), sut_streams, tuple(queries), options)
        system = stack.enter_context(SutProcess(sut, config))
        ready = system.wait_ready(READY_TIMEOUT_SECONDS)
        for event in system.events():
            if event.event == "refused":
                raise HeadraceError(f"{sut} cannot run query '{event.query}'", detail=event.reason)
        yield BenchRig(
            TrialRunner(driver, collector, system, {query.name: query for query in queries}), ready.versions, ready.settings
        )
