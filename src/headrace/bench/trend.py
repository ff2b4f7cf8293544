"""Growth detection: a robust slope, and rolling envelopes for sawtooth-shaped series.

A system that reads in batches makes the backlog rise and fall with every batch. Its maximum and minimum over a time longer than a
batch stay constant as long as the system keeps up, whenever the samples are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MAX_POINTS = 400  # bounds the number of pairs


@dataclass(frozen=True, slots=True)
class Trend:
    """The median slope between distant points, the time they span, and the share of rising pairs."""

    slope: float
    span: float
    rising_share: float

    def is_growing(self, slope: float, noise: float) -> bool:
        """Whether the slope exceeds `slope`, the total growth exceeds `noise`, and at least three quarters of the pairs rise."""
        return self.slope > slope and self.slope * self.span > noise and self.rising_share >= 0.75


@dataclass(frozen=True, slots=True)
class GrowthTrend:
    """The trend of the whole series and of its second half; the latter is None if it is too short."""

    overall: Trend
    second_half: Trend | None

    def is_ongoing(self, slope: float, noise: float) -> bool:
        """Whether the series grows and has not levelled off."""
        return self.overall.is_growing(slope, noise) and (self.second_half is None or self.second_half.slope > slope)

    def is_starting(self, slope: float, noise: float) -> bool:
        """Whether the series grows in its second half, regardless of the first."""
        return self.second_half is not None and self.second_half.is_growing(slope, noise)


def measure_growth(time: Floats, value: Floats) -> GrowthTrend | None:
    """Measure the growth of points in time order; None for fewer than three."""
    whole = measure_trend(time, value)
    if whole is None:
        return None
    half = time >= (time[0] + time[-1]) / 2
    return GrowthTrend(whole, measure_trend(time[half], value[half]))


def measure_trend(time: Floats, value: Floats) -> Trend | None:
    """Measure the trend of points in time order; None for fewer than three.

    Only pairs at least a third of the span apart count: close points show noise rather than the trend. The median tolerates short
    bursts and stalls.
    """
    if len(time) < 3 or time[-1] <= time[0]:
        return None
    indexes = np.unique(np.linspace(0, len(time) - 1, _MAX_POINTS).round().astype(np.int64))
    time, value = time[indexes], value[indexes]
    span = float(time[-1] - time[0])
    first, second = np.triu_indices(len(time), 1)
    distance = time[second] - time[first]
    distant = distance >= span / 3
    slopes = (value[second] - value[first])[distant] / distance[distant]
    return Trend(float(np.median(slopes)), span, float(np.mean(slopes > 0)))


def rolling_envelope(time: Floats, value: Floats, width: float) -> tuple[Floats, Floats, Floats]:
    """Return times, minima and maxima over the last `width` seconds before each; samples must be about evenly spaced."""
    gap = float(np.median(np.diff(time))) if len(time) > 1 else width
    count = min(len(time), max(1, round(width / max(gap, 1e-9))))
    windows = np.lib.stride_tricks.sliding_window_view(value, count)
    return time[count - 1 :], windows.min(axis=1), windows.max(axis=1)


def longest_time_above(time: Floats, value: Floats, limit: float) -> float:
    """Return the longest time in seconds for which every sample was above the limit."""
    above = np.concatenate(([False], value > limit, [False]))
    starts = np.flatnonzero(~above[:-1] & above[1:])
    stops = np.flatnonzero(above[:-1] & ~above[1:]) - 1
    return float(np.max(time[stops] - time[starts], initial=0.0))
