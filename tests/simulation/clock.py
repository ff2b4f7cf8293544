"""The virtual clock: time passes only where the schedule says so."""

from __future__ import annotations


class VirtualClock:
    """Stands for the module `time` where the product reads the clock; `now` may jump back, as a wall clock may."""

    def __init__(self, start: float = 1_704_067_200.0) -> None:
        self.now, self.elapsed = start, 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.elapsed += max(0.0, seconds)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.elapsed

    perf_counter = monotonic
