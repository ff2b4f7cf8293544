"""A channel for the requests of a driver to a server, which never holds up a batch for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from headrace.errors import SourceError

_PROMPT_SECONDS = 0.2  # how long a batch waits for an answer at least, unless an earlier one is missing
_SLOW_SECONDS = 1.0  # and at most, twice the time of the last answer


class ControlConnection(Protocol):
    """A client of a server; only the thread of its channel calls it."""

    def send_request(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the response; raises SourceError, also if the server does not answer in time."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _ControlRequest:
    """A request on its way; the thread of the channel sets its outcome, and then `answered`."""

    name: str
    arguments: dict[str, Any]
    sent_at: float
    answered: threading.Event = field(default_factory=threading.Event)
    seconds: float = 0.0
    response: dict[str, Any] | None = None
    error: Exception | None = None


class ControlChannel:
    """The requests of a driver to a server, one at a time, in a thread of their own. Thread-safe.

    A server that falls silent holds nobody up: a caller waits once, about as long as the server used to take, and as long as that
    request has no answer, further calls return at once.
    """

    def __init__(self, connect: Callable[[], ControlConnection], explain_silence: Callable[[str], SourceError]) -> None:
        """Create a channel; it connects on the first request. `explain_silence` makes the error of a server that is silent."""
        self._connect, self._explain_silence, self._lock = connect, explain_silence, threading.Lock()
        self._queue: SimpleQueue[_ControlRequest | None] | None = None
        self._thread: threading.Thread | None = None
        self._outstanding: _ControlRequest | None = None
        self._posted: _ControlRequest | None = None
        self._patience = _PROMPT_SECONDS
        self._answers: dict[str, dict[str, Any]] = {}  # the last response to each request

    def send_request(
        self, name: str, *, patience: float | None = None, **arguments: Any
    ) -> tuple[dict[str, Any] | None, SourceError | None]:
        """Return the response to a request; or, while the server is silent, the last response and the error.

        With `patience`, wait that many seconds for this answer, and before for that to an earlier request. Raises SourceError if
        the request fails or is refused.
        """
        with self._lock:
            if self._settle_outstanding(patience or 0.0):
                request = self._outstanding = self._start_request(name, arguments)
                if request.answered.wait(self._patience if patience is None else patience):
                    self._settle_outstanding(0.0)
                    return self._answers[name], None
                self._patience = 0.0
            assert self._outstanding is not None
            silence = f"no answer for {time.monotonic() - self._outstanding.sent_at:.1f} s"
            return self._answers.get(name), self._explain_silence(silence)

    def get_last_answer(self, name: str) -> dict[str, Any] | None:
        """Return the last response to a request, without sending one; None before the first."""
        return self._answers.get(name)

    def post_request(self, name: str, **arguments: Any) -> bool:
        """Send a request after those on their way, and return whether it was sent; raises its error if it fails at once.

        As long as an earlier one of these has no answer, do nothing: a later call will have newer arguments.
        """
        with self._lock:
            if self._posted is not None and not self._posted.answered.is_set():
                return False
            request = self._posted = self._start_request(name, arguments)
            if not request.answered.wait(self._patience if self._outstanding is None else 0.0):
                self._patience = 0.0
            elif request.error is not None:
                raise request.error
            return True

    def _settle_outstanding(self, patience: float) -> bool:
        """Take the answer to an earlier request, and return whether there is none left without; raises its error."""
        earlier = self._outstanding
        if earlier is None:
            return True
        if not earlier.answered.wait(patience):
            return False
        self._outstanding = None
        if earlier.error is not None:
            raise earlier.error
        assert earlier.response is not None
        self._answers[earlier.name] = earlier.response
        self._patience = min(_SLOW_SECONDS, max(_PROMPT_SECONDS, 2 * earlier.seconds))
        return True

    def _start_request(self, name: str, arguments: dict[str, Any]) -> _ControlRequest:
        if self._queue is None:
            self._queue = SimpleQueue()
            self._thread = threading.Thread(
                target=_send_requests, args=(self._connect, self._queue), name="headrace-control", daemon=True
            )
            self._thread.start()
        request = _ControlRequest(name, arguments, time.monotonic())
        self._queue.put(request)
        return request

    def close(self) -> None:
        """Close the connection, at once unless a request is on its way; the next request connects again."""
        with self._lock:
            if self._queue is not None and self._thread is not None:
                self._queue.put(None)
                self._thread.join(self._patience)
            self._queue = self._thread = self._outstanding = self._posted = None
            self._patience = _PROMPT_SECONDS
            self._answers.clear()


def _send_requests(connect: Callable[[], ControlConnection], queue: SimpleQueue[_ControlRequest | None]) -> None:
    """Send the requests of a queue until it has None, and close the connection."""
    connection: ControlConnection | None = None
    while (request := queue.get()) is not None:
        try:
            connection = connect() if connection is None else connection
            request.response = connection.send_request(request.name, **request.arguments)
        except Exception as error:  # noqa: BLE001  raised again in the thread of the caller
            request.error = error
        request.seconds = time.monotonic() - request.sent_at
        request.answered.set()
    if connection is not None:
        connection.close()
