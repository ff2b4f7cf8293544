"""Subscriptions to the results of queries: subscribers at the same position are served together.

A subscriber that reads everything is a position in the result files, and can resume from it after a reconnect. A subscriber
with a sample size gets evenly picked rows of everything new, and the number of rows left out. Its channel is server-sent events
over HTTP, or messages over a WebSocket.

A caught-up subscriber is idle. A round reads and serializes the new events once for each position at which subscribers are idle,
and writes them directly to every subscriber whose connection can take them immediately, without waking its coroutine: waking
hundreds of coroutines would take longer than everything else. A subscriber that cannot take them is woken and reads at its own
speed until it has caught up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import anyio
import pyarrow as pa
from fastapi import WebSocket
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace.connectors.row_text import to_json_value
from headrace.model.types import type_name
from headrace.query import Query
from headrace.service.notifier import BatchNotifier
from headrace.service.result_pages import Position, ResultPages, ResultSlice


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


_HEARTBEAT_SECONDS = 10.0
_MAX_CACHED_BATCHES = 256  # batches of events
_READ_THREADS = 4  # threads
_MAX_SAMPLED_ROWS = 1_000_000  # rows that a sample is picked from


class SubscriberChannel(Protocol):
    """The connection to a subscriber."""

    async def send(self, events: Sequence[ResultEvent]) -> None:
        """Send events, waiting for the connection as long as necessary."""

    def try_send(self, batch: EventBatch) -> bool:
        """Send all events immediately, or none and return False, for example while earlier events are still being sent."""


@dataclass(eq=False, slots=True)
class _IdleSubscriber:
    """A caught-up subscriber that waits for new results."""

    channel: SubscriberChannel
    query: Query
    sample: int | None
    position: Position
    last_sent_at: float
    """When the subscriber last got an event."""
    wakeup: asyncio.Future[None] = field(default_factory=asyncio.Future)
    """Done when the subscriber's own coroutine must continue, or the subscriber is gone."""

    def wake(self) -> None:
        if not self.wakeup.done():
            self.wakeup.set_result(None)

    def deliver(self, batch: EventBatch) -> bool:
        """Deliver new events; return whether the subscriber stays idle."""
        if self.wakeup.done():
            return False
        if batch.events:
            if not self.channel.try_send(batch):
                self.wake()
                return False
            self.last_sent_at = time.monotonic()
        self.position = batch.end
        return True


def _is_finished(query: Query) -> bool:
    """Return whether a query emits no more results, not even after a restart."""
    return query.status in {"removed", "failed"}


class SubscriptionHub:
    """All subscriptions of a service; belongs to one event loop."""

    def __init__(self, result_pages: ResultPages, notifier: BatchNotifier, event_rows: int) -> None:
        """Take the result log, the notifier and the maximum number of rows in an event."""
        self._result_pages, self._notifier, self._max_event_rows = result_pages, notifier, event_rows
        self._event_cache: OrderedDict[tuple[int, Position, int, int | None], asyncio.Task[EventBatch]] = OrderedDict()
        self._read_limiter = anyio.CapacityLimiter(_READ_THREADS)  # own threads: other requests do not delay subscribers
        self._idle: set[_IdleSubscriber] = set()
        self._delivery_tasks: set[asyncio.Task[None]] = set()
        notifier.on_round = self._start_round

    async def read_page(self, query: Query, position: Position, max_rows: int, seconds: float) -> tuple[ResultSlice, bool]:
        """Return rows after a position, waiting up to `seconds` for the first, and whether the query has finished."""
        deadline, missed = time.monotonic() + seconds, False
        while True:
            finished, last = _is_finished(query), query.last_batch
            result = await anyio.to_thread.run_sync(self._result_pages.read, query, position, max_rows)
            remaining, missed = deadline - time.monotonic(), missed or result.missed
            if result.rows.num_rows or (finished and not result.has_more) or remaining <= 0 or self._notifier.is_over:
                return replace(result, missed=missed), finished
            position = result.end
            if not result.has_more:
                await self._notifier.wait_after(last, remaining)

    async def follow(self, query: Query, start: Position, channel: SubscriberChannel, sample: int | None = None) -> None:
        """Send the events of a query from a position on, as fast as the channel takes them, until the query has finished."""
        await channel.send([ResultEvent("columns", str(start), json.dumps(describe_columns(query.schema)))])
        position = start
        while True:
            ended, last = _is_finished(query) or self._notifier.is_over, query.last_batch
            batch = await self._next_events(query, position, last, sample)
            await channel.send(batch.events)
            position = batch.end
            if batch.has_more:
                continue
            if ended:
                if _is_finished(query) or self._notifier.has_failed:  # otherwise the service stops, and readers may reconnect
                    status = {"status": query.status, "error": query.error or self._notifier.failure}
                    await channel.send([ResultEvent("end", str(position), json.dumps(status))])
                return
            subscriber = _IdleSubscriber(channel, query, sample, position, time.monotonic())
            if not await self._wait_idle(subscriber, last):
                await channel.send([ResultEvent("quiet", str(subscriber.position), json.dumps({"batch": last}))])
            position = subscriber.position

    async def _wait_idle(self, subscriber: _IdleSubscriber, last: int) -> bool:
        """Keep a subscriber idle until its coroutine must continue; False if a heartbeat is due."""
        self._idle.add(subscriber)
        self._notifier.schedule_round(after=last)
        try:
            while not subscriber.wakeup.done():
                remaining = subscriber.last_sent_at + _HEARTBEAT_SECONDS - time.monotonic()
                if remaining > 0:
                    await asyncio.wait({subscriber.wakeup}, timeout=remaining)
                elif subscriber in self._idle:
                    return False
                else:  # a round is delivering to it
                    subscriber.last_sent_at = time.monotonic()
            return True
        finally:
            self._idle.discard(subscriber)
            subscriber.wakeup.cancel()

    def _start_round(self) -> None:
        """Deliver to all idle subscribers; those that a round is still delivering to are not in the set."""
        groups: dict[tuple[int, Position, int | None], list[_IdleSubscriber]] = {}
        for subscriber in self._idle:
            groups.setdefault((subscriber.query.id, subscriber.position, subscriber.sample), []).append(subscriber)
        self._idle = set()
        for subscribers in groups.values():
            task = asyncio.ensure_future(self._deliver_events(subscribers))
            self._delivery_tasks.add(task)
            task.add_done_callback(self._delivery_tasks.discard)

    async def _deliver_events(self, subscribers: list[_IdleSubscriber]) -> None:
        """Deliver events to subscribers at the same position; wake those that cannot take them or must end."""
        query, position, sample = subscribers[0].query, subscribers[0].position, subscribers[0].sample
        ended, last = _is_finished(query) or self._notifier.is_over, query.last_batch
        has_more = not ended
        try:
            while has_more and subscribers:
                batch = await self._next_events(query, position, last, sample)
                subscribers = [subscriber for subscriber in subscribers if subscriber.deliver(batch)]
                position, has_more = batch.end, batch.has_more
        except Exception:  # noqa: BLE001  each subscriber raises it again in its own coroutine
            ended = True
        if ended:
            for subscriber in subscribers:
                subscriber.wake()
            return
        self._idle.update(subscriber for subscriber in subscribers if not subscriber.wakeup.done())
        if subscribers:
            self._notifier.schedule_round(after=last)

    async def _next_events(self, query: Query, position: Position, last: int, sample: int | None) -> EventBatch:
        """Return the events after a position; subscribers at the same position share one read."""
        key = query.id, position, last, sample
        task = self._event_cache.get(key)
        if task is None:
            reading = anyio.to_thread.run_sync(self._read_events, query, position, sample, limiter=self._read_limiter)
            task = self._event_cache[key] = asyncio.ensure_future(reading)
            if len(self._event_cache) > _MAX_CACHED_BATCHES:
                self._event_cache.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._event_cache.pop(key, None)  # the next subscriber retries
            raise

    def _read_events(self, query: Query, position: Position, sample: int | None) -> EventBatch:
        if sample is None:
            result = self._result_pages.read(query, position, self._max_event_rows)
        else:
            result = self._result_pages.read(query, position, _MAX_SAMPLED_ROWS).sample_rows(min(sample, self._max_event_rows))
        events = []
        if result.missed:
            events.append(ResultEvent("missed", str(result.start), json.dumps({"from": str(position), "to": str(result.start)})))
        if result.rows.num_rows:
            events.append(
                ResultEvent("rows", str(result.end), json.dumps({"rows": to_json_rows(result.rows), "left_out": result.left_out}))
            )
        return EventBatch(events, result.end, result.has_more)


WRITE_CHUNK_EXTENSION = "headrace.at_once"
"""ASGI extension of our server: a function that writes a whole chunk immediately, or returns False without writing."""

_ChunkWriter: TypeAlias = Callable[[bytes], bool]


class EventStreamResponse(StreamingResponse):
    """A response that lasts as long as its reader follows the query."""

    def __init__(
        self, scope: Scope, follow: Callable[[SubscriberChannel], Awaitable[None]], on_close: Callable[[], None]
    ) -> None:
        """Take the coroutine that serves the reader's channel, and a callback for when the reader has left in any way."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._follow, self._on_close = follow, on_close
        chunked = scope["http_version"] == "1.1"
        self._write_chunk: _ChunkWriter | None = scope.get("extensions", {}).get(WRITE_CHUNK_EXTENSION) if chunked else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; the callback also runs if the reader disconnects before the response starts."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()

    async def stream_response(self, send: Send) -> None:
        """Send events until the subscription ends."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._follow(_SseChannel(send, self._write_chunk))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _SseChannel:
    """Sends events as server-sent events."""

    def __init__(self, send: Send, write_chunk: _ChunkWriter | None) -> None:
        self._send, self._write_chunk = send, write_chunk

    async def send(self, events: Sequence[ResultEvent]) -> None:
        if events:
            body = b"".join(event.to_sse() for event in events)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def try_send(self, batch: EventBatch) -> bool:
        return self._write_chunk is not None and self._write_chunk(batch.chunk)


class WebSocketChannel:
    """Sends events as messages of a WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        """Take an open WebSocket."""
        self._websocket = websocket

    async def send(self, events: Sequence[ResultEvent]) -> None:
        """Send each event as a text message."""
        for event in events:
            await self._websocket.send_text(event.to_websocket_text())

    def try_send(self, batch: EventBatch) -> bool:  # noqa: ARG002
        """Return False: a WebSocket can only be written by waiting."""
        return False
