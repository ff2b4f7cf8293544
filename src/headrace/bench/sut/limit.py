"""Run the physical limit: a single query, hand-written for this benchmark, in one process.

A thread for each partition pulls Arrow batches of the needed columns and aggregates them in a compiled loop without the GIL;
another thread closes windows as the slowest partition passes their end. There is no SQL, no plan, no checkpoint and no second
query, so the rate is an upper bound for this machine.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import Started, SutConfig, Teller
from headrace.bench.sut.event_clock import EventClock
from headrace.bench.sut.limit_cells import Cells, Plan, first_keys
from headrace.bench.sut.process import serve
from headrace.bench.sut.pull import Puller
from headrace.bench.sut.results import ResultSender
from headrace.bench.sut.windows import Windows
from headrace.errors import HeadraceError

_READ_ROWS = 1 << 17
_NAP = 0.005  # seconds
_AHEAD = 4_000_000  # microseconds that a partition can be ahead of the slowest
_ALONE = "the hand-written kernel runs a single query"


class Limit:
    """The adapter of the hand-written kernel."""

    def __init__(self) -> None:
        """Create the adapter; `start` starts the threads."""
        self._run: Run | None = None

    def start(self, config: SutConfig, reporter: Teller) -> Started:
        """See `SutAdapter`."""
        self._tell = reporter
        for query in config.queries[1:]:
            reporter.refused(query.name, _ALONE)
        for query in config.queries[:1]:
            try:
                self._run = Run(config, query)
            except HeadraceError as error:
                reporter.refused(query.name, str(error))
        versions = {name: importlib.metadata.version(name) for name in ("numba", "numpy", "pyarrow")}
        return Started(versions, {"threads": "one per partition", "rows_per_read": _READ_ROWS, "columns": "needed ones only"})

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`; the hand-written program supports no changes."""
        for query in added:
            self._tell.refused(query.name, _ALONE)
        if removed:
            raise HeadraceError(f"removing query '{removed[0]}' is not supported", detail=_ALONE)

    def check(self) -> None:
        """See `SutAdapter`."""
        if self._run is not None and self._run.failure is not None:
            raise self._run.failure

    def close(self) -> None:
        """See `SutAdapter`; the threads end with the process."""


@dataclass(frozen=True, slots=True)
class Side:
    """An input stream with the state of its partitions."""

    plan: Plan
    lanes: list[Lane]

    def total(self, slices: Sequence[int]) -> tuple[Any, Any]:
        """Return counts and sums by key over all partitions."""
        parts = []
        for lane in self.lanes:
            with lane.lock:
                parts.append(lane.cells.total(slices))
        keys = max(len(counts) for counts, _ in parts)
        counts = sum(np.pad(counts, (0, keys - len(counts))) for counts, _ in parts)
        return counts, sum(np.pad(sums, (0, keys - len(sums))) for _, sums in parts)


class Lane:
    """A partition of a stream, and its state."""

    def __init__(self, plan: Plan, puller: Puller, state: Cells) -> None:
        """Create the partition without rows."""
        self.plan, self.puller, self.cells = plan, puller, state
        self.lock = threading.Lock()


class Run:
    """The running query: its threads and its state."""

    def __init__(self, config: SutConfig, query: BenchQuery) -> None:
        """Start the threads; raise HeadraceError for a query that the kernel does not support."""
        if query.shape is None:
            raise HeadraceError("the hand-written kernel supports only aggregations by key")
        self._name, self._windows = query.name, Windows(query.size_us, query.slide_us)
        shapes = [query.shape] if query.shape.minus is None else [query.shape, query.shape.minus]
        delay = max(config.stream(shape.stream).spec.watermark for shape in shapes)
        self._delay = int(delay * 1e6)
        self._slices = (query.size_us + query.slide_us + self._delay + _AHEAD) // self._windows.length + 2
        self._first: int | None = None  # the oldest open slice
        self._opened = threading.Condition()
        self._results = ResultSender(config.collector)
        self.failure: HeadraceError | None = None
        self._sides = []
        for shape in shapes:
            floats = [field.name for field in config.stream(shape.stream).schema if pa.types.is_floating(field.type)]
            self._sides.append(self._side(config, Plan.of(shape, floats)))
        self._lanes = [lane for side in self._sides for lane in side.lanes]
        self._clock = EventClock(self._lanes)
        for lane in self._lanes:
            self._warm(lane, config)
            threading.Thread(target=self._guarded, args=(self._pull, lane), daemon=True).start()
        threading.Thread(target=self._guarded, args=(self._close,), daemon=True).start()

    def _side(self, config: SutConfig, plan: Plan) -> Side:
        spec = config.stream(plan.stream).spec
        keys = first_keys(spec.keys if plan.key == spec.key_column else 0)
        lanes = []
        for partition in range(spec.partitions):
            puller = Puller(config.driver, plan.stream, partition, "limit", plan.columns)
            lanes.append(Lane(plan, puller, Cells(self._slices, keys, integer=plan.integer)))
        return Side(plan, lanes)

    def _warm(self, lane: Lane, config: SutConfig) -> None:
        """Compile the kernel for these types by adding a row of zeros, and clear it again."""
        schema = config.stream(lane.plan.stream).schema.to_arrow()
        row = {name: np.zeros(1, _numpy(schema.field(name).type)) for name in lane.plan.columns}
        lane.plan.add(lane.cells, row, self._windows.length)
        lane.cells.clear([0])

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  `check` reports it
            self.failure = (
                error if isinstance(error, HeadraceError) else HeadraceError("the hand-written kernel failed", detail=repr(error))
            )

    def _pull(self, lane: Lane) -> None:
        while self.failure is None:
            table = lane.puller.read(_READ_ROWS)
            if table is None:
                self._clock.saw_nothing(lane)
                time.sleep(_NAP)
                continue
            for batch in table.to_batches():
                self._add(lane, {name: _array(batch.column(name)) for name in lane.plan.columns})

    def _add(self, lane: Lane, columns: dict[str, npt.NDArray[Any]]) -> None:
        times = columns[lane.plan.time]
        earliest, latest = int(times.min()), int(times.max())
        oldest = self._open(earliest, latest)
        if earliest // self._windows.length < oldest:  # drop late rows
            in_time = times >= oldest * self._windows.length
            columns = {name: values[in_time] for name, values in columns.items()}
        if len(columns[lane.plan.time]):
            with lane.lock:
                lane.plan.add(lane.cells, columns, self._windows.length)
        self._clock.saw(lane, latest)

    def _open(self, earliest: int, latest: int) -> int:
        """Wait until the slice of `latest` has room; return the oldest open slice."""
        with self._opened:
            if self._first is None:
                self._first = (earliest - self._delay) // self._windows.length - 1
            while latest // self._windows.length >= self._first + self._slices and self.failure is None:
                self._opened.wait(_NAP)
            return self._first

    def _close(self) -> None:
        """Emit each window once all partitions have passed its end."""
        closed_until: int | None = None
        while self.failure is None:
            time.sleep(_NAP)
            event_time = self._clock.now()
            if event_time is None:
                continue
            watermark = event_time - self._delay
            closed_until = watermark - self._windows.slide if closed_until is None else closed_until
            for end in self._windows.ends(closed_until, watermark):
                self._emit(end)
            closed_until = max(closed_until, watermark)

    def _emit(self, end: int) -> None:
        slices = self._windows.slices(end)
        counts, sums = self._sides[0].total(slices)
        present = counts > 0
        if len(self._sides) > 1:
            counts, subtracted = self._sides[1].total(slices)
            keys = min(len(present), len(counts))
            present = present[:keys] & (counts[:keys] > 0)
            sums = sums[:keys] - subtracted[:keys]
        results = sums[present]
        if len(results):
            self._results.send(self._name, [(end, len(results))])
        self._forget(slices.start + self._windows.slide // self._windows.length)

    def _forget(self, first: int) -> None:
        """Close and free the slices before `first`, the first slice of the next window."""
        with self._opened:
            assert self._first is not None
            closed = range(max(self._first, first - self._slices), first)
            for lane in self._lanes:
                with lane.lock:
                    lane.cells.clear(closed)
            self._first = max(self._first, first)
            self._opened.notify_all()


def _array(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column without NULLs, without a copy."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return values


def _numpy(kind: pa.DataType) -> Any:
    return np.int64 if pa.types.is_timestamp(kind) else kind.to_pandas_dtype()


if __name__ == "__main__":
    serve(Limit())
