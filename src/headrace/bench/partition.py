"""One partition of a stream: the times of its rows, who has read how far, and when.

Everything else of a row follows from its number (`generator`), so its time is all that is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.cursor import Cursor
from headrace.bench.schedule import STAMP_ROWS, Schedule
from headrace.bench.stream import StreamSpec
from headrace.connectors.generate import Recipe, uniform

Times: TypeAlias = npt.NDArray[np.int64]
_SLAB_ROWS = 1 << 19
_SAME_MOMENT = 5_000  # microseconds: pulls closer than this are noted as one


class Partition:
    """One partition; its stream holds the lock.

    Times lie in slabs of equal length, which are used again: memory that was never touched is slow, slower than all the rest.
    """

    def __init__(self, spec: StreamSpec, number: int) -> None:
        """Begin empty."""
        self._spec, self.number = spec, number
        self._jitter = round(spec.disorder * 1e6)
        self._slabs: dict[int, Times] = {}
        self._free: list[Times] = []
        self._room = np.empty(STAMP_ROWS)
        self._chunk_ends: list[int] = []
        self.produced = self.oldest = 0
        self.cursors: dict[str, Cursor] = {}
        self.pulls: list[tuple[int, int]] = []  # (time, rows pulled by then), by the slowest group
        self._noted = 0

    @property
    def read(self) -> int:
        """How far the slowest group has read."""
        return min((cursor.read for cursor in self.cursors.values()), default=self.oldest)

    @property
    def committed(self) -> int:
        """Up to where every group has committed."""
        return min((cursor.committed for cursor in self.cursors.values()), default=self.oldest)

    def stamp(self, schedule: Schedule, produced: int) -> None:
        """Let the rows up to `produced` be born, at the times of the schedule."""
        while self.produced < produced:
            slab, at = divmod(self.produced, _SLAB_ROWS)
            count = min(produced - self.produced, STAMP_ROWS, _SLAB_ROWS - at)
            if slab not in self._slabs:
                self._slabs[slab] = self._free.pop() if self._free else np.empty(_SLAB_ROWS, np.int64)
            times, step = self._slabs[slab][at : at + count], self._spec.partitions
            schedule.stamp(self.produced * step + self.number, step, times, self._room)
            if self._jitter:
                times -= self._disorder(self.produced, count)
            self.produced += count
            self._chunk_ends.append(self.produced)

    def _disorder(self, start: int, count: int) -> npt.NDArray[np.int32]:
        recipe, column = Recipe("fields", self._spec.seed), f"disorder {self.number}"
        found: npt.NDArray[np.int32] = uniform(recipe, column, np.arange(start, start + count), self._jitter + 1)
        return found

    def times(self, start: int, stop: int) -> Times:
        """Return a copy of the times of rows [start, stop), which are all here."""
        found = np.empty(stop - start, np.int64)
        for slab in range(start // _SLAB_ROWS, -(-stop // _SLAB_ROWS)):
            first = slab * _SLAB_ROWS
            begin, end = max(start, first), min(stop, first + _SLAB_ROWS)
            found[begin - start : end - start] = self._slabs[slab][begin - first : end - first]
        return found

    def chunk(self, start: int) -> Times:
        """Return the times of the rows from `start` on that were born together with it; none if it is not born yet."""
        if start >= self.produced:
            return np.empty(0, np.int64)
        return self.times(start, self._chunk_ends[bisect_right(self._chunk_ends, start)])

    def join(self, group: str, start: int) -> None:
        """Take a group in; rows from `start` on count as pulled only when it, too, has pulled them."""
        self.cursors[group] = Cursor(start)
        at = bisect_right(self.pulls, start, key=lambda pull: pull[1])
        if self.pulls[at:]:
            before = self.pulls[at - 1][1] if at else 0
            self.pulls[at:] = [(self.pulls[at][0], start)] if start > before else []

    def note_pull(self, now: int) -> None:
        """Remember when the slowest group got this far."""
        read = self.read
        if self.pulls and read <= self.pulls[-1][1]:
            return
        if self.pulls and now - self._noted < _SAME_MOMENT:
            self.pulls[-1] = (now, read)
        else:
            self.pulls.append((now, read))
            self._noted = now

    def forget(self) -> None:
        """Drop what all groups have committed."""
        self.oldest = max(self.oldest, self.committed)
        del self._chunk_ends[: bisect_right(self._chunk_ends, self.oldest)]
        for slab in [number for number in self._slabs if (number + 1) * _SLAB_ROWS <= self.oldest]:
            self._free.append(self._slabs.pop(slab))
