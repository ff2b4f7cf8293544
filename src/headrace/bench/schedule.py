"""Which row of a stream is born when: rate scripts, one after the other, on the clock.

    start A            start B          stop        start C
      ├── rows 0 … 99 ───┼── 100 … 249 ───┤           ├── 250 …

A schedule is a value: what it says of a row does not depend on when it is asked, so a row that is stamped late has the time
it should have been born at, and whoever holds the schedule can tell the time of any row. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.rate import RateScript

_Integers: TypeAlias = npt.NDArray[np.int64]
_Floats: TypeAlias = npt.NDArray[np.float64]
_ROUNDING = 1e-3  # microseconds: a time that is whole but for rounding is that whole number
STAMP_ROWS = 1 << 15  # so many are stamped at a time
_COUNT = np.arange(STAMP_ROWS, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A script in force from `start` on; its first row has number `first`, and it has `rows` of them (None: it goes on)."""

    script: RateScript
    start: int
    first: int
    rows: int | None = None

    def born(self, now: _Integers) -> _Integers:
        """Return how many of its rows are born by `now`."""
        found = self.script.rows_by((now - self.start) / 1e6)
        return found if self.rows is None else np.minimum(found, self.rows)

    def times(self, rows: _Integers) -> _Integers:
        """Return when rows (ascending, all of this stretch) are born."""
        seconds = self.script.time_of(rows - self.first)
        seconds *= 1e6
        seconds += _ROUNDING
        found = seconds.astype(np.int64)
        found += self.start
        return found

    def stamp(self, line: tuple[float, float], row: int, step: int, out: _Integers, room: _Floats) -> None:
        """Do what `times` does, where the rate is constant, for rows a fixed step apart; every row passes here."""
        room = np.multiply(_COUNT[: len(out)], step, out=room[: len(out)])
        room += row - self.first
        room *= line[0]
        room += line[1]
        room *= 1e6
        room += _ROUNDING
        np.copyto(out, room, casting="unsafe")
        out += self.start


@dataclass(frozen=True, slots=True)
class Schedule:
    """Stretches in the order of time; only the last may go on."""

    stretches: tuple[Stretch, ...] = ()

    @property
    def running(self) -> bool:
        """Whether rows are still born."""
        return bool(self.stretches) and self.stretches[-1].rows is None

    def born(self, now: int) -> int:
        """Return how many rows there are at `now`."""
        if not self.stretches:
            return 0
        last = self.stretches[-1]
        return last.first + int(last.born(np.array([now]))[0])

    def stopped(self, rows: int) -> Schedule:
        """Return the schedule that ends after `rows` rows in all."""
        if not self.running:
            return self
        last = self.stretches[-1]
        return Schedule((*self.stretches[:-1], Stretch(last.script, last.start, last.first, rows - last.first)))

    def changed(self, script: RateScript, now: int, rows: int) -> Schedule:
        """Return the schedule that goes on with another script from `now` on, after `rows` rows in all."""
        return Schedule((*self.stopped(rows).stretches, Stretch(script, now, rows)))

    def times(self, rows: _Integers) -> _Integers:
        """Return when rows (ascending, all of them born) are born."""
        if len(self.stretches) == 1:
            return self.stretches[0].times(rows)
        cuts = np.searchsorted(rows, [stretch.first for stretch in self.stretches[1:]], side="left")
        parts = zip(self.stretches, np.split(rows, cuts), strict=False)
        return np.concatenate([np.empty(0, np.int64), *(stretch.times(part) for stretch, part in parts if len(part))])

    def stamp(self, row: int, step: int, out: _Integers, room: _Floats) -> None:
        """Fill `out` with the times of `row`, `row` + `step` and so on, all of them born, at most STAMP_ROWS.

        `room` is for as many numbers, and is the caller's to give again: getting memory takes longer than the sums.
        """
        last = self.stretches[-1]
        stop = row + step * (len(out) - 1)
        line = last.script.line(row - last.first, stop - last.first) if last.first <= row else None
        if line is not None:
            last.stamp(line, row, step, out, room)
        else:
            out[:] = self.times(np.arange(row, stop + 1, step))

    def rows_before(self, times: _Integers) -> _Integers:
        """Return for each time how many rows are born before it, as `times` stamps them."""
        count = np.zeros(len(times), np.int64)
        for stretch in self.stretches:
            found = stretch.born(times)
            late = found > 0
            late[late] = stretch.times(stretch.first + found[late] - 1) >= times[late]  # it is born in this very microsecond
            count += found - late
        return count

    def to_json(self) -> list[dict[str, Any]]:
        """Return what `from_json` reads back."""
        return [{"rate": s.script.to_json(), "start": s.start, "first": s.first, "rows": s.rows} for s in self.stretches]

    @staticmethod
    def from_json(value: list[Mapping[str, Any]]) -> Schedule:
        """Rebuild what `to_json` described."""
        return Schedule(tuple(Stretch(RateScript.from_json(s["rate"]), s["start"], s["first"], s["rows"]) for s in value))
