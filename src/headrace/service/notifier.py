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

_POLL_SECONDS = 0.5
_READER_CPU_SHARE = 0.04  # of a core, for live readers
_MAX_ROUND_DELAY_SECONDS = 1.0  # maximum delay of a round, whatever the last one took


class BatchNotifier:
    """Belongs to one event loop; `start` is called in it."""

    def __init__(self, session: Session, on_batch: Callable[[], None]) -> None:
        """Take a callback that runs after micro-batches, before waiting coroutines are woken; `start` begins to watch."""
        self._session, self._on_batch = session, on_batch
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._batch_event = asyncio.Event()
        self._round_timer: asyncio.TimerHandle | None = None
        self._round_started_at = self._round_cpu_seconds = 0.0
        self.on_round: Callable[[], None] = lambda: None
        """Called in the loop to start a round."""
        self.poll_seconds = _POLL_SECONDS
        """The time after which the watching thread notices `stop` at the latest."""
        self.failure = ""
        """Why the session stopped; empty while it runs."""

    def start(self) -> None:
        """Start the thread that watches the session."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch_session, name="headrace-news", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching and wake all waiting coroutines; called in the loop."""
        self._stopping.set()
        self._notify_waiters()
        self._start_round()

    def join(self) -> None:
        """Wait for the watching thread to end."""
        if self._thread is not None:
            self._thread.join()

    async def wait_after(self, batch: int, seconds: float) -> bool:
        """Wait for a batch later than `batch`, or for the end of the session; False on timeout."""
        if self._session.last_batch > batch or self.is_over:
            return True
        batch_event = self._batch_event
        try:
            await asyncio.wait_for(batch_event.wait(), seconds)
        except TimeoutError:
            return self._session.last_batch > batch
        return True

    def schedule_round(self, after: int) -> None:
        """Schedule a round if there is a batch later than `after`, delayed so that rounds stay within their share of a core.

        All CPU time of the loop since the last round counts towards that share.
        """
        assert self._loop is not None
        if self._round_timer is None and (self._session.last_batch > after or self.is_over):
            delay = (time.thread_time() - self._round_cpu_seconds) / _READER_CPU_SHARE - (
                self._loop.time() - self._round_started_at
            )
            self._round_timer = self._loop.call_later(max(0.0, min(delay, _MAX_ROUND_DELAY_SECONDS)), self._start_round)

    @property
    def is_over(self) -> bool:
        """Whether no more batches will come."""
        return self._stopping.is_set() or bool(self.failure) or self._session.is_closed

    @property
    def has_failed(self) -> bool:
        """Whether the session stopped because of an error. One whose checkpoint has a new owner goes on there."""
        return bool(self.failure) and self._session.loss is None

    def _watch_session(self) -> None:
        """Notify after every micro-batch that the session has finished.

        A batch is committed before it is finished, that is, before the status of its queries is up to date: `last_batch` of the
        session would announce it too early, and only once.
        """
        last = self._last_finished_batch()
        while not self.is_over:
            try:
                has_batch = self._session.wait(lambda last=last: self._last_finished_batch() > last, self.poll_seconds)  # type: ignore[misc]
            except SessionError as error:
                self.failure, has_batch = str(error), True
            last = self._last_finished_batch()
            self._on_batch()
            if has_batch and self._loop is not None and not self._stopping.is_set():
                self._loop.call_soon_threadsafe(self._notify_waiters)

    def _last_finished_batch(self) -> int:
        batches = self._session.done()
        return batches[-1].report.batch if batches else -1

    def _notify_waiters(self) -> None:
        batch_event, self._batch_event = self._batch_event, asyncio.Event()
        batch_event.set()
        if self.is_over:
            self._start_round()
        else:
            self.schedule_round(after=-1)

    def _start_round(self) -> None:
        if self._round_timer is not None:
            self._round_timer.cancel()
            self._round_timer = None
        if self._loop is not None:
            self._round_started_at, self._round_cpu_seconds = self._loop.time(), time.thread_time()
        self.on_round()
