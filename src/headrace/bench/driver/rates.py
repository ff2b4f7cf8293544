"""Rate scripts and row schedules: when each row of a stream is due, as a function of time alone.

    rate        ┌──┐              ┌──┐
         ───────┘  └──────────────┘  └────────      spikes
    count_rows_at(t) is the area up to t; due_times(n) is when the area reaches n + 1: the time at which row n is due.

A script does not depend on its consumers. All functions are pure and work on whole arrays. A schedule is a sequence of scripts on
the clock:

    start A            start B          stop        start C
      ├── rows 0 … 99 ───┼── 100 … 249 ───┤           ├── 250 …

A schedule is a value: the time of a row does not depend on when it is computed. A row that is stamped late gets its due time,
and any holder of the schedule can compute the time of any row. Times are microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError

_Floats: TypeAlias = npt.NDArray[np.float64]
_RowCounts: TypeAlias = npt.NDArray[np.int64]

_MIN_RATE = 1e-9  # rows/s; a slower rate never produces its next row
_SCRIPT_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "constant": ("rate",),
    "steps": ("steps",),
    "spikes": ("base", "peak", "every", "length"),
    "ramp": ("first", "last", "seconds"),
}


@dataclass(frozen=True, slots=True)
class RateSegment:
    """A segment in which the rate changes linearly from `first` to `last` rows/s."""

    seconds: float
    first: float
    last: float

    def __post_init__(self) -> None:
        """Reject a length that is not positive and finite, and negative rates."""
        if not 0 < self.seconds < math.inf:
            raise HeadraceError(f"invalid rate segment for {self.seconds} seconds", hint="the length must be positive and finite")
        if not (0 <= self.first < math.inf and 0 <= self.last < math.inf):
            raise HeadraceError(
                f"invalid rate segment from {self.first} to {self.last} rows/s", hint="rates must not be negative"
            )

    @property
    def row_area(self) -> float:
        """The rows due within it."""
        return self.seconds * (self.first + self.last) / 2


@dataclass(frozen=True, slots=True)
class RateScript:
    """Consecutive segments; at the end they repeat or, without `repeat`, the last rate continues."""

    segments: tuple[RateSegment, ...]
    repeat: bool = False

    def __post_init__(self) -> None:
        """Reject an empty script."""
        if not self.segments:
            raise HeadraceError("a rate script has no pieces")

    @staticmethod
    def constant(rate: float) -> RateScript:
        """Return a constant rate."""
        return RateScript((RateSegment(1.0, rate, rate),))

    @staticmethod
    def steps(steps: Iterable[tuple[float, float]]) -> RateScript:
        """Return constant rates, (seconds, rate) each; the last one continues."""
        return RateScript(tuple(RateSegment(seconds, rate, rate) for seconds, rate in steps))

    @staticmethod
    def spikes(base: float, peak: float, every: float, length: float) -> RateScript:
        """Return rate `base` with `length` seconds of `peak` at the end of every `every` seconds."""
        if not 0 < length < every:
            raise HeadraceError(
                f"invalid spikes of {length} seconds every {every} seconds", hint="a spike must end before the next"
            )
        return RateScript((RateSegment(every - length, base, base), RateSegment(length, peak, peak)), repeat=True)

    @staticmethod
    def ramp(first: float, last: float, seconds: float) -> RateScript:
        """Return a rate that changes linearly from `first` to `last`, and stays there."""
        return RateScript((RateSegment(seconds, first, last),))

    def scale(self, factor: float) -> RateScript:
        """Return the script with every rate multiplied by `factor`."""
        return RateScript(
            tuple(RateSegment(piece.seconds, piece.first * factor, piece.last * factor) for piece in self.segments), self.repeat
        )

    def count_rows_at(self, seconds: float) -> int:
        """Return the number of rows due within the first `seconds`."""
        return int(self.count_rows(np.array([seconds]))[0])

    def count_rows(self, seconds: _Floats) -> _RowCounts:
        """Return `count_rows_at` for an array of times; before the start it is 0."""
        table = _build_table(self)
        time = np.maximum(seconds, 0.0)
        rounds = np.floor(time / table.seconds) if self.repeat else np.zeros_like(time)
        local = time - rounds * table.seconds
        index = np.searchsorted(table.starts, local, side="right") - 1
        local -= table.starts[index]
        area = rounds * table.row_area + table.base_rows[index] + local * (table.first[index] + table.slope[index] * local / 2)
        # tolerate rounding: a row due at this very time counts
        return np.floor(area + 1e-9 * np.maximum(1.0, area * 1e-6)).astype(np.int64)

    def due_times(self, rows: npt.NDArray[Any]) -> _Floats:
        """Return when each row (numbered from 0, ascending) is due, in seconds from the start; inf if never."""
        table = _build_table(self)
        if not self.repeat:
            return table.invert(rows)
        if table.row_area == 0:
            return np.full(len(rows), math.inf)
        rounds = np.ceil((rows + 1.0) / table.row_area) - 1
        return rounds * table.seconds + table.invert(rows - rounds * table.row_area)

    def linear_times(self, first: int, last: int) -> tuple[float, float] | None:
        """Return (a, b) if rows first … last are due at a × row + b exactly; else None."""
        table = _build_table(self)
        piece = table.segment_of(np.array([first, last]))
        if self.repeat or piece[0] != piece[1] or table.slope[piece[0]]:
            return None
        return float(table.row_interval[piece[0]]), float(table.time_offset[piece[0]])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return {"pieces": [[piece.seconds, piece.first, piece.last] for piece in self.segments], "repeat": self.repeat}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RateScript:
        """Read the JSON form of `to_json`; raise HeadraceError for anything else."""
        try:
            pieces = tuple(RateSegment(*map(float, piece)) for piece in value["pieces"])
            return RateScript(pieces, bool(value.get("repeat", False)))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise HeadraceError(f"rate script {value!r} is invalid", detail=repr(error)) from error

    @staticmethod
    def parse(value: float | Mapping[str, Any]) -> RateScript:
        """Read a rate of a scenario file: a number, or a table with `kind` and the parameters of that kind.

        constant: rate; steps: steps = [[seconds, rate], …]; spikes: base, peak, every, length; ramp: first, last, seconds.
        """
        if isinstance(value, int | float):
            return RateScript.constant(value)
        parameters = dict(value)
        kind = parameters.pop("kind", None)
        if kind not in _SCRIPT_PARAMETERS:
            raise HeadraceError(f"rate of kind '{kind}' is unknown", detail=f"kinds: {', '.join(_SCRIPT_PARAMETERS)}")
        if set(parameters) != set(_SCRIPT_PARAMETERS[kind]):
            names = ", ".join(parameters) or "nothing"
            raise HeadraceError(f"rate of kind '{kind}' needs: {', '.join(_SCRIPT_PARAMETERS[kind])}", detail=f"given: {names}")
        try:
            return getattr(RateScript, kind)(**parameters)  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            raise HeadraceError(f"rate {dict(value)!r} is invalid", detail=str(error)) from error


@dataclass(frozen=True, slots=True)
class _ScriptTable:
    """Lookup arrays of a script: the start of each segment in time and in rows. The last one covers the time after the end."""

    starts: _Floats
    base_rows: _Floats
    first: _Floats
    slope: _Floats
    seconds: float
    row_area: float
    row_interval: _Floats  # seconds between rows, where the rate is constant …
    time_offset: _Floats  # … and the offset to add to row × distance

    def segment_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Return the index of the segment in which each row is due."""
        return np.searchsorted(self.base_rows, rows + 1.0, side="left") - 1

    def invert(self, rows: npt.NDArray[Any]) -> _Floats:
        """Return when rows are due, in seconds from the start of their repetition."""
        if not len(rows):
            return np.empty(0)
        ends = self.segment_of(np.array([rows.min(), rows.max()]))
        return self._invert_within(rows, ends[0] if ends[0] == ends[1] else self.segment_of(rows))

    def _invert_within(self, rows: npt.NDArray[Any], segment: Any) -> _Floats:
        """Return the due times; `segment` is one for all rows (usual, with scalar coefficients) or one per row."""
        times: _Floats
        if not np.any(self.slope[segment]):
            times = rows * self.row_interval[segment]
            times += self.time_offset[segment]
            return times
        first, rank = self.first[segment], rows + (1.0 - self.base_rows[segment])
        with np.errstate(divide="ignore"):
            times = 2 * rank / (first + np.sqrt(np.maximum(first * first + 2 * self.slope[segment] * rank, 0.0)))
        times += self.starts[segment]
        return times


@lru_cache(maxsize=64)
def _build_table(script: RateScript) -> _ScriptTable:
    pieces = [*script.segments, RateSegment(1.0, script.segments[-1].last, script.segments[-1].last)]
    seconds, area = np.array([piece.seconds for piece in pieces]), np.array([piece.row_area for piece in pieces])
    starts, bases = np.cumsum(seconds) - seconds, np.cumsum(area) - area
    if script.repeat:  # the last segment is reached only through rounding
        pieces[-1] = RateSegment(1.0, 0.0, 0.0)
    first, last = (np.array(rates, np.float64) for rates in ([piece.first for piece in pieces], [piece.last for piece in pieces]))
    distance = np.divide(1.0, first, out=np.zeros_like(first), where=first > _MIN_RATE)
    shift = np.where(first > _MIN_RATE, starts + (1.0 - bases) * distance, math.inf)
    return _ScriptTable(starts, bases, first, (last - first) / seconds, float(starts[-1]), float(bases[-1]), distance, shift)


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
