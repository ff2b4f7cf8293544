"""What a user says about windows, and the arithmetic that follows from it.

Times and lengths are integers: microseconds, since 1970-01-01T00:00Z for times. Windows are [start, end).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows [k·slide, k·slide + size) for every integer k; tumbling when slide = size, with gaps when slide > size."""

    size: int
    slide: int

    def __post_init__(self) -> None:
        """Refuse lengths that no window can have."""
        if self.size <= 0 or self.slide <= 0:
            raise ValueError("window size and slide must be positive")

    def __str__(self) -> str:
        """Return the SQL spelling."""
        if self.size == self.slide:
            return f"TUMBLE({duration(self.size)})"
        return f"HOP({duration(self.size)}, {duration(self.slide)})"


@dataclass(frozen=True, slots=True)
class SessionGap:
    """Per key: rows at most `gap` apart belong together (as in Spark); the window is [first, last + gap)."""

    gap: int

    def __post_init__(self) -> None:
        """Refuse a gap that never closes anything."""
        if self.gap <= 0:
            raise ValueError("session gap must be positive")

    def __str__(self) -> str:
        """Return the SQL spelling."""
        return f"SESSION({duration(self.gap)})"


@dataclass(frozen=True, slots=True)
class Trailing:
    """At every moment, the rows of the last `length`; rows more than `lateness` behind the watermark are late."""

    length: int
    lateness: int = 0

    def __post_init__(self) -> None:
        """Refuse lengths that no window can have."""
        if self.length < 0 or self.lateness < 0:
            raise ValueError("the range of a window and its lateness must not be negative")

    def __str__(self) -> str:
        """Return the SQL spelling."""
        late = f", {duration(self.lateness)}" if self.lateness else ""
        return f"SLIDING({duration(self.length)}{late})"


Window: TypeAlias = Sliding | SessionGap

_UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"), (1, "µs"))


def duration(microseconds: int) -> str:
    """Return a length in the largest unit that fits exactly."""
    if microseconds == 0:
        return "0 s"
    unit, name = next(pair for pair in _UNITS if microseconds % pair[0] == 0)
    return f"{microseconds // unit} {name}"


def first_start(window: Sliding, time: int) -> int:
    """Return the start of the earliest window that may contain `time` (it does unless there is a gap)."""
    return ((time - window.size) // window.slide + 1) * window.slide


def last_start(window: Sliding, time: int) -> int:
    """Return the start of the latest window with start ≤ `time`."""
    return time // window.slide * window.slide


def starts_containing(window: Sliding, time: int) -> range:
    """Return the starts of all windows that contain `time`, ascending; empty in a gap."""
    return range(first_start(window, time), last_start(window, time) + 1, window.slide)


@dataclass(frozen=True, slots=True)
class Ends:
    """The times k·step + offset at which windows end, for every integer k."""

    offset: int
    step: int

    def containing(self, size: int, time: int) -> range:
        """Return the ends of all windows of that size that contain `time`, ascending."""
        first = (time - self.offset) // self.step * self.step + self.offset + self.step
        return range(first, time + size + 1, self.step)

    def between(self, after: int, until: int) -> range:
        """Return the ends in (after, until], ascending."""
        first = (after - self.offset) // self.step * self.step + self.offset + self.step
        return range(first, until + 1, self.step)


def ends_of(window: Sliding) -> Ends:
    """Return when windows end."""
    return Ends(window.size % window.slide, window.slide)


def common_ends(windows: Iterable[Sliding]) -> Ends | None:
    """Return when windows of all kinds given end at the same time; None if they never do."""
    found = Ends(0, 1)
    for window in windows:
        common = math.gcd(found.step, window.slide)
        distance = ends_of(window).offset - found.offset
        if distance % common:
            return None
        step = found.step // common * window.slide
        times = distance // common * pow(found.step // common, -1, window.slide // common) if window.slide > common else 0
        found = Ends((found.offset + times * found.step) % step, step)
    return found
