"""Every micro-batch, told to coroutines: one thread waits for the session, and wakes whoever waits here.

Whoever waits for one thing is told at once. Readers that follow results are told in rounds, all together: the longer that takes,
the less often, so that they take no more than a part of a core from the pipeline, whose driver is in the same process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from headrace.errors import SessionError
from headrace.session import Session

_LOOK_SECONDS = 0.5
_SHARE = 0.04  # of a core, for readers
_LONGEST_SECONDS = 1.0  # from one round to the next, whatever it takes


class News:
    """Belongs to one event loop; `start` is called in it."""

    def __init__(self, session: Session, note: Callable[[], None]) -> None:
        """Nothing is waited for before `start`; `note` is called after micro-batches, before anybody is woken."""
        self._session, self._note = session, note
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._happened = asyncio.Event()
        self._due: asyncio.TimerHandle | None = None
        self._began = self._spent = 0.0
        self.on_round: Callable[[], None] = lambda: None
        """Is called in the loop to begin a round."""
        self.failure = ""
        """Why there will be no more batches, if that is so."""

    def start(self) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._listen, name="headrace-news", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop listening, and let everybody go on; called in the loop."""
        self._stopping.set()
        self._wake()
        self._begin_round()

    def join(self) -> None:
        """Wait for the thread that listened."""
        if self._thread is not None:
            self._thread.join()

    async def after(self, batch: int, seconds: float) -> bool:
        """Wait for a batch after that one, or for the end; False on time-out."""
        if self._session.last_batch > batch or self.over:
            return True
        happened = self._happened
        try:
            await asyncio.wait_for(happened.wait(), seconds)
        except TimeoutError:
            return self._session.last_batch > batch
        return True

    def plan_round(self, after: int) -> None:
        """Begin a round, soon, if there is a batch after that one: when what the last took is but a part of the time since.

        All that the loop did since counts as that.
        """
        assert self._loop is not None
        if self._due is None and (self._session.last_batch > after or self.over):
            rest = (time.thread_time() - self._spent) / _SHARE - (self._loop.time() - self._began)
            self._due = self._loop.call_later(max(0.0, min(rest, _LONGEST_SECONDS)), self._begin_round)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self._stopping.is_set() or bool(self.failure) or self._session.is_closed

    def _listen(self) -> None:
        while not self.over:
            seen = self._session.last_batch
            try:
                found = self._session.wait(lambda seen=seen: self._session.last_batch > seen, _LOOK_SECONDS)  # type: ignore[misc]
            except SessionError as error:
                self.failure, found = str(error), True
            self._note()
            if found and self._loop is not None and not self._stopping.is_set():
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        happened, self._happened = self._happened, asyncio.Event()
        happened.set()
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
