"""Readers that follow a query: events made once for all that stand at the same place.

Whoever reads everything is a position in files, and goes on from it whenever it comes back. Whoever asks for a sample is there
to watch: it gets a few rows of all that is new, evenly picked, and is told how many were left out.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import anyio
import pyarrow as pa

from headrace.connectors.text import json_value
from headrace.model.schema import type_name
from headrace.query import Query
from headrace.service.kept import Kept, Piece
from headrace.service.news import News
from headrace.service.position import Position

_QUIET_SECONDS = 10.0
_REMEMBERED = 256  # events
_AT_ONCE = 1_000_000  # rows that a sample is taken of


@dataclass(frozen=True, slots=True)
class Event:
    """What a reader is told: `columns` first, then `rows` and, when nothing happens, `quiet`; `end` when nothing will.

    `missed` says that rows it should have had next are no longer kept, and from where on it is served.

    `id` is the position behind it: who gives it back gets what follows, no row twice and none left out.
    """

    kind: str
    id: str
    data: str

    def sent(self) -> str:
        """Return a server-sent event."""
        return f"event: {self.kind}\nid: {self.id}\ndata: {self.data}\n\n"

    def text(self) -> str:
        """Return a message for a WebSocket."""
        return f'{{"event": "{self.kind}", "id": "{self.id}", "data": {self.data}}}'


_Made: TypeAlias = tuple[list[Event], Position, bool]
"""Events, the position behind them, and whether there is more by now."""


def columns_of(schema: pa.Schema) -> list[dict[str, str]]:
    """Return the columns, with SQL's names of their types."""
    return [{"name": field.name, "type": type_name(field.type)} for field in schema]


def rows_of(table: pa.Table) -> list[list[Any]]:
    """Return rows as lists, in the order of columns."""
    columns = [[json_value(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _is_over(query: Query) -> bool:
    """Tell whether nothing more will come of a query, also after a restart."""
    return query.status in {"removed", "failed"}


class Followers:
    """Makes the events of all readers."""

    def __init__(self, kept: Kept, news: News, event_rows: int) -> None:
        """Put at most `event_rows` rows into an event."""
        self._kept, self._news, self._most = kept, news, event_rows
        self._made: OrderedDict[tuple[int, Position, int, int | None], asyncio.Task[_Made]] = OrderedDict()

    async def page(self, query: Query, at: Position, most: int, seconds: float) -> tuple[Piece, bool]:
        """Return rows behind a position, waiting for the first if need be, and whether nothing more will come of the query."""
        until, missed = time.monotonic() + seconds, False
        while True:
            over, last = _is_over(query), query.last_batch
            piece = await anyio.to_thread.run_sync(self._kept.read, query, at, most)
            left, missed = until - time.monotonic(), missed or piece.missed
            if piece.rows.num_rows or (over and not piece.more) or left <= 0 or self._news.over:
                return replace(piece, missed=missed), over
            at = piece.end
            if not piece.more:
                await self._news.after(last, left)

    async def follow(self, query: Query, begin: Position, sample: int | None = None) -> AsyncIterator[Event]:
        """Yield the events of a query from a position on, as fast as they are taken, until it is over."""
        yield Event("columns", str(begin), json.dumps(columns_of(query.schema)))
        at = begin
        while True:
            over, last = _is_over(query) or self._news.over, query.last_batch
            made, at, more = await self._next(query, at, last, sample)
            for event in made:
                yield event
            if more:
                continue
            if over:
                if _is_over(query) or self._news.failure:  # else only the service ends, and readers may come back to it
                    told = {"status": query.status, "error": query.error or self._news.failure}
                    yield Event("end", str(at), json.dumps(told))
                return
            if not await self._news.in_rounds(last, _QUIET_SECONDS):
                yield Event("quiet", str(at), json.dumps({"batch": last}))

    async def _next(self, query: Query, at: Position, last: int, sample: int | None) -> _Made:
        """Return the events behind a position; readers that ask for the same wait for the same."""
        key = query.id, at, last, sample
        task = self._made.get(key)
        if task is None:
            task = self._made[key] = asyncio.ensure_future(anyio.to_thread.run_sync(self._make, query, at, sample))
            if len(self._made) > _REMEMBERED:
                self._made.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._made.pop(key, None)  # whoever comes next tries again
            raise

    def _make(self, query: Query, at: Position, sample: int | None) -> _Made:
        if sample is None:
            piece = self._kept.read(query, at, self._most)
        else:
            piece = self._kept.read(query, at, _AT_ONCE).sampled(min(sample, self._most))
        made = []
        if piece.missed:
            made.append(Event("missed", str(piece.begin), json.dumps({"from": str(at), "to": str(piece.begin)})))
        if piece.rows.num_rows:
            made.append(Event("rows", str(piece.end), json.dumps({"rows": rows_of(piece.rows), "left_out": piece.left_out})))
        return made, piece.end, piece.more
