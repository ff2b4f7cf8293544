"""The search for the highest sustainable rate: start high, come down, then close in from both sides.

A trial that fails still shows how fast the system read while it was flooded; the next rate is a little below that. What
is sustained and what is not are then brought together until they differ by no more than the precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.sustainable import Verdict

_DEEPEST = 30.0  # a rate is not below the one before by more than this factor
_BLIND = 0.5  # how far to come down after a trial that shows no rate of its own
_RAISE = 2.0  # how far to go up while everything is sustained


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where to look, in rows/s, how closely, and how many trials it may take."""

    floor: float
    ceiling: float
    precision: float = 0.05
    trials: int = 16

    def __post_init__(self) -> None:
        """Refuse bounds that leave nothing to look at."""
        if not 0 < self.floor <= self.ceiling or not 0 < self.precision < 0.5 or self.trials < 1:
            raise ValueError(f"{self} leaves nothing to look at")


@dataclass(frozen=True, slots=True)
class Found:
    """The highest rate sustained, or None; the lowest that was not, and why; and every trial in order.

    `complete` says that the two are as close as was asked. If they are not, or if there is no rate, `reason` says why.
    """

    rate: float | None
    failed_rate: float | None
    failed_reason: str
    complete: bool
    reason: str
    trials: tuple[Verdict, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything by name."""
        return {
            "rate": self.rate,
            "failed_rate": self.failed_rate,
            "failed_reason": self.failed_reason,
            "complete": self.complete,
            "reason": self.reason,
            "trials": [verdict.to_json() for verdict in self.trials],
        }


@dataclass(slots=True)
class _Bracket:
    """What is known so far: `low` was sustained, `high` was not, and `failure` says why.

    `step` is how far above `low` to dare: little, once a failure has shown about where the limit is. `drop` is how far
    below `high` to go at least. Both become bolder with every trial they were too timid for: a long way takes few.
    """

    careful: float
    drop: float
    step: float = math.inf
    low: float | None = None
    high: float | None = None
    failure: Verdict | None = None

    def note(self, rate: float, verdict: Verdict) -> None:
        """Take in one trial."""
        if verdict.sustainable:
            timid = self.low is not None and rate >= self.low * self.step
            self.low, self.step = rate, self.step**2 if timid else self.step
            return
        bold = self.drop if self.high is None else self.drop**2
        self.drop = min(bold, 1.0 if verdict.hint else _BLIND)
        self.step = self.careful if verdict.hint else math.inf
        self.high, self.failure = rate, verdict

    def next(self, bounds: Bounds) -> float | None:
        """Return the rate to try next, or None when there is nothing left to learn."""
        if self.high is None:
            return self._up(bounds)
        return self._down(bounds) if self.low is None else self._between(bounds)

    def _up(self, bounds: Bounds) -> float | None:
        assert self.low is not None
        return None if self.low >= bounds.ceiling else min(self.low * _RAISE, bounds.ceiling)

    def _down(self, bounds: Bounds) -> float | None:
        assert self.high is not None
        if self.high <= bounds.floor:
            return None
        rate = self.high * self.drop
        return max(min(rate, self._shown(bounds) or rate), self.high / _DEEPEST, bounds.floor)

    def _between(self, bounds: Bounds) -> float | None:
        assert self.low is not None
        assert self.high is not None
        if self.high <= self.low * (1 + bounds.precision):
            return None
        shown = self._shown(bounds)
        aim = shown if shown > self.low * (1 + bounds.precision) else self.low * self.step
        return min(aim, math.sqrt(self.low * self.high))

    def _shown(self, bounds: Bounds) -> float:
        """Return a rate a little below what the failed trial has shown, or 0 if it has shown nothing."""
        hint = self.failure.hint if self.failure else None
        return (hint or 0.0) * (1 - bounds.precision)


def search(trial: Callable[[float], Verdict], start: float, bounds: Bounds) -> Found:
    """Try rates from `start` on until the highest sustainable one is known as closely as asked.

    A trial that fails, for whatever reason, is a rate not sustained; only a final verdict ends the search early.
    """
    bracket = _Bracket(careful=1 + 2 * bounds.precision, drop=1 - 2 * bounds.precision)
    trials: list[Verdict] = []
    rate: float | None = min(max(start, bounds.floor), bounds.ceiling)
    while rate is not None and len(trials) < bounds.trials:
        trials.append(trial(rate))
        bracket.note(rate, trials[-1])
        if trials[-1].final:
            return _found(bracket, trials, trials[-1].reason or "the system cannot be tried again")
        rate = bracket.next(bounds)
    return _found(bracket, trials, _shortfall(bracket, bounds, out_of_trials=rate is not None))


def _found(bracket: _Bracket, trials: Sequence[Verdict], shortfall: str) -> Found:
    failed_reason = bracket.failure.reason if bracket.failure else ""
    return Found(bracket.low, bracket.high, failed_reason, not shortfall, shortfall, tuple(trials))


def _shortfall(bracket: _Bracket, bounds: Bounds, *, out_of_trials: bool) -> str:
    if bracket.low is None:
        reason = bracket.failure.reason if bracket.failure else ""
        return f"nothing was sustained, down to {bracket.high:,.0f} rows/s: {reason}"
    if out_of_trials:
        return f"{bounds.trials} trials were not enough to come as close as {bounds.precision:.1%}"
    if bracket.high is None:
        return f"even {bracket.low:,.0f} rows/s was sustained, the highest that was to be tried"
    return ""
