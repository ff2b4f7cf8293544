"""The log entry of a micro-batch: every decision about the batch, written before it runs.

An interrupted batch is run again from its entry: with the same input ranges in the same tasks, the same commands, the same join
orders. Nothing that influences results is decided outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.connectors import Position, Range
from headrace.model.partition_map import PartitionMap
from headrace.model.record import record
from headrace.model.stream import Stream
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.runtime.commands import Command, DropStream
from headrace.runtime.engine_state import StreamState, UdfSet


@record("declared-stream")
@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """A stream and the definition of its source."""

    stream: Stream
    source: dict[str, Any]


@record("batch-log-entry")
@dataclass(frozen=True, slots=True)
class BatchLogEntry:
    """The decisions about one micro-batch.

    `positions` are those after the batch, by stream; `tasks` hold the input ranges of the map tasks. `join_orders` are new orders
    of window joins, by query, and `probe_orders` a new choice for all sliding joins, in JSON form, or None. A `final` batch
    closes every window, except those of queries that read one of the streams `left_open`, which cannot be read to their end.
    `source_partitions` says of each partition of a stream whether it is idle, if the watermark of the stream is by partition.
    """

    batch: int
    partition_map: PartitionMap
    streams: Mapping[str, DeclaredStream] = field(default_factory=dict)
    udfs: UdfSet = field(default_factory=UdfSet)
    positions: Mapping[str, Position] = field(default_factory=dict)
    tasks: tuple[tuple[Range, ...], ...] = ()
    commands: tuple[Command, ...] = ()
    join_orders: Mapping[int, JoinOrderVersion] = field(default_factory=dict)
    probe_orders: dict[str, Any] | None = None
    sharing: str = "global"
    final: bool = False
    left_open: frozenset[str] = frozenset()
    clock: int = 0  # the time at which the batch was planned, in microseconds since 1970
    source_partitions: Mapping[str, dict[int, bool]] = field(default_factory=dict)
    rescale_reason: str = ""  # why `partition_map` differs from the one before

    def join_commands(self, commands: Sequence[Command]) -> BatchLogEntry:
        """Return the entry with further commands; streams that they drop are not read any more."""
        dropped = {command.name for command in commands if isinstance(command, DropStream)}
        tasks = (tuple(item for item in task if item.stream not in dropped) for task in self.tasks)
        return replace(
            self,
            commands=(*self.commands, *commands),
            positions={name: position for name, position in self.positions.items() if name not in dropped},
            tasks=tuple(task for task in tasks if task),
            left_open=self.left_open - dropped,
        )

    def has_work(self, streams: Mapping[str, StreamState]) -> bool:
        """Return whether the batch changes anything: it has commands or input, or is final."""
        moves = (position != streams[name].position for name, position in self.positions.items())
        return bool(self.commands or self.tasks or self.final) or any(moves)
