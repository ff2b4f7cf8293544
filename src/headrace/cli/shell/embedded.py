"""A shell target with its own session in this process; micro-batches run in the background while the user types."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from headrace.cli.demo import declare_demo_streams
from headrace.cli.session_file import SessionFile
from headrace.cli.shell.target import TICK_SECONDS, QuerySummary, StreamSummary
from headrace.cli.spark_options import SparkOptions
from headrace.errors import NotFoundError, SessionError
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.query import Query
from headrace.runtime.partition_scaling import PartitionSetting
from headrace.session import ROWS_PER_BATCH, Session
from headrace.statements import SinkOptions

_INTERVAL_SECONDS = 0.25
_LIVE_TIMEOUT_SECONDS = 10.0
_READ_TIMEOUT_SECONDS = 60.0


class EmbeddedTarget:
    """A target that owns its session.

    With `bounded` input (files) reading starts when results are first requested, so that all queries added before see all rows.
    Otherwise the session runs immediately.
    """

    def __init__(self, session: Session, *, bounded: bool = False) -> None:
        """Take a session whose streams are declared and that is not started."""
        self._session, self._bounded = session, bounded
        self._running = False
        if not bounded:
            self._start_session()

    def streams(self) -> list[StreamSummary]:
        """See `ShellTarget`."""
        return [_summarize_stream(name, report) for name, report in self._session.streams().items()]

    def queries(self) -> list[QuerySummary]:
        """See `ShellTarget`."""
        return [_summarize_query(query) for query in self._session.queries()]

    def query(self, name: str) -> QuerySummary:
        """See `ShellTarget`."""
        return _summarize_query(self._find_query(name))

    def check(self, sql: str) -> pa.Schema:
        """See `ShellTarget`."""
        return self._session.check(sql)

    def add(self, sql: str, name: str | None, sink: SinkOptions | None = None) -> QuerySummary:
        """See `ShellTarget`."""
        return self._wait_until_live(self._session.add(sql, name=name, sinks=_keep_results(sink)))

    def replace(self, name: str, sql: str, sink: SinkOptions | None = None) -> QuerySummary:
        """See `ShellTarget`."""
        sinks = self._session.query(name).active_sinks if sink is None else _keep_results(sink)
        return self._wait_until_live(self._session.replace(name, sql, sinks=sinks))

    def remove(self, name: str) -> None:
        """See `ShellTarget`."""
        self._session.remove(name)

    def create_stream(self, statement: str) -> None:
        """See `ShellTarget`."""
        self._session.sql(statement)

    def alter_query(self, statement: str) -> None:
        """See `ShellTarget`."""
        self._session.sql(statement)

    def sinks(self) -> pa.Table:
        """See `ShellTarget`."""
        table = self._session.sql("SHOW SINKS")
        assert isinstance(table, pa.Table)
        return table

    def drop_stream(self, name: str, *, cascade: bool) -> None:
        """See `ShellTarget`."""
        self._session.drop_stream(name, cascade=cascade)

    def rescale(self, partitions: PartitionSetting) -> tuple[int, int, bool]:
        """See `ShellTarget`."""
        self._session.rescale(partitions)
        partitioning = self._session.partitioning
        return partitioning.partitions, partitioning.next, partitioning.is_auto

    def explain(self) -> str:
        """See `ShellTarget`; queries that are not live yet are missing."""
        return self._session.explain()

    def results(self, name: str, last: int | None) -> pa.Table:
        """See `ShellTarget`; reads all bounded input first."""
        query = self._find_query(name)
        self._start_session()
        if self._bounded:
            deadline = time.monotonic() + _READ_TIMEOUT_SECONDS
            while self._session.has_work() and time.monotonic() < deadline:
                self._session.wait(lambda: not self._session.has_work(), TICK_SECONDS)
        return self._read_last(query, last, query.last_batch)

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """See `ShellTarget`."""
        query = self._find_query(name)
        after = query.last_batch
        self._start_session()
        yield self._read_last(query, back, after)
        while True:
            finished, last_committed = query.is_over, query.last_batch
            new_rows = self._session.result_reader.iter_rows(query.id, after, last_committed)
            batches = [rows for _, batch_rows in new_rows for rows in batch_rows]
            if batches:
                yield pa.Table.from_batches(batches, query.schema)
            after = max(after, last_committed)
            if finished:
                return
            if not self._session.wait(
                lambda last=last_committed: self._session.last_batch > last or query.is_over,  # type: ignore[misc]
                TICK_SECONDS,
            ):
                yield query.schema.empty_table()

    def close(self) -> None:
        """See `ShellTarget`."""
        self._session.close()

    def _start_session(self) -> None:
        if not self._running:
            self._running = True
            self._session.start(_INTERVAL_SECONDS)

    def _wait_until_live(self, query: Query) -> QuerySummary:
        if not self._running:
            return _summarize_query(query, "it will see all rows: reading starts with the first SELECT, TAIL or RESULTS")
        self._session.wait(lambda: query.status != "accepted", _LIVE_TIMEOUT_SECONDS)
        return _summarize_query(query, "it sees only new rows: earlier rows have already been read" if self._bounded else "")

    def _find_query(self, name: str) -> Query:
        query = self._session.find(name)
        if query is None:
            known = ", ".join(live_query.name for live_query in self._session.queries()) or "none"
            raise NotFoundError(f"query '{name}' does not exist", detail=f"queries: {known}")
        if not any(sink.kind == "memory" for sink in query.sinks):
            written = ", ".join(sink.description for sink in query.sinks)
            raise SessionError(f"the results of query '{name}' are not readable here", detail=f"the query writes to {written}")
        return query

    def _read_last(self, query: Query, last: int | None, last_batch: int) -> pa.Table:
        """Return the last rows up to `last_batch`; reads files from the newest on, and only as many as necessary."""
        return pa.Table.from_batches(self._session.result_reader.read_last_rows(query.id, -1, last_batch, last), query.schema)


def open_demo_session(backend: str, spark: SparkOptions, checkpoint: str | None = None) -> Session:
    """Open a session with the two generated streams of the demo; by default in a temporary checkpoint."""
    session = Session(checkpoint, backend=backend, **spark.to_arguments())
    declare_demo_streams(session)
    return session


def open_file_session(file: SessionFile, backend: str, spark: SparkOptions, checkpoint: str | None = None) -> Session:
    """Open a session with the streams and queries of a file; it keeps results itself and ignores the sinks of the file.

    By default the checkpoint is temporary; that of the file has results that went to its sinks. A query that an existing
    checkpoint has had is not added again.
    """
    rows = file.rows_per_batch or ROWS_PER_BATCH
    options = {"functions": file.functions, "storage_options": file.storage, **file.changes}
    options |= file.get_join_arguments() | spark.to_arguments()
    session = Session(checkpoint, backend=backend, rows_per_batch=rows, partitions=file.partitions, **options)
    try:
        for stream in file.streams:
            stream.declare(session)
        for query in file.queries:
            if session.find(query.name) is not None:
                continue
            session.add(query.sql, name=query.name, budget=query.budget)
    except BaseException:
        session.close()
        raise
    return session


def _summarize_stream(name: str, report: dict[str, object]) -> StreamSummary:
    schema, column, delay, source, rows, max_event_time = (
        report[field] for field in ("schema", "time", "delay", "source", "rows", "max_event_time")
    )
    assert isinstance(source, dict)
    assert isinstance(delay, int)
    assert isinstance(rows, int)
    assert isinstance(max_event_time, int)
    stream = Stream(name, Schema.parse(str(schema)), str(column), delay)
    lag_seconds = time.time() - max_event_time / 1e6 if max_event_time > 0 else None
    return StreamSummary(
        stream, str(source.get("kind", "")), rows, lag_seconds, str(report["status"]), str(report["error"] or "")
    )


def _summarize_query(query: Query, note: str = "") -> QuerySummary:
    statistics = query.emitted, query.late, query.error or "", query.deployment_seconds
    return QuerySummary(query.name, query.sql, query.status, query.schema, *statistics, note)


def _keep_results(sink: SinkOptions | None) -> list[SinkOptions]:
    """Return the sinks of a query of the shell, which shows its results."""
    return ["memory"] if sink is None or sink == "memory" else ["memory", sink]
