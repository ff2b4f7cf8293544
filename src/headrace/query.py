"""Queries of a session: the user's handle, the session's record behind it, and the registry of all records.

The registry has the queries by id and by name: active queries, and the most recent of the ended ones.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors import FileSink, MemorySink, NoopSink, Sink, SinkSet, SinkSpec, is_sink_set, sink_set_from_json
from headrace.display import PREVIEW_ROWS, QueryDisplay, SessionDisplay, display_stream, format_query, render_query
from headrace.errors import EvaluationError, HeadraceError, NameTakenError, NotFoundError, SessionError, SqlError
from headrace.model.budget import QueryBudget
from headrace.model.names import check_name
from headrace.model.types import Schema
from headrace.plan.derived import AnyQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.planner.changelog import root_query_id
from headrace.result_frames import ResultFrames
from headrace.runtime.batch_log import BatchLogEntry
from headrace.runtime.commands import AddQuery, RemoveQuery
from headrace.runtime.engine_state import EngineState, QueryState
from headrace.runtime.sink_queue import SinkStatus
from headrace.sql import Catalog, bind_query
from headrace.storage.result_log import ResultReader

if TYPE_CHECKING:
    from headrace.session import Session


@dataclass(slots=True)
class QueryRecord:
    """A session's record of a query; `status` is accepted, live, removed or failed."""

    id: int
    name: str
    sql: str
    sinks: SinkSet
    status: str = "accepted"
    error: str | None = None
    schema: Schema | None = None
    recovered: bool = False
    accepted_at: float | None = None
    live_at: float | None = None
    first_batch: int = 0  # the first batch that can have rows of the query
    last_batch: int | None = None
    live: bool = field(default=False)
    owner: str = ""
    budget: QueryBudget | None = None  # by default that of the session
    installed_sinks: Any = None  # the JSON form of the sinks, if several or changed, at the last commit

    @classmethod
    def from_checkpoint(cls, query: QueryState | AddQuery) -> QueryRecord:
        """Return the record of a query of the checkpoint; the user must pass its callbacks again."""
        record = cls(query.id, query.name, query.sql, sink_set_from_json(query.sink), recovered=True)
        record.owner, record.budget = query.owner, query.budget
        return record

    def install_sinks(self, value: Any) -> None:
        """Take over the sinks that a committed batch has installed, in their JSON form."""
        if value is not self.installed_sinks:
            self.sinks, self.installed_sinks = self.sinks.install(sink_set_from_json(value)), value

    def apply_state(self, state: QueryState, batch: int, *, fresh: bool = False) -> None:
        """Update the record from a committed batch; `fresh` if this session ran that batch."""
        del batch
        self.error, self.live = state.error, state.live
        self.first_batch, self.last_batch = state.first_batch, state.last_batch
        self.status = "live" if state.live else ("failed" if state.error else "removed")
        self.recovered, self.schema = self.recovered or not fresh, self.schema or state.schema
        if fresh and state.live and self.live_at is None:
            self.live_at = time.monotonic()


def check_past(plan: AnyQuery, *, past: bool) -> None:
    """Raise SessionError if a backfill is requested for a query other than a join in SLIDING windows."""
    if past and not isinstance(plan, SlidingJoinQuery):
        raise SessionError("past=True is for joins in SLIDING windows only", hint="add the query without past=True")


def check_sinks(name: str, sinks: Iterable[Sink], others: Iterable[QueryRecord]) -> None:
    """Raise NameTakenError if a sink writes files to the directory of another query's sink."""
    paths = {sink.path for sink in sinks if isinstance(sink, FileSink)}
    for other in others if paths else ():
        path = next((sink.path for sink in other.sinks.sinks if isinstance(sink, FileSink) and sink.path in paths), None)
        if path is not None:
            raise NameTakenError(
                f"query '{other.name}' already writes to '{path}'", hint=f"give query '{name}' a directory of its own"
            )


def list_streams(record: QueryRecord, catalog: Catalog) -> tuple[str, ...]:
    """Return the streams that a query reads; none for a failed query whose stream or function does not exist any more."""
    try:
        return bind_query(record.sql, catalog).streams
    except SqlError:
        return ()


def find_schema(record: QueryRecord, catalog: Catalog, reader: ResultReader, last_batch: int) -> Schema:
    """Return the columns of a query: those of its kept rows if it ended in an earlier version and its stream was dropped."""
    if record.schema is None:
        try:
            record.schema = bind_query(record.sql, catalog).schema
        except SqlError as error:
            rows = reader.read_last_rows(record.id, record.first_batch - 1, last_batch, 1)
            if not rows:
                message = f"the columns of query '{record.name}' are unknown: it has ended, and its text is not valid any more"
                raise SessionError(message, detail=error.message, hint="it has no kept rows") from error
            record.schema = Schema.from_arrow(rows[0].schema)
    return record.schema


class Query(ResultFrames):
    """A handle of a query, from `Session.add`; it stays usable after the query was removed, for the results emitted before."""

    def __init__(self, session: Session, record: QueryRecord) -> None:
        """For `Session` only: users get a handle from `Session.add`."""
        self._session, self._record = session, record

    @property
    def name(self) -> str:
        """The name of the query."""
        return self._record.name

    @property
    def id(self) -> int:
        """The number of the query in its session: unique, never reused."""
        return self._record.id

    @property
    def first_batch(self) -> int:
        """The first micro-batch that can have rows of the query."""
        return self._record.first_batch

    @property
    def last_batch(self) -> int:
        """The last committed micro-batch whose rows count: the one before the query failed or was removed, if it did."""
        last = self._session.last_batch
        return last if self._record.last_batch is None else min(last, self._record.last_batch - 1)

    @property
    def is_over(self) -> bool:
        """Whether the query emits no more rows: it was removed, it failed, or the session is closed."""
        return self._record.status in {"removed", "failed"} or self._session.is_closed

    @property
    def sql(self) -> str:
        """The SQL text."""
        return self._record.sql

    @property
    def owner(self) -> str:
        """The owner that was passed to `Session.add`, or an empty text."""
        return self._record.owner

    @property
    def sink(self) -> Sink:
        """The sink of the results; the first one, if there are several."""
        return self._record.sinks.sinks[0] if self._record.sinks.sinks else NoopSink()

    @property
    def sinks(self) -> list[SinkStatus]:
        """The status of each sink: what waits for it, and why, if its destination is not available."""
        return self._session.sink_changes.describe(self._record)

    @property
    def active_sinks(self) -> tuple[Sink, ...]:
        """The sinks that were not taken away."""
        return self._record.sinks.sinks

    def add_sink(self, sink: SinkSpec) -> int:
        """Add a sink: it receives the rows of every micro-batch from the next one on. Return its number.

        `sink` is a specification as for `Session.add`. Raises SinkError if it is invalid, SessionError if the query has ended.
        """
        return self._session.sink_changes.add(self._record, sink, self.schema)

    def remove_sink(self, number: int, *, discard: bool = False) -> None:
        """Take a sink away: it receives no rows from the next micro-batch on.

        What was emitted before still goes to it; with `discard`, what waits for it is dropped, also of a query that has ended.
        Raises SinkError if there is no such sink.
        """
        self._session.sink_changes.remove(self._record, number, discard=discard)

    @property
    def budget(self) -> QueryBudget:
        """What the query may use in a micro-batch: its own budget, or that of the session."""
        return self._record.budget or self._session.budget

    @property
    def status(self) -> str:
        """The status: "accepted", "live", "removed" or "failed"."""
        return self._record.status

    @property
    def error(self) -> str | None:
        """The error message of a failed query, else None."""
        return self._record.error

    @property
    def schema(self) -> pa.Schema:
        """The columns of the results, as an Arrow schema."""
        return self._session.schema_of(self._record).to_arrow()

    @property
    def deployment_seconds(self) -> float | None:
        """The seconds from `add` until the commit of the first micro-batch with the query; None before that commit."""
        record = self._record
        return None if record.live_at is None or record.accepted_at is None else record.live_at - record.accepted_at

    @property
    def note(self) -> str:
        """With `past=True`: which inputs were backfilled from which queries, or why they were not; else empty."""
        state = self._session.state_of(self._record)
        return "" if state is None else state.note

    @property
    def emitted(self) -> int:
        """The number of rows that the query has emitted."""
        state = self._session.state_of(self._record)
        return 0 if state is None else state.emitted

    @property
    def late(self) -> dict[str, int]:
        """The number of late rows that the query dropped, by stream."""
        state = self._session.state_of(self._record)
        return {} if state is None else dict(state.late_rows)

    def wait_live(self, timeout: float | None = None) -> Query:
        """Wait until the query is live, and return it.

        Raises EvaluationError if it failed, and SessionError if it was removed or is not live after `timeout` seconds.
        """
        if not self._session.wait(lambda: self._record.status != "accepted", timeout):
            raise SessionError(
                f"query '{self.name}' is not live after {timeout} s", hint="call advance(), or start() the session"
            )
        if self._record.status == "failed":
            raise EvaluationError(f"query '{self.name}' failed", detail=self._record.error or "")
        if self._record.status == "removed":
            raise SessionError(f"query '{self.name}' was removed")
        return self

    def results(self) -> pa.Table:
        """Return all rows that the query has emitted so far; for the memory sink."""
        batches = [batch for _, rows in self._read_rows(-1) for batch in rows]
        return pa.Table.from_batches(batches, self.schema)

    def stream(self, timeout: float | None = None) -> Iterator[pa.Table]:
        """Yield the emitted rows from the beginning, one Arrow table for each micro-batch with rows; for the memory sink.

        The iterator ends when the query is over, or after `timeout` seconds without a micro-batch.
        """
        after = -1
        while True:
            over, seen = self.is_over, self._session.last_batch
            for batch, rows in self._read_rows(after):
                after = batch
                yield pa.Table.from_batches(rows, self.schema)
            after = max(after, seen)
            if over or not self._session.wait(lambda seen=seen: self._session.last_batch > seen or self.is_over, timeout):  # type: ignore[misc]
                return

    def _read_rows(self, after: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        after = max(after, self.first_batch - 1)
        return self._session.result_reader.iter_rows(self._record.id, after, self.last_batch)

    def remove(self) -> None:
        """Remove the query from its session."""
        self._session.remove(self.name)

    def __repr__(self) -> str:
        """Return the name, status, number of rows and SQL text in one line."""
        return format_query("Query", display_query(self))

    def _repr_html_(self) -> str:
        """Return the status, SQL text and last rows as HTML, for notebooks; never raises an error."""
        rows, note = None, ""
        try:
            if not any(isinstance(sink, MemorySink) for sink in self._record.sinks.sinks):
                note = f"the rows go to {self._record.sinks.describe()}"
            elif self.emitted:
                limit = min(self.emitted, PREVIEW_ROWS)
                reader = self._session.result_reader
                batches = reader.read_last_rows(self.id, self.first_batch - 1, self.last_batch, limit)
                rows = pa.Table.from_batches(batches, self.schema)
                note = "" if batches else "the session has deleted the rows"
        except (HeadraceError, OSError) as error:
            is_deleted = not self._session.checkpoint.exists()
            note = "the session has deleted the rows" if is_deleted else f"the rows cannot be read: {error}"
        return render_query(display_query(self), rows, note)


def display_query(query: Query) -> QueryDisplay:
    """Return what is shown of a query."""
    ended_with_session = query.is_over and query.status in {"accepted", "live"}
    state = f"{query.status}, session closed" if ended_with_session else query.status
    return QueryDisplay(query.name, state, query.emitted, query.sql, query.error or "")


def display_session(session: Session, activity: str) -> SessionDisplay:
    """Return what is shown of a session with its streams and queries, given what its thread does in a few words."""
    state = "closed" if session.is_closed else activity
    if session.last_batch >= 0:
        state += f", batch {session.last_batch:,}{', drained' if session.drained else ''}"
    streams = [display_stream(name, report) for name, report in session.streams().items()]
    return SessionDisplay(state, streams, [display_query(query) for query in session.queries()])


_ENDED_RECORDS_KEPT = 1_000


class QueryRegistry:
    """Records of queries. Only queries that were not removed have a name here; ids are never reused."""

    def __init__(self) -> None:
        """Create an empty registry."""
        self.records: dict[int, QueryRecord] = {}
        self._ids_by_name: dict[str, int] = {}
        self._next_id = 0

    def recover(self, state: EngineState, unfinished: BatchLogEntry | None) -> None:
        """Load the queries of the checkpoint, and those of a batch that was logged but not committed."""
        for query in (query for query in state.queries.values() if root_query_id(query.id) == query.id):
            record = QueryRecord.from_checkpoint(query)
            record.apply_state(query, state.batch)
            self.records[query.id] = record
            if query.live:
                self._ids_by_name[query.name] = query.id
        for command in unfinished.commands if unfinished else ():
            if isinstance(command, AddQuery):
                self.records[command.id] = QueryRecord.from_checkpoint(command)
                self._ids_by_name[command.name] = command.id
            elif isinstance(command, RemoveQuery):
                self._ids_by_name = {name: number for name, number in self._ids_by_name.items() if number != command.id}
        self._next_id = max(self.records, default=-1) + 1

    def __contains__(self, name: str) -> bool:
        """Return whether an active query has that name."""
        return name in self._ids_by_name

    def choose_name(self, name: str | None) -> str:
        """Return the given name, or an unused one; raises SchemaError for an invalid new name."""
        if name is None:
            number = self._next_id + 1
            while f"q{number}" in self._ids_by_name:
                number += 1
            return f"q{number}"
        if not isinstance(name, str) or name not in self._ids_by_name:  # a checkpoint may have names that are invalid now
            check_name("query", name)
        return name

    def accept_query(
        self,
        text: str,
        name: str,
        sinks: SinkSet,
        catalog: Catalog,
        first_batch: int,
        *,
        past: bool,
        owner: str,
        budget: QueryBudget | None,
    ) -> tuple[QueryRecord, AddQuery]:
        """Check a new query; return its record and the command that adds it. `first_batch` is the earliest possible one."""
        plan = bind_query(text, catalog)
        check_past(plan, past=past)
        check_sinks(name, sinks.sinks, self.list_active())
        for sink in sinks.sinks:
            sink.check_columns(plan.schema.to_arrow())
        record = self.add_record(name, text, sinks, plan.schema, owner, first_batch)
        record.budget = budget
        return record, AddQuery(record.id, name, text, sinks.to_json(), past, owner, budget)

    def add_record(self, name: str, sql: str, sinks: SinkSet, schema: Schema, owner: str, first_batch: int) -> QueryRecord:
        """Add the record of a newly accepted query; it becomes live in `first_batch` or a later batch."""
        record = QueryRecord(self._next_id, name, sql, sinks, schema=schema, accepted_at=time.monotonic(), owner=owner)
        record.first_batch = first_batch
        self._next_id += 1
        self.records[record.id], self._ids_by_name[name] = record, record.id
        return record

    def reattach_query(self, name: str, sql: str, sinks: Sequence[Sink] | None, budget: QueryBudget | None) -> QueryRecord:
        """Return a recovered query that the user adds again, and attach its callbacks if it has some.

        Without sinks, those of the query stay. Raises NameTakenError if the query was not recovered, or has another text, other
        sinks or another budget.
        """
        record = self.records[self._ids_by_name[name]]
        if not record.recovered or record.sql != sql:
            raise NameTakenError(
                f"query '{name}' already exists",
                detail=f"its text: {record.sql}",
                hint="choose another name, or remove it first",
            )
        if sinks is not None and not record.sinks.matches(sinks):
            raise NameTakenError(
                f"query '{name}' already exists with another sink", detail=f"its sink: {record.sinks.describe()}"
            )
        record.sinks = record.sinks.attach_callbacks(sinks or ())
        if budget is not None and budget != record.budget:
            raise NameTakenError(
                f"query '{name}' already exists with another budget",
                detail=f"its budget: {record.budget or 'that of the session'}",
                hint="add it with that budget or without one, or remove it first",
            )
        record.recovered = False
        return record

    def get(self, name: str) -> QueryRecord:
        """Return the active query of that name; raises NotFoundError if there is none."""
        if name not in self._ids_by_name:
            raise NotFoundError(
                f"query '{name}' does not exist", detail=f"queries: {', '.join(sorted(self._ids_by_name)) or 'none'}"
            )
        return self.records[self._ids_by_name[name]]

    def fail_query(self, number: int, message: str) -> bool:
        """Mark a query as failed; return False if it is unknown or was removed: what it emitted before is not delivered."""
        record = self.records.get(number)
        if record is None or record.status == "removed":
            return False
        record.status, record.error = "failed", message
        return True

    def release_name(self, name: str) -> QueryRecord:
        """Return the active query of that name, and free the name; raises NotFoundError if there is none."""
        record = self.get(name)
        del self._ids_by_name[name]
        return record

    def find_newest(self, name: str, number: int | None = None) -> QueryRecord | None:
        """Return the newest query of that name, ended ones included; with `number`, the one with that id, too."""
        matches = [record for record in self.records.values() if record.name == name and number in {None, record.id}]
        return matches[-1] if matches else None

    def list_sinks(self) -> list[Sink]:
        """Return the sinks of the queries that were not removed; safe to call from any thread."""
        return [
            sink for record in list(self.records.values()) if record.status in {"accepted", "live"} for sink in record.sinks.sinks
        ]

    def list_active(self) -> list[QueryRecord]:
        """Return the queries that were not removed, oldest first."""
        return [self.records[number] for number in sorted(self._ids_by_name.values())]

    def name_of(self, number: int) -> str:
        """Return the name of a query by its id, or the id as text if the query is not known any more."""
        record = self.records.get(number)
        return str(number) if record is None else record.name

    def apply_states(self, numbers: Iterable[int], state: EngineState) -> None:
        """Update the records of queries that a committed batch has added, removed or failed, or whose sinks it has changed."""
        for number in numbers:
            if number in self.records and number in state.queries:
                self.records[number].apply_state(state.queries[number], state.batch, fresh=True)
        for query in state.queries.values():
            if is_sink_set(query.sink) and query.id in self.records:
                self.records[query.id].install_sinks(query.sink)

    def drop_ended(self, known: Container[int], count: int) -> None:
        """Drop ended queries that are not in `known`, once there are far more records than the `count` of known queries."""
        if len(self.records) < 2 * count + _ENDED_RECORDS_KEPT:
            return
        for number in [n for n, r in self.records.items() if r.status in {"removed", "failed"} and n not in known]:
            del self.records[number]
