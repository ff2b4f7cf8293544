"""A latency histogram with a relative error below 1 % at any magnitude.

Buckets are log-linear: every integer below 256 has its own; above, each power of two is divided into 128 equal buckets. A bucket
is never wider than 1/128 of its values, and a microsecond and an hour fit into the same table.
"""

from __future__ import annotations

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
