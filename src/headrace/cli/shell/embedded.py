"""A session of the shell's own, in this process: micro-batches run in the background while statements are typed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from headrace.cli.demo_streams import declare_demo
from headrace.cli.session_file import SessionFile
from headrace.cli.shell.target import TICK_SECONDS, QueryInfo, StreamInfo
from headrace.errors import NotFoundError, SessionError
from headrace.model.schema import Schema
from headrace.model.stream import Stream
from headrace.query import Query
from headrace.runtime import results
from headrace.session import ROWS_PER_BATCH, Session

_INTERVAL_SECONDS = 0.25
_LIVE_SECONDS = 10.0
_READ_SECONDS = 60.0


class Embedded:
    """A target that owns its session.

    If rows are there already (`bounded`: files), nothing is read before somebody asks for results: whatever was added until
    then sees all rows. Otherwise it runs at once.
    """

    def __init__(self, session: Session, *, bounded: bool = False) -> None:
        """Take a session whose streams are declared, and which does not run."""
        self._session, self._bounded = session, bounded
        self._running = False
        if not bounded:
            self._run()

    def streams(self) -> list[StreamInfo]:
        """See `Target`."""
        return [_stream(name, report) for name, report in self._session.streams().items()]

    def queries(self) -> list[QueryInfo]:
        """See `Target`."""
        return [_query(query) for query in self._session.queries()]

    def query(self, name: str) -> QueryInfo:
        """See `Target`."""
        return _query(self._find(name))

    def check(self, sql: str) -> pa.Schema:
        """See `Target`."""
        return self._session.check(sql)

    def add(self, sql: str, name: str | None) -> QueryInfo:
        """See `Target`."""
        return self._awaited(self._session.add(sql, name=name))

    def replace(self, name: str, sql: str) -> QueryInfo:
        """See `Target`."""
        return self._awaited(self._session.replace(name, sql))

    def remove(self, name: str) -> None:
        """See `Target`."""
        self._session.remove(name)

    def explain(self) -> str:
        """See `Target`; queries that wait for the first rows are not in it."""
        return self._session.explain()

    def results(self, name: str, last: int | None) -> pa.Table:
        """See `Target`; where rows are there already, they are all read before."""
        query = self._find(name)
        self._run()
        if self._bounded:
            until = time.monotonic() + _READ_SECONDS
            while self._session.coordinator.has_work() and time.monotonic() < until:
                self._session.wait(lambda: not self._session.coordinator.has_work(), TICK_SECONDS)
        return self._last(query, last, query.last_batch)

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """See `Target`."""
        query = self._find(name)
        after = query.last_batch
        self._run()
        yield self._last(query, back, after)
        while True:
            over, until = query.is_over, query.last_batch
            rows = results.rows_of(self._session.results_folder, query.id, after, until)
            found = [batch for _, batches in rows for batch in batches]
            if found:
                yield pa.Table.from_batches(found, query.schema)
            after = max(after, until)
            if over:
                return
            seen = self._session.last_batch
            if not self._session.wait(lambda seen=seen: self._session.last_batch > seen or query.is_over, TICK_SECONDS):  # type: ignore[misc]
                yield query.schema.empty_table()

    def close(self) -> None:
        """See `Target`."""
        self._session.close()

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self._session.start(_INTERVAL_SECONDS)

    def _awaited(self, query: Query) -> QueryInfo:
        if not self._running:
            return _query(query, "it will see all rows: they are read from the first SELECT, TAIL or RESULTS on")
        self._session.wait(lambda: query.status != "accepted", _LIVE_SECONDS)
        return _query(query, "it sees new rows only: those that were there have been read" if self._bounded else "")

    def _find(self, name: str) -> Query:
        found = self._session.find(name)
        if found is None:
            known = ", ".join(query.name for query in self._session.queries()) or "none"
            raise NotFoundError(f"query '{name}' is not there", detail=f"queries: {known}")
        if found.sink.written_by_workers:
            raise SessionError(f"query '{name}' writes its results elsewhere", detail=f"its sink: {found.sink}")
        return found

    def _last(self, query: Query, last: int | None, until: int) -> pa.Table:
        """Return the last rows of all batches up to `until`; files are read from the newest on, and not more than needed."""
        found: list[pa.RecordBatch] = []
        count = 0
        for _, path in reversed(results.files(self._session.results_folder, -1, until)):
            if last is not None and count >= last:
                break
            rows = results.load(path).of(query.id)
            found[:0] = rows
            count += sum(batch.num_rows for batch in rows)
        table = pa.Table.from_batches(found, query.schema)
        return table if last is None else table.slice(max(0, table.num_rows - last))


def demo_session(backend: str) -> Session:
    """Open a session with two made-up streams whose event time is the time of day."""
    session = Session(backend=backend)
    declare_demo(session)
    return session


def file_session(file: SessionFile, backend: str) -> Session:
    """Open a session with the streams and queries of a file; results are kept in memory, whatever sinks the file names."""
    rows, master = file.rows_per_batch or ROWS_PER_BATCH, file.master or "local[*]"
    session = Session(backend=backend, rows_per_batch=rows, master=master)
    try:
        for stream in file.streams:
            session.create_stream(stream.name, stream.open(), time=stream.time, watermark=stream.watermark)
        for query in file.queries:
            session.add(query.sql, name=query.name)
    except BaseException:
        session.close()
        raise
    return session


def _stream(name: str, report: dict[str, object]) -> StreamInfo:
    schema, column, delay, source, rows, seen = (
        report[part] for part in ("schema", "time", "delay", "source", "rows", "max_event_time")
    )
    assert isinstance(source, dict)
    assert isinstance(delay, int)
    assert isinstance(rows, int)
    assert isinstance(seen, int)
    stream = Stream(name, Schema.parse(str(schema)), str(column), delay)
    return StreamInfo(stream, str(source.get("kind", "")), rows, time.time() - seen / 1e6 if seen > 0 else None)


def _query(query: Query, note: str = "") -> QueryInfo:
    told = query.emitted, query.late, query.error or "", query.deployment_seconds
    return QueryInfo(query.name, query.sql, query.status, query.schema, *told, note)
