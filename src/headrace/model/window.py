"""Windows as a query states them, and window arithmetic.

Times and durations are integers in microseconds; times count from 1970-01-01T00:00Z. Windows are [start, end).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from headrace.model.record import record


@record("hop-window")
@dataclass(frozen=True, slots=True)
class HopWindow:
    """TUMBLE and HOP: windows [k·slide, k·slide + size) for every integer k; with gaps when slide > size."""

    size: int
    slide: int

    def __post_init__(self) -> None:
        """Reject sizes and slides that are not positive."""
        if self.size <= 0 or self.slide <= 0:
            raise ValueError("window size and slide must be positive")

    def __str__(self) -> str:
        """Return the SQL spelling."""
        if self.size == self.slide:
            return f"TUMBLE({format_duration(self.size)})"
        return f"HOP({format_duration(self.size)}, {format_duration(self.slide)})"


@record("session-window")
@dataclass(frozen=True, slots=True)
class SessionWindow:
    """SESSION: per key, rows at most `gap` apart share a window (as in Spark); it is [first, last + gap)."""

    gap: int

    def __post_init__(self) -> None:
        """Reject gaps that are not positive."""
        if self.gap <= 0:
            raise ValueError("session gap must be positive")

    def __str__(self) -> str:
        """Return the SQL spelling."""
        return f"SESSION({format_duration(self.gap)})"


UNBOUNDED_LENGTH = 100 * 366 * 86_400_000_000  # a century, the longest window: SLIDING(s, UNBOUNDED)


@record("sliding-window")
@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """SLIDING: at every moment, the rows of the last `length`; rows more than `lateness` behind the watermark are late."""

    length: int
    lateness: int = 0

    def __post_init__(self) -> None:
        """Reject negative lengths."""
        if self.length < 0 or self.lateness < 0:
            raise ValueError("length and lateness of a sliding window must not be negative")

    def __str__(self) -> str:
        """Return the SQL spelling."""
        late = f", {format_duration(self.lateness)}" if self.lateness else ""
        return f"SLIDING({'UNBOUNDED' if self.length == UNBOUNDED_LENGTH else format_duration(self.length)}{late})"


Window: TypeAlias = HopWindow | SessionWindow

_DURATION_UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"), (1, "µs"))


def format_duration(microseconds: int) -> str:
    """Return the duration in the largest unit that divides it."""
    if microseconds == 0:
        return "0 s"
    unit, name = next(pair for pair in _DURATION_UNITS if microseconds % pair[0] == 0)
    return f"{microseconds // unit} {name}"


def first_window_start(window: HopWindow, time: int) -> int:
    """Return the start of the earliest window that may contain `time` (it does unless `time` is in a gap)."""
    return ((time - window.size) // window.slide + 1) * window.slide


def last_window_start(window: HopWindow, time: int) -> int:
    """Return the start of the latest window with start ≤ `time`."""
    return time // window.slide * window.slide


def window_starts_containing(window: HopWindow, time: int) -> range:
    """Return the starts of all windows that contain `time`, ascending; empty in a gap."""
    return range(first_window_start(window, time), last_window_start(window, time) + 1, window.slide)


@record("window-ends")
@dataclass(frozen=True, slots=True)
class WindowEnds:
    """The window ends k·step + offset, for every integer k."""

    offset: int
    step: int

    def ends_containing(self, size: int, time: int) -> range:
        """Return the ends of all windows of that size that contain `time`, ascending."""
        first = (time - self.offset) // self.step * self.step + self.offset + self.step
        return range(first, time + size + 1, self.step)

    def ends_between(self, after: int, until: int) -> range:
        """Return the ends in (after, until], ascending."""
        first = (after - self.offset) // self.step * self.step + self.offset + self.step
        return range(first, until + 1, self.step)


def ends_of_window(window: HopWindow) -> WindowEnds:
    """Return the ends of the windows."""
    return WindowEnds(window.size % window.slide, window.slide)


def find_common_ends(windows: Iterable[HopWindow]) -> WindowEnds | None:
    """Return the ends that the windows of all given kinds have in common; None if there are none."""
    ends = WindowEnds(0, 1)
    for window in windows:
        divisor = math.gcd(ends.step, window.slide)
        distance = ends_of_window(window).offset - ends.offset
        if distance % divisor:
            return None
        step = ends.step // divisor * window.slide
        times = distance // divisor * pow(ends.step // divisor, -1, window.slide // divisor) if window.slide > divisor else 0
        ends = WindowEnds((ends.offset + times * ends.step) % step, step)
    return ends
