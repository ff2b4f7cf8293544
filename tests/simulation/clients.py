"""The clients of the world: what they append, add, remove and read, and what they expect of the session.

Clients act as programs do: after a restart they look for their queries and repeat the changes that were not acknowledged. A query
is acknowledged when a client has seen it live, a row when `append` has returned.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc

import headrace as hr
from simulation import schedule as s
from simulation.durable_files import read_rows, read_sink
from simulation.history import AppendRecord, Delivery, QueryHistory, ViolationError
from simulation.workload import DROPPED_STREAM, SCHEMA

if TYPE_CHECKING:
    from simulation.world import World


@dataclass
class ClientQuery:
    """A query as its client knows it; `is_wanted` until the client removes it."""

    name: str
    sql: str
    sink: str
    id: int = -1
    is_wanted: bool = True
    was_live: bool = False
    was_gone: bool = False
    is_withdrawn: bool = False
    first_batch: int | None = None
    replaces: ClientQuery | None = None
    calls: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.id


class Clients:
    """All clients of a world, with what they know."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.queries: list[ClientQuery] = []
        self._cursors: dict[tuple[str, int], int] = {}
        self.has_dropped_stream = True  # whether clients want the stream that they drop now and then
        self._is_dropping = False  # whether a drop was requested and not acknowledged

    # --- after a restart --------------------------------------------------------------------------------------------------

    def repeat_drop(self) -> None:
        """Repeat a drop that was not acknowledged; one that was is final.

        The session does not list a stream that no batch has logged; the rows of its source are there, however. So a client that
        does not know whether the drop happened declares the stream first.
        """
        is_listed = DROPPED_STREAM in self._world.session.streams()
        if not self.has_dropped_stream and not self._is_dropping and is_listed:
            raise ViolationError("revived stream", f"'{DROPPED_STREAM}' was dropped, and the session has it")
        if self._is_dropping:
            if not is_listed:
                self._declare_dropped(hr.MemorySource(SCHEMA))
            self._request_drop()

    def _request_drop(self) -> None:
        try:
            self._world.session.drop_stream(DROPPED_STREAM, cascade=True)
        finally:  # the queries are removed, even if the drop cannot be logged yet
            for query in self.queries:
                handle = self._world.session.find(query.name, query.id)
                query.is_withdrawn |= not query.was_live and handle is not None and handle.status == "removed"
        self._is_dropping = False

    def reconcile(self) -> None:
        """Compare the queries of a new session with those that clients know, and repeat what was not acknowledged."""
        self.queries = [query for query in self.queries if not query.is_withdrawn]  # a new query may get their ids
        for query in self.queries:
            found = self._world.session.find(query.name, query.id)
            is_live = found is not None and found.status in {"accepted", "live"}
            if query.is_wanted and query.was_live and found is None:
                raise ViolationError("lost query", f"{query.key} was live")
            if query.was_gone and is_live:
                raise ViolationError("revived query", f"{query.key} was removed or had failed")
            if query.is_wanted and query.was_live and found is not None and found.status == "removed":
                raise ViolationError("lost query", f"{query.key} was live, and is removed now")
            if self._is_active(query) and query.sink in {"callback", "raising"}:
                self._world.session.add(query.sql, name=query.name, sink=self._make_sink(query))
            if query.is_wanted and not query.was_live and found is None:
                self._submit(query)
            elif not query.is_wanted and self._is_active(query) and not self._is_replaced(query):
                self._world.session.remove(query.name)

    def _is_replaced(self, query: ClientQuery) -> bool:
        """Return whether a later query of the client replaces this one, and is about to be submitted again."""
        return any(other.replaces is query and other.is_wanted for other in self.queries)

    def _is_active(self, query: ClientQuery) -> bool:
        """Return whether the session has the query, and its removal is not in the log."""
        return any((other.name, other.id) == query.key for other in self._world.session.queries())

    def _submit(self, query: ClientQuery) -> None:
        """Add a query, or replace its predecessor if that is still there."""
        if query.replaces is not None and self._is_active(query.replaces):
            handle = self._world.session.replace(query.name, query.sql)
        else:
            handle = self._world.session.add(query.sql, name=query.name, sink=self._make_sink(query))
        query.id = handle.id

    def _make_sink(self, query: ClientQuery) -> Any:
        if query.sink == "memory":
            return None
        if query.sink == "jsonl":
            return f"jsonl:{self._world.disk.root / query.name}"
        return partial(self._deliver, query, self._world.life)

    def _deliver(self, query: ClientQuery, life: int, table: pa.Table) -> None:
        self._world.disk.reach("callback")
        query.calls += 1
        self._world.history.deliveries.setdefault(query.name, []).append(Delivery(life, table.to_pylist()))
        if query.sink == "raising" and query.calls > 1:
            raise RuntimeError("the callback fails")

    # --- steps ------------------------------------------------------------------------------------------------------------

    def append_rows(self, step: s.Append) -> None:
        if step.stream == DROPPED_STREAM and not self.has_dropped_stream:
            return
        record = AppendRecord(step.stream, step.rows)
        self._world.history.appends.append(record)
        self._world.sources[step.stream].append([dict(row) for row in step.rows])
        record.acknowledged = True

    def write_file(self, step: s.WriteFile) -> None:
        path = self._world.input / f"{len(self._world.history.appends):05d}.arrow"
        table = pa.Table.from_pylist([dict(row) for row in step.rows], SCHEMA.to_arrow())
        with pa.OSFile(str(path.with_name(f".{path.name}")), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        os.utime(path.with_name(f".{path.name}"), (self._world.clock.elapsed, self._world.clock.elapsed))
        path.with_name(f".{path.name}").rename(path)
        self._world.history.appends.append(AppendRecord("logs", step.rows, acknowledged=True))

    def drop_stream(self, step: s.DropStream) -> None:
        """Drop a stream with its queries; a client whose query must end does not want it any more."""
        if not self.has_dropped_stream:
            return
        self.has_dropped_stream = False
        for append in self._world.history.appends:
            append.dropped |= append.stream == DROPPED_STREAM
        for query in [query for query in self.list_wanted() if DROPPED_STREAM in query.sql]:
            query.is_wanted = False
        self._is_dropping = True
        self._request_drop()

    def declare_again(self, step: s.DeclareStream) -> None:
        if self.has_dropped_stream or self._world.session._coordinator.unfinished_entry is not None:
            return
        self.repeat_drop()
        source = hr.MemorySource(SCHEMA)
        self._declare_dropped(source)
        self._world.sources[DROPPED_STREAM], self.has_dropped_stream = source, True
        self._world.history.declared_at.append(len(self._world.history.batches))

    def _declare_dropped(self, source: hr.MemorySource) -> None:
        """Declare the dropped stream; that commits its drop."""
        try:
            self._world.declare_stream(self._world.session, DROPPED_STREAM, source)
        finally:
            if not self._world.disk.is_dead:
                self._world.settle_batches()

    def add_query(self, step: s.AddQuery) -> None:
        if DROPPED_STREAM in step.sql and not self.has_dropped_stream:
            return
        query = ClientQuery(step.name, step.sql, step.sink)
        self.queries.append(query)
        self._submit(query)

    def list_wanted(self) -> list[ClientQuery]:
        return [query for query in self.queries if query.is_wanted]

    def remove_query(self, step: s.RemoveQuery) -> None:
        wanted = self.list_wanted()
        if wanted:
            query = wanted[step.pick % len(wanted)]
            query.is_wanted = False
            handle = self._world.session.find(query.name, query.id)
            if handle is not None and self._is_active(query):
                handle.remove()
                query.is_withdrawn = handle.status == "removed"

    def replace_query(self, step: s.ReplaceQuery) -> None:
        wanted = [query for query in self.list_wanted() if query.sink == "memory" and query.sql != step.sql]
        wanted = [query for query in wanted if self._is_active(query)]
        if wanted and (self.has_dropped_stream or DROPPED_STREAM not in step.sql):
            old = wanted[step.pick % len(wanted)]
            old.is_wanted = False
            query = ClientQuery(old.name, step.sql, "memory", replaces=old)
            self.queries.append(query)
            query.id = self._world.session.replace(old.name, step.sql).id
            handle = self._world.session.find(old.name, old.id)
            old.is_withdrawn = handle is not None and handle.status == "removed"

    def read_results(self, step: s.ReadResults) -> None:
        readable = [query for query in self.queries if query.was_live and query.sink == "memory"]
        if readable:
            query = readable[step.pick % len(readable)]
            self._read_query(query, -1 if step.anew else self._cursors.get(query.key, -1))

    def _read_query(self, query: ClientQuery, after: int) -> None:
        handle = self._world.session.find(query.name, query.id)
        if handle is None:
            raise ViolationError("lost query", f"{query.key} was live, and has no results now")
        after = max(after, handle.first_batch - 1)
        found = read_rows(self._world.session, handle, after)
        self._world.history.record_read(query.key, after, handle.last_batch, found)
        self._cursors[query.key] = handle.last_batch

    # --- what clients expect ----------------------------------------------------------------------------------------------

    def find_unread(self) -> set[str]:
        """Return the streams with acknowledged rows that no batch has read."""
        read = {row for batch in self._world.history.batches for ids in batch.ids.values() for row in ids}
        appends = [append for append in self._world.history.appends if append.acknowledged and not append.dropped]
        return {append.stream for append in appends if append.rows[0]["id"] not in read}

    def acknowledge_changes(self) -> None:
        """After a batch, every change that the session accepted before is in effect, and clients see it."""
        for query in self.queries:
            handle = self._world.session.find(query.name, query.id)
            if query.is_withdrawn and handle is not None and handle.status == "live":
                raise ViolationError("revived query", f"{query.key} was removed before it was live")
            if query.was_gone or query.is_withdrawn:
                continue
            if handle is None or handle.status == "accepted":
                raise ViolationError("ignored query", f"{query.key} is not live after a batch")
            if query.first_batch not in {None, handle.first_batch}:
                raise ViolationError("changed query", f"{query.key}: first batch {query.first_batch}, now {handle.first_batch}")
            query.was_live, query.first_batch = True, handle.first_batch
            if not query.is_wanted and handle.status == "live":
                raise ViolationError("ignored removal", f"{query.key} is live after the batch that removes it")
            query.was_gone = handle.status in {"removed", "failed"} and not self._world.session._command_queue
            if query.is_wanted and handle.status == "removed":
                raise ViolationError("lost query", f"{query.key} is removed, but nobody removed it")

    def read_all(self) -> None:
        for query in self.queries:
            if query.was_live and query.sink == "memory":
                self._read_query(query, -1)

    def describe_queries(self) -> None:
        """Add to the history what the session says about queries, and the files of their sinks."""
        for query in self.queries:
            handle = self._world.session.find(query.name, query.id)
            if handle is None or not query.was_live:
                continue
            old = query.replaces
            self._world.history.queries.append(
                QueryHistory(
                    *(query.name, query.id, query.sql, query.sink, handle.status, handle.error, handle.first_batch),
                    *(handle.last_batch + 1, handle.late, handle.emitted),
                    replaced=old.key if old is not None and old.was_live else None,
                )
            )
            if query.sink == "jsonl":
                self._world.history.sink_files[query.name] = read_sink(self._world.disk.root / query.name)
