"""Limits of the process that runs a task: its memory, and how long a call may take."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import threading
import time
from collections.abc import Iterator

from headrace.errors import OperatorError


def limit_memory(max_bytes: int) -> None:
    """Limit the memory that this process allocates: beyond it, an allocation raises MemoryError. 0 sets no limit.

    Memory-mapped files do not count.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = max_bytes if max_bytes and (hard == resource.RLIM_INFINITY or max_bytes < hard) else hard
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != wanted:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def exceeded_time_error(seconds: float) -> OperatorError:
    """Return the error of a batch that was cancelled."""
    return OperatorError(
        f"micro-batch took longer than {seconds:g} seconds (max_batch_seconds)",
        hint="read fewer rows in a batch, or allow more time",
    )


class _TimeLimitExceeded(BaseException):
    """Interrupts the thread that runs a batch; not an Exception, so that code of users does not catch it."""


def _interrupt(thread: ctypes.c_ulong) -> None:
    """Let a thread raise the exception at its next call or jump back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TimeLimitExceeded))


class _Watchdog:
    """Interrupts threads whose time is over; one thread serves all of them, because starting one takes a tenth of a small batch.

    The lock is a plain one: a thread may be interrupted at any instruction, and `with` takes and releases it without running any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[object, tuple[float, ctypes.c_ulong]] = {}
        self._wakes_at = math.inf
        self._wake = threading.Event()
        self._is_running = False

    def watch(self, token: object, seconds: float) -> None:
        """Interrupt this thread after a time, unless `release` is called with the token before."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._deadlines[token] = deadline, ctypes.c_ulong(threading.get_ident())
            is_earliest, self._wakes_at = deadline < self._wakes_at, min(deadline, self._wakes_at)
            if not self._is_running:
                threading.Thread(target=self._run, name="headrace-time-limit", daemon=True).start()
                self._is_running = True
        if is_earliest:
            self._wake.set()

    def release(self, token: object) -> None:
        """Do not interrupt this thread any more; if its time is over, the interruption is raised here at the latest.

        One that is on its way is replaced and awaited, not cancelled: CPython 3.11 would look for it forever, which slows all
        code, and never ends while a trace function is set.
        """
        with self._lock:
            is_over = self._deadlines.pop(token, None) is None
        if is_over:
            _interrupt(ctypes.c_ulong(threading.get_ident()))
            while True:
                time.sleep(0)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._wake.clear()
                now = time.monotonic()
                for token, (deadline, thread) in list(self._deadlines.items()):
                    if deadline <= now:
                        _interrupt(thread)
                        del self._deadlines[token]
                self._wakes_at = min((deadline for deadline, _ in self._deadlines.values()), default=math.inf)
            self._wake.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))


_watchdog = _Watchdog()


def _restart_watchdog() -> None:
    global _watchdog  # noqa: PLW0603  a fork has no threads but the one that forked
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_restart_watchdog)


@contextlib.contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Interrupt the block, in this thread, after a time; raise OperatorError then. 0 sets no limit.

    Python code is interrupted between two of its instructions, compiled code when it returns.
    """
    if not seconds:
        yield
        return
    watchdog, token = _watchdog, object()
    try:
        try:
            watchdog.watch(token, seconds)
            yield
        finally:
            watchdog.release(token)
    except _TimeLimitExceeded:
        raise exceeded_time_error(seconds) from None
