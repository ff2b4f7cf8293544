"""The lock on a checkpoint, which admits one session at a time: of a file in a folder, or a lease in an object store."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Protocol

from headrace.errors import CheckpointError, OwnershipLostError, StorageError
from headrace.storage.locations import is_url
from headrace.storage.lock_wait import LockWait
from headrace.storage.store import Store


class CheckpointLock(Protocol):
    """A lock that a session holds."""

    @property
    def epoch(self) -> int:
        """The number of owners of a lease up to this one; 0 for a lock that is never taken over."""

    @property
    def owner(self) -> str:
        """The session, for messages."""

    def check(self, *, now: bool = False) -> None:
        """Raise CheckpointError if the session does not have the lock any more; `now` does not trust what was known before."""

    @property
    def loss(self) -> OwnershipLostError | None:
        """Why this session no longer has the lock, as far as it is known without asking; None while it has it."""

    def release(self) -> None:
        """Release the lock; a second call has no effect."""


_POLL_SECONDS = 0.25


class FileLock:
    """A lock of the file `lock` in a folder; the system releases it when the process ends, so that it is never taken over."""

    epoch = 0
    loss = None

    def __init__(self, folder: Path, wait: LockWait | None = None) -> None:
        """Acquire the lock; raises CheckpointError if another session has it, unless this one is a standby (`wait`)."""
        self.owner, self._folder = f"process {os.getpid()}", folder
        try:
            self._descriptor: int | None = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(
                f"checkpoint '{folder}' cannot be locked", detail=str(error), hint="a session must be able to write to it"
            ) from error
        try:
            while not self._try_lock(self._descriptor, folder, is_standby=wait is not None and wait.is_standby):
                assert wait is not None
                wait.report(str(folder), "another session")
                time.sleep(_POLL_SECONDS)
                wait.raise_if_cancelled()
        except BaseException:
            self.release()
            raise

    @staticmethod
    def _try_lock(descriptor: int, folder: Path, *, is_standby: bool) -> bool:
        """Lock the file; if another session has it, return False to a standby, and raise otherwise."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if is_standby and isinstance(error, BlockingIOError):
                return False
            raise CheckpointError(
                f"checkpoint '{folder}' is in use by another session",
                hint="close that session first, wait for its end as a standby (--standby), or use another directory",
            ) from error
        return True

    def check(self, *, now: bool = False) -> None:
        """See `CheckpointLock`; a thread that is left over from a session that was closed must not act for it."""
        del now
        if self._descriptor is None:
            raise OwnershipLostError(f"the session on checkpoint '{self._folder}' was closed")

    def release(self) -> None:
        """See `CheckpointLock`."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def acquire_lock(location: str, store: Store, wait: LockWait | None = None) -> CheckpointLock:
    """Acquire the lock on the checkpoint at a location; raises CheckpointError if another session has it.

    A standby (`wait`) waits for its end instead.
    """
    if not is_url(location):
        return FileLock(Path(location), wait)
    from headrace.storage.lease import Lease  # noqa: PLC0415  loads a library that folders do not need
    from headrace.storage.object_store import ObjectStore  # noqa: PLC0415

    assert isinstance(store, ObjectStore)
    lease = Lease(store, wait=wait)
    lease.start_renewals()
    return lease
