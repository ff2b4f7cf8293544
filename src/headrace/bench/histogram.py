"""A histogram of times that keeps every value to better than 1 %, whatever its size.

Buckets are log-linear: below 256 each whole number has its own; above, every power of two is cut into 128 equal ones. A
bucket is therefore never wider than 1/128 of the values in it, and a microsecond and an hour fit into the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

LARGEST = 2**53 - 1  # whole numbers above are not exact as floats; 285 years, in microseconds
_BITS = 7
_STEPS = 1 << _BITS


@dataclass(frozen=True, slots=True)
class Summary:
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
    """Counts of values in microseconds; `buckets` ascends and holds only what was seen.

    `negative` is how many values were below zero, as clocks of different processes allow, and are counted as zero.
    `total` is the sum of all values. An empty histogram has zeros everywhere.
    """

    buckets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    lowest: int = 0
    highest: int = 0
    total: float = 0.0
    negative: int = 0

    @classmethod
    def of(cls, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Histogram:
        """Count each value `weights` times (once, if not given); a weight of zero leaves the value out."""
        given = np.asarray(values, np.int64)
        weight = np.ones(len(given), np.int64) if weights is None else np.asarray(weights, np.int64)
        given, weight = given[weight > 0], weight[weight > 0]
        if not len(given):
            return cls()
        times = np.clip(given, 0, LARGEST)
        buckets, place = np.unique(bucket_of(times), return_inverse=True)
        counts = np.zeros(len(buckets), np.int64)
        np.add.at(counts, place, weight)
        return cls(
            tuple(buckets.tolist()),
            tuple(counts.tolist()),
            int(times.min()),
            int(times.max()),
            float(times.astype(np.float64) @ weight),
            int(weight[given < 0].sum()),
        )

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def add(self, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Histogram:
        """Return this histogram with more values; see `of`."""
        return self.merge(Histogram.of(values, weights))

    def merge(self, other: Histogram) -> Histogram:
        """Return what counting all values of both would have given."""
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

    def percentiles(self, shares: Sequence[float]) -> list[int]:
        """Return for each share in [0, 1] the value that so many are not above, at most 1/128 too high.

        Must not be asked of an empty histogram.
        """
        if not self.counts:
            raise ValueError("an empty histogram has no percentiles")
        below = np.cumsum(np.asarray(self.counts, np.int64))
        ranks = np.maximum(1, np.ceil(np.asarray(shares) * below[-1]))
        places = np.minimum(np.searchsorted(below, ranks), len(below) - 1)
        tops = highest_of(np.asarray(self.buckets, np.int64)[places])
        return [int(top) for top in np.clip(tops, self.lowest, self.highest)]

    def summary(self) -> Summary | None:
        """Return the figures in seconds, or None if nothing was counted."""
        if not self.counts:
            return None
        marks = [mark / 1e6 for mark in self.percentiles((0.5, 0.9, 0.95, 0.99))]
        count = self.count
        return Summary(count, self.total / count / 1e6, self.lowest / 1e6, self.highest / 1e6, *marks)

    def to_json(self) -> dict[str, Any]:
        """Return all of it, to be read by `from_json`; values are in microseconds."""
        return {**asdict(self), "buckets": list(self.buckets), "counts": list(self.counts)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Histogram:
        """Read what `to_json` gave."""
        return cls(**{**document, "buckets": tuple(document["buckets"]), "counts": tuple(document["counts"])})


def bucket_of(values: Integers) -> Integers:
    """Return the bucket of each value in [0, LARGEST]; buckets ascend with values."""
    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(exponent - (_BITS + 1), 0)
    buckets: Integers = shift * _STEPS + (values >> shift)
    return buckets


def highest_of(buckets: Integers) -> Integers:
    """Return the largest value that falls into each bucket."""
    shift = np.maximum(buckets // _STEPS - 1, 0)
    tops: Integers = ((buckets - shift * _STEPS + 1) << shift) - 1
    return tops
