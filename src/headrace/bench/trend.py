"""Whether something keeps growing: a robust slope, and envelopes of what goes up and down like a saw.

A system that reads in batches leaves a queue that rises and falls with every batch. Its highest and lowest marks over a
time longer than a batch are steady as long as it keeps up, whatever moment the clock happened to look.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_POINTS = 400  # so that all pairs of points are few enough


@dataclass(frozen=True, slots=True)
class Trend:
    """The median slope between points far apart, the time they span, and the share of pairs that rise."""

    slope: float
    span: float
    rising: float

    def grows(self, slope: float, noise: float) -> bool:
        """Whether it grows faster than `slope`, by more than `noise` in all, and most of the time."""
        return self.slope > slope and self.slope * self.span > noise and self.rising >= 0.75


@dataclass(frozen=True, slots=True)
class Growth:
    """The trend of the whole and of its second half; the latter is None if it is too short to tell."""

    whole: Trend
    tail: Trend | None

    def keeps_on(self, slope: float, noise: float) -> bool:
        """Whether it grows and has not levelled off."""
        return self.whole.grows(slope, noise) and (self.tail is None or self.tail.slope > slope)

    def begins(self, slope: float, noise: float) -> bool:
        """Whether it grows in the second half, whatever was before."""
        return self.tail is not None and self.tail.grows(slope, noise)


def growth(time: Floats, value: Floats) -> Growth | None:
    """Return how points in order of time grow; None for fewer than three."""
    whole = trend(time, value)
    if whole is None:
        return None
    half = time >= (time[0] + time[-1]) / 2
    return Growth(whole, trend(time[half], value[half]))


def trend(time: Floats, value: Floats) -> Trend | None:
    """Return the trend over points in order of time; None for fewer than three.

    Only pairs at least a third of the time apart count: neighbours say much about noise and little about the trend. The
    median bears a burst or a stall as long as it is short.
    """
    if len(time) < 3 or time[-1] <= time[0]:
        return None
    chosen = np.unique(np.linspace(0, len(time) - 1, _POINTS).round().astype(np.int64))
    time, value = time[chosen], value[chosen]
    span = float(time[-1] - time[0])
    first, second = np.triu_indices(len(time), 1)
    apart = time[second] - time[first]
    far = apart >= span / 3
    slopes = (value[second] - value[first])[far] / apart[far]
    return Trend(float(np.median(slopes)), span, float(np.mean(slopes > 0)))


def envelope(time: Floats, value: Floats, width: float) -> tuple[Floats, Floats, Floats]:
    """Return times, lowest and highest values over the `width` seconds before each; samples must be about evenly spaced."""
    gap = float(np.median(np.diff(time))) if len(time) > 1 else width
    count = min(len(time), max(1, round(width / max(gap, 1e-9))))
    windows = np.lib.stride_tricks.sliding_window_view(value, count)
    return time[count - 1 :], windows.min(axis=1), windows.max(axis=1)


def longest_above(time: Floats, value: Floats, limit: float) -> float:
    """Return the longest time in seconds during which the value was above the limit at every sample."""
    above = np.concatenate(([False], value > limit, [False]))
    starts = np.flatnonzero(~above[:-1] & above[1:])
    stops = np.flatnonzero(above[:-1] & ~above[1:]) - 1
    return float(np.max(time[stops] - time[starts], initial=0.0))
