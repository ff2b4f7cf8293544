"""Readers that follow a query: those that stand at the same place are told together.

Whoever reads everything is a position in files, and goes on from it whenever it comes back. Whoever asks for a sample is there
to watch: it gets a few rows of all that is new, evenly picked, and is told how many were left out.

A reader that has read all there is stands and waits. In a round, what is new is made once for each place at which readers stand,
and written to every one of them that can take it at once, without its coroutine being woken: hundreds of those would take longer
than all the rest. Whoever cannot take it goes on by itself, as fast as it can, until it has read all there is again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio

from headrace.query import Query
from headrace.service.events import Event, Made, columns_of, rows_of
from headrace.service.kept import Kept, Piece
from headrace.service.news import News
from headrace.service.position import Position

_QUIET_SECONDS = 10.0
_REMEMBERED = 256  # events
_READING = 4  # threads
_AT_ONCE = 1_000_000  # rows that a sample is taken of


class Reader(Protocol):
    """Where events go."""

    async def send(self, events: Sequence[Event]) -> None:
        """Send events, and wait as long as that takes."""

    def offer(self, made: Made) -> bool:
        """Send events at once and all of them, or none: False if that cannot be, as when earlier ones have not been taken yet."""


@dataclass(eq=False, slots=True)
class _Standing:
    """A reader that has read all there was, and waits."""

    reader: Reader
    query: Query
    sample: int | None
    at: Position
    told: float
    """When it last got anything."""
    woken: asyncio.Future[None] = field(default_factory=asyncio.Future)
    """Is done when it is to go on by itself, or is gone."""

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    def takes(self, made: Made) -> bool:
        """Tell it what is new, and return whether it goes on standing."""
        if self.woken.done():
            return False
        if made.events:
            if not self.reader.offer(made):
                self.wake()
                return False
            self.told = time.monotonic()
        self.at = made.end
        return True


def _is_over(query: Query) -> bool:
    """Tell whether nothing more will come of a query, also after a restart."""
    return query.status in {"removed", "failed"}


class Followers:
    """All readers of a service; belongs to one event loop."""

    def __init__(self, kept: Kept, news: News, event_rows: int) -> None:
        """Put at most `event_rows` rows into an event."""
        self._kept, self._news, self._most = kept, news, event_rows
        self._made: OrderedDict[tuple[int, Position, int, int | None], asyncio.Task[Made]] = OrderedDict()
        self._reading = anyio.CapacityLimiter(_READING)  # of their own: what others ask for does not keep readers waiting
        self._standing: set[_Standing] = set()
        self._telling: set[asyncio.Task[None]] = set()
        news.on_round = self._begin_round

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

    async def follow(self, query: Query, begin: Position, reader: Reader, sample: int | None = None) -> None:
        """Send the events of a query from a position on, as fast as they are taken, until it is over."""
        await reader.send([Event("columns", str(begin), json.dumps(columns_of(query.schema)))])
        at = begin
        while True:
            over, last = _is_over(query) or self._news.over, query.last_batch
            made = await self._next(query, at, last, sample)
            await reader.send(made.events)
            at = made.end
            if made.more:
                continue
            if over:
                if _is_over(query) or self._news.failure:  # else only the service ends, and readers may come back to it
                    told = {"status": query.status, "error": query.error or self._news.failure}
                    await reader.send([Event("end", str(at), json.dumps(told))])
                return
            standing = _Standing(reader, query, sample, at, time.monotonic())
            if not await self._stand(standing, last):
                await reader.send([Event("quiet", str(standing.at), json.dumps({"batch": last}))])
            at = standing.at

    async def _stand(self, standing: _Standing, last: int) -> bool:
        """Be told in rounds until that is not possible, or nothing was told for long: False."""
        self._standing.add(standing)
        self._news.plan_round(after=last)
        try:
            while not standing.woken.done():
                left = standing.told + _QUIET_SECONDS - time.monotonic()
                if left > 0:
                    await asyncio.wait({standing.woken}, timeout=left)
                elif standing in self._standing:
                    return False
                else:  # being told just now
                    standing.told = time.monotonic()
            return True
        finally:
            self._standing.discard(standing)
            standing.woken.cancel()

    def _begin_round(self) -> None:
        """Tell all that stand; whoever is being told still is left alone."""
        places: dict[tuple[int, Position, int | None], list[_Standing]] = {}
        for one in self._standing:
            places.setdefault((one.query.id, one.at, one.sample), []).append(one)
        self._standing = set()
        for standing in places.values():
            task = asyncio.ensure_future(self._tell(standing))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, standing: list[_Standing]) -> None:
        """Tell readers that stand at the same place; those that cannot be told, or are to end, are woken."""
        query, at, sample = standing[0].query, standing[0].at, standing[0].sample
        over, last = _is_over(query) or self._news.over, query.last_batch
        more = not over
        try:
            while more and standing:
                made = await self._next(query, at, last, sample)
                standing = [one for one in standing if one.takes(made)]
                at, more = made.end, made.more
        except Exception:  # noqa: BLE001  each of them meets it again, and ends of it
            over = True
        if over:
            for one in standing:
                one.wake()
            return
        self._standing.update(one for one in standing if not one.woken.done())
        if standing:
            self._news.plan_round(after=last)

    async def _next(self, query: Query, at: Position, last: int, sample: int | None) -> Made:
        """Return the events behind a position; readers that ask for the same wait for the same."""
        key = query.id, at, last, sample
        task = self._made.get(key)
        if task is None:
            making = anyio.to_thread.run_sync(self._make, query, at, sample, limiter=self._reading)
            task = self._made[key] = asyncio.ensure_future(making)
            if len(self._made) > _REMEMBERED:
                self._made.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._made.pop(key, None)  # whoever comes next tries again
            raise

    def _make(self, query: Query, at: Position, sample: int | None) -> Made:
        if sample is None:
            piece = self._kept.read(query, at, self._most)
        else:
            piece = self._kept.read(query, at, _AT_ONCE).sampled(min(sample, self._most))
        made = []
        if piece.missed:
            made.append(Event("missed", str(piece.begin), json.dumps({"from": str(at), "to": str(piece.begin)})))
        if piece.rows.num_rows:
            made.append(Event("rows", str(piece.end), json.dumps({"rows": rows_of(piece.rows), "left_out": piece.left_out})))
        return Made(made, piece.end, piece.more)
