"""Run DuckDB in a loop of micro-batches: the columnar baseline without sharing and without state.

The rows of open windows are buffered in memory. When a window closes, each of its queries runs its SQL over all rows of the
window: no partial aggregates carry over to the next window, so a row in n windows is read n times.
"""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import duckdb
import psutil

from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import NO_TEXT, Started, SutConfig, Teller
from headrace.bench.sut.event_clock import EventClock
from headrace.bench.sut.open_rows import OpenRows
from headrace.bench.sut.process import serve
from headrace.bench.sut.pull import Puller
from headrace.bench.sut.results import ResultSender
from headrace.bench.sut.windows import Windows
from headrace.errors import HeadraceError

_READ_ROWS = 1 << 18
_NAP = 0.05  # seconds; lets rows accumulate to a batch worth a table
_MEMORY = 0.4  # of the machine's memory, for rows of open windows
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


class DuckDb:
    """The adapter of DuckDB."""

    def __init__(self) -> None:
        """Create the adapter; `start` starts the loop."""
        self._loop: Loop | None = None

    def start(self, config: SutConfig, reporter: Teller) -> Started:
        """See `SutAdapter`."""
        self._tell, self._loop = reporter, Loop(config)
        for query in config.queries:
            self._add(query)
        threading.Thread(target=self._loop.run, daemon=True).start()
        settings = {
            "state": "none: a window is computed from its rows when it closes",
            "sharing": "none: each query reads the rows of its windows itself",
            "threads": "all cores",
            "rows_per_read": _READ_ROWS,
        }
        return Started({"duckdb": importlib.metadata.version("duckdb")}, settings)

    def _add(self, query: BenchQuery) -> bool:
        assert self._loop is not None
        if not query.sql.get("duckdb"):
            self._tell.refused(query.name, NO_TEXT)
            return False
        try:
            self._loop.add(query)
        except duckdb.Error as error:
            self._tell.refused(query.name, str(error))
            return False
        return True

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`."""
        assert self._loop is not None
        for name in removed:
            self._loop.remove(name)
            self._tell.removed(name)
        for query in added:
            if self._add(query):
                self._tell.live(query.name)

    def check(self) -> None:
        """See `SutAdapter`."""
        if self._loop is not None and self._loop.failure is not None:
            raise HeadraceError("the DuckDB loop failed", detail=str(self._loop.failure))

    def close(self) -> None:
        """See `SutAdapter`; the loop ends with the process."""


@dataclass(slots=True)
class Asked:
    """A query, and the event time up to which its windows are closed; None before the first row."""

    query: BenchQuery
    after: int | None

    @property
    def windows(self) -> Windows:
        """The windows of the query."""
        return Windows(self.query.size_us, self.query.slide_us)

    def due(self, watermark: int) -> range:
        """Return the ends of the windows that are due, and mark them as closed."""
        closed_until = watermark - self.query.slide_us if self.after is None else self.after
        self.after = max(closed_until, watermark)
        return self.windows.ends(closed_until, watermark)


class Loop:
    """Pulls rows, closes windows and runs queries, in a single thread."""

    def __init__(self, config: SutConfig) -> None:
        """Connect to driver and collector; `run` starts the loop."""
        self._results = ResultSender(config.collector)
        self._database = duckdb.connect()
        self._delay = {stream.name: int(stream.spec.watermark * 1e6) for stream in config.streams}
        self._rows = {stream.name: OpenRows(stream.schema.to_arrow(), stream.spec.time_column) for stream in config.streams}
        self._pullers = {
            (stream.name, partition): Puller(config.driver, stream.name, partition, "duckdb", stream.schema.names)
            for stream in config.streams
            for partition in range(stream.spec.partitions)
        }
        for stream in config.streams:
            self._database.register(stream.name, stream.schema.to_arrow().empty_table())
        self._clock = EventClock(list(self._pullers))
        self._asked: dict[str, Asked] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.failure: Exception | None = None

    def add(self, query: BenchQuery) -> None:
        """Add a query after running it over empty tables; raise DuckDB's error if it is invalid."""
        with self._lock:
            self._database.sql(query.sql["duckdb"], params=[_ORIGIN]).to_arrow_table()
            self._asked[query.name] = Asked(query, self._now(query.streams))

    def remove(self, name: str) -> None:
        """Remove a query."""
        with self._lock:
            self._asked.pop(name, None)

    def _now(self, streams: Sequence[str]) -> int | None:
        """Return the watermark of the streams; None while it is unknown."""
        event_time = self._clock.now([source for source in self._pullers if source[0] in streams])
        return None if event_time is None else event_time - max(self._delay[name] for name in streams)

    def run(self) -> None:
        """Run the loop until it fails; store the error in `failure`."""
        try:
            with ThreadPoolExecutor(len(self._pullers)) as readers:
                while not self._stop.is_set():
                    if not self._pull(readers):
                        self._stop.wait(_NAP)
                    with self._lock:
                        self._close()
        except Exception as error:  # noqa: BLE001  `check` reports it
            self.failure = error

    def _pull(self, readers: ThreadPoolExecutor) -> bool:
        """Read once from every partition, in parallel; return whether a partition has more rows."""
        batches = readers.map(lambda puller: puller.read(_READ_ROWS), self._pullers.values())
        has_more = False
        for source, rows in zip(self._pullers, batches, strict=True):
            if rows is None:
                self._clock.saw_nothing(source)
            else:
                self._clock.saw(source, self._rows[source[0]].add(rows))
                has_more = has_more or rows.num_rows == _READ_ROWS
        if sum(rows.nbytes for rows in self._rows.values()) > _MEMORY * psutil.virtual_memory().total:
            raise HeadraceError("the rows of open windows exceed the memory limit")
        return has_more

    def _close(self) -> None:
        """Run the queries of all windows that the watermark has passed, and evict rows that no window needs."""
        due_windows: dict[tuple[tuple[str, ...], int, int], list[BenchQuery]] = {}
        for query_state in self._asked.values():
            watermark = self._now(query_state.query.streams)
            for end in () if watermark is None else query_state.due(watermark):
                due_windows.setdefault((query_state.query.streams, end - query_state.query.size_us, end), []).append(
                    query_state.query
                )
        for (streams, start, end), queries in due_windows.items():
            self._window(streams, start, end, queries)
        needed_from = [
            query_state.after - query_state.query.size_us for query_state in self._asked.values() if query_state.after is not None
        ]
        for rows in self._rows.values() if needed_from else ():
            rows.forget(min(needed_from))

    def _window(self, streams: Sequence[str], start: int, end: int, queries: Sequence[BenchQuery]) -> None:
        """Run queries over the rows of one window; its rows are concatenated once for all of them."""
        for name in streams:
            self._database.register(name, self._rows[name].between(start, end))
        window_end = _ORIGIN + timedelta(microseconds=end)
        for query in queries:
            result = self._database.sql(query.sql["duckdb"], params=[window_end]).to_arrow_table()
            if result.num_rows:
                self._results.send(query.name, [(end, result.num_rows)])


if __name__ == "__main__":
    serve(DuckDb())
