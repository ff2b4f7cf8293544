"""Reports of micro-batches: counts, durations, failures and plan changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.runtime.state import EngineState


class EventTimeMarks(NamedTuple):
    """Event-time marks of a set of streams: the common watermark, and the event time that rows of every stream have reached."""

    watermark: int
    newest: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The outcome of a micro-batch.

    `rows` were read and `emitted` rows written; `added`, `removed` and `failed` hold query ids. `changes` describes plan changes
    as (kind, text), where the kind is "epoch" or "replan".
    """

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
    marks: Mapping[tuple[str, ...], EventTimeMarks] = field(default_factory=dict)
    """The event-time marks of each set of streams that live queries read."""
    live: int = 0  # live queries after the batch


def describe_plan_changes(before: EngineState, after: EngineState, entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (kind, text) of every plan change of a batch: new epochs, new join plans, and a new partition count."""
    events = []
    for name, stream in after.declared_streams().items():
        previous = before.streams.get(name)
        if stream.epochs and (previous is None or previous.epochs[-1:] != stream.epochs[-1:]):
            events.append(("epoch", f"epoch {stream.epochs[-1].number} of stream {name} begins"))
    for number in entry["arrangements"]:
        query = after.queries.get(int(number))
        events.append(("replan", f"join {query.name if query else number}: join order changed"))
    if entry["probing"] is not None:
        events.append(("replan", "joins in SLIDING windows: probe orders changed"))
    if before.partitions != after.partitions:
        events.append(("replan", f"{after.partitions} key partitions instead of {before.partitions}"))
    return tuple(events)
