"""The search for the highest sustainable rate: start high, descend, then bisect.

A failed trial still shows how fast the system read under overload; the next rate is slightly below that. The search then narrows
the gap between the highest sustained and the lowest unsustained rate down to the precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.sustainable import TrialVerdict

_MAX_DROP_FACTOR = 30.0  # limit for one step down
_BLIND_DROP = 0.5  # factor after a failed trial without a rate hint
_RAISE_FACTOR = 2.0  # factor while all trials are sustained


@dataclass(frozen=True, slots=True)
class RateSearchBounds:
    """The range of the search in rows/s, its precision, and the maximum number of trials."""

    floor: float
    ceiling: float
    precision: float = 0.05
    trials: int = 16

    def __post_init__(self) -> None:
        """Reject an empty range."""
        if not 0 < self.floor <= self.ceiling or not 0 < self.precision < 0.5 or self.trials < 1:
            raise ValueError(f"invalid search bounds: {self}")


@dataclass(frozen=True, slots=True)
class RateSearchResult:
    """The highest sustained rate, or None; the lowest unsustained rate and its reason; and every trial in order.

    `complete` means that the two are within the precision. Otherwise, or without a sustained rate, `reason` says why.
    """

    rate: float | None
    failed_rate: float | None
    failed_reason: str
    complete: bool
    reason: str
    trials: tuple[TrialVerdict, ...]

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
    """The state of the search: `low` was sustained, `high` was not, `failure` is the verdict on `high`.

    `step` is the factor above `low` for the next trial: small, once a failure has shown the approximate limit. `drop` is the
    minimum factor below `high`. Both grow with every trial for which they were too small, so that a large distance takes few
    trials.
    """

    careful_step: float
    drop: float
    step: float = math.inf
    low: float | None = None
    high: float | None = None
    failure: TrialVerdict | None = None

    def record_trial(self, rate: float, verdict: TrialVerdict) -> None:
        """Record the verdict on one trial."""
        if verdict.sustainable:
            too_small = self.low is not None and rate >= self.low * self.step
            self.low, self.step = rate, self.step**2 if too_small else self.step
            return
        drop = self.drop if self.high is None else self.drop**2
        self.drop = min(drop, 1.0 if verdict.rate_hint else _BLIND_DROP)
        self.step = self.careful_step if verdict.rate_hint else math.inf
        self.high, self.failure = rate, verdict

    def next_rate(self, bounds: RateSearchBounds) -> float | None:
        """Return the next rate to try, or None when the search is complete."""
        if self.high is None:
            return self._raise_rate(bounds)
        return self._lower_rate(bounds) if self.low is None else self._bisect_rate(bounds)

    def _raise_rate(self, bounds: RateSearchBounds) -> float | None:
        assert self.low is not None
        return None if self.low >= bounds.ceiling else min(self.low * _RAISE_FACTOR, bounds.ceiling)

    def _lower_rate(self, bounds: RateSearchBounds) -> float | None:
        assert self.high is not None
        if self.high <= bounds.floor:
            return None
        rate = self.high * self.drop
        return max(min(rate, self._rate_below_hint(bounds) or rate), self.high / _MAX_DROP_FACTOR, bounds.floor)

    def _bisect_rate(self, bounds: RateSearchBounds) -> float | None:
        assert self.low is not None
        assert self.high is not None
        if self.high <= self.low * (1 + bounds.precision):
            return None
        hinted_rate = self._rate_below_hint(bounds)
        target = hinted_rate if hinted_rate > self.low * (1 + bounds.precision) else self.low * self.step
        return min(target, math.sqrt(self.low * self.high))

    def _rate_below_hint(self, bounds: RateSearchBounds) -> float:
        """Return a rate slightly below the hint of the failed trial, or 0 without a hint."""
        hint = self.failure.rate_hint if self.failure else None
        return (hint or 0.0) * (1 - bounds.precision)


def search_rate(trial: Callable[[float], TrialVerdict], start: float, bounds: RateSearchBounds) -> RateSearchResult:
    """Try rates from `start` on until the highest sustainable rate is known to the precision.

    A trial that fails for any reason counts as an unsustained rate; only a final verdict ends the search early.
    """
    bracket = _Bracket(careful_step=1 + 2 * bounds.precision, drop=1 - 2 * bounds.precision)
    trials: list[TrialVerdict] = []
    rate: float | None = min(max(start, bounds.floor), bounds.ceiling)
    while rate is not None and len(trials) < bounds.trials:
        trials.append(trial(rate))
        bracket.record_trial(rate, trials[-1])
        if trials[-1].final:
            return _make_result(bracket, trials, trials[-1].reason or "the system cannot run another trial")
        rate = bracket.next_rate(bounds)
    return _make_result(bracket, trials, _explain_shortfall(bracket, bounds, out_of_trials=rate is not None))


def _make_result(bracket: _Bracket, trials: Sequence[TrialVerdict], shortfall: str) -> RateSearchResult:
    failed_reason = bracket.failure.reason if bracket.failure else ""
    return RateSearchResult(bracket.low, bracket.high, failed_reason, not shortfall, shortfall, tuple(trials))


def _explain_shortfall(bracket: _Bracket, bounds: RateSearchBounds, *, out_of_trials: bool) -> str:
    if bracket.low is None:
        reason = bracket.failure.reason if bracket.failure else ""
        return f"no rate was sustained, down to {bracket.high:,.0f} rows/s: {reason}"
    if out_of_trials:
        return f"{bounds.trials} trials did not reach the precision of {bounds.precision:.1%}"
    if bracket.high is None:
        return f"{bracket.low:,.0f} rows/s, the ceiling of the search, was sustained"
    return ""
