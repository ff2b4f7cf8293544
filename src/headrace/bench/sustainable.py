"""Whether a system sustained a rate: the judgement of one trial, from what was measured outside the system.

The queue in the driver has two limits, in seconds of the offered rate. Up to the acceptable one all is well: whoever reads
in batches needs it. Between the two the system is under back-pressure, which is tolerated for as long as the tolerated
limit would take to fill. Beyond, or if the queue or the latency keeps growing, the rate is not sustained. The first part of a
trial is warm-up and not judged; a crash, a dropped connection or a queue that overflowed is, whenever it happens.

What the warm-up left in the queue is forgiven while it is being worked off: limits hold for what the queue rises above
its lowest mark so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.trend import Floats, Growth, envelope, growth, longest_above


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still sustained; the same for every system that is compared.

    `growth` is the share of the offered rate by which the queue may grow, and the seconds a second by which latency may.
    Growth in all that is below the noise (seconds of input, seconds of latency) is no evidence.
    """

    acceptable_s: float = 2.0
    tolerated_s: float = 5.0
    growth: float = 0.02
    backlog_noise_s: float = 0.5
    latency_noise_s: float = 1.0
    warm_up: float = 0.25
    delivered: float = 0.95

    def __post_init__(self) -> None:
        """Refuse limits that are not in order."""
        if not 0 < self.acceptable_s <= self.tolerated_s or not 0 <= self.warm_up < 1:
            raise ValueError(f"{self} is not in order")

    def to_json(self) -> dict[str, Any]:
        """Return the limits by name: a result carries what it was judged by."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One trial: the offered rate, the queue's counters, event-time latency, and why it ended early if it did.

    Times are seconds since the driver began to stamp. `failure` is empty for a trial that ran to its end.
    """

    rate: float
    time: npt.ArrayLike
    produced: npt.ArrayLike
    read: npt.ArrayLike
    latency_time: npt.ArrayLike
    latency: npt.ArrayLike
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one trial; `reason` is empty if the rate was sustained.

    Backlogs are in seconds of the offered rate; `backlog_rise_s` is above the lowest mark before, `back_pressure_s` the
    longest time that this was more than acceptable. `drained` is the rate at which rows were read. Figures are of the
    measured part, and None where there is nothing to take them from.

    `doubtful` says that only growth speaks against the rate, within all limits: larger batches on the way to their
    balance look the same, and a longer trial would tell. `final` says that no further trial is possible.
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

    @property
    def hint(self) -> float | None:
        """About the rate the system can take, as far as this trial shows: what it read, and what it answered."""
        if not self.drained:
            return None
        if self.latency_growth is None:  # hardly any answers: rows may wait inside the system
            return self.drained if self.drained < self.rate / 2 else None
        return max(0.0, min(self.drained, self.rate * (1 - self.latency_growth))) or None

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The figures a trial is judged by."""

    offered: float
    drained: float
    highest_s: float
    last_s: float
    rise_s: float
    pressure_s: float
    left_over_s: float
    worked_off: float
    marks: tuple[Growth, ...]
    latency: Growth | None
    latest_s: float
    results: int


def failed(rate: float, reason: str, *, final: bool = False) -> Verdict:
    """Return the verdict on a trial that gave nothing to measure; `final` if the system cannot be tried again."""
    return Verdict(rate, sustainable=False, reason=reason, final=final)


def judge(observed: Observed, limits: Limits | None = None) -> Verdict:
    """Judge one trial; a failure outweighs every figure."""
    limits = limits or Limits()
    time = np.asarray(observed.time, np.float64)
    begin = time[0] + limits.warm_up * (time[-1] - time[0]) if len(time) else 0.0
    if np.count_nonzero(time >= begin) < 3:
        return failed(observed.rate, observed.failure or "the trial was too short to judge")
    figures = _measure(observed, time, float(begin), limits)
    breach = observed.failure or _breach(figures, observed.rate, limits)
    reason = breach or _growth(figures, limits)
    return Verdict(
        observed.rate,
        sustainable=not reason,
        reason=reason,
        drained=figures.drained,
        backlog_highest_s=figures.highest_s,
        backlog_last_s=figures.last_s,
        backlog_rise_s=figures.rise_s,
        back_pressure_s=figures.pressure_s,
        backlog_growth=max((mark.whole.slope for mark in figures.marks), default=None),
        latency_growth=figures.latency.whole.slope if figures.latency else None,
        doubtful=bool(reason and not breach),
    )


def judge_long_enough(
    observe: Callable[[float], Observed], seconds: float, limits: Limits | None = None, longest: float = 4.0
) -> Verdict:
    """Judge a trial of `seconds`, and prolong it by doubling, up to `longest` times, while the verdict is doubtful.

    `observe` gives the same trial from its start until so many seconds; it waits for them.
    """
    verdict = judge(observe(seconds), limits)
    until = seconds
    while verdict.doubtful and until < seconds * longest:
        until = min(until * 2, seconds * longest)
        verdict = judge(observe(until), limits)
    return verdict


def _measure(observed: Observed, time: Floats, begin: float, limits: Limits) -> _Measured:
    produced, read = np.asarray(observed.produced, np.float64), np.asarray(observed.read, np.float64)
    kept = time >= begin
    seconds, taken = time[kept], read[kept]
    span = float(seconds[-1] - seconds[0])
    width = min(limits.tolerated_s, span / 3)
    backlog = (produced[kept] - taken) / observed.rate
    lowest = np.minimum.accumulate(backlog)
    when, latency = np.asarray(observed.latency_time, np.float64), np.asarray(observed.latency, np.float64)
    late = when >= begin
    return _Measured(
        offered=float((produced[-1] - produced[0]) / (time[-1] - time[0])),
        drained=float(taken[-1] - taken[0]) / span,
        highest_s=float(backlog.max()),
        last_s=float(backlog[-1]),
        rise_s=float((backlog - lowest).max()),
        pressure_s=longest_above(seconds, backlog - lowest, limits.acceptable_s),
        left_over_s=float(lowest[-1]),
        worked_off=float(lowest[seconds <= seconds[0] + width][-1] - lowest[-1]) / (span - width),
        marks=_marks(seconds, backlog, width),
        latency=growth(when[late], latency[late]),
        latest_s=float(np.max(latency[late], initial=0.0)),
        results=int(np.count_nonzero(late)),
    )


def _marks(time: Floats, backlog: Floats, width: float) -> tuple[Growth, ...]:
    """Return how the highest and the lowest marks of the queue grow.

    Who reads all there is in ever larger batches shows in the highest, who reads fixed amounts in both. A batch that the
    limits let pass is shorter than the tolerated time, so that a mark over that `width` has seen a whole one.
    """
    when, lowest, highest = envelope(time, backlog, width)
    return tuple(found for found in (growth(when, highest), growth(when, lowest)) if found)


def _breach(figures: _Measured, rate: float, limits: Limits) -> str:
    """Return which limit was broken, or nothing."""
    if figures.offered < limits.delivered * rate:
        return f"the driver offered only {figures.offered:,.0f} of {rate:,.0f} rows/s"
    if figures.drained <= 0:
        return "nothing was read after the warm-up"
    if figures.rise_s > limits.tolerated_s:
        return f"the queue rose by {figures.rise_s:.1f} s of input, more than the tolerated {limits.tolerated_s:g} s"
    if figures.pressure_s >= limits.tolerated_s:
        return f"the queue was up by more than {limits.acceptable_s:g} s of input for {figures.pressure_s:.1f} s"
    if figures.left_over_s > limits.acceptable_s and figures.worked_off < limits.growth:
        return f"the queue never fell below {figures.left_over_s:.1f} s of input after the warm-up"
    if not figures.results:
        return "no result came after the warm-up"
    if figures.latency is None and figures.latest_s > limits.tolerated_s:
        return f"results were up to {figures.latest_s:.1f} s late, and too few to tell whether that grows"
    return ""


def _growth(figures: _Measured, limits: Limits) -> str:
    """Return what keeps growing, or nothing."""
    for mark in figures.marks:
        if mark.keeps_on(limits.growth, limits.backlog_noise_s):
            return f"the queue kept growing, by {mark.whole.slope:.1%} of the offered rate"
    for mark in figures.marks:
        if mark.tail and mark.begins(limits.growth, limits.backlog_noise_s):
            return f"the queue began to grow, by {mark.tail.slope:.1%} of the offered rate"
    if figures.latency and figures.latency.keeps_on(limits.growth, limits.latency_noise_s):
        return f"the latency kept growing, by {figures.latency.whole.slope:.2f} s a second"
    return ""
