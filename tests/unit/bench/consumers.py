"""Simulated systems under test: what the driver's queue and the results would look like, without a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.bench.measure.sustainable import SustainabilityLimits, TrialObservation, TrialVerdict, judge_trial

STEP = 0.1  # seconds between samples of the queue


@dataclass(frozen=True)
class Consumer:
    """Reads at most `capacity(second)` rows/s, at the end of every `batch` seconds, or all the time if that is 0.

    With `greedy` a batch takes all there is and lasts as long as its rows need, but at least `batch`. The last three are
    moments: while stalled it reads nothing, when dead its trial is over. `hoards` reads everything at once and lets it
    wait inside, where no queue shows it.
    """

    capacity: Callable[[float], float]
    batch: float = 0.0
    greedy: bool = False
    stalls: tuple[tuple[float, float], ...] = ()
    dies: float | None = None
    hoards: bool = False

    def observe(self, rate: float, seconds: float = 60.0) -> TrialObservation:
        end = seconds if self.dies is None else min(seconds, self.dies)
        time = np.arange(1, round(end / STEP) + 1) * STEP
        produced = np.floor(rate * time)
        done = self._greedy(rate, time) if self.greedy else self._steady(produced, time)
        born = np.arange(1.0, end, 1.0)  # a window ends every second, its newest row is as old as that
        place = np.searchsorted(done, np.floor(rate * born))
        out = place < len(time)
        latency = time[np.minimum(place, len(time) - 1)] - born
        failure = "the process died" if self.dies is not None and self.dies < seconds else ""
        return TrialObservation(
            rate, time, produced, produced if self.hoards else done, (born + latency)[out], latency[out], failure
        )

    def _steady(self, produced: np.ndarray, time: np.ndarray) -> np.ndarray:
        done, allowance, taken, since = np.zeros(len(time)), 0.0, 0.0, 0.0
        for place, second in enumerate(time):
            stalled = any(first <= second < last for first, last in self.stalls)
            allowance += 0.0 if stalled else self.capacity(second) * STEP
            since += STEP
            if since >= self.batch - 1e-9 and not stalled:
                taken = min(produced[place], taken + allowance)
                allowance, since = 0.0, 0.0
            done[place] = taken
        return done

    def _greedy(self, rate: float, time: np.ndarray) -> np.ndarray:
        done, taken, busy_until = np.zeros(len(time)), 0.0, 0.0
        for place, second in enumerate(time):
            if second >= busy_until - 1e-9:
                rows = np.floor(rate * second) - taken
                taken += rows
                busy_until = second + max(self.batch, rows / self.capacity(second))
            done[place] = taken
        return done

    def trial(self, rate: float, seconds: float = 60.0, limits: SustainabilityLimits | None = None) -> TrialVerdict:
        return judge_trial(self.observe(rate, seconds), limits)


def steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate
