"""Statistics of runs and trials: histograms, confidence intervals of a mean, and growth detection.

Histogram buckets are log-linear: every integer below 256 has its own; above, each power of two is divided into 128 equal
buckets. A bucket is never wider than 1/128 of its values, and a microsecond and an hour fit into the same table.

Intervals use Student's t for a few repeated runs, without a statistics library. Growth is a robust slope, with rolling
envelopes for sawtooth-shaped series: a system that reads in batches makes the backlog rise and fall with every batch. Its
maximum and minimum over a time longer than a batch stay constant as long as the system keeps up, whenever the samples are
taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

MAX_VALUE = 2**53 - 1  # larger integers are not exact as floats; 285 years in microseconds
_BUCKET_BITS = 7
_BUCKETS_PER_OCTAVE = 1 << _BUCKET_BITS


@dataclass(frozen=True, slots=True)
class DistributionSummary:
    """The figures of one distribution, in seconds."""

    count: int
    mean: float
    lowest: float
    highest: float
    p50: float
    p90: float
    p95: float
    p99: float

    def to_json(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values in microseconds; `buckets` ascends and holds only non-empty buckets.

    `negative` counts values below zero, which differing clocks of processes allow; they count as zero. `total` is the sum of all
    values. All fields of an empty histogram are zero.
    """

    buckets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    lowest: int = 0
    highest: int = 0
    total: float = 0.0
    negative: int = 0

    @classmethod
    def from_values(cls, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Histogram:
        """Count each value `weights` times (default: once); a weight of zero drops the value."""
        all_values = np.asarray(values, np.int64)
        weight = np.ones(len(all_values), np.int64) if weights is None else np.asarray(weights, np.int64)
        all_values, weight = all_values[weight > 0], weight[weight > 0]
        if not len(all_values):
            return cls()
        clipped = np.clip(all_values, 0, MAX_VALUE)
        buckets, index = np.unique(bucket_of(clipped), return_inverse=True)
        counts = np.zeros(len(buckets), np.int64)
        np.add.at(counts, index, weight)
        return cls(
            tuple(buckets.tolist()),
            tuple(counts.tolist()),
            int(clipped.min()),
            int(clipped.max()),
            float(clipped.astype(np.float64) @ weight),
            int(weight[all_values < 0].sum()),
        )

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def add(self, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Histogram:
        """Return this histogram with the values added; see `from_values`."""
        return self.merge(Histogram.from_values(values, weights))

    def merge(self, other: Histogram) -> Histogram:
        """Return the histogram of the values of both."""
        if not self.counts or not other.counts:
            return self if self.counts else other
        counts = dict(zip(self.buckets, self.counts, strict=True))
        for bucket, count in zip(other.buckets, other.counts, strict=True):
            counts[bucket] = counts.get(bucket, 0) + count
        buckets = tuple(sorted(counts))
        return Histogram(
            buckets,
            tuple(counts[bucket] for bucket in buckets),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.total + other.total,
            self.negative + other.negative,
        )

    def get_percentiles(self, shares: Sequence[float]) -> list[int]:
        """Return for each share in [0, 1] the value that this share of values does not exceed, at most 1/128 too high.

        Raises ValueError for an empty histogram.
        """
        if not self.counts:
            raise ValueError("an empty histogram has no percentiles")
        cumulative = np.cumsum(np.asarray(self.counts, np.int64))
        ranks = np.maximum(1, np.ceil(np.asarray(shares) * cumulative[-1]))
        indexes = np.minimum(np.searchsorted(cumulative, ranks), len(cumulative) - 1)
        tops = bucket_upper_bound(np.asarray(self.buckets, np.int64)[indexes])
        return [int(top) for top in np.clip(tops, self.lowest, self.highest)]

    def summarize(self) -> DistributionSummary | None:
        """Return the figures in seconds, or None for an empty histogram."""
        if not self.counts:
            return None
        percentiles = [percentile / 1e6 for percentile in self.get_percentiles((0.5, 0.9, 0.95, 0.99))]
        count = self.count
        return DistributionSummary(count, self.total / count / 1e6, self.lowest / 1e6, self.highest / 1e6, *percentiles)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads; values are in microseconds."""
        return {**asdict(self), "buckets": list(self.buckets), "counts": list(self.counts)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Histogram:
        """Read the JSON form of `to_json`."""
        return cls(**{**document, "buckets": tuple(document["buckets"]), "counts": tuple(document["counts"])})


def bucket_of(values: Integers) -> Integers:
    """Return the bucket of each value in [0, MAX_VALUE]; buckets ascend with values."""
    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(exponent - (_BUCKET_BITS + 1), 0)
    buckets: Integers = shift * _BUCKETS_PER_OCTAVE + (values >> shift)
    return buckets


def bucket_upper_bound(buckets: Integers) -> Integers:
    """Return the largest value of each bucket."""
    shift = np.maximum(buckets // _BUCKETS_PER_OCTAVE - 1, 0)
    tops: Integers = ((buckets - shift * _BUCKETS_PER_OCTAVE + 1) << shift) - 1
    return tops


CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """The mean of repeated runs; the true mean lies within `half_width` with probability `level`. None for a single run."""

    mean: float
    half_width: float | None
    runs: int
    level: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds of the interval."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


def estimate_mean(values: Sequence[float], level: float = CONFIDENCE_LEVEL) -> ConfidenceInterval:
    """Return the mean of at least one value, with its confidence interval for two or more."""
    if not values or not 0 < level < 1:
        raise ValueError(f"no confidence of level {level} for {len(values)} values")
    runs = len(values)
    mean = math.fsum(values) / runs
    if runs == 1:
        return ConfidenceInterval(mean, None, 1, level)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (runs - 1))
    return ConfidenceInterval(mean, student_t(level, runs - 1) * deviation / math.sqrt(runs), runs, level)


def student_t(level: float, freedom: int) -> float:
    """Return t such that a t-distributed variable with `freedom` degrees of freedom lies in [-t, t] with probability `level`."""
    low, high = 0.0, 1.0
    while student_t_probability(high, freedom) < level:
        low, high = high, high * 2
    while (middle := (low + high) / 2) not in {low, high}:
        if student_t_probability(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return high


def student_t_probability(t: float, freedom: int) -> float:
    """Return the probability of [-t, t]: a finite sum of cosines, because the degrees of freedom are an integer."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for step in range(freedom // 2):
        total += term
        even = 2 * step + 2 + odd  # 1 + 1/2 c² + 1·3/2·4 c⁴ …, and c + 2/3 c³ + 2·4/3·5 c⁵ …
        term *= cosine**2 * (even - 1) / even
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


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
