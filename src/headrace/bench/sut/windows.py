"""Compute HOP windows aligned to 1970, in microseconds, for systems that run as a loop in this process."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlignedWindows:
    """All windows [end − size, end) whose start is a multiple of the slide."""

    size: int
    slide: int

    @property
    def slice_length(self) -> int:
        """The length of a slice; every window consists of whole slices."""
        return math.gcd(self.size, self.slide)

    def ends_between(self, after: int, until: int) -> range:
        """Return the ends of windows in (after, until]."""
        first = after - (after - self.size) % self.slide + self.slide
        return range(first, until + 1, self.slide)

    def slices_of(self, end: int) -> range:
        """Return the numbers of the slices of a window."""
        return range((end - self.size) // self.slice_length, end // self.slice_length)
