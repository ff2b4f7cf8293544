"""What a micro-batch did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.runtime.state import EngineState


class Marks(NamedTuple):
    """Of some streams together: the watermark, and the event time that rows of all of them have reached."""

    watermark: int
    newest: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a micro-batch did; `changes` are those of the plan, in words, by kind: epoch or replan."""

    batch: int
    rows: int
    emitted: int
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    stage_one_seconds: float = 0.0  # of the slowest task
    stage_two_seconds: float = 0.0  # of the slowest partition
    emitted_by: Mapping[int, int] = field(default_factory=dict)
    changes: tuple[tuple[str, str], ...] = ()
    marks: Mapping[tuple[str, ...], Marks] = field(default_factory=dict)
    """How far event time has come, for each set of streams that live queries read."""
    live: int = 0  # queries in the pipeline after it


def changes(before: EngineState, after: EngineState, entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return how plans changed with a batch: epochs that began, and what the optimizers decided."""
    found = []
    for name, stream in after.declared().items():
        known = before.streams.get(name)
        if stream.epochs and (known is None or known.epochs[-1:] != stream.epochs[-1:]):
            found.append(("epoch", f"epoch {stream.epochs[-1].number} of stream {name} begins"))
    for number in entry["arrangements"]:
        query = after.queries.get(int(number))
        found.append(("replan", f"join {query.name if query else number} is worked off otherwise"))
    if entry["probing"] is not None:
        found.append(("replan", "joins in SLIDING windows are worked off otherwise"))
    if before.partitions != after.partitions:
        found.append(("replan", f"{after.partitions} partitions instead of {before.partitions}"))
    return tuple(found)
