"""DuckDB in a loop of micro-batches: the columnar baseline that shares nothing and keeps no state.

Rows of open windows lie in memory as they came. When a window closes, each query that has it runs its SQL over the rows of
that window, from the beginning: nothing is carried over from one window to the next, and a row in n windows is read n times.
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
_NAP = 0.05  # seconds: rows come in portions that are worth a table
_MEMORY = 0.4  # of the machine, for rows of open windows
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


class DuckDb:
    """The adapter."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._loop: Loop | None = None

    def start(self, config: SutConfig, tell: Teller) -> Started:
        """See `Adapter`."""
        self._tell, self._loop = tell, Loop(config)
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
        """See `Adapter`."""
        assert self._loop is not None
        for name in removed:
            self._loop.remove(name)
            self._tell.removed(name)
        for query in added:
            if self._add(query):
                self._tell.live(query.name)

    def check(self) -> None:
        """See `Adapter`."""
        if self._loop is not None and self._loop.failure is not None:
            raise HeadraceError("the loop of DuckDB failed", detail=str(self._loop.failure))

    def close(self) -> None:
        """See `Adapter`; the loop ends with the process."""


@dataclass(slots=True)
class Asked:
    """A query, and the event time up to which its windows were closed; None before any row."""

    query: BenchQuery
    after: int | None

    @property
    def windows(self) -> Windows:
        """Its windows."""
        return Windows(self.query.size_us, self.query.slide_us)

    def due(self, now: int) -> range:
        """Return the ends of the windows that can be closed now, and count them as closed."""
        after = now - self.query.slide_us if self.after is None else self.after
        self.after = max(after, now)
        return self.windows.ends(after, now)


class Loop:
    """Pulls, closes windows, and runs queries, one thing after the other."""

    def __init__(self, config: SutConfig) -> None:
        """Connect; `run` begins."""
        self._results = ResultSender(config.collector)
        self._database = duckdb.connect()
        self._delay = {stream.name: int(stream.spec.watermark * 1e6) for stream in config.streams}
        self._rows = {stream.name: OpenRows(stream.schema.to_arrow(), stream.spec.time) for stream in config.streams}
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
        """Take a query, after trying it over no rows; raises what DuckDB says against it."""
        with self._lock:
            self._database.sql(query.sql["duckdb"], params=[_ORIGIN]).to_arrow_table()
            self._asked[query.name] = Asked(query, self._now(query.streams))

    def remove(self, name: str) -> None:
        """Drop a query."""
        with self._lock:
            self._asked.pop(name, None)

    def _now(self, streams: Sequence[str]) -> int | None:
        """Return the watermark over some streams."""
        now = self._clock.now([source for source in self._pullers if source[0] in streams])
        return None if now is None else now - max(self._delay[name] for name in streams)

    def run(self) -> None:
        """Go on until something fails."""
        try:
            with ThreadPoolExecutor(len(self._pullers)) as readers:
                while not self._stop.is_set():
                    if not self._pull(readers):
                        self._stop.wait(_NAP)
                    with self._lock:
                        self._close()
        except Exception as error:  # noqa: BLE001  told by `check`
            self.failure = error

    def _pull(self, readers: ThreadPoolExecutor) -> bool:
        """Read once from every partition, all at once; return whether there is more."""
        read = readers.map(lambda puller: puller.read(_READ_ROWS), self._pullers.values())
        more = False
        for source, rows in zip(self._pullers, read, strict=True):
            if rows is None:
                self._clock.saw_nothing(source)
            else:
                self._clock.saw(source, self._rows[source[0]].add(rows))
                more = more or rows.num_rows == _READ_ROWS
        if sum(rows.nbytes for rows in self._rows.values()) > _MEMORY * psutil.virtual_memory().total:
            raise HeadraceError("the rows of open windows do not fit into memory")
        return more

    def _close(self) -> None:
        """Run the queries of all windows that every partition has passed, and let go of rows."""
        due: dict[tuple[tuple[str, ...], int, int], list[BenchQuery]] = {}
        for asked in self._asked.values():
            now = self._now(asked.query.streams)
            for end in () if now is None else asked.due(now):
                due.setdefault((asked.query.streams, end - asked.query.size_us, end), []).append(asked.query)
        for (streams, start, end), queries in due.items():
            self._window(streams, start, end, queries)
        wanted = [asked.after - asked.query.size_us for asked in self._asked.values() if asked.after is not None]
        for rows in self._rows.values() if wanted else ():
            rows.forget(min(wanted))

    def _window(self, streams: Sequence[str], start: int, end: int, queries: Sequence[BenchQuery]) -> None:
        """Run queries over the rows of one window; its rows are put together once for all of them."""
        for name in streams:
            self._database.register(name, self._rows[name].between(start, end))
        moment = _ORIGIN + timedelta(microseconds=end)
        for query in queries:
            found = self._database.sql(query.sql["duckdb"], params=[moment]).to_arrow_table()
            if found.num_rows:
                self._results.send(query.name, [(end, found.num_rows)])


if __name__ == "__main__":
    serve(DuckDb())
