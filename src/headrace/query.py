"""A query in a session, as its user holds it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors import Sink, parse_sink, sink_from_json
from headrace.errors import EvaluationError, HeadraceError, NameTakenError, SessionError
from headrace.model.schema import Schema
from headrace.plan.multiway import MultiwayQuery
from headrace.plan.stacked import AnyQuery
from headrace.runtime import results as kept_rows
from headrace.runtime.state import QueryState

if TYPE_CHECKING:
    from headrace.session import Session


@dataclass(slots=True)
class QueryRecord:
    """What a session knows of a query; `status` is accepted, live, removed or failed."""

    id: int
    name: str
    sql: str
    sink: Sink
    status: str = "accepted"
    error: str | None = None
    schema: Schema | None = None
    recovered: bool = False
    waiting: bool = False  # a recovered callback that was not given back yet
    accepted_at: float | None = None
    live_at: float | None = None
    first_batch: int = 0  # none before it can have rows of the query
    last_batch: int | None = None
    live: bool = field(default=False)
    owner: str = ""

    @classmethod
    def known(cls, number: int, name: str, sql: str, sink: Mapping[str, Any] | None, owner: str) -> QueryRecord:
        """Return a query that the checkpoint tells of; without a sink there, its callback must be given back."""
        target = parse_sink(None) if sink is None else sink_from_json(sink)
        return cls(number, name, sql, target, recovered=True, waiting=sink is None, owner=owner)

    def update(self, state: QueryState, batch: int, *, fresh: bool = False) -> None:
        """Take over what a committed batch says; `fresh` when this session saw it happen."""
        del batch
        self.error, self.live = state.error, state.live
        self.first_batch, self.last_batch = state.first_batch, state.last_batch
        self.status = "live" if state.live else ("failed" if state.error else "removed")
        self.recovered = not fresh
        if fresh and state.live and self.live_at is None:
            self.live_at = time.monotonic()

    def discard(self, batch: int) -> None:
        """Take back what the query, which failed, had written in the failing batch."""
        if self.sink.written_by_workers:
            try:
                self.sink.discard(batch)
            except HeadraceError as error:
                self.error = f"{self.error}\n{error}"


def check_past(plan: AnyQuery, *, past: bool) -> None:
    """Refuse a past for a query that cannot have one."""
    if past and not isinstance(plan, MultiwayQuery):
        raise SessionError("only a join in SLIDING windows can begin in the past", hint="add it without past=True")


def check_sink(name: str, sink: Sink, others: Iterable[QueryRecord]) -> None:
    """Refuse a sink that writes where the query of another record does."""
    path = getattr(sink, "path", None)
    for other in others:
        if path is not None and getattr(other.sink, "path", None) == path:
            raise NameTakenError(
                f"query '{other.name}' already writes to '{path}'", hint=f"give query '{name}' a directory of its own"
            )


class Query:
    """A handle: it stays good after the query was removed, for what it emitted."""

    def __init__(self, session: Session, record: QueryRecord) -> None:
        """Made by `Session.add`."""
        self._session, self._record = session, record

    @property
    def name(self) -> str:
        """The name it was added under."""
        return self._record.name

    @property
    def id(self) -> int:
        """The number that no other query of the session had or will have."""
        return self._record.id

    @property
    def first_batch(self) -> int:
        """The first micro-batch that can have rows of it."""
        return self._record.first_batch

    @property
    def last_batch(self) -> int:
        """The last committed micro-batch whose rows count: none do from that on in which it failed or left."""
        last = self._session.last_batch
        return last if self._record.last_batch is None else min(last, self._record.last_batch - 1)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self._record.status in {"removed", "failed"} or self._session.is_closed

    @property
    def sql(self) -> str:
        """Its text."""
        return self._record.sql

    @property
    def owner(self) -> str:
        """Who asked for it, where that is known."""
        return self._record.owner

    @property
    def sink(self) -> Sink:
        """Where its results go."""
        return self._record.sink

    @property
    def status(self) -> str:
        """One of accepted, live, removed, failed."""
        return self._record.status

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return self._record.error

    @property
    def schema(self) -> pa.Schema:
        """The columns of its results."""
        return self._session.schema_of(self._record).to_arrow()

    @property
    def deployment_seconds(self) -> float | None:
        """How long it took from `add` until the first micro-batch with it was committed; None before."""
        record = self._record
        return None if record.live_at is None or record.accepted_at is None else record.live_at - record.accepted_at

    @property
    def emitted(self) -> int:
        """How many rows it has emitted."""
        state = self._session.state_of(self._record)
        return 0 if state is None else state.emitted

    @property
    def late(self) -> dict[str, int]:
        """How many rows came too late for it, by stream."""
        state = self._session.state_of(self._record)
        return {} if state is None else dict(state.late)

    def wait_live(self, timeout: float | None = None) -> Query:
        """Wait until it is in the pipeline; raises when it failed or was removed before, or on time-out."""
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
        """Return everything it has emitted so far (memory sink)."""
        batches = [b for _, found in self._rows(-1) for b in found]
        return pa.Table.from_batches(batches, self.schema)

    def stream(self, timeout: float | None = None) -> Iterator[pa.Table]:
        """Yield what it emits, one table a micro-batch, from the beginning.

        It ends when the query is over, or after `timeout` seconds of nothing.
        """
        after = -1
        while True:
            over, seen = self.is_over, self._session.last_batch
            for batch, found in self._rows(after):
                after = batch
                yield pa.Table.from_batches(found, self.schema)
            after = max(after, seen)
            if over or not self._session.wait(lambda seen=seen: self._session.last_batch > seen or self.is_over, timeout):  # type: ignore[misc]
                return

    def _rows(self, after: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        after = max(after, self.first_batch - 1)
        return kept_rows.rows_of(self._session.results_folder, self._record.id, after, self.last_batch)

    def remove(self) -> None:
        """Remove it from its session."""
        self._session.remove(self.name)

    def __repr__(self) -> str:
        """Return name, status and text."""
        return f"<Query {self.name} ({self.status}): {self.sql}>"
