"""What a user asks of a running session, as it is logged: two verbs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Add:
    """Add a query; it was parsed and checked before. `sink` is None where a callback of this process takes the rows."""

    id: int
    name: str
    sql: str
    sink: dict[str, Any] | None
    past: bool = False  # it shall see rows that are stored for others
    owner: str = ""  # who asked for it, where that is known


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a query: from this batch on nothing of it is emitted. `error` says why, when it failed outside the pipeline."""

    id: int
    error: str | None = None


Command: TypeAlias = Add | Remove


class Requests:
    """Commands that no batch has taken yet, in order; calls may come from any thread."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.RLock()
        self._waiting: list[Command] = []

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Let all commands of a block go into the same batch."""
        with self._lock:
            yield

    def append(self, command: Command) -> None:
        """Let a command wait for the next batch."""
        with self._lock:
            self._waiting.append(command)

    def additions(self) -> list[Add]:
        """Return the queries that wait."""
        with self._lock:
            return [command for command in self._waiting if isinstance(command, Add)]

    def take(self) -> list[Command]:
        """Return all that wait; they wait no longer."""
        with self._lock:
            taken, self._waiting = self._waiting, []
            return taken

    def give_back(self, commands: Sequence[Command]) -> None:
        """Let commands wait again, before all others: the batch that took them will not be."""
        with self._lock:
            self._waiting = [*commands, *self._waiting]

    def withdraw(self, query: int) -> bool:
        """Take back an addition that still waits; False if it does not."""
        with self._lock:
            kept = [c for c in self._waiting if not (isinstance(c, Add) and c.id == query)]
            found = len(kept) < len(self._waiting)
            self._waiting = kept
            return found


def to_json(command: Command) -> dict[str, Any]:
    """Return a value that `from_json` reads back."""
    return {"add" if isinstance(command, Add) else "remove": asdict(command)}


def from_json(value: dict[str, Any]) -> Command:
    """Read a logged command."""
    return Add(**value["add"]) if "add" in value else Remove(**value["remove"])
