"""Track the event time of the partitions that a loop pulls: the minimum over all partitions that are not idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable

IDLE_SECONDS = 1.0  # seconds without rows after which a partition is idle


class EventTimeClock:
    """The latest event time of each source, in microseconds; one thread updates each source, any thread can read."""

    def __init__(self, sources: Collection[Hashable], clock: Callable[[], float] = time.monotonic) -> None:
        """Start with all sources empty."""
        self._clock = clock
        self._latest: dict[Hashable, int] = {}
        self._idle_since: dict[Hashable, float | None] = dict.fromkeys(sources, clock())

    def advance(self, source: Hashable, latest: int) -> None:
        """Record the latest event time of new rows of a source."""
        self._idle_since[source] = None
        self._latest[source] = max(latest, self._latest.get(source, latest))

    def mark_empty(self, source: Hashable) -> None:
        """Record that a source currently has no more rows."""
        if self._idle_since[source] is None:
            self._idle_since[source] = self._clock()

    def get_event_time(self, sources: Collection[Hashable] | None = None) -> int | None:
        """Return the event time that all given sources (default: all) have reached; None while it is unknown."""
        active = [source for source in sources or self._idle_since if not self._is_idle(source)]
        if any(source not in self._latest for source in active):
            return None
        return min((self._latest[source] for source in active), default=None)

    def _is_idle(self, source: Hashable) -> bool:
        since = self._idle_since[source]
        return since is not None and self._clock() - since > IDLE_SECONDS
