"""The queries of a session by id and by name: active queries, and the most recent of the ended ones."""

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
from headrace.sharing.parts import root_query_id

_REMEMBERED = 1_000


class Registry:
    """Records of queries. Only queries that were not removed have a name here; ids are never reused."""

    def __init__(self) -> None:
        """Create an empty registry."""
        self.records: dict[int, QueryRecord] = {}
        self._names: dict[str, int] = {}
        self._next = 0

    def recover(self, state: EngineState, unfinished: Mapping[str, Any] | None) -> None:
        """Load the queries of the checkpoint, and those of a batch that was logged but not committed."""
        for query in (query for query in state.queries.values() if root_query_id(query.id) == query.id):
            record = QueryRecord.known(query.id, query.name, query.sql, query.sink, query.owner)
            record.update(query, state.batch)
            self.records[query.id] = record
            if query.live:
                self._names[query.name] = query.id
        for value in unfinished["commands"] if unfinished else ():
            command = from_json(value)
            if isinstance(command, Add):
                logged = QueryRecord.known(command.id, command.name, command.sql, command.sink, command.owner)
                self.records[command.id] = logged
                self._names[command.name] = command.id
            else:
                self._names = {name: number for name, number in self._names.items() if number != command.id}
        self._next = max(self.records, default=-1) + 1
        for record in self.records.values():
            if record.status == "failed" and record.last_batch == state.batch:
                record.discard(state.batch)

    def __contains__(self, name: str) -> bool:
        """Return whether an active query has that name."""
        return name in self._names

    def chosen(self, name: str | None) -> str:
        """Return the given name, or an unused one; raises SessionError for an invalid name."""
        if name is None:
            number = self._next + 1
            while f"q{number}" in self._names:
                number += 1
            return f"q{number}"
        if not isinstance(name, str) or not name.strip():
            raise SessionError(f"invalid query name {name!r}", hint="give a text that is not blank, or no name")
        return name

    def new(self, name: str, sql: str, sink: Sink, schema: Schema, owner: str, first_batch: int) -> QueryRecord:
        """Add the record of a newly accepted query; it becomes live in `first_batch` or a later batch."""
        record = QueryRecord(self._next, name, sql, sink, schema=schema, accepted_at=time.monotonic(), owner=owner)
        record.first_batch = first_batch
        self._next += 1
        self.records[record.id], self._names[name] = record, record.id
        return record

    def again(self, name: str, sql: str, sink: Sink) -> QueryRecord:
        """Return a recovered query that the user adds again, and attach its callback if it has one.

        Raises NameTakenError if the query was not recovered, or has another text or sink.
        """
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
        """Return the active query of that name; raises NotFoundError if there is none."""
        if name not in self._names:
            raise NotFoundError(f"query '{name}' is not there", detail=f"queries: {', '.join(sorted(self._names)) or 'none'}")
        return self.records[self._names[name]]

    def removed(self, name: str) -> QueryRecord:
        """Return the active query of that name, and free the name; raises NotFoundError if there is none."""
        record = self.named(name)
        del self._names[name]
        return record

    def newest(self, name: str, number: int | None = None) -> QueryRecord | None:
        """Return the newest query of that name, ended ones included; with `number`, the one with that id, too."""
        matches = [record for record in self.records.values() if record.name == name and number in {None, record.id}]
        return matches[-1] if matches else None

    def present(self) -> list[QueryRecord]:
        """Return the queries that were not removed, oldest first."""
        return [self.records[number] for number in sorted(self._names.values())]

    def forget(self, known: Container[int], count: int) -> None:
        """Drop ended queries that are not in `known`, once there are far more records than the `count` of known queries."""
        if len(self.records) < 2 * count + _REMEMBERED:
            return
        for number in [n for n, r in self.records.items() if r.status in {"removed", "failed"} and n not in known]:
            del self.records[number]
