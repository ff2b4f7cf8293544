"""A run over stored input: a system reads a topic of Kafka from its first message as fast as it can.

Nothing is offered, so there is no search: the rate is that of the system itself. Progress is what its consumer group has
committed, as the broker knows it; a system commits offsets when the results of the messages before them are safe. The rate is
that between the first progress after the warm-up – a share of the messages or of the time limit, whichever ends first – and the
last one, when all is read or the time is over. Results go to the collector: a query without any makes the run fail.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headrace.bench.driver.kafka_broker import LARGE_JVM, run_kafka_broker
from headrace.bench.driver.topic import (
    CommittedOffsets,
    TopicAddress,
    TopicSpec,
    count_rows,
    delete_topic,
    require_client,
    write_topic,
)
from headrace.bench.measure.collector import Emissions, ResultCollector
from headrace.bench.measure.data_throughput import DataThroughput, QueryLife, measure_data_throughput
from headrace.bench.measure.resources import ResourceSample, ResourceSampler
from headrace.bench.measure.statistics import Histogram
from headrace.bench.queries.query import BenchQuery
from headrace.bench.result import FailedRun, LatencyFigures, MeasuredRun, ThroughputSeries
from headrace.bench.scenarios.scenario import Scenario
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.process import SutEvent, SutProcess
from headrace.errors import HeadraceError

READY_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.05
_IDLE_SECONDS = 120.0  # without progress, before or after the first
_MIN_POINTS = 3  # of progress: a rate between two may be that of a single commit
_LAST_RESULTS_SECONDS = 2.0

ReadProgress = Callable[[int, int, float], None]
"""Called with rows read, rows of the topic, and seconds."""
ThroughputOfQueries = Callable[[float, float], DataThroughput | None]
"""Called with the first and the last second of the measurement."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic that is written: where, its messages, and their mean size in bytes."""

    brokers: str
    name: str
    rows: int
    message_bytes: float


@contextlib.contextmanager
def open_topic(scenario: Scenario, brokers: str, report: Callable[[str], None]) -> Iterator[StoredTopic | None]:
    """Write the topic of a scenario to these brokers, or to one that is started here; None if the scenario has no topic."""
    if scenario.topic is None:
        yield None
        return
    require_client()
    (stream,), name = scenario.streams, f"headrace-bench-{uuid.uuid4().hex[:12]}"
    with contextlib.ExitStack() as stack:
        if not brokers:
            folder = tempfile.mkdtemp(prefix="headrace-bench-kafka-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            report("starting a broker of Kafka")
            broker = stack.enter_context(run_kafka_broker(Path(folder), java_options=LARGE_JVM))
            stack.enter_context(broker.end_with_this_process())
            brokers = broker.address
        stack.callback(_forget_topic, brokers, name)
        size = write_topic(brokers, name, scenario.topic, stream, report)
        yield StoredTopic(brokers, name, count_rows(scenario.topic, stream), size)


def _forget_topic(brokers: str, name: str) -> None:
    with contextlib.suppress(Exception):  # it may not exist, and the broker may be gone
        delete_topic(brokers, name)


@dataclass(frozen=True, slots=True)
class TopicRun:
    """The outcome of a run, and what the system said of itself."""

    outcome: MeasuredRun | FailedRun
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def run_over_topic(
    sut: str, scenario: Scenario, topic: StoredTopic, options: Mapping[str, Any], report: ReadProgress
) -> TopicRun:
    """Let a system read the topic; raise HeadraceError if it cannot start or rejects a query."""
    with contextlib.ExitStack() as stack:
        scratch = tempfile.mkdtemp(prefix="headrace-bench-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        collector = stack.enter_context(ResultCollector())
        address = TopicAddress(topic.brokers, topic.name, f"bench-{uuid.uuid4().hex[:12]}")
        streams = tuple(SutStream(stream) for stream in scenario.streams)
        queries = scenario.initial_queries()
        config = SutConfig("", collector.address, Path(scratch), streams, queries, options, topic=address)
        progress = CommittedOffsets(address, scenario.streams[0].partitions)
        stack.callback(progress.close)
        system = stack.enter_context(SutProcess(sut, config))
        ready = system.wait_ready(READY_TIMEOUT_SECONDS)
        _check_refusals(sut, system.events())
        started_us = time.time_ns() // 1_000
        with ResourceSampler(system.pids, state=system.state) as sampler:
            observed = _observe(system, progress, scenario, topic.rows, report)
            samples = sampler.get_samples()
        time.sleep(_LAST_RESULTS_SECONDS)
        emissions = collector.take()
        silent = {query.name for query in queries} - set(emissions.query_names)
        settings = {**ready.settings, "messages": topic.rows, "message_bytes": round(topic.message_bytes, 1)}
        assert scenario.topic is not None
        measure = partial(_measure_throughput, emissions, queries, scenario.topic, started_us)
        return TopicRun(judge_progress(observed, scenario, topic.rows, samples, silent, measure), ready.versions, settings)


def _measure_throughput(
    emissions: Emissions, queries: Sequence[BenchQuery], topic: TopicSpec, started_us: int, start: float, stop: float
) -> DataThroughput | None:
    """Return the rows/s of each query between two seconds of the run."""
    life = QueryLife(started_us + int(start * 1e6), started_us + int(stop * 1e6))
    lives = dict.fromkeys((query.name for query in queries), life)
    return measure_data_throughput(emissions, {query.name: query for query in queries}, lives, topic, life.length_us)


def _check_refusals(sut: str, events: Sequence[SutEvent]) -> None:
    for event in events:
        if event.event in {"refused", "failed"}:
            raise HeadraceError(
                f"{sut} cannot run query '{event.query}'" if event.query else f"{sut} failed", detail=event.reason
            )


@dataclass(slots=True)
class ObservedProgress:
    """Rows that the broker knows as read, each time there are more, with the second of the observation."""

    second: list[float] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def add(self, second: float, read: int) -> bool:
        """Add an observation; return whether there are more rows than before."""
        if self.read and read <= self.read[-1]:
            return False
        self.second.append(second)
        self.read.append(read)
        return True


def _observe(
    system: SutProcess, progress: CommittedOffsets, scenario: Scenario, rows: int, report: ReadProgress
) -> ObservedProgress:
    """Follow the progress until all is read, or the time is over; raise HeadraceError if the system fails or stands still."""
    observed, started = ObservedProgress(), time.monotonic()
    last = 0.0
    while True:
        alive, second = system.alive, time.monotonic() - started
        read = progress.count()
        if observed.add(second, read):
            last = second
            report(read, rows, second)
        _check_refusals(system.system, system.events())
        if not alive:
            raise HeadraceError(f"{system.system} ended during the run", detail=system.tail())
        if read >= rows or (second > scenario.seconds and len(observed.read) > 1):
            return observed
        if second - last > _IDLE_SECONDS:
            raise HeadraceError(f"{system.system} committed nothing for {_IDLE_SECONDS:g} s, at {read:,} of {rows:,} messages")
        time.sleep(_POLL_SECONDS)


def judge_progress(
    observed: ObservedProgress,
    scenario: Scenario,
    rows: int,
    samples: Sequence[ResourceSample],
    silent: set[str],
    measure: ThroughputOfQueries,
) -> MeasuredRun | FailedRun:
    """Return the figures of a run, or why it has none."""
    if silent:
        return FailedRun(f"{len(silent)} of {scenario.initial_count} queries had no result, such as {min(silent)}")
    first = next(
        (
            number
            for number, (second, read) in enumerate(zip(observed.second, observed.read, strict=True))
            if read and (read >= scenario.warm_up * rows or second >= scenario.warm_up * scenario.seconds)
        ),
        len(observed.read),
    )
    if len(observed.read) - first < _MIN_POINTS:
        return FailedRun(
            f"only {len(observed.read) - first} commits after the warm-up: the topic is too small, or the time too short"
        )
    rate = (observed.read[-1] - observed.read[first]) / (observed.second[-1] - observed.second[first])
    start, stop = observed.second[first], observed.second[-1]
    nothing = LatencyFigures(Histogram.from_values([]))
    return MeasuredRun(
        rate,
        rate,
        True,
        rate,
        nothing,
        nothing,
        ThroughputSeries(tuple(observed.second), (rows,) * len(observed.read), tuple(observed.read)),
        tuple(sample for sample in samples if start <= sample.second <= stop),
        data_throughput=measure(start, stop),
    )
