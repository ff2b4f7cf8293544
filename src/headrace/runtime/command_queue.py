"""The queue of commands between the callers of a session and its micro-batches: batching of query changes, and back-pressure.

A micro-batch takes the queued commands in their order, as one changelog: when there are `per_batch` of them, or when the oldest
has waited for `delay` seconds. By default it takes all that there are. What a batch took is in its log entry, so a batch that
runs again has the same changes. At most `max_waiting` commands of callers wait; a caller that finds the queue full waits for
room, if micro-batches run in another thread, and is refused after `timeout` seconds.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from headrace.errors import QueueFullError, SessionError
from headrace.runtime.commands import AddQuery, Command

MAX_WAITING_CHANGES = 10_000
CHANGE_TIMEOUT_SECONDS = 10.0
_NEVER_WAITS = -math.inf


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """How query changes are batched, and how many may wait; None for `per_batch` is unlimited, times are in seconds."""

    per_batch: int | None = None
    delay: float = 0.0
    max_waiting: int = MAX_WAITING_CHANGES
    timeout: float = CHANGE_TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        """Raise SessionError for an invalid setting, by the name that it has as an option of a session."""
        for name, number in (("changes_per_batch", self.per_batch), ("max_waiting_changes", self.max_waiting)):
            if number is not None and not (isinstance(number, int) and number > 0):
                raise SessionError(f"invalid {name} {number!r}", hint="give a positive number of query changes")
        for name, seconds in (("change_delay", self.delay), ("change_timeout", self.timeout)):
            if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
                raise SessionError(f"invalid {name} {seconds!r}", hint="give a number of seconds, 0 or more")


class QueueFigures(NamedTuple):
    """Commands that wait, the seconds that the oldest has waited, how many may wait, and how many were refused so far."""

    waiting: int
    oldest_seconds: float
    max_waiting: int
    refused: int


class _Waiting(NamedTuple):
    """A queued command; the commands of a group are taken by the same batch. `since` is when it was queued."""

    command: Command
    group: int
    since: float


class CommandQueue:
    """Commands that wait for a micro-batch, in order. Thread-safe."""

    def __init__(self, read_clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty queue with default settings; the clock counts seconds."""
        self.settings = ChangeSettings()
        self._read_clock = read_clock
        self._lock = threading.RLock()
        self._has_room = threading.Condition(self._lock)
        self._queued: list[_Waiting] = []
        self._appended = self._group = self._holders = self._reserved = self._refused = 0
        self._is_closed = False

    def __bool__(self) -> bool:
        """Return whether a command is queued."""
        return bool(self._queued)

    @contextlib.contextmanager
    def hold_together(self) -> Iterator[None]:
        """Put all commands that the block appends into the same batch."""
        with self._lock:
            self._group += not self._holders
            self._holders += 1
            try:
                yield
            finally:
                self._holders -= 1

    @contextlib.contextmanager
    def reserve_place(self, *, wait: bool) -> Iterator[None]:
        """Keep room for a command that the block appends; enter before taking any lock that a micro-batch needs.

        With `wait`, wait for room as long as the settings say. Raises QueueFullError if there is none.
        """
        with self._lock:
            timeout = self.settings.timeout if wait else 0.0
            if not self._has_room.wait_for(lambda: self._is_closed or self._count_free() > 0, timeout):
                self._refused += 1
                raise self._make_full_error(waited=wait)
            self._reserved += 1
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= 1
                self._has_room.notify_all()

    def _count_free(self) -> int:
        return self.settings.max_waiting - len(self._queued) - self._reserved

    def _make_full_error(self, *, waited: bool) -> QueueFullError:
        hint = "let micro-batches take them: call advance() or start() the session; or raise max_waiting_changes"
        if waited:
            hint = "try again later; a higher changes_per_batch or a lower change_delay takes them faster"
        detail = f"there was no room for {self.settings.timeout:g} s" if waited else ""
        return QueueFullError(f"{self.settings.max_waiting:,} query changes wait already", detail=detail, hint=hint)

    def append(self, command: Command) -> None:
        """Queue a command, also beyond the limit: a removal makes room, and a query that has failed must end."""
        with self._lock:
            self._group += not self._holders
            self._queued.append(_Waiting(command, self._group, self._read_clock()))
            self._appended += 1

    def count_appended(self) -> int:
        """Return how many commands were ever queued."""
        return self._appended

    def list_additions(self) -> list[AddQuery]:
        """Return the queued additions."""
        with self._lock:
            return [waiting.command for waiting in self._queued if isinstance(waiting.command, AddQuery)]

    def is_due(self) -> bool:
        """Return whether the next batch takes commands."""
        with self._lock:
            if not self._queued:
                return False
            is_full = self.settings.per_batch is not None and len(self._queued) >= self.settings.per_batch
            return is_full or self._read_clock() - self._queued[0].since >= self.settings.delay

    def hasten(self) -> None:
        """Let the next batch take all commands that are queued now."""
        with self._lock:
            self._group += 1
            self._queued = [_Waiting(waiting.command, self._group, _NEVER_WAITS) for waiting in self._queued]

    def take(self, *, everything: bool = False) -> list[Command]:
        """Remove and return the commands of the next batch: none before they are due, unless `everything` is wanted."""
        with self._lock:
            if not everything and not self.is_due():
                return []
            count = len(self._queued) if everything else self._count_batch()
            taken, self._queued = self._queued[:count], self._queued[count:]
            self._has_room.notify_all()
            return [waiting.command for waiting in taken]

    def _count_batch(self) -> int:
        """Return how many commands a batch takes: up to the limit, and the rest of the group of the last one."""
        limit = self.settings.per_batch
        if limit is None or limit >= len(self._queued):
            return len(self._queued)
        last_group = self._queued[limit - 1].group
        return limit + sum(1 for _ in takewhile(lambda waiting: waiting.group == last_group, self._queued[limit:]))

    def requeue(self, commands: Sequence[Command]) -> None:
        """Put commands back at the head of the queue, after the batch that took them was abandoned: the next one takes them."""
        with self._lock:
            self._group += 1
            self._queued = [*(_Waiting(command, self._group, _NEVER_WAITS) for command in commands), *self._queued]

    def withdraw_addition(self, query: int) -> bool:
        """Remove a queued addition; return False if it is not queued."""
        with self._lock:
            kept = [w for w in self._queued if not (isinstance(w.command, AddQuery) and w.command.id == query)]
            withdrawn = len(kept) < len(self._queued)
            self._queued = kept
            self._has_room.notify_all()
            return withdrawn

    def measure(self) -> QueueFigures:
        """Return what waits now."""
        with self._lock:
            since = [waiting.since for waiting in self._queued if waiting.since != _NEVER_WAITS]
            oldest = self._read_clock() - min(since) if since else 0.0
            return QueueFigures(len(self._queued), oldest, self.settings.max_waiting, self._refused)

    def close(self) -> None:
        """Let callers that wait for room go on: they find the session closed."""
        with self._lock:
            self._is_closed = True
            self._has_room.notify_all()
