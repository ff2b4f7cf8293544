"""The queue of one stream: rows produced and not yet committed, first in, first out, one queue per partition.

Row n of the stream is row n // partitions of partition n % partitions, so that all partitions advance equally in event time. Rows
stay until every group has committed them; without a group they all stay. A queue that would exceed its capacity stops
production: the consumers cannot keep up, and the run has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.cursor import Cursor
from headrace.bench.partition import Partition, Times
from headrace.bench.rate import RateScript
from headrace.bench.schedule import Schedule
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Progress:
    """Row counts of each partition."""

    produced: tuple[int, ...]
    read: tuple[int, ...]
    committed: tuple[int, ...]


class StreamQueue:
    """The partitions of one stream under one lock. The caller passes times, in microseconds."""

    def __init__(self, spec: StreamSpec, capacity_rows: int) -> None:
        """`capacity_rows` is the maximum number of rows in a partition."""
        self.spec, self._capacity = spec, capacity_rows
        self._lock = threading.Lock()
        self._partitions = [Partition(spec, number) for number in range(spec.partitions)]
        self._rows = 0
        self.schedule = Schedule()
        self.overflowed = False

    def advance(self, now: int) -> None:
        """Produce all rows due by `now`."""
        with self._lock:
            if not self.schedule.running:
                return
            due = max(self.schedule.born(now), self._rows)
            stops = [
                (due + len(self._partitions) - 1 - number) // len(self._partitions) for number in range(len(self._partitions))
            ]
            if any(stop - partition.oldest > self._capacity for stop, partition in zip(stops, self._partitions, strict=True)):
                self.overflowed = True
                self.schedule = self.schedule.stopped(self._rows)
                return
            for stop, partition in zip(stops, self._partitions, strict=True):
                partition.stamp(self.schedule, stop)
            self._rows = due

    def start(self, script: RateScript | None, now: int) -> None:
        """Switch to another script at `now`, or stop production."""
        self.advance(now)
        with self._lock:
            if script is None:
                self.schedule = self.schedule.stopped(self._rows)
            else:
                self.schedule = self.schedule.changed(script, now, self._rows)
                self.overflowed = False

    def progress(self, group: str | None = None, *, from_now: bool = False) -> Progress:
        """Return the position of a group, which is added if unknown; without a group, the slowest positions."""
        with self._lock:
            cursors = (
                self._partitions
                if group is None
                else [self._cursor(partition, group, from_now) for partition in self._partitions]
            )
            produced = tuple(partition.produced for partition in self._partitions)
            return Progress(produced, tuple(cursor.read for cursor in cursors), tuple(cursor.committed for cursor in cursors))

    def take(self, group: str, partition: int, start: int, stop: int) -> Times:
        """Return the times of rows [start, stop) of a partition; raise for rows that the group may not read."""
        with self._lock:
            part = self._partition(partition)
            self._cursor(part, group).check(start, stop, part.produced)
            return part.times(start, stop)

    def took(self, group: str, partition: int, start: int, stop: int, now: int) -> None:
        """Record that the rows were sent."""
        with self._lock:
            part = self._partition(partition)
            if group in part.cursors:
                part.cursors[group].took(start, stop)
                part.note_pull(now)

    def commit(self, group: str, positions: Sequence[int]) -> None:
        """Commit the positions of all partitions for a group; on an error commit none."""
        with self._lock:
            if len(positions) != len(self._partitions):
                raise HeadraceError(f"{len(positions)} positions given for {len(self._partitions)} partitions")
            cursors = [self._cursor(part, group) for part in self._partitions]
            for cursor, position in zip(cursors, positions, strict=True):
                cursor.check_commit(position)
            for part, cursor, position in zip(self._partitions, cursors, positions, strict=True):
                cursor.commit(position)
                part.forget()

    def follow(self, group: str, partition: int) -> int:
        """Add a group that reads one partition, from the next row on; return the number of that row."""
        with self._lock:
            part = self._partition(partition)
            return self._cursor(part, group, from_now=True).read

    def next_chunk(self, partition: int, start: int) -> Times:
        """Return the times of the rows from `start` to the end of its stamped chunk; empty if not produced yet."""
        with self._lock:
            part = self._partition(partition)
            return part.chunk(start)

    def passed(self, stops: Mapping[str, int], partition: int, now: int) -> None:
        """Record and commit the positions of groups that follow a partition."""
        with self._lock:
            part = self._partition(partition)
            for group, stop in stops.items():
                cursor = part.cursors[group]
                cursor.took(cursor.read, stop)
                cursor.commit(stop)
            part.note_pull(now)
            part.forget()

    def leave(self, group: str, now: int) -> None:
        """Remove a group: it no longer retains rows or counts as the slowest."""
        with self._lock:
            for part in self._partitions:
                if part.cursors.pop(group, None) is not None and part.cursors:
                    part.note_pull(now)
                    part.forget()

    def pulls(self) -> list[tuple[int, int, int]]:
        """Return (time, partition, rows pulled until then), ordered by partition and time."""
        with self._lock:
            return [(time, part.number, stop) for part in self._partitions for time, stop in part.pulls]

    def _partition(self, number: int) -> Partition:
        if not 0 <= number < len(self._partitions):
            raise HeadraceError(f"unknown partition {number}", detail=f"partitions: 0 to {len(self._partitions) - 1}")
        return self._partitions[number]

    def _cursor(self, part: Partition, group: str, from_now: bool = False) -> Cursor:
        if group not in part.cursors:
            part.join(group, part.produced if from_now else part.oldest)
        return part.cursors[group]
