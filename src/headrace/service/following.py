"""Subscriptions to the results of queries: subscribers at the same position are served together.

A subscriber that reads everything is a position in the result files, and can resume from it after a reconnect. A subscriber
with a sample size gets evenly picked rows of everything new, and the number of rows left out.

A caught-up subscriber is idle. A round reads the new events once for each position at which subscribers are idle, and writes
them directly to every subscriber whose connection can take them immediately, without waking its coroutine: waking hundreds of
coroutines would take longer than everything else. A subscriber that cannot take them is woken and reads at its own speed until
it has caught up.
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
_REMEMBERED = 256  # batches of events
_READING = 4  # threads
_AT_ONCE = 1_000_000  # rows that a sample is picked from


class Reader(Protocol):
    """The connection to a subscriber."""

    async def send(self, events: Sequence[Event]) -> None:
        """Send events, waiting for the connection as long as necessary."""

    def offer(self, batch: Made) -> bool:
        """Send all events immediately, or none and return False, for example while earlier events are still being sent."""


@dataclass(eq=False, slots=True)
class _Standing:
    """A caught-up subscriber that waits for new results."""

    reader: Reader
    query: Query
    sample: int | None
    at: Position
    told: float
    """When the subscriber last got an event."""
    woken: asyncio.Future[None] = field(default_factory=asyncio.Future)
    """Done when the subscriber's own coroutine must continue, or the subscriber is gone."""

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    def takes(self, batch: Made) -> bool:
        """Deliver new events; return whether the subscriber stays idle."""
        if self.woken.done():
            return False
        if batch.events:
            if not self.reader.offer(batch):
                self.wake()
                return False
            self.told = time.monotonic()
        self.at = batch.end
        return True


def _is_over(query: Query) -> bool:
    """Return whether a query emits no more results, not even after a restart."""
    return query.status in {"removed", "failed"}


class Followers:
    """All subscriptions of a service; belongs to one event loop."""

    def __init__(self, result_log: Kept, notifier: News, event_rows: int) -> None:
        """Take the result log, the notifier and the maximum number of rows in an event."""
        self._kept, self._news, self._most = result_log, notifier, event_rows
        self._made: OrderedDict[tuple[int, Position, int, int | None], asyncio.Task[Made]] = OrderedDict()
        self._reading = anyio.CapacityLimiter(_READING)  # own threads: other requests do not delay subscribers
        self._standing: set[_Standing] = set()
        self._telling: set[asyncio.Task[None]] = set()
        notifier.on_round = self._begin_round

    async def page(self, query: Query, position: Position, max_rows: int, seconds: float) -> tuple[Piece, bool]:
        """Return rows after a position, waiting up to `seconds` for the first, and whether the query has finished."""
        deadline, missed = time.monotonic() + seconds, False
        while True:
            finished, last = _is_over(query), query.last_batch
            result = await anyio.to_thread.run_sync(self._kept.read, query, position, max_rows)
            remaining, missed = deadline - time.monotonic(), missed or result.missed
            if result.rows.num_rows or (finished and not result.more) or remaining <= 0 or self._news.over:
                return replace(result, missed=missed), finished
            position = result.end
            if not result.more:
                await self._news.after(last, remaining)

    async def follow(self, query: Query, start: Position, channel: Reader, sample: int | None = None) -> None:
        """Send the events of a query from a position on, as fast as the channel takes them, until the query has finished."""
        await channel.send([Event("columns", str(start), json.dumps(columns_of(query.schema)))])
        position = start
        while True:
            ended, last = _is_over(query) or self._news.over, query.last_batch
            batch = await self._next(query, position, last, sample)
            await channel.send(batch.events)
            position = batch.end
            if batch.more:
                continue
            if ended:
                if _is_over(query) or self._news.failure:  # otherwise only the service stops, and readers may reconnect
                    status = {"status": query.status, "error": query.error or self._news.failure}
                    await channel.send([Event("end", str(position), json.dumps(status))])
                return
            subscriber = _Standing(channel, query, sample, position, time.monotonic())
            if not await self._stand(subscriber, last):
                await channel.send([Event("quiet", str(subscriber.at), json.dumps({"batch": last}))])
            position = subscriber.at

    async def _stand(self, subscriber: _Standing, last: int) -> bool:
        """Keep a subscriber idle until its coroutine must continue; False if a heartbeat is due."""
        self._standing.add(subscriber)
        self._news.plan_round(after=last)
        try:
            while not subscriber.woken.done():
                remaining = subscriber.told + _QUIET_SECONDS - time.monotonic()
                if remaining > 0:
                    await asyncio.wait({subscriber.woken}, timeout=remaining)
                elif subscriber in self._standing:
                    return False
                else:  # a round is delivering to it
                    subscriber.told = time.monotonic()
            return True
        finally:
            self._standing.discard(subscriber)
            subscriber.woken.cancel()

    def _begin_round(self) -> None:
        """Deliver to all idle subscribers; those that a round is still delivering to are not in the set."""
        groups: dict[tuple[int, Position, int | None], list[_Standing]] = {}
        for subscriber in self._standing:
            groups.setdefault((subscriber.query.id, subscriber.at, subscriber.sample), []).append(subscriber)
        self._standing = set()
        for subscribers in groups.values():
            task = asyncio.ensure_future(self._tell(subscribers))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, subscribers: list[_Standing]) -> None:
        """Deliver events to subscribers at the same position; wake those that cannot take them or must end."""
        query, position, sample = subscribers[0].query, subscribers[0].at, subscribers[0].sample
        ended, last = _is_over(query) or self._news.over, query.last_batch
        has_more = not ended
        try:
            while has_more and subscribers:
                batch = await self._next(query, position, last, sample)
                subscribers = [subscriber for subscriber in subscribers if subscriber.takes(batch)]
                position, has_more = batch.end, batch.more
        except Exception:  # noqa: BLE001  each subscriber raises it again in its own coroutine
            ended = True
        if ended:
            for subscriber in subscribers:
                subscriber.wake()
            return
        self._standing.update(subscriber for subscriber in subscribers if not subscriber.woken.done())
        if subscribers:
            self._news.plan_round(after=last)

    async def _next(self, query: Query, position: Position, last: int, sample: int | None) -> Made:
        """Return the events after a position; subscribers at the same position share one read."""
        key = query.id, position, last, sample
        task = self._made.get(key)
        if task is None:
            reading = anyio.to_thread.run_sync(self._make, query, position, sample, limiter=self._reading)
            task = self._made[key] = asyncio.ensure_future(reading)
            if len(self._made) > _REMEMBERED:
                self._made.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._made.pop(key, None)  # the next subscriber retries
            raise

    def _make(self, query: Query, position: Position, sample: int | None) -> Made:
        if sample is None:
            result = self._kept.read(query, position, self._most)
        else:
            result = self._kept.read(query, position, _AT_ONCE).sampled(min(sample, self._most))
        events = []
        if result.missed:
            events.append(Event("missed", str(result.begin), json.dumps({"from": str(position), "to": str(result.begin)})))
        if result.rows.num_rows:
            events.append(Event("rows", str(result.end), json.dumps({"rows": rows_of(result.rows), "left_out": result.left_out})))
        return Made(events, result.end, result.more)
