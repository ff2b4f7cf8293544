"""The lock on a checkpoint, which admits one session at a time: of a file in a folder, or a lease in an object store."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from headrace.errors import CheckpointError, StorageError
from headrace.storage.locations import is_url
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
        """Raise CheckpointError if another session has taken the lock over; `now` does not trust what was known before."""

    def release(self) -> None:
        """Release the lock; a second call has no effect."""


class FileLock:
    """A lock of the file `lock` in a folder; the system releases it when the process ends, so that it is never taken over."""

    epoch = 0

    def __init__(self, folder: Path) -> None:
        """Acquire the lock; raises CheckpointError if another session has it."""
        self.owner = f"process {os.getpid()}"
        try:
            self._descriptor: int | None = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(
                f"checkpoint '{folder}' cannot be locked", detail=str(error), hint="a session must be able to write to it"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise CheckpointError(
                f"checkpoint '{folder}' is in use by another session", hint="close that session first, or use another directory"
            ) from error

    def check(self, *, now: bool = False) -> None:
        """See `CheckpointLock`."""

    def release(self) -> None:
        """See `CheckpointLock`."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def acquire_lock(location: str, store: Store) -> CheckpointLock:
    """Acquire the lock on the checkpoint at a location; raises CheckpointError if another session has it."""
    if not is_url(location):
        return FileLock(Path(location))
    from headrace.storage.lease import Lease  # noqa: PLC0415  loads a library that folders do not need
    from headrace.storage.object_store import ObjectStore  # noqa: PLC0415

    assert isinstance(store, ObjectStore)
    lease = Lease(store)
    lease.start_renewals()
    return lease
