"""How fast rows are born, as a function of time alone.

    rate        ┌──┐              ┌──┐
         ───────┘  └──────────────┘  └────────      spikes
    rows_at(t) is the area up to t; time_of(n) is when the area reaches n + 1: that is when row n is born.

A script never asks who reads the rows. Everything here is pure and works on whole arrays.
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
_Integers: TypeAlias = npt.NDArray[np.int64]

_SLOWEST = 1e-9  # rows/s; what is slower has its next row never
_KINDS: Mapping[str, tuple[str, ...]] = {
    "constant": ("rate",),
    "steps": ("steps",),
    "spikes": ("base", "peak", "every", "length"),
    "ramp": ("first", "last", "seconds"),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which the rate goes evenly from `first` to `last` rows/s."""

    seconds: float
    first: float
    last: float

    def __post_init__(self) -> None:
        """Refuse what has no area."""
        if not 0 < self.seconds < math.inf:
            raise HeadraceError(f"a rate is given for {self.seconds} seconds", hint="the length must be positive and finite")
        if not (0 <= self.first < math.inf and 0 <= self.last < math.inf):
            raise HeadraceError(f"a rate goes from {self.first} to {self.last} rows/s", hint="rates must not be negative")

    @property
    def area(self) -> float:
        """The rows born in it."""
        return self.seconds * (self.first + self.last) / 2


@dataclass(frozen=True, slots=True)
class RateScript:
    """Pieces, one after the other; after the last one they begin again, or – without `repeat` – its last rate stays."""

    pieces: tuple[Piece, ...]
    repeat: bool = False

    def __post_init__(self) -> None:
        """Refuse a script that says nothing."""
        if not self.pieces:
            raise HeadraceError("a rate script has no pieces")

    @staticmethod
    def constant(rate: float) -> RateScript:
        """Return one rate forever."""
        return RateScript((Piece(1.0, rate, rate),))

    @staticmethod
    def steps(steps: Iterable[tuple[float, float]]) -> RateScript:
        """Return (seconds, rate), one after the other; the last rate stays."""
        return RateScript(tuple(Piece(seconds, rate, rate) for seconds, rate in steps))

    @staticmethod
    def spikes(base: float, peak: float, every: float, length: float) -> RateScript:
        """Return `base`, and at the end of each `every` seconds `length` seconds of `peak`."""
        if not 0 < length < every:
            raise HeadraceError(f"spikes of {length} seconds every {every} seconds", hint="a spike must end before the next")
        return RateScript((Piece(every - length, base, base), Piece(length, peak, peak)), repeat=True)

    @staticmethod
    def ramp(first: float, last: float, seconds: float) -> RateScript:
        """Return a rate that goes evenly from `first` to `last`, and stays there."""
        return RateScript((Piece(seconds, first, last),))

    def scaled(self, factor: float) -> RateScript:
        """Return the same script with every rate multiplied."""
        return RateScript(tuple(Piece(p.seconds, p.first * factor, p.last * factor) for p in self.pieces), self.repeat)

    def rows_at(self, seconds: float) -> int:
        """Return how many rows are born within the first `seconds`."""
        return int(self.rows_by(np.array([seconds]))[0])

    def rows_by(self, seconds: _Floats) -> _Integers:
        """Return `rows_at` for an array; times before the beginning have no rows."""
        table = _table(self)
        time = np.maximum(seconds, 0.0)
        rounds = np.floor(time / table.seconds) if self.repeat else np.zeros_like(time)
        local = time - rounds * table.seconds
        at = np.searchsorted(table.starts, local, side="right") - 1
        local -= table.starts[at]
        area = rounds * table.area + table.bases[at] + local * (table.first[at] + table.slope[at] * local / 2)
        return np.floor(area + 1e-9 * np.maximum(1.0, area * 1e-6)).astype(np.int64)  # a row just born counts, rounding or not

    def time_of(self, rows: npt.NDArray[Any]) -> _Floats:
        """Return when, in seconds from the beginning, each row (numbered from 0, ascending) is born; inf if it never is."""
        table = _table(self)
        if not self.repeat:
            return table.inverse(rows)
        if table.area == 0:
            return np.full(len(rows), math.inf)
        rounds = np.ceil((rows + 1.0) / table.area) - 1
        return rounds * table.seconds + table.inverse(rows - rounds * table.area)

    def line(self, first: int, last: int) -> tuple[float, float] | None:
        """Return (a, b) if `time_of` of rows first … last is a × row + b and no more than that; else None."""
        table = _table(self)
        piece = table.piece_of(np.array([first, last]))
        if self.repeat or piece[0] != piece[1] or table.slope[piece[0]]:
            return None
        return float(table.distance[piece[0]]), float(table.shift[piece[0]])

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads back."""
        return {"pieces": [[p.seconds, p.first, p.last] for p in self.pieces], "repeat": self.repeat}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RateScript:
        """Rebuild what `to_json` described; anything else is refused."""
        try:
            pieces = tuple(Piece(*map(float, piece)) for piece in value["pieces"])
            return RateScript(pieces, bool(value.get("repeat", False)))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise HeadraceError(f"rate script {value!r} is not understood", detail=repr(error)) from error

    @staticmethod
    def parse(value: float | Mapping[str, Any]) -> RateScript:
        """Read a rate as a scenario file has it: a number, or a table with `kind` and what that kind needs.

        constant: rate; steps: steps = [[seconds, rate], …]; spikes: base, peak, every, length; ramp: first, last, seconds.
        """
        if isinstance(value, int | float):
            return RateScript.constant(value)
        given = dict(value)
        kind = given.pop("kind", None)
        if kind not in _KINDS:
            raise HeadraceError(f"rate of kind '{kind}' is not known", detail=f"kinds: {', '.join(_KINDS)}")
        if set(given) != set(_KINDS[kind]):
            found = ", ".join(given) or "nothing"
            raise HeadraceError(f"rate of kind '{kind}' needs: {', '.join(_KINDS[kind])}", detail=f"given: {found}")
        try:
            return getattr(RateScript, kind)(**given)  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            raise HeadraceError(f"rate {dict(value)!r} is not understood", detail=str(error)) from error


@dataclass(frozen=True, slots=True)
class _Table:
    """A script, ready to be looked up: where each piece begins, in time and in rows. A tail stands for what comes after."""

    starts: _Floats
    bases: _Floats
    first: _Floats
    slope: _Floats
    seconds: float
    area: float
    distance: _Floats  # seconds from row to row, where the rate is constant …
    shift: _Floats  # … and so many seconds more is the time of a row

    def piece_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Return in which piece each row is born."""
        return np.searchsorted(self.bases, rows + 1.0, side="left") - 1

    def inverse(self, rows: npt.NDArray[Any]) -> _Floats:
        """Return when rows are born, counted from the beginning of their round."""
        if not len(rows):
            return np.empty(0)
        ends = self.piece_of(np.array([rows.min(), rows.max()]))
        return self._within(rows, ends[0] if ends[0] == ends[1] else self.piece_of(rows))

    def _within(self, rows: npt.NDArray[Any], at: Any) -> _Floats:
        """`at` is one piece or one for each row; mostly it is one, and then its numbers are no arrays."""
        found: _Floats
        if not np.any(self.slope[at]):
            found = rows * self.distance[at]
            found += self.shift[at]
            return found
        first, rest = self.first[at], rows + (1.0 - self.bases[at])
        with np.errstate(divide="ignore"):
            found = 2 * rest / (first + np.sqrt(np.maximum(first * first + 2 * self.slope[at] * rest, 0.0)))
        found += self.starts[at]
        return found


@lru_cache(maxsize=64)
def _table(script: RateScript) -> _Table:
    pieces = [*script.pieces, Piece(1.0, script.pieces[-1].last, script.pieces[-1].last)]
    seconds, area = np.array([p.seconds for p in pieces]), np.array([p.area for p in pieces])
    starts, bases = np.cumsum(seconds) - seconds, np.cumsum(area) - area
    if script.repeat:  # the tail is never reached, but for rounding
        pieces[-1] = Piece(1.0, 0.0, 0.0)
    first, last = (np.array(rates, np.float64) for rates in ([p.first for p in pieces], [p.last for p in pieces]))
    distance = np.divide(1.0, first, out=np.zeros_like(first), where=first > _SLOWEST)
    shift = np.where(first > _SLOWEST, starts + (1.0 - bases) * distance, math.inf)
    return _Table(starts, bases, first, (last - first) / seconds, float(starts[-1]), float(bases[-1]), distance, shift)
