"""Commands to a running session, as the batch log stores them: add or remove a query, or a sink of one; drop a stream."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.model.budget import QueryBudget
from headrace.model.record import record


@record("add-query")
@dataclass(frozen=True, slots=True)
class AddQuery:
    """Add a query that was parsed and checked before. `sink` is the JSON form of its sinks; None stands for a callback."""

    id: int
    name: str
    sql: str
    sink: dict[str, Any] | None
    past: bool = False  # backfill the query from state that is stored for other queries
    owner: str = ""  # the principal that added the query, if known
    budget: QueryBudget | None = None  # by default that of the session


@record("remove-query")
@dataclass(frozen=True, slots=True)
class RemoveQuery:
    """Remove a query: it emits nothing from this batch on. `error` is the reason if it failed outside the pipeline."""

    id: int
    error: str | None = None


@record("add-sink")
@dataclass(frozen=True, slots=True)
class AddSink:
    """Add a sink to a live query: it receives the rows from this batch on. `sink` is None for a callback."""

    id: int
    number: int
    sink: dict[str, Any] | None


@record("remove-sink")
@dataclass(frozen=True, slots=True)
class RemoveSink:
    """Take a sink from a live query: it receives no rows from this batch on."""

    id: int
    number: int


@record("drop-stream")
@dataclass(frozen=True, slots=True)
class DropStream:
    """Drop a stream that no query reads from this batch on."""

    name: str


Command: TypeAlias = AddQuery | RemoveQuery | AddSink | RemoveSink | DropStream


class CommandQueue:
    """Commands that wait for the next batch, in order. Thread-safe."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._lock = threading.RLock()
        self._queued: list[Command] = []
        self._appended = 0

    def __bool__(self) -> bool:
        """Return whether a command is queued."""
        return bool(self._queued)

    @contextlib.contextmanager
    def hold_together(self) -> Iterator[None]:
        """Put all commands that the block appends into the same batch."""
        with self._lock:
            yield

    def append(self, command: Command) -> None:
        """Queue a command for the next batch."""
        with self._lock:
            self._queued.append(command)
            self._appended += 1

    def count_appended(self) -> int:
        """Return how many commands were ever queued."""
        return self._appended

    def list_additions(self) -> list[AddQuery]:
        """Return the queued additions."""
        with self._lock:
            return [command for command in self._queued if isinstance(command, AddQuery)]

    def take(self) -> list[Command]:
        """Remove and return all queued commands."""
        with self._lock:
            queued, self._queued = self._queued, []
            return queued

    def requeue(self, commands: Sequence[Command]) -> None:
        """Put commands back at the head of the queue, after the batch that took them was abandoned."""
        with self._lock:
            self._queued = [*commands, *self._queued]

    def withdraw_addition(self, query: int) -> bool:
        """Remove a queued addition; return False if it is not queued."""
        with self._lock:
            kept = [c for c in self._queued if not (isinstance(c, AddQuery) and c.id == query)]
            withdrawn = len(kept) < len(self._queued)
            self._queued = kept
            return withdrawn
