"""Listeners: code of users that receives events of queries, micro-batches and streams.

Every listener has a thread and a bounded queue of its own. It may be slow, block or raise: it delays neither micro-batches nor
other listeners. If its queue is full, the oldest event is dropped and counted. Nothing is stored: a listener hears of what
happens after it was added, in this process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

_LOG = logging.getLogger("headrace")
MAX_QUEUED_EVENTS = 10_000  # of one listener
CLOSE_SECONDS = 5.0  # how long `close` waits for listeners


class SessionListener:
    """The events of a session; override what you need. The methods of one listener are called one at a time, in order."""

    def on_query_added(self, name: str, sql: str) -> None:
        """Take the name and text of a query that is live from this micro-batch on."""

    def on_query_ended(self, name: str, error: str | None) -> None:
        """Take the name of a query that was removed, or has failed with an error."""

    def on_batch(self, progress: dict[str, Any]) -> None:
        """Take the progress of a committed micro-batch; see `Session.last_progress`."""

    def on_stream_degraded(self, stream: str, error: str) -> None:
        """Take the name of a stream whose source cannot be read; called again if the error changes."""

    def on_stream_recovered(self, stream: str) -> None:
        """Take the name of a stream whose source can be read again."""


class _ListenerQueue:
    """The queued events of a listener; its thread runs while there are some."""

    def __init__(self, listener: SessionListener, most: int) -> None:
        self.listener, self._most = listener, most
        self._changed = threading.Condition()
        self._events: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def put(self, event: Callable[[], object]) -> None:
        with self._changed:
            if len(self._events) >= self._most:
                self._events.popleft()
                if not self.dropped:
                    _LOG.warning("listener %s is too slow: its oldest events are dropped", type(self.listener).__name__)
                self.dropped += 1
            self._events.append(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-listener", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until all events were taken; at once in the listener's own thread. Return whether they were."""
        with self._changed:
            is_own = threading.current_thread() is self._thread
            return is_own or self._changed.wait_for(lambda: self._thread is None, max(seconds, 0.0))

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._events:
                    self._thread = None
                    self._changed.notify_all()
                    return
                event = self._events.popleft()
            try:
                event()
            except Exception:  # noqa: BLE001  the code of a user may raise anything
                _LOG.exception("listener %s failed", type(self.listener).__name__)


class ListenerHub:
    """The listeners of a session. Thread-safe; no call but `wait` waits for a listener."""

    def __init__(self, most: int = MAX_QUEUED_EVENTS) -> None:
        """Start without listeners; `most` events of a listener are queued."""
        self._most, self._lock = most, threading.Lock()
        self._queues: tuple[_ListenerQueue, ...] = ()

    @property
    def has_listeners(self) -> bool:
        """Whether there is a listener."""
        return bool(self._queues)

    def add(self, listener: SessionListener) -> None:
        """Add a listener; a listener that was added already is not added again."""
        with self._lock:
            if all(queue.listener is not listener for queue in self._queues):
                self._queues = (*self._queues, _ListenerQueue(listener, self._most))

    def remove(self, listener: SessionListener) -> None:
        """Remove a listener, which hears of nothing new; a listener that was not added is ignored."""
        with self._lock:
            self._queues = tuple(queue for queue in self._queues if queue.listener is not listener)

    def notify(self, method: str, *arguments: object) -> None:
        """Queue a call of a method of every listener; a listener without the method is not called."""
        for queue in self._queues:
            call = getattr(queue.listener, method, None)
            if call is not None:
                queue.put(partial(call, *arguments))

    def wait(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until the listeners have taken all events, at most some seconds together; return whether they have."""
        deadline = time.monotonic() + seconds
        taken = [queue.wait(deadline - time.monotonic()) for queue in self._queues]
        return all(taken)

    def count_dropped(self) -> Sequence[int]:
        """Return the number of dropped events of each listener, in the order in which they were added."""
        return [queue.dropped for queue in self._queues]
