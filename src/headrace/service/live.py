"""The two channels to a live reader: server-sent events over HTTP, and messages over a WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from fastapi import WebSocket
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace.service.events import EventBatch, ResultEvent
from headrace.service.following import SubscriberChannel

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
