"""Simulated systems under test: compute the driver queue and the results without a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.bench.measure.sustainable import SustainabilityLimits, TrialObservation, TrialVerdict, judge_trial

STEP = 0.1  # seconds between samples of the queue


@dataclass(frozen=True)
class Consumer:
    """Reads at most `capacity(second)` rows/s, at the end of every `batch` seconds, or continuously if `batch` is 0.

    With `greedy` a batch takes all rows in the queue and lasts as long as its rows need, but at least `batch`. `stalls` are
    the intervals without reads; the trial ends at `dies`. With `hoards` the system reads all rows at once and buffers them
    internally, so that the queue stays empty.
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
        read_rows = self._read_greedily(rate, time) if self.greedy else self._read_steadily(produced, time)
        window_ends = np.arange(1.0, end, 1.0)  # a window ends every second; its newest row has that time
        index = np.searchsorted(read_rows, np.floor(rate * window_ends))
        emitted = index < len(time)
        latency = time[np.minimum(index, len(time) - 1)] - window_ends
        failure = "the process died" if self.dies is not None and self.dies < seconds else ""
        return TrialObservation(
            rate,
            time,
            produced,
            produced if self.hoards else read_rows,
            (window_ends + latency)[emitted],
            latency[emitted],
            failure,
        )

    def _read_steadily(self, produced: np.ndarray, time: np.ndarray) -> np.ndarray:
        read_rows, budget, read, since = np.zeros(len(time)), 0.0, 0.0, 0.0
        for index, second in enumerate(time):
            stalled = any(first <= second < last for first, last in self.stalls)
            budget += 0.0 if stalled else self.capacity(second) * STEP
            since += STEP
            if since >= self.batch - 1e-9 and not stalled:
                read = min(produced[index], read + budget)
                budget, since = 0.0, 0.0
            read_rows[index] = read
        return read_rows

    def _read_greedily(self, rate: float, time: np.ndarray) -> np.ndarray:
        read_rows, read, busy_until = np.zeros(len(time)), 0.0, 0.0
        for index, second in enumerate(time):
            if second >= busy_until - 1e-9:
                rows = np.floor(rate * second) - read
                read += rows
                busy_until = second + max(self.batch, rows / self.capacity(second))
            read_rows[index] = read
        return read_rows

    def trial(self, rate: float, seconds: float = 60.0, limits: SustainabilityLimits | None = None) -> TrialVerdict:
        return judge_trial(self.observe(rate, seconds), limits)


def steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate
