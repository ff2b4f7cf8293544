"""One partition of a stream queue: the event times of its rows, the cursors of its consumer groups, and the times of pulls.

The values of a row follow from its number (see `RowPool`), so only its time is stored.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.cursor import GroupCursor
from headrace.bench.schedule import MAX_STAMP_ROWS, RowSchedule
from headrace.bench.stream import StreamSpec
from headrace.connectors.generate import GeneratorSpec, uniform_integers

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
