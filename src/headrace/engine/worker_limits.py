"""Limits of the process that runs a task: its memory, and how long a call may take."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import threading
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


@contextlib.contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Interrupt the block, in this thread, after a time; raise OperatorError then. 0 sets no limit.

    Python code is interrupted between two of its instructions, compiled code when it returns.
    """
    if not seconds:
        yield
        return
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TimeLimitExceeded))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    try:
        try:
            timer.start()
            yield
        finally:
            with lock:
                is_over = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
            timer.cancel()
    except _TimeLimitExceeded:
        raise exceeded_time_error(seconds) from None
