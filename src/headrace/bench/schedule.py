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
_Scratch: TypeAlias = npt.NDArray[np.float64]
_ROUNDING_US = 1e-3  # microseconds; absorbs rounding errors below an integer
MAX_STAMP_ROWS = 1 << 15  # maximum per call of `stamp_times`
_ROW_NUMBERS = np.arange(MAX_STAMP_ROWS, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class SchedulePhase:
    """A script in force from `start_us` on; its first row is `first_row`, and it has `rows` rows (None: still running)."""

    script: RateScript
    start_us: int
    first_row: int
    rows: int | None = None

    def count_due(self, now: _Integers) -> _Integers:
        """Return how many of its rows are due by `now`."""
        due = self.script.count_rows((now - self.start_us) / 1e6)
        return due if self.rows is None else np.minimum(due, self.rows)

    def row_times(self, rows: _Integers) -> _Integers:
        """Return the due times of rows (ascending, all of this phase)."""
        seconds = self.script.due_times(rows - self.first_row)
        seconds *= 1e6
        seconds += _ROUNDING_US
        times = seconds.astype(np.int64)
        times += self.start_us
        return times

    def stamp_times(self, coefficients: tuple[float, float], row: int, step: int, out: _Integers, scratch: _Scratch) -> None:
        """Write the times of rows a fixed step apart where the rate is constant; same result as `row_times`, on the hot path."""
        scratch = np.multiply(_ROW_NUMBERS[: len(out)], step, out=scratch[: len(out)])
        scratch += row - self.first_row
        scratch *= coefficients[0]
        scratch += coefficients[1]
        scratch *= 1e6
        scratch += _ROUNDING_US
        np.copyto(out, scratch, casting="unsafe")
        out += self.start_us


@dataclass(frozen=True, slots=True)
class RowSchedule:
    """Phases in time order; only the last may still be running."""

    phases: tuple[SchedulePhase, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether the schedule still produces rows."""
        return bool(self.phases) and self.phases[-1].rows is None

    def count_due(self, now: int) -> int:
        """Return the number of rows due by `now`."""
        if not self.phases:
            return 0
        last = self.phases[-1]
        return last.first_row + int(last.count_due(np.array([now]))[0])

    def stop_after(self, rows: int) -> RowSchedule:
        """Return the schedule that ends after `rows` rows in total."""
        if not self.is_running:
            return self
        last = self.phases[-1]
        return RowSchedule((*self.phases[:-1], SchedulePhase(last.script, last.start_us, last.first_row, rows - last.first_row)))

    def switch_script(self, script: RateScript, now: int, rows: int) -> RowSchedule:
        """Return the schedule that continues with another script from `now` on, after `rows` rows in total."""
        return RowSchedule((*self.stop_after(rows).phases, SchedulePhase(script, now, rows)))

    def row_times(self, rows: _Integers) -> _Integers:
        """Return the due times of rows (ascending, all of them due)."""
        if len(self.phases) == 1:
            return self.phases[0].row_times(rows)
        cuts = np.searchsorted(rows, [stretch.first_row for stretch in self.phases[1:]], side="left")
        parts = zip(self.phases, np.split(rows, cuts), strict=False)
        return np.concatenate([np.empty(0, np.int64), *(stretch.row_times(part) for stretch, part in parts if len(part))])

    def stamp_times(self, row: int, step: int, out: _Integers, scratch: _Scratch) -> None:
        """Fill `out` with the times of `row`, `row` + `step` and so on, all of them due, at most MAX_STAMP_ROWS.

        `scratch` holds as many floats and is reused by the caller: allocating memory takes longer than the arithmetic.
        """
        last = self.phases[-1]
        stop = row + step * (len(out) - 1)
        coefficients = last.script.linear_times(row - last.first_row, stop - last.first_row) if last.first_row <= row else None
        if coefficients is not None:
            last.stamp_times(coefficients, row, step, out, scratch)
        else:
            out[:] = self.row_times(np.arange(row, stop + 1, step))

    def count_rows_before(self, times: _Integers) -> _Integers:
        """Return for each time the number of rows due before it, by the times of `row_times`."""
        count = np.zeros(len(times), np.int64)
        for stretch in self.phases:
            due = stretch.count_due(times)
            late = due > 0
            # the last row may be due in this very microsecond, and not before it
            late[late] = stretch.row_times(stretch.first_row + due[late] - 1) >= times[late]
            count += due - late
        return count

    def to_json(self) -> list[dict[str, Any]]:
        """Return the JSON form that `from_json` reads."""
        return [
            {"rate": stretch.script.to_json(), "start": stretch.start_us, "first": stretch.first_row, "rows": stretch.rows}
            for stretch in self.phases
        ]

    @staticmethod
    def from_json(value: list[Mapping[str, Any]]) -> RowSchedule:
        """Read the JSON form of `to_json`."""
        return RowSchedule(
            tuple(
                SchedulePhase(RateScript.from_json(stretch["rate"]), stretch["start"], stretch["first"], stretch["rows"])
                for stretch in value
            )
        )
