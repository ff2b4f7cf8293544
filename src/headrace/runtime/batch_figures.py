"""Figures of a micro-batch beyond its counts: time by step, input by stream, rows and state by operator and partition."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.connectors import Position
from headrace.engine.batch_job import MapReport, ReduceReport, StoreCounts
from headrace.engine.joins.kept_pairs import PairCounts
from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.model.window import SessionWindow
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime.batch_log import BatchLogEntry
from headrace.runtime.engine_state import EngineState

LagCounter = Callable[[str, Position], int | None]


class StepTimer:
    """Measures the steps of a batch; a step that runs several times counts as a whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without steps; `clock` returns seconds."""
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, step: str) -> Iterator[None]:
        """Add the time of the block to a step."""
        started = self._clock()
        try:
            yield
        finally:
            self._seconds[step] = self._seconds.get(step, 0.0) + self._clock() - started

    def take(self) -> dict[str, float]:
        """Return the seconds by step, and start anew."""
        seconds, self._seconds = self._seconds, {}
        return seconds


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """A stream in a batch: positions before and after it, rows read, the watermark afterwards, rows that were late for queries.

    A row that is late for three queries counts three times. `watermark` is None before the first row, and when every window is
    closed. `lag` is the number of rows that the source has beyond `end`, where it knows.
    """

    start: Position
    end: Position
    rows: int = 0
    watermark: int | None = None
    late_rows: int = 0
    lag: int | None = None


@dataclass(slots=True)
class OperatorFigures:
    """Operators of one kind in one partition: rows received and emitted in a batch; bytes and rows of state after it."""

    rows_in: int = 0
    rows_out: int = 0
    state_bytes: int = 0
    state_rows: int = 0

    def add_state(self, size: int, rows: int) -> None:
        """Add a piece of state."""
        self.state_bytes += size
        self.state_rows += rows

    def add(self, other: OperatorFigures) -> None:
        """Add the figures of another partition."""
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.state_bytes += other.state_bytes
        self.state_rows += other.state_rows


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """The figures of a batch: seconds by step, streams by name, operators by (kind, partition), stores by (number, partition).

    The kinds are aggregation, sessions, join and stateless; the stores are those of sliding joins.
    """

    steps: Mapping[str, float] = field(default_factory=dict)
    streams: Mapping[str, StreamFigures] = field(default_factory=dict)
    operators: Mapping[tuple[str, int], OperatorFigures] = field(default_factory=dict)
    stores: Mapping[tuple[int, int], StoreCounts] = field(default_factory=dict)
    window_pairs: Mapping[int, PairCounts] = field(default_factory=dict)
    """The pairs of joins in TUMBLE and HOP windows, by partition."""

    components: Mapping[str, float] = field(default_factory=dict)
    """Seconds of all tasks together by component; their sum is the work of the tasks, however many ran at a time."""

    def sum_by_kind(self) -> dict[str, OperatorFigures]:
        """Return the figures of each kind of operator over all partitions."""
        totals: dict[str, OperatorFigures] = {}
        for (kind, _), figures in sorted(self.operators.items()):
            totals.setdefault(kind, OperatorFigures()).add(figures)
        return totals


def collect_stream_figures(
    before: EngineState, after: EngineState, entry: BatchLogEntry, reports: Sequence[MapReport], count_lag: LagCounter
) -> dict[str, StreamFigures]:
    """Return the figures of every declared stream after a batch."""
    late: Counter[str] = Counter()
    for report in reports:
        for (_, name), rows in report.late_rows.items():
            late[name] += rows
    figures = {}
    for name, stream in after.declared_streams().items():
        start = before.streams[name].position if name in before.streams else None
        end = entry.positions.get(name, start)
        mark = after.watermark_of((name,))
        rows = sum(report.row_counts.get(name, 0) for report in reports)
        watermark = None if mark in {MIN_TIME, MAX_TIME} else mark
        figures[stream.stream.name] = StreamFigures(start, end, rows, watermark, late[name], count_lag(name, end))
    return figures


def sum_component_seconds(map_reports: Sequence[MapReport], reports: Sequence[ReduceReport]) -> dict[str, float]:
    """Return the seconds of all tasks by component."""
    totals: Counter[str] = Counter()
    for seconds in (report.component_seconds for some_reports in (map_reports, reports) for report in some_reports):
        totals.update(seconds)
    return dict(totals)


def collect_operator_figures(
    state: EngineState, live: Mapping[int, LiveQuery], reports: Sequence[ReduceReport]
) -> dict[tuple[str, int], OperatorFigures]:
    """Return rows and state by kind of operator and partition."""
    kinds = {number: find_operator_kind(query.plan) for number, query in live.items()}
    figures: dict[tuple[str, int], OperatorFigures] = defaultdict(OperatorFigures)
    for report in reports:
        for kind, rows in report.input_rows.items():
            figures[kind, report.partition].rows_in += rows
        emitted: Counter[str] = Counter()
        for number, rows in report.emitted_rows.items():
            emitted[kinds.get(number, "")] += rows
        for kind, rows in emitted.items():
            if kind:  # rows of queries that failed in this batch have none
                figures[kind, report.partition].rows_out += rows
    for kind, refs in (
        ("aggregation", state.aggregation_refs),
        ("sessions", state.session_refs),
        ("join", state.join_buffer_refs),
    ):
        for ref in refs:
            figures[kind, ref.partition].add_state(ref.bytes, ref.rows)
    for segment in state.store_refs:
        figures["join", segment.partition].add_state(segment.bytes, segment.row_count)
    return dict(figures)


def collect_store_counts(state: EngineState, reports: Sequence[ReduceReport]) -> dict[tuple[int, int], StoreCounts]:
    """Return the work at each store of sliding joins by partition, also of stores that only hold rows."""
    counts: dict[tuple[int, int], StoreCounts] = defaultdict(StoreCounts)
    for ref in state.store_refs:
        counts[ref.store, ref.partition] = StoreCounts()
    for report in reports:
        for store, store_counts in report.store_counts.items():
            counts[store, report.partition].add(store_counts)
    return dict(counts)


def collect_pair_counts(reports: Sequence[ReduceReport]) -> dict[int, PairCounts]:
    """Return the pairs of joins in TUMBLE and HOP windows by partition, where there are any look-ups or pairs."""
    counts: dict[int, PairCounts] = defaultdict(PairCounts)
    for report in reports:
        if report.pair_counts.has_work:
            counts[report.partition].add(report.pair_counts)
    return dict(counts)


def find_operator_kind(plan: LogicalQuery) -> str:
    """Return the kind of the operator that emits the results of a query: aggregation, sessions, join or stateless."""
    if isinstance(plan, AggregateQuery):
        return "sessions" if isinstance(plan.window, SessionWindow) else "aggregation"
    return "join" if isinstance(plan, WindowJoinQuery | SlidingJoinQuery) else "stateless"
