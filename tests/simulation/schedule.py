"""Schedules: what clients do and which faults happen, in order, as values.

Every step is valid in every order, so that shrinking may drop any of them: a step that needs a query picks one by a number modulo
those that exist, and has no effect if there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Append:
    """A client appends rows to a memory stream in one call."""

    stream: str
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A client puts a file with rows into the folder of the file stream."""

    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class AddQuery:
    """A client adds a query; `sink` is memory, callback, raising (a callback that fails at its second batch) or jsonl."""

    name: str
    sql: str
    sink: str = "memory"


@dataclass(frozen=True, slots=True)
class RemoveQuery:
    """A client removes one of the queries that it wants live."""

    pick: int


@dataclass(frozen=True, slots=True)
class ReplaceQuery:
    """A client replaces one of its queries with a memory sink."""

    pick: int
    sql: str


@dataclass(frozen=True, slots=True)
class ReadResults:
    """A reader reads a query from its last position, or (`anew`) from the beginning."""

    pick: int
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Advance:
    """The session runs a micro-batch; `workers` is the seed of the order, repetition and loss of its tasks (0: none).

    With `retry` it tries degraded streams at once, otherwise when their delay is over.
    """

    workers: int = 0
    retry: bool = True


@dataclass(frozen=True, slots=True)
class DropStream:
    """A client drops the stream `gamma` with all its queries."""


@dataclass(frozen=True, slots=True)
class DeclareStream:
    """A client declares the stream `gamma` again, as a new stream, if it was dropped."""


@dataclass(frozen=True, slots=True)
class Rescale:
    """The session gets another number of key partitions."""

    partitions: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The clock goes on, or (negative) jumps back."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reopen:
    """The session is closed and opened again."""


@dataclass(frozen=True, slots=True)
class OpenTwice:
    """Somebody opens the checkpoint while the session uses it."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies `after` so many durable operations; `power` says what the disk loses: nothing, all or some unsynced.

    The operations are counted from the fault point `at` on, if there is one.
    """

    after: int
    power: str = "nothing"
    seed: int = 0
    at: str = ""


@dataclass(frozen=True, slots=True)
class FillDisk:
    """The disk is full for `count` writes, beginning `after` so many; what fitted of the first of them stays."""

    after: int
    count: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FailSource:
    """The source of a stream fails when it plans or when it is read, the next `count` times."""

    stream: str
    at: str
    count: int


@dataclass(frozen=True, slots=True)
class WakeZombie:
    """A reduce task of an earlier attempt runs once more, now; nobody waits for its answer."""

    pick: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FailOperator:
    """From now on, `operators` raise an error that nobody expects whenever they work for one query."""

    pick: int
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DamageFile:
    """While the session is closed, a file of the checkpoint is cut, changed or deleted; afterwards it is restored."""

    pick: int
    seed: int = 0


Step: TypeAlias = (
    Append
    | WriteFile
    | AddQuery
    | RemoveQuery
    | ReplaceQuery
    | ReadResults
    | Advance
    | DropStream
    | DeclareStream
    | Rescale
    | Wait
    | Reopen
    | OpenTwice
    | Crash
    | FillDisk
    | FailSource
    | WakeZombie
    | FailOperator
    | DamageFile
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The world in which a schedule is played: delays in seconds by stream, and the options of the session."""

    delays: Mapping[str, int]
    partitions: int = 1
    parallelism: int = 2
    rows_per_batch: int = 1_000
    replan_seed: int = 0
    drain: bool = True


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps that a seed stands for."""

    seed: int
    settings: Settings
    steps: tuple[Step, ...]

    def format(self) -> str:
        """Return one line for each step."""
        lines = [f"seed {self.seed}: {format_value(self.settings)}"]
        return "\n".join([*lines, *(f"{number:4} {format_value(step)}" for number, step in enumerate(self.steps))])


def format_value(value: Any) -> str:
    """Return a step or settings as text, without the values that are as by default."""
    shown = []
    for field in fields(value):
        content = getattr(value, field.name)
        if content != field.default:
            shown.append(f"{field.name}={_format_rows(content) if field.name == 'rows' else repr(content)}")
    return f"{type(value).__name__}({', '.join(shown)})"


def _format_rows(rows: tuple[Mapping[str, Any], ...]) -> str:
    texts = []
    for row in rows:
        time = None if row["time"] is None else row["time"].isoformat(timespec="milliseconds")[17:23]
        texts.append(f"#{row['id']} " + " ".join(f"{name}={row[name]!r}" for name in ("k", "x", "y", "s")) + f" @{time}")
    return f"[{'; '.join(texts)}]"
