"""Sustainable throughput: the verdict on one trial, and the search for the highest rate that a system sustains.

The backlog in the driver has two limits, in seconds of the offered rate. Up to the acceptable limit, the rate is sustained:
systems that read in batches need it. Between the two the system is under back-pressure, which is tolerated for as long as the
tolerated limit would take to fill. Above the tolerated limit, or if the backlog or the latency keeps growing, the rate is not
sustained. The first part of a trial is warm-up and not judged; a crash, a dropped connection or a queue overflow counts at any
time.

The backlog left by the warm-up is ignored while it drains: limits apply to the rise above the lowest backlog so far.

The search starts high, descends, then bisects. A failed trial still shows how fast the system read under overload; the next
rate is slightly below that. The search then narrows the gap between the highest sustained and the lowest unsustained rate down
to the precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.measure.statistics import Floats, GrowthTrend, longest_time_above, measure_growth, rolling_envelope


@dataclass(frozen=True, slots=True)
class SustainabilityLimits:
    """The limits of a sustained rate; the same for every system compared.

    `growth` is the share of the offered rate by which the backlog may grow, and the seconds per second by which latency may.
    Total growth below the noise (seconds of input, seconds of latency) is no evidence.
    """

    acceptable_s: float = 2.0
    tolerated_s: float = 5.0
    growth: float = 0.02
    backlog_noise_s: float = 0.5
    latency_noise_s: float = 1.0
    warm_up: float = 0.25
    delivered: float = 0.95

    def __post_init__(self) -> None:
        """Reject limits out of order."""
        if not 0 < self.acceptable_s <= self.tolerated_s or not 0 <= self.warm_up < 1:
            raise ValueError(f"{self} is not in order")

    def to_json(self) -> dict[str, Any]:
        """Return the limits by name; a result carries them."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class TrialObservation:
    """The observation of one trial: offered rate, counters of the queue, event-time latency, and the reason of an early end.

    Times are seconds since the driver began to stamp rows. `failure` is empty for a completed trial. What is queued are rows, or
    requests to change queries.
    """

    rate: float
    time: npt.ArrayLike
    produced: npt.ArrayLike
    read: npt.ArrayLike
    latency_time: npt.ArrayLike
    latency: npt.ArrayLike
    failure: str = ""
    unit: str = "rows/s"


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The verdict on one trial; `reason` is empty if the rate was sustained.

    Backlogs are in seconds of the offered rate; `backlog_rise_s` is the rise above the lowest backlog before, `back_pressure_s`
    the longest time for which it exceeded the acceptable limit. `drained` is the rate at which rows were read. Figures are of
    the measured part, and None if there is nothing to compute them from.

    `doubtful` means that only growth within all limits speaks against the rate: batches that grow towards their equilibrium
    look the same, and a longer trial decides. `final` means that no further trial is possible.
    """

    rate: float
    sustainable: bool
    reason: str = ""
    drained: float | None = None
    backlog_highest_s: float | None = None
    backlog_last_s: float | None = None
    backlog_rise_s: float | None = None
    back_pressure_s: float | None = None
    backlog_growth: float | None = None
    latency_growth: float | None = None
    doubtful: bool = False
    final: bool = False
    unit: str = "rows/s"

    @property
    def rate_hint(self) -> float | None:
        """An estimate of the sustainable rate from this trial: the rate read, reduced by the growth of latency."""
        if not self.drained:
            return None
        if self.latency_growth is None:  # too few results: rows may wait inside the system
            return self.drained if self.drained < self.rate / 2 else None
        return max(0.0, min(self.drained, self.rate * (1 - self.latency_growth))) or None

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _TrialFigures:
    """The figures that a trial is judged by."""

    offered_rate: float
    read_rate: float
    backlog_highest_s: float
    backlog_last_s: float
    backlog_rise_s: float
    back_pressure_s: float
    residual_backlog_s: float
    residual_drain_rate: float
    backlog_growths: tuple[GrowthTrend, ...]
    latency_growth: GrowthTrend | None
    highest_latency_s: float
    result_count: int


def failed_verdict(rate: float, reason: str, *, final: bool = False, unit: str = "rows/s") -> TrialVerdict:
    """Return the verdict on a trial without measurements; `final` if the system cannot run another trial."""
    return TrialVerdict(rate, sustainable=False, reason=reason, final=final, unit=unit)


def judge_trial(observed: TrialObservation, limits: SustainabilityLimits | None = None) -> TrialVerdict:
    """Judge one trial; a failure overrides all figures."""
    limits = limits or SustainabilityLimits()
    time = np.asarray(observed.time, np.float64)
    begin = time[0] + limits.warm_up * (time[-1] - time[0]) if len(time) else 0.0
    if np.count_nonzero(time >= begin) < 3:
        return failed_verdict(observed.rate, observed.failure or "the trial was too short to judge", unit=observed.unit)
    figures = _compute_figures(observed, time, float(begin), limits)
    breach = observed.failure or _find_breach(figures, observed, limits)
    reason = breach or _find_growth(figures, limits)
    return TrialVerdict(
        observed.rate,
        sustainable=not reason,
        reason=reason,
        drained=figures.read_rate,
        backlog_highest_s=figures.backlog_highest_s,
        backlog_last_s=figures.backlog_last_s,
        backlog_rise_s=figures.backlog_rise_s,
        back_pressure_s=figures.back_pressure_s,
        backlog_growth=max((backlog.overall.slope for backlog in figures.backlog_growths), default=None),
        latency_growth=figures.latency_growth.overall.slope if figures.latency_growth else None,
        doubtful=bool(reason and not breach),
        unit=observed.unit,
    )


def judge_until_certain(
    observe: Callable[[float], TrialObservation], seconds: float, limits: SustainabilityLimits | None = None, longest: float = 4.0
) -> TrialVerdict:
    """Judge a trial of `seconds`, and prolong it by doubling, up to `longest` times, while the verdict is doubtful.

    `observe` waits until the given second, and returns the observation of the same trial from its start.
    """
    verdict = judge_trial(observe(seconds), limits)
    until = seconds
    while verdict.doubtful and until < seconds * longest:
        until = min(until * 2, seconds * longest)
        verdict = judge_trial(observe(until), limits)
    return verdict


def _compute_figures(observed: TrialObservation, time: Floats, begin: float, limits: SustainabilityLimits) -> _TrialFigures:
    produced, read = np.asarray(observed.produced, np.float64), np.asarray(observed.read, np.float64)
    measured = time >= begin
    seconds, read_rows = time[measured], read[measured]
    span = float(seconds[-1] - seconds[0])
    width = min(limits.tolerated_s, span / 3)
    backlog = (produced[measured] - read_rows) / observed.rate
    lowest = np.minimum.accumulate(backlog)
    latency_time, latency = np.asarray(observed.latency_time, np.float64), np.asarray(observed.latency, np.float64)
    after_warm_up = latency_time >= begin
    return _TrialFigures(
        offered_rate=float((produced[-1] - produced[0]) / (time[-1] - time[0])),
        read_rate=float(read_rows[-1] - read_rows[0]) / span,
        backlog_highest_s=float(backlog.max()),
        backlog_last_s=float(backlog[-1]),
        backlog_rise_s=float((backlog - lowest).max()),
        back_pressure_s=longest_time_above(seconds, backlog - lowest, limits.acceptable_s),
        residual_backlog_s=float(lowest[-1]),
        residual_drain_rate=float(lowest[seconds <= seconds[0] + width][-1] - lowest[-1]) / (span - width),
        backlog_growths=_measure_envelope_growth(seconds, backlog, width),
        latency_growth=measure_growth(latency_time[after_warm_up], latency[after_warm_up]),
        highest_latency_s=float(np.max(latency[after_warm_up], initial=0.0)),
        result_count=int(np.count_nonzero(after_warm_up)),
    )


def _measure_envelope_growth(time: Floats, backlog: Floats, width: float) -> tuple[GrowthTrend, ...]:
    """Measure the growth of the upper and the lower envelope of the backlog.

    A reader with ever larger batches shows in the upper envelope, a reader of fixed amounts in both. A batch within the limits is
    shorter than the tolerated time, so that an envelope over that `width` covers a whole batch.
    """
    envelope_time, lowest, highest = rolling_envelope(time, backlog, width)
    return tuple(trend for trend in (measure_growth(envelope_time, highest), measure_growth(envelope_time, lowest)) if trend)


def _find_breach(figures: _TrialFigures, observed: TrialObservation, limits: SustainabilityLimits) -> str:
    """Return a description of the limit that was exceeded, or an empty string."""
    if figures.offered_rate < limits.delivered * observed.rate:
        return f"the driver offered only {figures.offered_rate:,.0f} of {observed.rate:,.0f} {observed.unit}"
    if figures.read_rate <= 0:
        return "nothing was read after the warm-up"
    if figures.backlog_rise_s > limits.tolerated_s:
        return f"the queue rose by {figures.backlog_rise_s:.1f} s of input, more than the tolerated {limits.tolerated_s:g} s"
    if figures.back_pressure_s >= limits.tolerated_s:
        return f"the queue was up by more than {limits.acceptable_s:g} s of input for {figures.back_pressure_s:.1f} s"
    if figures.residual_backlog_s > limits.acceptable_s and figures.residual_drain_rate < limits.growth:
        return f"the queue never fell below {figures.residual_backlog_s:.1f} s of input after the warm-up"
    if not figures.result_count:
        return "no result came after the warm-up"
    if figures.latency_growth is None and figures.highest_latency_s > limits.tolerated_s:
        return f"results were up to {figures.highest_latency_s:.1f} s late, and too few to tell whether that grows"
    return ""


def _find_growth(figures: _TrialFigures, limits: SustainabilityLimits) -> str:
    """Return a description of what keeps growing, or an empty string."""
    for backlog in figures.backlog_growths:
        if backlog.is_ongoing(limits.growth, limits.backlog_noise_s):
            return f"the queue kept growing, by {backlog.overall.slope:.1%} of the offered rate"
    for backlog in figures.backlog_growths:
        if backlog.second_half and backlog.is_starting(limits.growth, limits.backlog_noise_s):
            return f"the queue began to grow, by {backlog.second_half.slope:.1%} of the offered rate"
    if figures.latency_growth and figures.latency_growth.is_ongoing(limits.growth, limits.latency_noise_s):
        return f"the latency kept growing, by {figures.latency_growth.overall.slope:.2f} s a second"
    return ""


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
    return _make_result(bracket, trials, _explain_shortfall(bracket, bounds, trials[-1].unit, out_of_trials=rate is not None))


def _make_result(bracket: _Bracket, trials: Sequence[TrialVerdict], shortfall: str) -> RateSearchResult:
    failed_reason = bracket.failure.reason if bracket.failure else ""
    return RateSearchResult(bracket.low, bracket.high, failed_reason, not shortfall, shortfall, tuple(trials))


def _explain_shortfall(bracket: _Bracket, bounds: RateSearchBounds, unit: str, *, out_of_trials: bool) -> str:
    if bracket.low is None:
        reason = bracket.failure.reason if bracket.failure else ""
        return f"no rate was sustained, down to {bracket.high:,.0f} {unit}: {reason}"
    if out_of_trials:
        return f"{bounds.trials} trials did not reach the precision of {bounds.precision:.1%}"
    if bracket.high is None:
        return f"{bracket.low:,.0f} {unit}, the ceiling of the search, was sustained"
    return ""
