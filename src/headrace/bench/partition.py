"""One partition of a stream queue: the event times of its rows, the cursors of its consumer groups, and the times of pulls.

The values of a row follow from its number (see `RowPool`), so only its time is stored.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.cursor import Cursor
from headrace.bench.schedule import STAMP_ROWS, Schedule
from headrace.bench.stream import StreamSpec
from headrace.connectors.generate import GeneratorSpec, uniform_integers

Times: TypeAlias = npt.NDArray[np.int64]
_SLAB_ROWS = 1 << 19
_SAME_MOMENT = 5_000  # microseconds; closer pulls are recorded as one


class Partition:
    """One partition; the queue of its stream holds the lock.

    Times lie in slabs of equal length, which are reused: first-touch page faults of new memory would dominate the cost.
    """

    def __init__(self, spec: StreamSpec, number: int) -> None:
        """Create an empty partition."""
        self._spec, self.number = spec, number
        self._jitter = round(spec.disorder * 1e6)
        self._slabs: dict[int, Times] = {}
        self._free: list[Times] = []
        self._room = np.empty(STAMP_ROWS)
        self._chunk_ends: list[int] = []
        self.produced = self.oldest = 0
        self.cursors: dict[str, Cursor] = {}
        self.pulls: list[tuple[int, int]] = []  # (time, rows pulled until then) of the slowest group
        self._noted = 0

    @property
    def read(self) -> int:
        """The read position of the slowest group."""
        return min((cursor.read for cursor in self.cursors.values()), default=self.oldest)

    @property
    def committed(self) -> int:
        """The position that every group has committed."""
        return min((cursor.committed for cursor in self.cursors.values()), default=self.oldest)

    def stamp(self, schedule: Schedule, produced: int) -> None:
        """Produce the rows up to `produced` with the times of the schedule."""
        while self.produced < produced:
            slab, offset = divmod(self.produced, _SLAB_ROWS)
            count = min(produced - self.produced, STAMP_ROWS, _SLAB_ROWS - offset)
            if slab not in self._slabs:
                self._slabs[slab] = self._free.pop() if self._free else np.empty(_SLAB_ROWS, np.int64)
            times, step = self._slabs[slab][offset : offset + count], self._spec.partitions
            schedule.stamp(self.produced * step + self.number, step, times, self._room)
            if self._jitter:
                times -= self._disorder(self.produced, count)
            self.produced += count
            self._chunk_ends.append(self.produced)

    def _disorder(self, start: int, count: int) -> npt.NDArray[np.int32]:
        recipe, column = GeneratorSpec("fields", self._spec.seed), f"disorder {self.number}"
        delays: npt.NDArray[np.int32] = uniform_integers(recipe, column, np.arange(start, start + count), self._jitter + 1)
        return delays

    def times(self, start: int, stop: int) -> Times:
        """Return a copy of the times of rows [start, stop), which must be stored here."""
        copied = np.empty(stop - start, np.int64)
        for slab in range(start // _SLAB_ROWS, -(-stop // _SLAB_ROWS)):
            slab_start = slab * _SLAB_ROWS
            begin, end = max(start, slab_start), min(stop, slab_start + _SLAB_ROWS)
            copied[begin - start : end - start] = self._slabs[slab][begin - slab_start : end - slab_start]
        return copied

    def chunk(self, start: int) -> Times:
        """Return the times of the rows from `start` to the end of its stamped chunk; empty if it is not produced yet."""
        if start >= self.produced:
            return np.empty(0, np.int64)
        return self.times(start, self._chunk_ends[bisect_right(self._chunk_ends, start)])

    def join(self, group: str, start: int) -> None:
        """Add a group; rows from `start` on count as pulled only when this group has pulled them too."""
        self.cursors[group] = Cursor(start)
        index = bisect_right(self.pulls, start, key=lambda pull: pull[1])
        if self.pulls[index:]:
            before = self.pulls[index - 1][1] if index else 0
            self.pulls[index:] = [(self.pulls[index][0], start)] if start > before else []

    def note_pull(self, now: int) -> None:
        """Record when the slowest group reached its position."""
        read = self.read
        if self.pulls and read <= self.pulls[-1][1]:
            return
        if self.pulls and now - self._noted < _SAME_MOMENT:
            self.pulls[-1] = (now, read)
        else:
            self.pulls.append((now, read))
            self._noted = now

    def forget(self) -> None:
        """Drop the rows that all groups have committed."""
        self.oldest = max(self.oldest, self.committed)
        del self._chunk_ends[: bisect_right(self._chunk_ends, self.oldest)]
        for slab in [number for number in self._slabs if (number + 1) * _SLAB_ROWS <= self.oldest]:
            self._free.append(self._slabs.pop(slab))
