"""The queries of a session by id and by name: active queries, and the most recent of the ended ones."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from typing import Any

from headrace.connectors import CallbackSink, MemorySink, Sink
from headrace.errors import NameTakenError, NotFoundError, SessionError
from headrace.model.schema import Schema
from headrace.query import QueryRecord
from headrace.runtime.commands import AddQuery, command_from_json
from headrace.runtime.state import EngineState
from headrace.sharing.parts import root_query_id

_ENDED_RECORDS_KEPT = 1_000


class QueryRegistry:
    """Records of queries. Only queries that were not removed have a name here; ids are never reused."""

    def __init__(self) -> None:
        """Create an empty registry."""
        self.records: dict[int, QueryRecord] = {}
        self._ids_by_name: dict[str, int] = {}
        self._next_id = 0

    def recover(self, state: EngineState, unfinished: Mapping[str, Any] | None) -> None:
        """Load the queries of the checkpoint, and those of a batch that was logged but not committed."""
        for query in (query for query in state.queries.values() if root_query_id(query.id) == query.id):
            record = QueryRecord.from_checkpoint(query.id, query.name, query.sql, query.sink, query.owner)
            record.apply_state(query, state.batch)
            self.records[query.id] = record
            if query.live:
                self._ids_by_name[query.name] = query.id
        for value in unfinished["commands"] if unfinished else ():
            command = command_from_json(value)
            if isinstance(command, AddQuery):
                logged = QueryRecord.from_checkpoint(command.id, command.name, command.sql, command.sink, command.owner)
                self.records[command.id] = logged
                self._ids_by_name[command.name] = command.id
            else:
                self._ids_by_name = {name: number for name, number in self._ids_by_name.items() if number != command.id}
        self._next_id = max(self.records, default=-1) + 1
        for record in self.records.values():
            if record.status == "failed" and record.last_batch == state.batch:
                record.discard_output(state.batch)

    def __contains__(self, name: str) -> bool:
        """Return whether an active query has that name."""
        return name in self._ids_by_name

    def choose_name(self, name: str | None) -> str:
        """Return the given name, or an unused one; raises SessionError for an invalid name."""
        if name is None:
            number = self._next_id + 1
            while f"q{number}" in self._ids_by_name:
                number += 1
            return f"q{number}"
        if not isinstance(name, str) or not name.strip():
            raise SessionError(f"invalid query name {name!r}", hint="give a text that is not blank, or no name")
        return name

    def add_record(self, name: str, sql: str, sink: Sink, schema: Schema, owner: str, first_batch: int) -> QueryRecord:
        """Add the record of a newly accepted query; it becomes live in `first_batch` or a later batch."""
        record = QueryRecord(self._next_id, name, sql, sink, schema=schema, accepted_at=time.monotonic(), owner=owner)
        record.first_batch = first_batch
        self._next_id += 1
        self.records[record.id], self._ids_by_name[name] = record, record.id
        return record

    def reattach_query(self, name: str, sql: str, sink: Sink) -> QueryRecord:
        """Return a recovered query that the user adds again, and attach its callback if it has one.

        Raises NameTakenError if the query was not recovered, or has another text or sink.
        """
        record = self.records[self._ids_by_name[name]]
        if not record.recovered or record.sql != sql:
            raise NameTakenError(
                f"query '{name}' is already there",
                detail=f"its text: {record.sql}",
                hint="choose another name, or remove it first",
            )
        if isinstance(sink, CallbackSink):
            record.sink, record.awaits_callback = sink, False
        elif not isinstance(sink, MemorySink) and sink != record.sink:
            raise NameTakenError(f"query '{name}' is already there with another sink", detail=f"its sink: {record.sink}")
        record.recovered = False
        return record

    def get(self, name: str) -> QueryRecord:
        """Return the active query of that name; raises NotFoundError if there is none."""
        if name not in self._ids_by_name:
            raise NotFoundError(
                f"query '{name}' is not there", detail=f"queries: {', '.join(sorted(self._ids_by_name)) or 'none'}"
            )
        return self.records[self._ids_by_name[name]]

    def release_name(self, name: str) -> QueryRecord:
        """Return the active query of that name, and free the name; raises NotFoundError if there is none."""
        record = self.get(name)
        del self._ids_by_name[name]
        return record

    def find_newest(self, name: str, number: int | None = None) -> QueryRecord | None:
        """Return the newest query of that name, ended ones included; with `number`, the one with that id, too."""
        matches = [record for record in self.records.values() if record.name == name and number in {None, record.id}]
        return matches[-1] if matches else None

    def list_active(self) -> list[QueryRecord]:
        """Return the queries that were not removed, oldest first."""
        return [self.records[number] for number in sorted(self._ids_by_name.values())]

    def drop_ended(self, known: Container[int], count: int) -> None:
        """Drop ended queries that are not in `known`, once there are far more records than the `count` of known queries."""
        if len(self.records) < 2 * count + _ENDED_RECORDS_KEPT:
            return
        for number in [n for n, r in self.records.items() if r.status in {"removed", "failed"} and n not in known]:
            del self.records[number]
