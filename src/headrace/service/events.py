"""Events of a subscription, serialized once for all subscribers at the same position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace.connectors.text import to_json_value
from headrace.model.schema import type_name
from headrace.service.position import Position


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """An event: `columns` first, then `rows`, a heartbeat `quiet` while nothing is new, and `end` when the query has finished.

    `missed` reports that the next rows are past their retention, and the position from which results continue.

    `id` is the position after the event: a subscription that resumes from it gets every later row exactly once.
    """

    kind: str
    id: str
    data: str

    def to_sse(self) -> bytes:
        """Return the event as a server-sent event."""
        return f"event: {self.kind}\nid: {self.id}\ndata: {self.data}\n\n".encode()

    def to_websocket_text(self) -> str:
        """Return the event as a WebSocket message."""
        return f'{{"event": "{self.kind}", "id": "{self.id}", "data": {self.data}}}'


@dataclass(frozen=True)
class EventBatch:
    """Consecutive events, the position after them, and whether more results exist already."""

    events: list[ResultEvent]
    end: Position
    has_more: bool

    @cached_property
    def chunk(self) -> bytes:
        """The events as one chunk of a response body; there must be at least one."""
        sent = b"".join(event.to_sse() for event in self.events)
        return b"%x\r\n%b\r\n" % (len(sent), sent)


def describe_columns(schema: pa.Schema) -> list[dict[str, str]]:
    """Return the columns with their SQL types."""
    return [{"name": field.name, "type": type_name(field.type)} for field in schema]


def to_json_rows(table: pa.Table) -> list[list[Any]]:
    """Return the rows as lists of JSON values, in the order of the columns."""
    columns = [[to_json_value(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]
