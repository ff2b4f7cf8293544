"""Run DuckDB in a loop of micro-batches: the columnar baseline without sharing and without state.

The rows of open windows are buffered in memory. When a window closes, each of its queries runs its SQL over all rows of the
window: no partial aggregates carry over to the next window, so a row in n windows is read n times.

Windows are HOP windows aligned to 1970, in microseconds. Event time is the minimum over all partitions that are not idle. Rows
are buffered in order of arrival, in blocks with their event-time ranges, until no open window can need them.
"""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.queries.query import BenchQuery
from headrace.bench.systems.adapter import (
    NO_DIALECT_TEXT,
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


@dataclass(frozen=True, slots=True)
class _RowBlock:
    earliest: int
    latest: int
    rows: pa.Table


class OpenWindowRows:
    """Blocks of rows with their event-time ranges; only blocks on a window boundary are filtered.

    `nbytes` is the memory of all rows.
    """

    def __init__(self, schema: pa.Schema, time: str) -> None:
        """Create an empty buffer; `time` is the event-time column."""
        self._schema, self._time_column = schema, time
        self._blocks: list[_RowBlock] = []
        self.nbytes = 0

    def add(self, rows: pa.Table) -> int:
        """Add rows (at least one); return their latest event time."""
        bounds = pc.min_max(self._event_times(rows)).as_py()
        self._blocks.append(_RowBlock(bounds["min"], bounds["max"], rows))
        self.nbytes += rows.nbytes
        latest: int = bounds["max"]
        return latest

    def select_between(self, start: int, end: int) -> pa.Table:
        """Return the rows with event times in [start, end)."""
        parts = [
            self._select_from_block(block, start, end) for block in self._blocks if block.latest >= start and block.earliest < end
        ]
        return pa.concat_tables([self._schema.empty_table(), *parts])

    def _select_from_block(self, block: _RowBlock, start: int, end: int) -> pa.Table:
        if start <= block.earliest and block.latest < end:
            return block.rows
        times = self._event_times(block.rows)
        return block.rows.filter(pc.and_(pc.greater_equal(times, start), pc.less(times, end)))

    def evict_before(self, before: int) -> None:
        """Evict the blocks whose rows are all older than `before`."""
        self.nbytes -= sum(block.rows.nbytes for block in self._blocks if block.latest < before)
        self._blocks = [block for block in self._blocks if block.latest >= before]

    def _event_times(self, rows: pa.Table) -> pa.ChunkedArray:
        return rows.column(self._time_column).cast(pa.int64())


_ROWS_PER_READ = 1 << 18
_IDLE_SLEEP_S = 0.05  # seconds; lets rows accumulate to a batch worth a table
_MEMORY_SHARE = 0.4  # of the machine's memory, for rows of open windows
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DuckDbAdapter:
    """The adapter of DuckDB."""

    def __init__(self) -> None:
        """Create the adapter; `start` starts the loop."""
        self._loop: DuckDbLoop | None = None

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """See `SutAdapter`."""
        self._reporter, self._loop = reporter, DuckDbLoop(config)
        for query in config.queries:
            self._add_query(query)
        threading.Thread(target=self._loop.run, daemon=True).start()
        settings = {
            "state": "none: a window is computed from its rows when it closes",
            "sharing": "none: each query reads the rows of its windows itself",
            "threads": "all cores",
            "rows_per_read": _ROWS_PER_READ,
        }
        return SutDescription({"duckdb": importlib.metadata.version("duckdb")}, settings)

    def _add_query(self, query: BenchQuery) -> bool:
        assert self._loop is not None
        if not query.sql.get("duckdb"):
            self._reporter.report_refused(query.name, NO_DIALECT_TEXT)
            return False
        try:
            self._loop.add(query)
        except duckdb.Error as error:
            self._reporter.report_refused(query.name, str(error))
            return False
        return True

    def limit_nodes(self) -> None:
        """There are no nodes."""

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`."""
        assert self._loop is not None
        for name in removed:
            self._loop.remove(name)
            self._reporter.report_removed(name)
        for query in added:
            if self._add_query(query):
                self._reporter.report_live(query.name)

    def read_component_seconds(self) -> Mapping[str, float]:
        """See `SutAdapter`; this system does not measure them."""
        return {}

    def check(self) -> None:
        """See `SutAdapter`."""
        if self._loop is not None and self._loop.failure is not None:
            raise HeadraceError("the DuckDB loop failed", detail=str(self._loop.failure))

    def close(self) -> None:
        """See `SutAdapter`; the loop ends with the process."""


@dataclass(slots=True)
class DuckDbQuery:
    """A query, and the event time up to which its windows are closed; None before the first row."""

    query: BenchQuery
    closed_until: int | None

    @property
    def windows(self) -> AlignedWindows:
        """The windows of the query."""
        return AlignedWindows(self.query.size_us, self.query.slide_us)

    def take_due_ends(self, watermark: int) -> range:
        """Return the ends of the windows that are due, and mark them as closed."""
        closed_until = watermark - self.query.slide_us if self.closed_until is None else self.closed_until
        self.closed_until = max(closed_until, watermark)
        return self.windows.ends_between(closed_until, watermark)


class DuckDbLoop:
    """Pulls rows, closes windows and runs queries, in a single thread."""

    def __init__(self, config: SutConfig) -> None:
        """Connect to driver and collector; `run` starts the loop."""
        self._result_sender = ResultSender(config.collector)
        self._database = duckdb.connect()
        self._watermark_delays = {stream.name: int(stream.spec.watermark * 1e6) for stream in config.streams}
        self._open_rows = {
            stream.name: OpenWindowRows(stream.schema.to_arrow(), stream.spec.time_column) for stream in config.streams
        }
        self._pullers = {
            (stream.name, partition): PartitionPuller(config.driver, stream.name, partition, "duckdb", stream.schema.names)
            for stream in config.streams
            for partition in range(stream.spec.partitions)
        }
        for stream in config.streams:
            self._database.register(stream.name, stream.schema.to_arrow().empty_table())
        self._clock = EventTimeClock(list(self._pullers))
        self._queries: dict[str, DuckDbQuery] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.failure: Exception | None = None

    def add(self, query: BenchQuery) -> None:
        """Add a query after running it over empty tables; raise DuckDB's error if it is invalid."""
        with self._lock:
            self._database.sql(query.sql["duckdb"], params=[_EPOCH]).to_arrow_table()
            self._queries[query.name] = DuckDbQuery(query, self._compute_watermark(query.streams))

    def remove(self, name: str) -> None:
        """Remove a query."""
        with self._lock:
            self._queries.pop(name, None)

    def _compute_watermark(self, streams: Sequence[str]) -> int | None:
        """Return the watermark of the streams; None while it is unknown."""
        event_time = self._clock.get_event_time([source for source in self._pullers if source[0] in streams])
        return None if event_time is None else event_time - max(self._watermark_delays[name] for name in streams)

    def run(self) -> None:
        """Run the loop until it fails; store the error in `failure`."""
        try:
            with ThreadPoolExecutor(len(self._pullers)) as readers:
                while not self._stop.is_set():
                    if not self._pull_rows(readers):
                        self._stop.wait(_IDLE_SLEEP_S)
                    with self._lock:
                        self._close_windows()
        except Exception as error:  # noqa: BLE001  `check` reports it
            self.failure = error

    def _pull_rows(self, readers: ThreadPoolExecutor) -> bool:
        """Read once from every partition, in parallel; return whether a partition has more rows."""
        batches = readers.map(lambda puller: puller.read(_ROWS_PER_READ), self._pullers.values())
        has_more = False
        for source, rows in zip(self._pullers, batches, strict=True):
            if rows is None:
                self._clock.mark_empty(source)
            else:
                self._clock.advance(source, self._open_rows[source[0]].add(rows))
                has_more = has_more or rows.num_rows == _ROWS_PER_READ
        if sum(rows.nbytes for rows in self._open_rows.values()) > _MEMORY_SHARE * psutil.virtual_memory().total:
            raise HeadraceError("the rows of open windows exceed the memory limit")
        return has_more

    def _close_windows(self) -> None:
        """Run the queries of all windows that the watermark has passed, and evict rows that no window needs."""
        due_windows: dict[tuple[tuple[str, ...], int, int], list[BenchQuery]] = {}
        for query_state in self._queries.values():
            watermark = self._compute_watermark(query_state.query.streams)
            for end in () if watermark is None else query_state.take_due_ends(watermark):
                due_windows.setdefault((query_state.query.streams, end - query_state.query.size_us, end), []).append(
                    query_state.query
                )
        for (streams, start, end), queries in due_windows.items():
            self._run_window(streams, start, end, queries)
        needed_from = [
            query_state.closed_until - query_state.query.size_us
            for query_state in self._queries.values()
            if query_state.closed_until is not None
        ]
        for rows in self._open_rows.values() if needed_from else ():
            rows.evict_before(min(needed_from))

    def _run_window(self, streams: Sequence[str], start: int, end: int, queries: Sequence[BenchQuery]) -> None:
        """Run queries over the rows of one window; its rows are concatenated once for all of them."""
        for name in streams:
            self._database.register(name, self._open_rows[name].select_between(start, end))
        window_end = _EPOCH + timedelta(microseconds=end)
        for query in queries:
            result = self._database.sql(query.sql["duckdb"], params=[window_end]).to_arrow_table()
            if result.num_rows:
                self._result_sender.send(query.name, [(end, result.num_rows)])


if __name__ == "__main__":
    serve(DuckDbAdapter())
