"""The queries a session knows, by number and by name: those that are there, and those that are over."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from typing import Any

from headrace.connectors import CallbackSink, MemorySink, Sink
from headrace.errors import NameTakenError, NotFoundError, SessionError
from headrace.model.schema import Schema
from headrace.query import QueryRecord
from headrace.runtime.commands import Add, from_json
from headrace.runtime.state import EngineState
from headrace.sharing.parts import whole

_REMEMBERED = 1_000


class Registry:
    """Names are those of queries that were added and not removed; a number is never given twice."""

    def __init__(self) -> None:
        """Know none."""
        self.records: dict[int, QueryRecord] = {}
        self._names: dict[str, int] = {}
        self._next = 0

    def recover(self, state: EngineState, unfinished: Mapping[str, Any] | None) -> None:
        """Know the queries of the checkpoint again, and those of a batch that was logged but cut off."""
        for query in (query for query in state.queries.values() if whole(query.id) == query.id):
            record = QueryRecord.known(query.id, query.name, query.sql, query.sink, query.owner)
            record.update(query, state.batch)
            self.records[query.id] = record
            if query.live:
                self._names[query.name] = query.id
        for value in unfinished["commands"] if unfinished else ():
            command = from_json(value)
            if isinstance(command, Add):
                known = QueryRecord.known(command.id, command.name, command.sql, command.sink, command.owner)
                self.records[command.id] = known
                self._names[command.name] = command.id
            else:
                self._names = {name: number for name, number in self._names.items() if number != command.id}
        self._next = max(self.records, default=-1) + 1
        for record in self.records.values():
            if record.status == "failed" and record.last_batch == state.batch:
                record.discard(state.batch)

    def __contains__(self, name: str) -> bool:
        """Whether a query of that name is there."""
        return name in self._names

    def chosen(self, name: str | None) -> str:
        """Return a name that can be used: the one that is given, or one that nobody has."""
        if name is None:
            number = self._next + 1
            while f"q{number}" in self._names:
                number += 1
            return f"q{number}"
        if not isinstance(name, str) or not name.strip():
            raise SessionError(f"query name {name!r} cannot be used", hint="give it a name with letters in it, or none")
        return name

    def new(self, name: str, sql: str, sink: Sink, schema: Schema, owner: str, first_batch: int) -> QueryRecord:
        """Take a query that was accepted now, and comes into the pipeline with that batch or a later one."""
        record = QueryRecord(self._next, name, sql, sink, schema=schema, accepted_at=time.monotonic(), owner=owner)
        record.first_batch = first_batch
        self._next += 1
        self.records[record.id], self._names[name] = record, record.id
        return record

    def again(self, name: str, sql: str, sink: Sink) -> QueryRecord:
        """Return a query of the checkpoint that is added again, with its callback if it has one; refuse any other."""
        record = self.records[self._names[name]]
        if not record.recovered or record.sql != sql:
            raise NameTakenError(
                f"query '{name}' is already there",
                detail=f"its text: {record.sql}",
                hint="choose another name, or remove it first",
            )
        if isinstance(sink, CallbackSink):
            record.sink, record.waiting = sink, False
        elif not isinstance(sink, MemorySink) and sink != record.sink:
            raise NameTakenError(f"query '{name}' is already there with another sink", detail=f"its sink: {record.sink}")
        record.recovered = False
        return record

    def named(self, name: str) -> QueryRecord:
        """Return the query of that name; raises NotFoundError."""
        if name not in self._names:
            raise NotFoundError(f"query '{name}' is not there", detail=f"queries: {', '.join(sorted(self._names)) or 'none'}")
        return self.records[self._names[name]]

    def removed(self, name: str) -> QueryRecord:
        """Return the query of that name, which has it no longer."""
        record = self.named(name)
        del self._names[name]
        return record

    def newest(self, name: str, number: int | None = None) -> QueryRecord | None:
        """Return the newest query of that name, also one that is over; or the one that has that number, too."""
        found = [record for record in self.records.values() if record.name == name and number in {None, record.id}]
        return found[-1] if found else None

    def present(self) -> list[QueryRecord]:
        """Return the queries that have names, oldest first."""
        return [self.records[number] for number in sorted(self._names.values())]

    def forget(self, known: Container[int], count: int) -> None:
        """Let go of queries that are over and not among the `count` known ones."""
        if len(self.records) < 2 * count + _REMEMBERED:
            return
        for number in [n for n, r in self.records.items() if r.status in {"removed", "failed"} and n not in known]:
            del self.records[number]
