"""The lease on a checkpoint in an object store: it admits one session at a time, and lets another one take over.

The lease is an object with an epoch, an owner and a counter. The owner renews it with a conditional put. Another session reads it
twice: if it was renewed meanwhile, the checkpoint is in use; if it stays the same for its whole time, the owner is gone, and a
conditional put with the next epoch takes it over. No clocks of different machines are compared. HEADRACE_LEASE_SECONDS sets the
time of a lease, 5 by default: another session waits that long for one that ended without releasing it. A standby goes on waiting
while the owner renews.

A lease does not stop a paused owner that wakes up after a takeover. It notices when it renews the lease, at the latest; until
then, its commits fail, because only the manifest that it has read or written is replaced (`Checkpoint.commit`).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from headrace.errors import CheckpointError, HeadraceError, OwnershipLostError, StorageError
from headrace.storage.lock_wait import LockWait
from headrace.storage.store import VersionConflictError, VersionedStore

LEASE_KEY = "lease.json"
LEASE_SECONDS = float(os.environ.get("HEADRACE_LEASE_SECONDS", "5"))
_MAX_POLL_SECONDS = 0.25
_RENEWALS = 4  # in the time of a lease
_SAFE_SHARE = 0.7  # of the time of a lease, in which a session trusts its last renewal


def name_owner() -> str:
    """Return a name for this process as owner of a checkpoint; no other session has the same."""
    return f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The content of a lease. `count` tells renewals apart; a lease without an owner was released.

    `since` is when the owner acquired it, by its own clock, for messages.
    """

    epoch: int
    owner: str
    count: int
    seconds: float
    since: str = ""

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> LeaseTerms:
        """Return the terms of a stored lease; raises CheckpointError for damaged content."""
        try:
            return LeaseTerms(**json.loads(content))
        except (ValueError, TypeError) as error:
            hint = "delete it if no session uses the checkpoint"
            raise CheckpointError(f"object '{name}' is damaged", detail=str(error), hint=hint) from error


class Lease:
    """A lease that this session holds, renewed by a thread until `release`."""

    def __init__(
        self,
        store: VersionedStore,
        seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        wait: LockWait | None = None,
    ) -> None:
        """Acquire the lease on the checkpoint in a store; raises CheckpointError if another session holds it.

        It takes up to the time of the lease if the session that had it has ended without releasing it. A standby (`wait`) goes on
        waiting instead of raising.
        """
        self._store, self._seconds, self._clock, self._sleep = store, seconds, clock, sleep
        self.owner = name_owner()
        self._lost = ""
        self._lock = threading.Lock()
        self._terms, self._version = self._acquire(wait or LockWait())
        self._renewed_at = self._clock()
        self._ended = threading.Event()

    @property
    def epoch(self) -> int:
        """How often the checkpoint has changed its owner; that of an owner is greater than those of all before it."""
        return self._terms.epoch

    def start_renewals(self) -> None:
        """Renew the lease in a thread from now on."""
        threading.Thread(target=self._renew_until_end, name="headrace-lease", daemon=True).start()

    def check(self, *, now: bool = False) -> None:
        """Return if this session still holds the lease; renews it first if the last renewal is old, or if `now` is given.

        Raises CheckpointError if another session has taken it over, and StorageError if the store does not answer.
        """
        with self._lock:
            if not self._lost and (now or self._clock() - self._renewed_at > self._seconds * _SAFE_SHARE):
                self._renew()
            if self._lost:
                raise self._lost_error()

    @property
    def loss(self) -> OwnershipLostError | None:
        """Why this session no longer has the lease, as far as it is known without a request; None while it has it."""
        return self._lost_error() if self._lost and not self._ended.is_set() else None

    def release(self) -> None:
        """Give the lease up, so that another session need not wait; without effect if it is lost or the store is silent."""
        self._ended.set()
        with self._lock, contextlib.suppress(HeadraceError, VersionConflictError):
            if not self._lost:
                released = replace(self._terms, owner="", count=self._terms.count + 1)
                self._store.replace_version(LEASE_KEY, released.encode(), self._version)
                self._lost = "it was released"

    def _acquire(self, wait: LockWait) -> tuple[LeaseTerms, str]:
        while True:
            held = self._wait_until_expired(wait)
            epoch, version = (0, None) if held is None else (held[0].epoch, held[1])
            terms = LeaseTerms(epoch + 1, self.owner, 0, self._seconds, datetime.now(UTC).isoformat(timespec="seconds"))
            try:
                return terms, self._store.replace_version(LEASE_KEY, terms.encode(), version)
            except VersionConflictError:
                winner = self._read()
                if winner is not None and winner[0] == terms:  # a repeated request met its own first attempt
                    return winner
                if not wait.is_standby:
                    raise self._in_use_error(terms if winner is None else winner[0]) from None

    def _wait_until_expired(self, wait: LockWait) -> tuple[LeaseTerms, str] | None:
        """Wait until the lease is released, or was not renewed for its whole time; return what is to be replaced."""
        held, first_seen = self._read(), self._clock()
        while held is not None and held[0].owner and self._clock() - first_seen < held[0].seconds:
            wait.report(self._store.location, f"{_describe(held[0])}{_format_since(held[0])}")
            self._sleep(min(_MAX_POLL_SECONDS, held[0].seconds / 10))
            wait.raise_if_cancelled()
            try:
                current = self._read()
            except StorageError:
                if not wait.is_standby:
                    raise
                continue  # if the lease was renewed meanwhile, it cannot be replaced in the version that was read last
            if current is not None and current[0].owner and current[1] != held[1]:
                if not wait.is_standby:
                    raise self._in_use_error(current[0])
                first_seen = self._clock()
            held = current
        return held

    def _read(self) -> tuple[LeaseTerms, str] | None:
        found = self._store.get_version(LEASE_KEY)
        return None if found is None else (LeaseTerms.decode(found[0], self._store.name_of(LEASE_KEY)), found[1])

    def _renew(self) -> None:
        """Renew the lease, or record that another session has it; the caller has the lock. Raises StorageError like the store."""
        begun, terms = self._clock(), replace(self._terms, count=self._terms.count + 1)
        try:
            self._version = self._store.replace_version(LEASE_KEY, terms.encode(), self._version)
        except VersionConflictError:
            current = self._read()
            if current is None or current[0] != terms:
                self._lost = (
                    "the lease was deleted"
                    if current is None
                    else f"{_describe(current[0])} has taken it over{_format_since(current[0])}"
                )
                return
            self._version = current[1]
        self._terms, self._renewed_at = terms, begun

    def _renew_until_end(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            with self._lock, contextlib.suppress(HeadraceError):  # a silent store: `check` tries again, and reports it
                if self._lost:
                    return
                self._renew()

    def _in_use_error(self, terms: LeaseTerms) -> CheckpointError:
        return CheckpointError(
            f"checkpoint '{self._store.location}' is in use by another session",
            detail=f"{_describe(terms)}{_format_since(terms)}",
            hint="close that session first, wait for its end as a standby (--standby), or use another location",
        )

    def _lost_error(self) -> OwnershipLostError:
        return OwnershipLostError(
            f"this session no longer owns the checkpoint '{self._store.location}'",
            detail=self._lost,
            hint="nothing that was committed is lost; the other session goes on, and this one cannot",
        )


def _describe(terms: LeaseTerms) -> str:
    host, process, _ = terms.owner.rsplit(":", 2) if terms.owner.count(":") >= 2 else (terms.owner, "?", "")
    return f"process {process} on host '{host}', epoch {terms.epoch}"


def _format_since(terms: LeaseTerms) -> str:
    return f", since {terms.since}" if terms.since else ""
