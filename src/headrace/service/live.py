"""Readers that follow over HTTP, as server-sent events, and over a WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from fastapi import WebSocket
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace.service.events import Event, Made
from headrace.service.following import Reader

AT_ONCE = "headrace.at_once"
"""What the server calls its way to write a chunk as it is: at once, or not at all (an extension of ASGI)."""

_AtOnce: TypeAlias = Callable[[bytes], bool]


class EventStream(StreamingResponse):
    """An answer that goes on for as long as a reader follows."""

    def __init__(self, scope: Scope, follow: Callable[[Reader], Awaitable[None]], leave: Callable[[], None]) -> None:
        """Take what is to be done with the reader of this request, and when it has left, however that comes."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._follow, self._leave = follow, leave
        chunked = scope["http_version"] == "1.1"
        self._at_once: _AtOnce | None = scope.get("extensions", {}).get(AT_ONCE) if chunked else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a reader that has gone before the answer began has left, too."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()

    async def stream_response(self, send: Send) -> None:
        """Send events until nothing more will come."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._follow(_Sent(send, self._at_once))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Sent:
    """Takes events as server-sent ones."""

    def __init__(self, send: Send, at_once: _AtOnce | None) -> None:
        self._send, self._at_once = send, at_once

    async def send(self, events: Sequence[Event]) -> None:
        if events:
            body = b"".join(event.sent() for event in events)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def offer(self, made: Made) -> bool:
        return self._at_once is not None and self._at_once(made.chunk)


class Messages:
    """Takes events as messages of a WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        """Take one that is open."""
        self._websocket = websocket

    async def send(self, events: Sequence[Event]) -> None:
        """Send each as a text."""
        for event in events:
            await self._websocket.send_text(event.text())

    def offer(self, made: Made) -> bool:  # noqa: ARG002
        """Nothing can be sent but by waiting."""
        return False
