"""Opening a checkpoint, which may have to wait for its lock, while a back-end starts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait

from headrace.runtime.backend import Backend, BackendStart, warm_up_backend
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.lock_wait import LockWait

_CANCEL_SECONDS = 5.0


class CheckpointOpening:
    """Opens a checkpoint in a thread of its own: the caller starts Spark meanwhile. `close` undoes it at any time."""

    def __init__(self, open_checkpoint: Callable[[LockWait], Checkpoint], *, standby: bool) -> None:
        """Begin to open the checkpoint; a standby waits while another session uses it."""
        self._wait, self._future = LockWait(standby), Future[Checkpoint]()
        self._open_checkpoint = open_checkpoint
        threading.Thread(target=self._run, name="headrace-opening", daemon=True).start()

    def _run(self) -> None:
        try:
            checkpoint = self._open_checkpoint(self._wait)
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            self._future.set_exception(error)
        else:
            self._future.set_result(checkpoint)

    @property
    def is_pending(self) -> bool:
        """Whether the lock is not acquired yet."""
        return not self._future.done()

    def start_meanwhile(self, start: BackendStart, cleanup: deque[Callable[[], object]]) -> Backend:
        """Start a back-end and let its workers get ready; a step that closes it is put before those of the cleanup.

        If it is known by then that the checkpoint is in use, nothing is started on a cluster: raises that CheckpointError.
        """
        start.prepare()
        if self._future.done():
            self._future.result()
        backend = start.create()
        cleanup.appendleft(backend.close)
        warm_up_backend(backend, lambda: self.is_pending)
        return backend

    def finish(self) -> Checkpoint:
        """Wait for the checkpoint and return it; raises CheckpointError if it is in use, and this is no standby."""
        return self._future.result()

    def close(self) -> None:
        """Give up waiting, and release the checkpoint if it was opened, or as soon as it is; a second call has no effect."""
        self._wait.cancel()
        wait([self._future], _CANCEL_SECONDS)
        self._future.add_done_callback(_close_checkpoint)


def _close_checkpoint(opened: Future[Checkpoint]) -> None:
    if opened.exception() is None:
        opened.result().close()
