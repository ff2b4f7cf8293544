"""Metrics of micro-batches and queries: batch reports, totals of tasks, state bytes by query, and event-time latency of results.

Shared state is divided evenly among the queries that use it. Latency is the time from the end of a window, or from the time of a
row, until the results can be read. It is not measured per row: the watermarks before and after a micro-batch determine which
windows closed in it, and the oldest of those windows has the greatest latency.

Totals of tasks and operators have labels whose number is bounded: the partitions from the 64th on, and the map tasks from the
64th on, are one label, "63+". There are four kinds of operators, so that at most 256 series of each metric exist, however many
queries and partitions there are.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from headrace.engine.batch_job import StoreCounts
from headrace.engine.joins.kept_pairs import PairCounts
from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.model.window import SessionWindow, WindowEnds, ends_of_window
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.changelog import root_query_id
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime.batch_figures import BatchFigures
from headrace.runtime.batch_log import BatchLogEntry
from headrace.runtime.commands import DropStream
from headrace.runtime.engine_state import EngineState

_BATCHES_KEPT = 1_000
DETAILED_BATCHES = 60
MAX_LABELS = 64

OperatorKey: TypeAlias = tuple[str, str]
"""The kind of an operator and the label of a partition."""


class EventTimeMarks(NamedTuple):
    """Event-time marks of a set of streams: the common watermark, and the event time that rows of every stream have reached."""

    watermark: int
    newest: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The outcome of a micro-batch.

    `rows` were read and `emitted` rows written; `added`, `removed` and `failed` hold query ids. `changes` describes plan changes
    as (kind, text), where the kind is "epoch", "replan" or "drop".
    """

    batch: int
    rows: int
    emitted: int
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    stage_one_seconds: float = 0.0  # of the slowest task
    stage_two_seconds: float = 0.0  # of the slowest partition
    emitted_by: Mapping[int, int] = field(default_factory=dict)
    changes: tuple[tuple[str, str], ...] = ()
    marks: Mapping[tuple[str, ...], EventTimeMarks] = field(default_factory=dict)
    """The event-time marks of each set of streams that live queries read."""
    live: int = 0  # live queries after the batch
    partitions: int = 0
    map_seconds: tuple[float, ...] = ()  # by task
    reduce_seconds: tuple[float, ...] = ()  # by partition, over all stages; empty if the batch ran no job
    split_hashes: tuple[int | None, ...] = ()  # by partition: the hash that divides its load, if it was looked for
    figures: BatchFigures = field(default_factory=BatchFigures)


class CommittedBatch(NamedTuple):
    """A committed micro-batch: its report, its commit time in seconds since 1970, and its duration in seconds.

    `delivery_seconds` is the part of the duration in which its rows were passed on after the commit.
    """

    report: BatchReport
    at: float
    seconds: float
    delivery_seconds: float = 0.0


class BatchHistory:
    """The most recent micro-batches of a session, oldest first; only the newest have counts by query, stream and partition."""

    def __init__(self) -> None:
        """Create an empty history."""
        self._batches: deque[CommittedBatch] = deque(maxlen=_BATCHES_KEPT)

    def append(self, batch: CommittedBatch) -> None:
        """Add a batch; drop the details of an older one: those of thousands of queries would take much memory."""
        self._batches.append(batch)
        if len(self._batches) > DETAILED_BATCHES:
            old = self._batches[-DETAILED_BATCHES - 1]
            report = replace(
                old.report, emitted_by={}, map_seconds=(), reduce_seconds=(), split_hashes=(), figures=BatchFigures()
            )
            self._batches[-DETAILED_BATCHES - 1] = old._replace(report=report)

    def list_all(self) -> list[CommittedBatch]:
        """Return all batches, oldest first."""
        return list(self._batches)

    def list_detailed(self) -> list[tuple[BatchReport, float]]:
        """Return report and commit time of the batches with row counts, and of the one before them."""
        return [(batch.report, batch.at) for batch in self.list_all()[-DETAILED_BATCHES - 1 :]]


def describe_plan_changes(before: EngineState, after: EngineState, entry: BatchLogEntry) -> tuple[tuple[str, str], ...]:
    """Return (kind, text) of every plan change of a batch: new epochs, dropped streams, new join plans, a new partition count."""
    events = []
    for name, stream in after.declared_streams().items():
        previous = before.streams.get(name)
        if stream.epochs and (previous is None or previous.epochs[-1:] != stream.epochs[-1:]):
            events.append(("epoch", f"epoch {stream.epochs[-1].number} of stream {name} begins"))
    events += [("drop", f"stream {command.name} was dropped") for command in entry.commands if isinstance(command, DropStream)]
    for number in entry.join_orders:
        query = after.queries.get(number)
        events.append(("replan", f"join {query.name if query else number}: join order changed"))
    if entry.probe_orders is not None:
        events.append(("replan", "joins in SLIDING windows: probe orders changed"))
    if before.partition_map != after.partition_map:
        reason = f": {entry.rescale_reason}" if entry.rescale_reason else ""
        events.append(("replan", f"partitions {before.partitions} → {after.partitions}{reason}"))
    return tuple(events)


def attribute_state_bytes(state: EngineState, probes: SlidingJoinPlan | None) -> dict[int, int]:
    """Return the state bytes of each live query, by id; shared state is divided evenly among its users."""
    live = {root_query_id(query.id) for query in state.live_queries()}
    shares: dict[int, float] = dict.fromkeys(live, 0.0)

    def divide(count: int, queries: Iterable[int]) -> None:
        users = {root_query_id(number) for number in queries} & live
        for number in users:
            shares[number] += count / len(users)

    plans = {epoch.number: epoch.plan for stream in state.streams.values() for epoch in stream.epochs}
    for refs, operators in ((state.aggregation_refs, "aggregations"), (state.join_buffer_refs, "join_buffers")):
        sizes: Counter[tuple[int, int]] = Counter()
        for ref in refs:
            sizes[ref.epoch, ref.operator] += ref.bytes
        for (epoch, store), count in sizes.items():
            if epoch in plans:
                operator = getattr(state.plans[plans[epoch]], operators)[store]
                divide(count, (subscriber.query_id for subscriber in operator.subscribers))
    for session in state.session_refs:
        divide(session.bytes, [session.query_id])
    store_users = _map_store_users(probes)
    for segment in state.store_refs:
        divide(segment.bytes, store_users[segment.store])
    return {number: round(count) for number, count in shares.items()}


def _map_store_users(probes: SlidingJoinPlan | None) -> dict[int, set[int]]:
    """Return the queries that use each state store of sliding joins."""
    queries: dict[int, set[int]] = defaultdict(set)
    if probes is not None:
        for _, probe in probes.probes:
            queries[probe.store_number] |= probe.query_ids
        for step in probes.unmatched_steps:
            for number in (step.store_number, *(probe.store_number for probe in step.probes)):
                queries[number] |= step.query_ids
        for store, uses in probes.used_since.items():
            queries[store] |= set(uses)
    return queries


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Percentiles of latency in seconds: of the greatest latency of each recent micro-batch in which a query emitted rows."""

    p50: float
    p95: float


def measure_latencies(
    batches: Iterable[tuple[BatchReport, float]], live: Mapping[int, LiveQuery]
) -> dict[int, LatencyPercentiles]:
    """Return the latency of each live query that emitted rows, by id.

    `batches` are consecutive micro-batches, each with its commit time in seconds since 1970.
    """
    waits: dict[int, list[float]] = defaultdict(list)
    for (before, _), (after, at) in pairwise(batches):
        for number in after.emitted_by:
            query = live.get(number)
            oldest = None if query is None else _oldest_result_time(query.plan, before, after)
            if oldest is not None:
                waits[number].append(at - oldest / 1e6)
    return {number: compute_percentiles(seconds) for number, seconds in waits.items()}


def compute_percentiles(values: Sequence[float]) -> LatencyPercentiles:
    """Return the 50th and 95th percentile of at least one value."""
    ordered = sorted(values)
    return LatencyPercentiles(*(ordered[round(part * (len(ordered) - 1))] for part in (0.5, 0.95)))


def _oldest_result_time(plan: LogicalQuery, before: BatchReport, after: BatchReport) -> int | None:
    """Return the event time of the oldest results of a micro-batch; None if it is unknown."""
    unknown = EventTimeMarks(MIN_TIME, MIN_TIME)
    begin, end = (report.marks.get(plan.streams, unknown) for report in (before, after))
    if begin.watermark == MIN_TIME or end.watermark in {MIN_TIME, MAX_TIME}:
        return None
    ends = _window_ends(plan)
    if ends is not None:
        return next(iter(ends.ends_between(begin.watermark, end.watermark)), None)
    return begin.watermark if isinstance(plan, AggregateQuery) else begin.newest  # sessions may end at any time


def _window_ends(plan: LogicalQuery) -> WindowEnds | None:
    if isinstance(plan, WindowJoinQuery):
        return plan.ends
    if isinstance(plan, AggregateQuery) and not isinstance(plan.window, SessionWindow):
        return ends_of_window(plan.window)
    return None


def make_label(number: int) -> str:
    """Return the label of a partition or a task."""
    last = MAX_LABELS - 1
    return str(number) if number < last else f"{last}+"


@dataclass(slots=True)
class TotalFigures:
    """Seconds by step, by map task and by partition; rows by operator; and the state after the last batch by operator.

    `stores` has the work at the stores of sliding joins by number and partition, as long as they have rows;
    `window_pairs` the pairs of joins in TUMBLE and HOP windows by partition.
    """

    step_seconds: dict[str, float] = field(default_factory=dict)
    map_seconds: dict[str, float] = field(default_factory=dict)
    reduce_seconds: dict[str, float] = field(default_factory=dict)
    rows_in: Counter[OperatorKey] = field(default_factory=Counter)
    rows_out: Counter[OperatorKey] = field(default_factory=Counter)
    state_bytes: Counter[OperatorKey] = field(default_factory=Counter)
    state_rows: Counter[OperatorKey] = field(default_factory=Counter)
    stores: dict[tuple[int, str], StoreCounts] = field(default_factory=dict)
    store_totals: dict[str, StoreCounts] = field(default_factory=dict)
    window_pairs: dict[str, PairCounts] = field(default_factory=dict)

    def copy(self) -> TotalFigures:
        """Return an independent copy."""
        return copy.deepcopy(self)


class TaskTotals:
    """Sums the figures of batches. Thread-safe."""

    def __init__(self) -> None:
        """Start with zeros."""
        self._lock = threading.Lock()
        self._totals = TotalFigures()

    def add(self, report: BatchReport) -> None:
        """Add the figures of a committed batch."""
        with self._lock:
            totals = self._totals
            _add_seconds(totals.step_seconds, report.figures.steps.items())
            _add_seconds(totals.map_seconds, ((make_label(n), seconds) for n, seconds in enumerate(report.map_seconds)))
            _add_seconds(totals.reduce_seconds, ((make_label(n), seconds) for n, seconds in enumerate(report.reduce_seconds)))
            totals.state_bytes, totals.state_rows = Counter(), Counter()
            for (kind, partition), figures in report.figures.operators.items():
                key = kind, make_label(partition)
                totals.rows_in[key] += figures.rows_in
                totals.rows_out[key] += figures.rows_out
                totals.state_bytes[key] += figures.state_bytes
                totals.state_rows[key] += figures.state_rows
            labelled: dict[tuple[int, str], StoreCounts] = {}
            for (store, partition), counts in report.figures.stores.items():
                label = make_label(partition)
                labelled.setdefault((store, label), StoreCounts()).add(counts)
                totals.store_totals.setdefault(label, StoreCounts()).add(counts)
            for place, counts in labelled.items():
                counts.add(totals.stores.get(place, StoreCounts()))
            totals.stores = labelled
            for partition, pairs in report.figures.window_pairs.items():
                totals.window_pairs.setdefault(make_label(partition), PairCounts()).add(pairs)

    def read(self) -> TotalFigures:
        """Return the totals so far."""
        with self._lock:
            return self._totals.copy()


def _add_seconds(totals: dict[str, float], seconds: Iterable[tuple[str, float]]) -> None:
    for label, value in seconds:
        totals[label] = totals.get(label, 0.0) + value
