"""Confidence intervals for the mean of a few repeated runs: Student's t, without a statistics library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
