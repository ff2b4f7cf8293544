"""The queue of one stream: rows produced and not yet committed, first in, first out, one queue per partition.

Row n of the stream is row n // partitions of partition n % partitions, so that all partitions advance equally in event time.
The values of a row follow from its number (see `RowPool`), so a partition stores only its time. Rows stay until every consumer
group has committed them; without a group they all stay. A queue that would exceed its capacity stops production: the consumers
cannot keep up, and the run has failed.

The position of a group in a partition:

    0        committed          read        [   )      produced
    ├───────────┼─────────────────┼──────────┼───┼─────────┤
      dropped      may be read again          read out of order

Several readers may fetch parts of a batch concurrently and in any order: `read` advances only over rows without gaps.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.driver.rates import MAX_STAMP_ROWS, RateScript, RowSchedule
from headrace.bench.driver.streams import StreamSpec
from headrace.connectors.rate import GeneratorSpec, uniform_integers
from headrace.errors import HeadraceError


class GroupCursor:
    """Row numbers of one partition. Not thread-safe: the queue holds the lock."""

    def __init__(self, start: int) -> None:
        """Start at a row; the group never reads the rows before it."""
        self.read = self.committed = start
        self._out_of_order: dict[int, int] = {}  # ranges read beyond `read`: start → stop

    def check_read(self, start: int, stop: int, produced: int) -> None:
        """Reject rows that are not produced yet or that this group has committed."""
        if not 0 <= start <= stop:
            raise HeadraceError(f"invalid row range {start} to {stop}")
        if stop > produced:
            raise HeadraceError(f"rows up to {stop} requested, but only {produced} are produced yet")
        if start < self.committed:
            raise HeadraceError(f"rows from {start} requested, but this group has committed the rows before {self.committed}")

    def record_read(self, start: int, stop: int) -> None:
        """Record that rows [start, stop) were sent."""
        self._out_of_order[start] = max(stop, self._out_of_order.get(start, stop))
        for begin in sorted(self._out_of_order):
            if begin > self.read:
                break
            self.read = max(self.read, self._out_of_order.pop(begin))

    def check_commit(self, position: int) -> None:
        """Reject a commit of rows that were not read."""
        if not 0 <= position <= self.read:
            raise HeadraceError(f"cannot commit the rows before {position}: only {self.read} were read")

    def commit(self, position: int) -> None:
        """Release the rows before `position`; a position below the committed one has no effect."""
        self.check_commit(position)
        self.committed = max(self.committed, position)


RowTimes: TypeAlias = npt.NDArray[np.int64]
_SLAB_ROWS = 1 << 19
_PULL_RESOLUTION_US = 5_000  # microseconds; closer pulls are recorded as one


class QueuePartition:
    """One partition; the queue of its stream holds the lock.

    Times lie in slabs of equal length, which are reused: first-touch page faults of new memory would dominate the cost.
    """

    def __init__(self, spec: StreamSpec, number: int) -> None:
        """Create an empty partition."""
        self._spec, self.number = spec, number
        self._max_disorder_us = round(spec.disorder * 1e6)
        self._slabs: dict[int, RowTimes] = {}
        self._free_slabs: list[RowTimes] = []
        self._scratch = np.empty(MAX_STAMP_ROWS)
        self._chunk_ends: list[int] = []
        self.produced = self.oldest = 0
        self.cursors: dict[str, GroupCursor] = {}
        self.pulls: list[tuple[int, int]] = []  # (time, rows pulled until then) of the slowest group
        self._last_pull_us = 0

    @property
    def read(self) -> int:
        """The read position of the slowest group."""
        return min((cursor.read for cursor in self.cursors.values()), default=self.oldest)

    @property
    def committed(self) -> int:
        """The position that every group has committed."""
        return min((cursor.committed for cursor in self.cursors.values()), default=self.oldest)

    def stamp_rows(self, schedule: RowSchedule, produced: int) -> None:
        """Produce the rows up to `produced` with the times of the schedule."""
        while self.produced < produced:
            slab, offset = divmod(self.produced, _SLAB_ROWS)
            count = min(produced - self.produced, MAX_STAMP_ROWS, _SLAB_ROWS - offset)
            if slab not in self._slabs:
                self._slabs[slab] = self._free_slabs.pop() if self._free_slabs else np.empty(_SLAB_ROWS, np.int64)
            times, step = self._slabs[slab][offset : offset + count], self._spec.partitions
            schedule.stamp_times(self.produced * step + self.number, step, times, self._scratch)
            if self._max_disorder_us:
                times -= self._draw_disorder(self.produced, count)
            self.produced += count
            self._chunk_ends.append(self.produced)

    def _draw_disorder(self, start: int, count: int) -> npt.NDArray[np.int32]:
        recipe, column = GeneratorSpec("fields", self._spec.seed), f"disorder {self.number}"
        delays: npt.NDArray[np.int32] = uniform_integers(
            recipe, column, np.arange(start, start + count), self._max_disorder_us + 1
        )
        return delays

    def copy_times(self, start: int, stop: int) -> RowTimes:
        """Return a copy of the times of rows [start, stop), which must be stored here."""
        copied = np.empty(stop - start, np.int64)
        for slab in range(start // _SLAB_ROWS, -(-stop // _SLAB_ROWS)):
            slab_start = slab * _SLAB_ROWS
            begin, end = max(start, slab_start), min(stop, slab_start + _SLAB_ROWS)
            copied[begin - start : end - start] = self._slabs[slab][begin - slab_start : end - slab_start]
        return copied

    def chunk_times(self, start: int) -> RowTimes:
        """Return the times of the rows from `start` to the end of its stamped chunk; empty if it is not produced yet."""
        if start >= self.produced:
            return np.empty(0, np.int64)
        return self.copy_times(start, self._chunk_ends[bisect_right(self._chunk_ends, start)])

    def add_group(self, group: str, start: int) -> None:
        """Add a group; rows from `start` on count as pulled only when this group has pulled them too."""
        self.cursors[group] = GroupCursor(start)
        index = bisect_right(self.pulls, start, key=lambda pull: pull[1])
        if self.pulls[index:]:
            before = self.pulls[index - 1][1] if index else 0
            self.pulls[index:] = [(self.pulls[index][0], start)] if start > before else []

    def record_pull(self, now: int) -> None:
        """Record when the slowest group reached its position."""
        read = self.read
        if self.pulls and read <= self.pulls[-1][1]:
            return
        if self.pulls and now - self._last_pull_us < _PULL_RESOLUTION_US:
            self.pulls[-1] = (now, read)
        else:
            self.pulls.append((now, read))
            self._last_pull_us = now

    def drop_committed(self) -> None:
        """Drop the rows that all groups have committed."""
        self.oldest = max(self.oldest, self.committed)
        del self._chunk_ends[: bisect_right(self._chunk_ends, self.oldest)]
        for slab in [number for number in self._slabs if (number + 1) * _SLAB_ROWS <= self.oldest]:
            self._free_slabs.append(self._slabs.pop(slab))


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
