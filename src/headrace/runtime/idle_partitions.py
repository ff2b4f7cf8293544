"""Which partitions of a stream are idle: they have had no rows for a while, in which others had some.

The decision is made when a batch is planned, and is in its log entry. A partition counts as active from the moment at which this
session first plans it, or plans it again after a failure of its source: only the time in which its rows were seen would count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headrace.model.stream import Stream
from headrace.model.time import MIN_TIME


@dataclass(slots=True)
class _PartitionActivity:
    """When partitions had rows, by the clock of batches: each, and any of them."""

    last_rows: dict[int, int] = field(default_factory=dict)
    newest: int = MIN_TIME


class IdlePartitions:
    """Follows the partitions of all streams. Callers serialize all calls."""

    def __init__(self) -> None:
        """Start without partitions."""
        self._activities: dict[str, _PartitionActivity] = {}

    def decide(self, stream: Stream, partitions: Sequence[int], with_rows: Collection[int], clock: int) -> dict[int, bool]:
        """Return whether each partition is idle in a batch; `with_rows` are those that the batch reads."""
        activity = self._activities.setdefault(stream.name, _PartitionActivity())
        if with_rows:
            activity.newest = clock
        for partition in partitions:
            if partition in with_rows or partition not in activity.last_rows:
                activity.last_rows[partition] = clock
        return {partition: activity.newest - activity.last_rows[partition] >= stream.idle for partition in partitions}

    def forget(self, stream: str) -> None:
        """Forget a stream that cannot be read now, or was dropped."""
        self._activities.pop(stream, None)
