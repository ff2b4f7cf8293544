"""Notification of coroutines after every micro-batch: one thread waits for the session and wakes the event loop.

A coroutine that waits for a batch is woken immediately. Live readers are served in rounds, all together: the longer a round
takes, the less often rounds run, so that readers take at most a fixed share of a core from the pipeline, whose driver runs in
the same process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from headrace.errors import SessionError
from headrace.session import Session

_LOOK_SECONDS = 0.5
_SHARE = 0.04  # of a core, for live readers
_LONGEST_SECONDS = 1.0  # maximum delay of a round, whatever the last one took


class News:
    """Belongs to one event loop; `start` is called in it."""

    def __init__(self, session: Session, on_batch: Callable[[], None]) -> None:
        """Take a callback that runs after micro-batches, before waiting coroutines are woken; `start` begins to watch."""
        self._session, self._note = session, on_batch
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._happened = asyncio.Event()
        self._due: asyncio.TimerHandle | None = None
        self._began = self._spent = 0.0
        self.on_round: Callable[[], None] = lambda: None
        """Called in the loop to start a round."""
        self.failure = ""
        """Why the session stopped; empty while it runs."""

    def start(self) -> None:
        """Start the thread that watches the session."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._listen, name="headrace-news", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching and wake all waiting coroutines; called in the loop."""
        self._stopping.set()
        self._wake()
        self._begin_round()

    def join(self) -> None:
        """Wait for the watching thread to end."""
        if self._thread is not None:
            self._thread.join()

    async def after(self, batch: int, seconds: float) -> bool:
        """Wait for a batch later than `batch`, or for the end of the session; False on timeout."""
        if self._session.last_batch > batch or self.over:
            return True
        batch_event = self._happened
        try:
            await asyncio.wait_for(batch_event.wait(), seconds)
        except TimeoutError:
            return self._session.last_batch > batch
        return True

    def plan_round(self, after: int) -> None:
        """Schedule a round if there is a batch later than `after`, delayed so that rounds stay within their share of a core.

        All CPU time of the loop since the last round counts towards that share.
        """
        assert self._loop is not None
        if self._due is None and (self._session.last_batch > after or self.over):
            delay = (time.thread_time() - self._spent) / _SHARE - (self._loop.time() - self._began)
            self._due = self._loop.call_later(max(0.0, min(delay, _LONGEST_SECONDS)), self._begin_round)

    @property
    def over(self) -> bool:
        """Whether no more batches will come."""
        return self._stopping.is_set() or bool(self.failure) or self._session.is_closed

    def _listen(self) -> None:
        while not self.over:
            last = self._session.last_batch
            try:
                has_batch = self._session.wait(lambda last=last: self._session.last_batch > last, _LOOK_SECONDS)  # type: ignore[misc]
            except SessionError as error:
                self.failure, has_batch = str(error), True
            self._note()
            if has_batch and self._loop is not None and not self._stopping.is_set():
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        batch_event, self._happened = self._happened, asyncio.Event()
        batch_event.set()
        if self.over:
            self._begin_round()
        else:
            self.plan_round(after=-1)

    def _begin_round(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._loop is not None:
            self._began, self._spent = self._loop.time(), time.thread_time()
        self.on_round()
