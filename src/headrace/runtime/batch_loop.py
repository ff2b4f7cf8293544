"""The background thread of a session: runs micro-batches whenever there is work, and retries those that fail."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import CheckpointError, HeadraceError, OwnershipLostError, SessionError, StorageError

_LOG = logging.getLogger("headrace")
_IDLE_SECONDS = 0.02
_FIRST_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class BatchLoop:
    """Runs micro-batches in a thread, from `start` to `stop`.

    `run_batch` runs one if there is work, and returns whether there was; `count_commands` returns how many commands were ever
    queued; `changed` is notified when `problem` or `error` changes; `on_loss` is called when another session has taken the
    checkpoint over: it releases the workers, which that session needs.
    """

    run_batch: Callable[[], bool]
    count_commands: Callable[[], int]
    changed: threading.Condition
    on_loss: Callable[[], object] = lambda: None
    problem: Exception | None = None
    """The error of the last micro-batch, while it is retried."""
    error: BaseException | None = None
    """The error that ended the thread."""
    _thread: threading.Thread | None = None
    _stop_requested: threading.Event = field(default_factory=threading.Event)

    @property
    def is_running(self) -> bool:
        """Whether the thread was started and not stopped."""
        return self._thread is not None

    def describe_state(self) -> str:
        """Return in a word or two what the thread does."""
        if self.error is not None:
            return "stopped by an error"
        if self.problem is not None:
            return "retrying a failed micro-batch"
        return "running" if self.is_running else "open"

    def make_stopped_error(self) -> SessionError:
        """Return the error for calls after the thread has ended with one."""
        hint = "call stop() to raise it, then start() or advance() again"
        return SessionError("the session stopped because of an error", detail=str(self.error), hint=hint)

    def start(self, interval: float) -> None:
        """Start the thread; micro-batches start at least `interval` seconds apart. Raises SessionError if it runs."""
        if self._thread is not None:
            raise SessionError("the session is already running", hint="call stop() first")
        self._stop_requested.clear()
        self._thread = threading.Thread(target=self._run, args=(interval,), name="headrace", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the running micro-batch.

        Raises the error that ended the thread, or that of a micro-batch which it was about to retry, if any.
        """
        if self._thread is not None:
            self._stop_requested.set()
            self._thread.join()
            self._thread = None
        error = self.error or self.problem
        self.error = self.problem = None
        if error is not None:
            raise error

    def _run(self, interval: float) -> None:
        failures = 0
        try:
            while not self._stop_requested.is_set():
                started = time.monotonic()
                try:
                    busy = self.run_batch()
                except Exception as error:  # a batch that fails now may succeed later, or without a query
                    if isinstance(error, CheckpointError) and not isinstance(error, StorageError):
                        raise  # the checkpoint is lost: another attempt cannot help
                    failures += 1
                    self._set_problem(error)
                    self._wait_before_retry(min(_FIRST_RETRY_SECONDS * 2 ** (failures - 1), _MAX_RETRY_SECONDS))
                    continue
                failures = 0
                self._set_problem(None)
                pause = interval - (time.monotonic() - started)
                self._stop_requested.wait(max(pause, 0.0 if busy else _IDLE_SECONDS))
        except BaseException as error:  # noqa: BLE001  the thread ends here; the next call of `stop` raises the error
            self.error = error
            with self.changed:
                self.changed.notify_all()
            if isinstance(error, OwnershipLostError):
                _LOG.error("the session has ended: %s", error)
                self.on_loss()

    def _set_problem(self, problem: Exception | None) -> None:
        if problem is not None:
            _LOG.warning("a micro-batch failed, it will be retried: %s", problem, exc_info=not isinstance(problem, HeadraceError))
        if problem is not self.problem:
            self.problem = problem
            with self.changed:
                self.changed.notify_all()

    def _wait_before_retry(self, seconds: float) -> None:
        """Wait, but not longer than until a command is queued: it may be the one that lets the batch succeed."""
        deadline, queued = time.monotonic() + seconds, self.count_commands()
        while not self._stop_requested.is_set() and self.count_commands() == queued and time.monotonic() < deadline:
            self._stop_requested.wait(_IDLE_SECONDS)
