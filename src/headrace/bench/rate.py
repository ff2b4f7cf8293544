"""Rate scripts: the number of rows to produce as a function of time alone.

    rate        ┌──┐              ┌──┐
         ───────┘  └──────────────┘  └────────      spikes
    count_rows_at(t) is the area up to t; due_times(n) is when the area reaches n + 1: the time at which row n is due.

A script does not depend on its consumers. All functions are pure and work on whole arrays.
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
