"""Sinks that are added to the queries of a session, and taken from them, while it runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.connectors import SinkSet
from headrace.errors import SessionError
from headrace.query import QueryRecord, QueryRegistry, check_sinks
from headrace.runtime.backend import Backend, to_sink
from headrace.runtime.command_queue import CommandQueue
from headrace.runtime.commands import AddSink, RemoveSink
from headrace.runtime.delivery import ResultDelivery
from headrace.runtime.sink_queue import QueueStatus, SinkStatus

SinkSpecs: TypeAlias = Sequence[Any] | None
"""Several sinks, each in a form that `Session.add` takes."""


def parse_sinks(sink: Any, sinks: SinkSpecs, backend: Backend) -> SinkSet:
    """Return the sinks of a query that is added with one or several; raises SinkError for an invalid one."""
    if sinks is not None and sink is not None:
        raise SessionError("both sink and sinks are given", hint="give sinks=[…] alone")
    return SinkSet.of([to_sink(spec, backend) for spec in ([sink] if sinks is None else sinks)])


class SinkChanges:
    """Accepts changes of sinks, which the next batch installs; thread-safe."""

    def __init__(
        self,
        registry: QueryRegistry,
        command_queue: CommandQueue,
        delivery: ResultDelivery,
        backend: Backend,
        state_changed: threading.Condition,
    ) -> None:
        """Take the parts of a session, and the condition of its lock."""
        self._registry, self._command_queue, self._delivery = registry, command_queue, delivery
        self._backend, self._state_changed = backend, state_changed

    def add(self, record: QueryRecord, spec: Any, schema: pa.Schema) -> int:
        """See `Query.add_sink`."""
        sink = to_sink(spec, self._backend)
        with self._command_queue.reserve_place(wait=False), self._state_changed:
            if record.status not in {"accepted", "live"}:
                raise SessionError(f"query '{record.name}' has ended", hint="add the query again, with the sink")
            check_sinks(record.name, [sink], (other for other in self._registry.list_active() if other is not record))
            sink.check_columns(schema)
            number = record.sinks.next_number
            record.sinks = record.sinks.add(sink)
            self._command_queue.append(AddSink(record.id, number, record.sinks.get(number).to_json()["sink"]))
            self._state_changed.notify_all()
            return number

    def remove(self, record: QueryRecord, number: int, *, discard: bool) -> None:
        """See `Query.remove_sink`."""
        with self._state_changed:
            item = record.sinks.get(number)
            if item.end_batch is None and record.status in {"accepted", "live"}:
                self._command_queue.append(RemoveSink(record.id, number))
                self._state_changed.notify_all()
        if discard:
            self._delivery.discard(record.id, number)

    def list_queues(self) -> list[QueueStatus]:
        """Return what waits for the sinks of all queries, and why."""
        return self._delivery.list_queues()

    def describe(self, record: QueryRecord) -> list[SinkStatus]:
        """See `Query.sinks`."""
        return self._delivery.describe(record)
