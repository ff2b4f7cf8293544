"""What readers that follow a query are told, made once for all that stand at the same place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace.connectors.text import json_value
from headrace.model.schema import type_name
from headrace.service.position import Position


@dataclass(frozen=True, slots=True)
class Event:
    """What a reader is told: `columns` first, then `rows` and, when nothing happens, `quiet`; `end` when nothing will.

    `missed` says that rows it should have had next are no longer kept, and from where on it is served.

    `id` is the position behind it: who gives it back gets what follows, no row twice and none left out.
    """

    kind: str
    id: str
    data: str

    def sent(self) -> bytes:
        """Return a server-sent event."""
        return f"event: {self.kind}\nid: {self.id}\ndata: {self.data}\n\n".encode()

    def text(self) -> str:
        """Return a message for a WebSocket."""
        return f'{{"event": "{self.kind}", "id": "{self.id}", "data": {self.data}}}'


@dataclass(frozen=True)
class Made:
    """Events that follow each other, the position behind them, and whether there is more by now."""

    events: list[Event]
    end: Position
    more: bool

    @cached_property
    def chunk(self) -> bytes:
        """The events, of which there are some, as one chunk of the body of an answer."""
        sent = b"".join(event.sent() for event in self.events)
        return b"%x\r\n%b\r\n" % (len(sent), sent)


def columns_of(schema: pa.Schema) -> list[dict[str, str]]:
    """Return the columns, with SQL's names of their types."""
    return [{"name": field.name, "type": type_name(field.type)} for field in schema]


def rows_of(table: pa.Table) -> list[list[Any]]:
    """Return rows as lists, in the order of columns."""
    columns = [[json_value(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]
