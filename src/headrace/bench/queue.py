"""The rows of one stream that were born and are still wanted: first in, first out, one queue a partition.

Row n of the stream is row n // partitions of partition n % partitions, so all partitions are equally far in event time. Rows
stay until every group has committed them; without any group they all stay. A queue that would grow beyond its capacity ends
the birth of rows: whoever reads cannot keep up, and the run has failed.
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
    """How far things are: rows of each partition."""

    produced: tuple[int, ...]
    read: tuple[int, ...]
    committed: tuple[int, ...]


class StreamQueue:
    """The partitions of one stream, under one lock. Times are given by the caller, in microseconds."""

    def __init__(self, spec: StreamSpec, capacity_rows: int) -> None:
        """`capacity_rows` is how many rows a partition may keep."""
        self.spec, self._capacity = spec, capacity_rows
        self._lock = threading.Lock()
        self._partitions = [Partition(spec, number) for number in range(spec.partitions)]
        self._rows = 0
        self.schedule = Schedule()
        self.overflowed = False

    def advance(self, now: int) -> None:
        """Let everything be born that is due by `now`."""
        with self._lock:
            if not self.schedule.running:
                return
            born = max(self.schedule.born(now), self._rows)
            stops = [(born + len(self._partitions) - 1 - p) // len(self._partitions) for p in range(len(self._partitions))]
            if any(stop - part.oldest > self._capacity for stop, part in zip(stops, self._partitions, strict=True)):
                self.overflowed = True
                self.schedule = self.schedule.stopped(self._rows)
                return
            for stop, part in zip(stops, self._partitions, strict=True):
                part.stamp(self.schedule, stop)
            self._rows = born

    def start(self, script: RateScript | None, now: int) -> None:
        """Go on with another script from `now` on, or with none."""
        self.advance(now)
        with self._lock:
            if script is None:
                self.schedule = self.schedule.stopped(self._rows)
            else:
                self.schedule = self.schedule.changed(script, now, self._rows)
                self.overflowed = False

    def progress(self, group: str | None = None, *, from_now: bool = False) -> Progress:
        """Return where a group is, and make it known if it was not; without a group, where the slowest ones are."""
        with self._lock:
            marks = self._partitions if group is None else [self._cursor(p, group, from_now) for p in self._partitions]
            produced = tuple(part.produced for part in self._partitions)
            return Progress(produced, tuple(mark.read for mark in marks), tuple(mark.committed for mark in marks))

    def take(self, group: str, partition: int, start: int, stop: int) -> Times:
        """Return the times of rows [start, stop) of a partition; raises for rows the group cannot have."""
        with self._lock:
            part = self._partition(partition)
            self._cursor(part, group).check(start, stop, part.produced)
            return part.times(start, stop)

    def took(self, group: str, partition: int, start: int, stop: int, now: int) -> None:
        """Note that the rows have left."""
        with self._lock:
            part = self._partition(partition)
            if group in part.cursors:
                part.cursors[group].took(start, stop)
                part.note_pull(now)

    def commit(self, group: str, positions: Sequence[int]) -> None:
        """Give up the rows of each partition before its position, for this group: all, or on an error none."""
        with self._lock:
            if len(positions) != len(self._partitions):
                raise HeadraceError(f"positions for {len(positions)} partitions, but there are {len(self._partitions)}")
            cursors = [self._cursor(part, group) for part in self._partitions]
            for cursor, position in zip(cursors, positions, strict=True):
                cursor.check_commit(position)
            for part, cursor, position in zip(self._partitions, cursors, positions, strict=True):
                cursor.commit(position)
                part.forget()

    def follow(self, group: str, partition: int) -> int:
        """Make a group known that reads one partition only, from the next row on; return the number of that row."""
        with self._lock:
            part = self._partition(partition)
            return self._cursor(part, group, from_now=True).read

    def next_chunk(self, partition: int, start: int) -> Times:
        """Return the times of the rows from `start` on that were born together; none if there are none yet."""
        with self._lock:
            part = self._partition(partition)
            return part.chunk(start)

    def passed(self, stops: Mapping[str, int], partition: int, now: int) -> None:
        """Note for groups that follow a partition up to which row each has taken all, for good."""
        with self._lock:
            part = self._partition(partition)
            for group, stop in stops.items():
                cursor = part.cursors[group]
                cursor.took(cursor.read, stop)
                cursor.commit(stop)
            part.note_pull(now)
            part.forget()

    def leave(self, group: str, now: int) -> None:
        """Forget a group: it keeps no rows any more, and nobody waits for it."""
        with self._lock:
            for part in self._partitions:
                if part.cursors.pop(group, None) is not None and part.cursors:
                    part.note_pull(now)
                    part.forget()

    def pulls(self) -> list[tuple[int, int, int]]:
        """Return (time, partition, rows pulled by then) for each partition, in order."""
        with self._lock:
            return [(when, part.number, stop) for part in self._partitions for when, stop in part.pulls]

    def _partition(self, number: int) -> Partition:
        if not 0 <= number < len(self._partitions):
            raise HeadraceError(f"there is no partition {number}", detail=f"partitions: 0 to {len(self._partitions) - 1}")
        return self._partitions[number]

    def _cursor(self, part: Partition, group: str, from_now: bool = False) -> Cursor:
        if group not in part.cursors:
            part.join(group, part.produced if from_now else part.oldest)
        return part.cursors[group]
