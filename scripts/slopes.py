# ruff: noqa: INP001  a module of the scripts in this folder
"""Slopes of measures over micro-batches, by least squares, and whether they grow or fall beyond noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

PER_BATCHES = 1_000
MIN_ERRORS = 3.0  # a slope below so many standard errors is noise
MIN_SHARE = 0.01  # of the mean per 1,000 batches; a slope below it is harmless

Trend: TypeAlias = Literal["growing", "flat", "falling"]


@dataclass(frozen=True, slots=True)
class Slope:
    """The growth of a measure per 1,000 micro-batches, with its standard error, in the unit of the measure."""

    mean: float
    growth: float
    error: float

    @property
    def share(self) -> float:
        """The growth relative to the mean; infinite if a measure grows around a mean of zero."""
        if self.mean:
            return self.growth / abs(self.mean)
        return math.copysign(math.inf, self.growth) if self.growth else 0.0

    @property
    def trend(self) -> Trend:
        """Growing or falling by more than 3 standard errors and more than 1 % of the mean; otherwise flat."""
        if abs(self.growth) <= MIN_ERRORS * self.error or abs(self.share) <= MIN_SHARE:
            return "flat"
        return "growing" if self.growth > 0 else "falling"


def fit_slope(batches: Sequence[int], values: Sequence[float]) -> Slope:
    """Fit a straight line to at least three samples.

    The standard error takes the residuals as independent. Steps, such as those of an allocator, make it too small; the bound
    relative to the mean remains.
    """
    if len(batches) < 3:
        raise ValueError(f"{len(batches)} samples are too few for a slope with an error")
    x, y = np.asarray(batches, float) / PER_BATCHES, np.asarray(values, float)
    x -= x.mean()
    spread = float(x @ x)
    growth = float(x @ (y - y.mean())) / spread
    residuals = y - y.mean() - growth * x
    return Slope(float(y.mean()), growth, math.sqrt(float(residuals @ residuals) / (len(y) - 2) / spread))
