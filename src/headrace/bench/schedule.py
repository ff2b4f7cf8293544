"""Row schedules: which row of a stream is due when – a sequence of rate scripts on the clock.

    start A            start B          stop        start C
      ├── rows 0 … 99 ───┼── 100 … 249 ───┤           ├── 250 …

A schedule is a value: the time of a row does not depend on when it is computed. A row that is stamped late gets its due time, and
any holder of the schedule can compute the time of any row. Times are microseconds.
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
_ROUNDING = 1e-3  # microseconds; absorbs rounding errors below an integer
STAMP_ROWS = 1 << 15  # maximum per call of `stamp_times`
_COUNT = np.arange(STAMP_ROWS, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A script in force from `start_us` on; its first row is `first_row`, and it has `rows` rows (None: still running)."""

    script: RateScript
    start: int
    first: int
    rows: int | None = None

    def born(self, now: _Integers) -> _Integers:
        """Return how many of its rows are due by `now`."""
        due = self.script.rows_by((now - self.start) / 1e6)
        return due if self.rows is None else np.minimum(due, self.rows)

    def times(self, rows: _Integers) -> _Integers:
        """Return the due times of rows (ascending, all of this phase)."""
        seconds = self.script.time_of(rows - self.first)
        seconds *= 1e6
        seconds += _ROUNDING
        times = seconds.astype(np.int64)
        times += self.start
        return times

    def stamp(self, coefficients: tuple[float, float], row: int, step: int, out: _Integers, scratch: _Floats) -> None:
        """Write the times of rows a fixed step apart where the rate is constant; same result as `row_times`, on the hot path."""
        scratch = np.multiply(_COUNT[: len(out)], step, out=scratch[: len(out)])
        scratch += row - self.first
        scratch *= coefficients[0]
        scratch += coefficients[1]
        scratch *= 1e6
        scratch += _ROUNDING
        np.copyto(out, scratch, casting="unsafe")
        out += self.start


@dataclass(frozen=True, slots=True)
class Schedule:
    """Phases in time order; only the last may still be running."""

    stretches: tuple[Stretch, ...] = ()

    @property
    def running(self) -> bool:
        """Whether the schedule still produces rows."""
        return bool(self.stretches) and self.stretches[-1].rows is None

    def born(self, now: int) -> int:
        """Return the number of rows due by `now`."""
        if not self.stretches:
            return 0
        last = self.stretches[-1]
        return last.first + int(last.born(np.array([now]))[0])

    def stopped(self, rows: int) -> Schedule:
        """Return the schedule that ends after `rows` rows in total."""
        if not self.running:
            return self
        last = self.stretches[-1]
        return Schedule((*self.stretches[:-1], Stretch(last.script, last.start, last.first, rows - last.first)))

    def changed(self, script: RateScript, now: int, rows: int) -> Schedule:
        """Return the schedule that continues with another script from `now` on, after `rows` rows in total."""
        return Schedule((*self.stopped(rows).stretches, Stretch(script, now, rows)))

    def times(self, rows: _Integers) -> _Integers:
        """Return the due times of rows (ascending, all of them due)."""
        if len(self.stretches) == 1:
            return self.stretches[0].times(rows)
        cuts = np.searchsorted(rows, [stretch.first for stretch in self.stretches[1:]], side="left")
        parts = zip(self.stretches, np.split(rows, cuts), strict=False)
        return np.concatenate([np.empty(0, np.int64), *(stretch.times(part) for stretch, part in parts if len(part))])

    def stamp(self, row: int, step: int, out: _Integers, scratch: _Floats) -> None:
        """Fill `out` with the times of `row`, `row` + `step` and so on, all of them due, at most MAX_STAMP_ROWS.

        `scratch` holds as many floats and is reused by the caller: allocating memory takes longer than the arithmetic.
        """
        last = self.stretches[-1]
        stop = row + step * (len(out) - 1)
        coefficients = last.script.line(row - last.first, stop - last.first) if last.first <= row else None
        if coefficients is not None:
            last.stamp(coefficients, row, step, out, scratch)
        else:
            out[:] = self.times(np.arange(row, stop + 1, step))

    def rows_before(self, times: _Integers) -> _Integers:
        """Return for each time the number of rows due before it, by the times of `row_times`."""
        count = np.zeros(len(times), np.int64)
        for stretch in self.stretches:
            due = stretch.born(times)
            late = due > 0
            # the last row may be due in this very microsecond, and not before it
            late[late] = stretch.times(stretch.first + due[late] - 1) >= times[late]
            count += due - late
        return count

    def to_json(self) -> list[dict[str, Any]]:
        """Return the JSON form that `from_json` reads."""
        return [
            {"rate": stretch.script.to_json(), "start": stretch.start, "first": stretch.first, "rows": stretch.rows}
            for stretch in self.stretches
        ]

    @staticmethod
    def from_json(value: list[Mapping[str, Any]]) -> Schedule:
        """Read the JSON form of `to_json`."""
        return Schedule(
            tuple(
                Stretch(RateScript.from_json(stretch["rate"]), stretch["start"], stretch["first"], stretch["rows"])
                for stretch in value
            )
        )
