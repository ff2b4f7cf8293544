"""Run the physical limit: a single query, hand-written for this benchmark, in one process.

A thread for each partition pulls Arrow batches of the needed columns and aggregates them in a compiled loop without the GIL;
another thread closes windows as the slowest partition passes their end. There is no SQL, no plan, no checkpoint and no second
query, so the rate is an upper bound for this machine.

The kernel filters, slices and sums in one pass over the rows, into dense arrays of sums and counts by [slice, key], which are
combined when a window closes. Slices are numbered by time, and slice number s is in row s % slices: the arrays are a ring of
`slices` slices from the oldest open one on, and the rows of closed slices are reused. Rows arrive almost in time order, so the
slice of the previous row is tried first. The caller ensures that keys fit and that all slices of a call are open.
"""

from __future__ import annotations

import importlib.metadata
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from headrace.bench.queries.dialects import AggregationShape, ColumnComparison
from headrace.bench.queries.query import BenchQuery
from headrace.bench.systems.adapter import (
    AlignedWindows,
    EventTimeClock,
    PartitionPuller,
    QueryStatusReporter,
    ResultSender,
    SutConfig,
    SutDescription,
)
from headrace.bench.systems.process import serve
from headrace.errors import HeadraceError


@njit(cache=True, nogil=True)
def accumulate_rows(keys: Any, values: Any, times: Any, length: int, counts: Any, sums: Any) -> None:
    """Add rows to `counts` and `sums`."""
    slices = counts.shape[0]
    start, stop, row = 1, 1, 0
    for i in range(len(times)):
        time = times[i]
        if time < start or time >= stop:
            number = time // length
            start, stop, row = number * length, (number + 1) * length, number % slices
        counts[row, keys[i]] += 1
        sums[row, keys[i]] += values[i]


@njit(cache=True, nogil=True)
def accumulate_matching_rows(
    keys: Any, values: Any, times: Any, length: int, counts: Any, sums: Any, tested: Any, low: float, high: float, outside: bool
) -> None:
    """Add the rows whose `tested` value is within [low, high], or outside of it if `outside` is true."""
    slices = counts.shape[0]
    start, stop, row = 1, 1, 0
    for i in range(len(times)):
        time = times[i]
        if time < start or time >= stop:
            number = time // length
            start, stop, row = number * length, (number + 1) * length, number % slices
        if (low <= tested[i] <= high) != outside:
            counts[row, keys[i]] += 1
            sums[row, keys[i]] += values[i]


Integers = npt.NDArray[np.int64]

_INITIAL_KEYS = 1 << 10
_MAX_KEYS = 1 << 25
_SUPPORTED_FUNCTIONS = {"SUM", "AVG", "COUNT"}


class LimitState:
    """The partial sums and counts of a partition. The caller must hold a lock around each call."""

    def __init__(self, slices: int, keys: int, *, integer: bool) -> None:
        """Allocate `slices` open slices and, initially, `keys` keys."""
        self._sum_type = np.int64 if integer else np.float64
        self.counts = np.zeros((slices, max(keys, 1)), np.int64)
        self.sums = np.zeros((slices, max(keys, 1)), self._sum_type)

    def ensure_key(self, key: int) -> None:
        """Grow the arrays to hold a key; raise HeadraceError for keys too large for dense arrays."""
        keys = self.counts.shape[1]
        if key < keys:
            return
        if key >= _MAX_KEYS:
            raise HeadraceError(
                f"key {key} is too large for the hand-written kernel, whose arrays have an entry for every smaller key"
            )
        width = ((0, 0), (0, max(key + 1, 2 * keys) - keys))
        self.counts, self.sums = np.pad(self.counts, width), np.pad(self.sums, width)

    def sum_slices(self, slices: Sequence[int]) -> tuple[Integers, npt.NDArray[Any]]:
        """Return counts and sums by key over the given slices."""
        rows = [number % len(self.counts) for number in slices]
        return self.counts[rows].sum(axis=0), self.sums[rows].sum(axis=0)

    def clear_slices(self, slices: Sequence[int]) -> None:
        """Reset slices for reuse."""
        rows = [number % len(self.counts) for number in slices]
        self.counts[rows] = 0
        self.sums[rows] = 0


@dataclass(frozen=True, slots=True)
class RangePredicate:
    """A comparison with a number, as a closed interval or its complement."""

    column: str
    low: float
    high: float
    outside: bool

    @staticmethod
    def from_comparison(predicate: ColumnComparison, *, integer: bool) -> RangePredicate:
        """Return the interval for a comparison of an integer or floating-point column."""
        value = predicate.value
        below = math.ceil(value) - 1 if integer else math.nextafter(value, -math.inf)
        above = math.floor(value) + 1 if integer else math.nextafter(value, math.inf)
        low, high = {
            "<": (-math.inf, below),
            "<=": (-math.inf, value),
            ">": (above, math.inf),
            ">=": (value, math.inf),
            "=": (value, value),
            "<>": (value, value),
        }[predicate.operator]
        return RangePredicate(predicate.column, low, high, predicate.operator == "<>")


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """The columns to read and aggregate; `key` is None for a single group, `value` is None if there is only COUNT(*)."""

    stream: str
    key: str | None
    value: str | None
    integer: bool
    predicate: RangePredicate | None
    time: str = "time"

    @staticmethod
    def from_shape(shape: AggregationShape, floats: Sequence[str]) -> LimitPlan:
        """Return the plan of a shape; raise HeadraceError if it is unsupported. `floats` are the floating-point columns."""
        summed = {measure.column for measure in shape.aggregates if measure.function != "COUNT"}
        if (
            any(measure.function not in _SUPPORTED_FUNCTIONS for measure in shape.aggregates)
            or len(summed) > 1
            or len(shape.keys) > 1
        ):
            raise HeadraceError("the hand-written kernel sums only one column by one key")
        value = next(iter(summed), None)
        test = None
        if shape.predicate is not None:
            test = RangePredicate.from_comparison(shape.predicate, integer=shape.predicate.column not in floats)
        return LimitPlan(shape.stream, next(iter(shape.keys), None), value, value not in floats, test)

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        candidates = (self.key, self.value, self.predicate.column if self.predicate else None, self.time)
        return list(dict.fromkeys(name for name in candidates if name is not None))

    def add_rows(self, state: LimitState, columns: dict[str, npt.NDArray[Any]], length: int) -> None:
        """Add rows to the state."""
        times = columns[self.time]
        keys = columns[self.key] if self.key else np.zeros(len(times), np.int32)
        values = columns[self.value] if self.value else keys
        state.ensure_key(int(keys.max()))
        if self.predicate is None:
            accumulate_rows(keys, values, times, length, state.counts, state.sums)
        else:
            test = self.predicate
            tested = columns[test.column]
            accumulate_matching_rows(
                keys, values, times, length, state.counts, state.sums, tested, test.low, test.high, test.outside
            )


def choose_initial_keys(keys: int) -> int:
    """Return the number of keys to allocate initially."""
    return max(_INITIAL_KEYS, min(keys, _MAX_KEYS))


_ROWS_PER_READ = 1 << 17
_IDLE_SLEEP_S = 0.005  # seconds
_MAX_AHEAD_US = 4_000_000  # microseconds that a partition can be ahead of the slowest
_SINGLE_QUERY_ONLY = "the hand-written kernel runs a single query"


class LimitAdapter:
    """The adapter of the hand-written kernel."""

    def __init__(self) -> None:
        """Create the adapter; `start` starts the threads."""
        self._limit_run: LimitRun | None = None

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """See `SutAdapter`."""
        self._reporter = reporter
        for query in config.queries[1:]:
            reporter.report_refused(query.name, _SINGLE_QUERY_ONLY)
        for query in config.queries[:1]:
            try:
                self._limit_run = LimitRun(config, query)
            except HeadraceError as error:
                reporter.report_refused(query.name, str(error))
        versions = {name: importlib.metadata.version(name) for name in ("numba", "numpy", "pyarrow")}
        return SutDescription(
            versions, {"threads": "one per partition", "rows_per_read": _ROWS_PER_READ, "columns": "needed ones only"}
        )

    def limit_nodes(self) -> None:
        """There are no nodes."""

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`; the hand-written program supports no changes."""
        for query in added:
            self._reporter.report_refused(query.name, _SINGLE_QUERY_ONLY)
        if removed:
            raise HeadraceError(f"removing query '{removed[0]}' is not supported", detail=_SINGLE_QUERY_ONLY)

    def read_component_seconds(self) -> Mapping[str, float]:
        """See `SutAdapter`; this system does not measure them."""
        return {}

    def check(self) -> None:
        """See `SutAdapter`."""
        if self._limit_run is not None and self._limit_run.failure is not None:
            raise self._limit_run.failure

    def close(self) -> None:
        """See `SutAdapter`; the threads end with the process."""


@dataclass(frozen=True, slots=True)
class LimitStream:
    """An input stream with the state of its partitions."""

    plan: LimitPlan
    partitions: list[LimitPartition]

    def sum_slices(self, slices: Sequence[int]) -> tuple[Any, Any]:
        """Return counts and sums by key over all partitions."""
        parts = []
        for lane in self.partitions:
            with lane.lock:
                parts.append(lane.state.sum_slices(slices))
        keys = max(len(counts) for counts, _ in parts)
        counts = sum(np.pad(counts, (0, keys - len(counts))) for counts, _ in parts)
        return counts, sum(np.pad(sums, (0, keys - len(sums))) for _, sums in parts)


class LimitPartition:
    """A partition of a stream, and its state."""

    def __init__(self, plan: LimitPlan, puller: PartitionPuller, state: LimitState) -> None:
        """Create the partition without rows."""
        self.plan, self.puller, self.state = plan, puller, state
        self.lock = threading.Lock()


class LimitRun:
    """The running query: its threads and its state."""

    def __init__(self, config: SutConfig, query: BenchQuery) -> None:
        """Start the threads; raise HeadraceError for a query that the kernel does not support."""
        if query.shape is None:
            raise HeadraceError("the hand-written kernel supports only aggregations by key")
        self._query_name, self._windows = query.name, AlignedWindows(query.size_us, query.slide_us)
        shapes = [query.shape] if query.shape.minus is None else [query.shape, query.shape.minus]
        delay = max(config.get_stream(shape.stream).spec.watermark for shape in shapes)
        self._watermark_delay_us = int(delay * 1e6)
        self._slice_count = (
            query.size_us + query.slide_us + self._watermark_delay_us + _MAX_AHEAD_US
        ) // self._windows.slice_length + 2
        self._oldest_slice: int | None = None  # the oldest open slice
        self._slices_freed = threading.Condition()
        self._result_sender = ResultSender(config.collector)
        self.failure: HeadraceError | None = None
        self._streams = []
        for shape in shapes:
            floats = [field.name for field in config.get_stream(shape.stream).schema if pa.types.is_floating(field.type)]
            self._streams.append(self._open_stream(config, LimitPlan.from_shape(shape, floats)))
        self._partitions = [lane for side in self._streams for lane in side.partitions]
        self._clock = EventTimeClock(self._partitions)
        for lane in self._partitions:
            self._compile_kernel(lane, config)
            threading.Thread(target=self._run_guarded, args=(self._pull_rows, lane), daemon=True).start()
        threading.Thread(target=self._run_guarded, args=(self._close_windows,), daemon=True).start()

    def _open_stream(self, config: SutConfig, plan: LimitPlan) -> LimitStream:
        spec = config.get_stream(plan.stream).spec
        keys = choose_initial_keys(spec.keys if plan.key == spec.key_column else 0)
        lanes = []
        for partition in range(spec.partitions):
            puller = PartitionPuller(config.driver, plan.stream, partition, "limit", plan.columns)
            lanes.append(LimitPartition(plan, puller, LimitState(self._slice_count, keys, integer=plan.integer)))
        return LimitStream(plan, lanes)

    def _compile_kernel(self, lane: LimitPartition, config: SutConfig) -> None:
        """Compile the kernel for these types by adding a row of zeros, and clear it again."""
        schema = config.get_stream(lane.plan.stream).schema.to_arrow()
        row = {name: np.zeros(1, _numpy_type_of(schema.field(name).type)) for name in lane.plan.columns}
        lane.plan.add_rows(lane.state, row, self._windows.slice_length)
        lane.state.clear_slices([0])

    def _run_guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  `check` reports it
            self.failure = (
                error if isinstance(error, HeadraceError) else HeadraceError("the hand-written kernel failed", detail=repr(error))
            )

    def _pull_rows(self, lane: LimitPartition) -> None:
        while self.failure is None:
            table = lane.puller.read(_ROWS_PER_READ)
            if table is None:
                self._clock.mark_empty(lane)
                time.sleep(_IDLE_SLEEP_S)
                continue
            for batch in table.to_batches():
                self._add_rows(lane, {name: _to_numpy(batch.column(name)) for name in lane.plan.columns})

    def _add_rows(self, lane: LimitPartition, columns: dict[str, npt.NDArray[Any]]) -> None:
        times = columns[lane.plan.time]
        earliest, latest = int(times.min()), int(times.max())
        oldest = self._wait_for_slice(earliest, latest)
        if earliest // self._windows.slice_length < oldest:  # drop late rows
            in_time = times >= oldest * self._windows.slice_length
            columns = {name: values[in_time] for name, values in columns.items()}
        if len(columns[lane.plan.time]):
            with lane.lock:
                lane.plan.add_rows(lane.state, columns, self._windows.slice_length)
        self._clock.advance(lane, latest)

    def _wait_for_slice(self, earliest: int, latest: int) -> int:
        """Wait until the slice of `latest` has room; return the oldest open slice."""
        with self._slices_freed:
            if self._oldest_slice is None:
                self._oldest_slice = (earliest - self._watermark_delay_us) // self._windows.slice_length - 1
            while latest // self._windows.slice_length >= self._oldest_slice + self._slice_count and self.failure is None:
                self._slices_freed.wait(_IDLE_SLEEP_S)
            return self._oldest_slice

    def _close_windows(self) -> None:
        """Emit each window once all partitions have passed its end."""
        closed_until: int | None = None
        while self.failure is None:
            time.sleep(_IDLE_SLEEP_S)
            event_time = self._clock.get_event_time()
            if event_time is None:
                continue
            watermark = event_time - self._watermark_delay_us
            closed_until = watermark - self._windows.slide if closed_until is None else closed_until
            for end in self._windows.ends_between(closed_until, watermark):
                self._emit_window(end)
            closed_until = max(closed_until, watermark)

    def _emit_window(self, end: int) -> None:
        slices = self._windows.slices_of(end)
        counts, sums = self._streams[0].sum_slices(slices)
        present = counts > 0
        if len(self._streams) > 1:
            counts, subtracted = self._streams[1].sum_slices(slices)
            keys = min(len(present), len(counts))
            present = present[:keys] & (counts[:keys] > 0)
            sums = sums[:keys] - subtracted[:keys]
        results = sums[present]
        if len(results):
            self._result_sender.send(self._query_name, [(end, len(results))])
        self._free_slices(slices.start + self._windows.slide // self._windows.slice_length)

    def _free_slices(self, first: int) -> None:
        """Close and free the slices before `first`, the first slice of the next window."""
        with self._slices_freed:
            assert self._oldest_slice is not None
            closed = range(max(self._oldest_slice, first - self._slice_count), first)
            for lane in self._partitions:
                with lane.lock:
                    lane.state.clear_slices(closed)
            self._oldest_slice = max(self._oldest_slice, first)
            self._slices_freed.notify_all()


def _to_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column without NULLs, without a copy."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return values


def _numpy_type_of(kind: pa.DataType) -> Any:
    return np.int64 if pa.types.is_timestamp(kind) else kind.to_pandas_dtype()


if __name__ == "__main__":
    serve(LimitAdapter())
