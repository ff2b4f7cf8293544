"""The physical limit: one query, written by hand for this benchmark, in one process.

A thread for each partition pulls Arrow batches of the columns it needs and adds them up in a compiled loop, which holds no
lock of the interpreter; one more thread closes windows as the slowest partition passes their end. No SQL, no plan, no
checkpoint, no second query: what remains is what the machine can do with these rows.
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
_AHEAD = 4_000_000  # microseconds by which a partition may be ahead of the slowest
_ALONE = "it is a kernel for a single query"


class Limit:
    """The adapter."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._run: Run | None = None

    def start(self, config: SutConfig, tell: Teller) -> Started:
        """See `Adapter`."""
        self._tell = tell
        for query in config.queries[1:]:
            tell.refused(query.name, _ALONE)
        for query in config.queries[:1]:
            try:
                self._run = Run(config, query)
            except HeadraceError as error:
                tell.refused(query.name, str(error))
        versions = {name: importlib.metadata.version(name) for name in ("numba", "numpy", "pyarrow")}
        return Started(versions, {"threads": "one for each partition", "rows_per_read": _READ_ROWS, "columns": "those needed"})

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `Adapter`; there is nothing to add to a program written by hand."""
        for query in added:
            self._tell.refused(query.name, _ALONE)
        if removed:
            raise HeadraceError(f"query '{removed[0]}' cannot be removed", detail=_ALONE)

    def check(self) -> None:
        """See `Adapter`."""
        if self._run is not None and self._run.failure is not None:
            raise self._run.failure

    def close(self) -> None:
        """See `Adapter`; threads end with the process."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the streams, with the cells of its partitions."""

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
    """One partition and its cells."""

    def __init__(self, plan: Plan, puller: Puller, cells: Cells) -> None:
        """Begin before any row."""
        self.plan, self.puller, self.cells = plan, puller, cells
        self.lock = threading.Lock()


class Run:
    """The query while it runs."""

    def __init__(self, config: SutConfig, query: BenchQuery) -> None:
        """Start the threads; raises HeadraceError for a query that the kernel cannot do."""
        if query.shape is None:
            raise HeadraceError("the hand-written kernel knows aggregations by key only")
        self._name, self._windows = query.name, Windows(query.size_us, query.slide_us)
        shapes = [query.shape] if query.shape.minus is None else [query.shape, query.shape.minus]
        delay = max(config.stream(shape.stream).spec.watermark for shape in shapes)
        self._delay = int(delay * 1e6)
        self._slices = (query.size_us + query.slide_us + self._delay + _AHEAD) // self._windows.length + 2
        self._first: int | None = None  # the oldest slice that is open
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
        """Compile the loop for these types, over one row of zeros that leaves no trace."""
        schema = config.stream(lane.plan.stream).schema.to_arrow()
        row = {name: np.zeros(1, _numpy(schema.field(name).type)) for name in lane.plan.columns}
        lane.plan.add(lane.cells, row, self._windows.length)
        lane.cells.clear([0])

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  told by `check`
            self.failure = error if isinstance(error, HeadraceError) else HeadraceError("the kernel failed", detail=repr(error))

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
        if earliest // self._windows.length < oldest:  # later than the watermark allows
            kept = times >= oldest * self._windows.length
            columns = {name: values[kept] for name, values in columns.items()}
        if len(columns[lane.plan.time]):
            with lane.lock:
                lane.plan.add(lane.cells, columns, self._windows.length)
        self._clock.saw(lane, latest)

    def _open(self, earliest: int, latest: int) -> int:
        """Wait until there is room for the slice of `latest`; return the oldest slice that is open."""
        with self._opened:
            if self._first is None:
                self._first = (earliest - self._delay) // self._windows.length - 1
            while latest // self._windows.length >= self._first + self._slices and self.failure is None:
                self._opened.wait(_NAP)
            return self._first

    def _close(self) -> None:
        """Emit windows as all partitions pass their end."""
        after: int | None = None
        while self.failure is None:
            time.sleep(_NAP)
            now = self._clock.now()
            if now is None:
                continue
            until = now - self._delay
            after = until - self._windows.slide if after is None else after
            for end in self._windows.ends(after, until):
                self._emit(end)
            after = max(after, until)

    def _emit(self, end: int) -> None:
        slices = self._windows.slices(end)
        counts, sums = self._sides[0].total(slices)
        present = counts > 0
        if len(self._sides) > 1:
            counts, other = self._sides[1].total(slices)
            keys = min(len(present), len(counts))
            present = present[:keys] & (counts[:keys] > 0)
            sums = sums[:keys] - other[:keys]
        found = sums[present]
        if len(found):
            self._results.send(self._name, [(end, len(found))])
        self._forget(slices.start + self._windows.slide // self._windows.length)

    def _forget(self, first: int) -> None:
        """Close the slices before the first of the next window."""
        with self._opened:
            assert self._first is not None
            closed = range(max(self._first, first - self._slices), first)
            for lane in self._lanes:
                with lane.lock:
                    lane.cells.clear(closed)
            self._first = max(self._first, first)
            self._opened.notify_all()


def _array(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column without NULLs, as they lie in memory."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return found


def _numpy(kind: pa.DataType) -> Any:
    return np.int64 if pa.types.is_timestamp(kind) else kind.to_pandas_dtype()


if __name__ == "__main__":
    serve(Limit())
