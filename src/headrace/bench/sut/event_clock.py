"""How far event time is, over the partitions that a loop pulls: the slowest one counts, unless it has had no rows for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable

IDLE = 1.0  # seconds after which a partition without rows is not waited for


class EventClock:
    """The latest event time of each source, in microseconds. Each source is told of by one thread; any may ask."""

    def __init__(self, sources: Collection[Hashable], clock: Callable[[], float] = time.monotonic) -> None:
        """Every source begins idle, without a row."""
        self._clock = clock
        self._latest: dict[Hashable, int] = {}
        self._idle_since: dict[Hashable, float | None] = dict.fromkeys(sources, clock())

    def saw(self, source: Hashable, latest: int) -> None:
        """Note the latest event time of rows that came."""
        self._idle_since[source] = None
        self._latest[source] = max(latest, self._latest.get(source, latest))

    def saw_nothing(self, source: Hashable) -> None:
        """Note that all rows there are have come."""
        if self._idle_since[source] is None:
            self._idle_since[source] = self._clock()

    def now(self, sources: Collection[Hashable] | None = None) -> int | None:
        """Return the event time that all sources (or some) have reached; None while that is not known."""
        waited_for = [source for source in sources or self._idle_since if not self._given_up(source)]
        if any(source not in self._latest for source in waited_for):
            return None
        return min((self._latest[source] for source in waited_for), default=None)

    def _given_up(self, source: Hashable) -> bool:
        since = self._idle_since[source]
        return since is not None and self._clock() - since > IDLE
