"""The queue of one stream: rows produced and not yet committed, first in, first out, one queue per partition.

Row n of the stream is row n // partitions of partition n % partitions, so that all partitions advance equally in event time. Rows
stay until every group has committed them; without a group they all stay. A queue that would exceed its capacity stops
production: the consumers cannot keep up, and the run has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.cursor import GroupCursor
from headrace.bench.partition import QueuePartition, RowTimes
from headrace.bench.rate import RateScript
from headrace.bench.schedule import RowSchedule
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Row counts of each partition."""

    produced: tuple[int, ...]
    read: tuple[int, ...]
    committed: tuple[int, ...]


class StreamQueue:
    """The partitions of one stream under one lock. The caller passes times, in microseconds."""

    def __init__(self, spec: StreamSpec, capacity_rows: int) -> None:
        """`capacity_rows` is the maximum number of rows in a partition."""
        self.spec, self._capacity_rows = spec, capacity_rows
        self._lock = threading.Lock()
        self._partitions = [QueuePartition(spec, number) for number in range(spec.partitions)]
        self._stamped_rows = 0
        self.schedule = RowSchedule()
        self.overflowed = False

    def advance(self, now: int) -> None:
        """Produce all rows due by `now`."""
        with self._lock:
            if not self.schedule.is_running:
                return
            due = max(self.schedule.count_due(now), self._stamped_rows)
            stops = [
                (due + len(self._partitions) - 1 - number) // len(self._partitions) for number in range(len(self._partitions))
            ]
            if any(
                stop - partition.oldest > self._capacity_rows for stop, partition in zip(stops, self._partitions, strict=True)
            ):
                self.overflowed = True
                self.schedule = self.schedule.stop_after(self._stamped_rows)
                return
            for stop, partition in zip(stops, self._partitions, strict=True):
                partition.stamp_rows(self.schedule, stop)
            self._stamped_rows = due

    def start(self, script: RateScript | None, now: int) -> None:
        """Switch to another script at `now`, or stop production."""
        self.advance(now)
        with self._lock:
            if script is None:
                self.schedule = self.schedule.stop_after(self._stamped_rows)
            else:
                self.schedule = self.schedule.switch_script(script, now, self._stamped_rows)
                self.overflowed = False

    def get_progress(self, group: str | None = None, *, from_now: bool = False) -> QueueProgress:
        """Return the position of a group, which is added if unknown; without a group, the slowest positions."""
        with self._lock:
            cursors = (
                self._partitions
                if group is None
                else [self._get_cursor(partition, group, from_now) for partition in self._partitions]
            )
            produced = tuple(partition.produced for partition in self._partitions)
            return QueueProgress(
                produced, tuple(cursor.read for cursor in cursors), tuple(cursor.committed for cursor in cursors)
            )

    def take(self, group: str, partition: int, start: int, stop: int) -> RowTimes:
        """Return the times of rows [start, stop) of a partition; raise for rows that the group may not read."""
        with self._lock:
            part = self._get_partition(partition)
            self._get_cursor(part, group).check_read(start, stop, part.produced)
            return part.copy_times(start, stop)

    def record_read(self, group: str, partition: int, start: int, stop: int, now: int) -> None:
        """Record that the rows were sent."""
        with self._lock:
            part = self._get_partition(partition)
            if group in part.cursors:
                part.cursors[group].record_read(start, stop)
                part.record_pull(now)

    def commit(self, group: str, positions: Sequence[int]) -> None:
        """Commit the positions of all partitions for a group; on an error commit none."""
        with self._lock:
            if len(positions) != len(self._partitions):
                raise HeadraceError(f"{len(positions)} positions given for {len(self._partitions)} partitions")
            cursors = [self._get_cursor(part, group) for part in self._partitions]
            for cursor, position in zip(cursors, positions, strict=True):
                cursor.check_commit(position)
            for part, cursor, position in zip(self._partitions, cursors, positions, strict=True):
                cursor.commit(position)
                part.drop_committed()

    def add_follower(self, group: str, partition: int) -> int:
        """Add a group that reads one partition, from the next row on; return the number of that row."""
        with self._lock:
            part = self._get_partition(partition)
            return self._get_cursor(part, group, from_now=True).read

    def next_chunk(self, partition: int, start: int) -> RowTimes:
        """Return the times of the rows from `start` to the end of its stamped chunk; empty if not produced yet."""
        with self._lock:
            part = self._get_partition(partition)
            return part.chunk_times(start)

    def record_consumed(self, stops: Mapping[str, int], partition: int, now: int) -> None:
        """Record and commit the positions of groups that follow a partition."""
        with self._lock:
            part = self._get_partition(partition)
            for group, stop in stops.items():
                cursor = part.cursors[group]
                cursor.record_read(cursor.read, stop)
                cursor.commit(stop)
            part.record_pull(now)
            part.drop_committed()

    def remove_group(self, group: str, now: int) -> None:
        """Remove a group: it no longer retains rows or counts as the slowest."""
        with self._lock:
            for part in self._partitions:
                if part.cursors.pop(group, None) is not None and part.cursors:
                    part.record_pull(now)
                    part.drop_committed()

    def list_pulls(self) -> list[tuple[int, int, int]]:
        """Return (time, partition, rows pulled until then), ordered by partition and time."""
        with self._lock:
            return [(time, part.number, stop) for part in self._partitions for time, stop in part.pulls]

    def _get_partition(self, number: int) -> QueuePartition:
        if not 0 <= number < len(self._partitions):
            raise HeadraceError(f"unknown partition {number}", detail=f"partitions: 0 to {len(self._partitions) - 1}")
        return self._partitions[number]

    def _get_cursor(self, part: QueuePartition, group: str, from_now: bool = False) -> GroupCursor:
        if group not in part.cursors:
            part.add_group(group, part.produced if from_now else part.oldest)
        return part.cursors[group]
