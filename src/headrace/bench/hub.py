"""All streams of a driver, on one clock: what is born, what is served, and a diary of both.

The hub knows no sockets. One thread calls `tick`, often; whoever serves a consumer calls the rest.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from headrace.bench.queue import Progress
from headrace.bench.rate import RateScript
from headrace.bench.served import Served
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError

_SAMPLE = 100_000  # microseconds


class Hub:
    """The streams; `clock` gives seconds since 1970."""

    def __init__(self, specs: Sequence[StreamSpec], capacity_rows: int, clock: Callable[[], float]) -> None:
        """Make all rows; none is born yet."""
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise HeadraceError("a driver needs streams with different names", detail=f"given: {', '.join(names) or 'none'}")
        if capacity_rows < 1:
            raise HeadraceError(f"capacity_rows is {capacity_rows}, but must be positive")
        self.identity = uuid.uuid4().hex
        self.streams = {spec.name: Served(spec, capacity_rows) for spec in specs}
        self._clock, self._lock = clock, threading.Lock()
        self._samples: list[tuple[int, int, int]] = []  # time, rows born, rows read
        self._served_bytes = self._dropped = 0

    def now(self) -> int:
        """Return the time, in microseconds."""
        return round(self._clock() * 1e6)

    def stream(self, name: str) -> Served:
        """Return a stream; raises if there is none of that name."""
        if name not in self.streams:
            raise HeadraceError(f"there is no stream '{name}'", detail=f"streams: {', '.join(self.streams)}")
        return self.streams[name]

    def start(self, script: RateScript | None) -> int:
        """Let rows be born by a script from now on, each stream having its share of the rate; None ends it."""
        now, weight = self.now(), sum(served.spec.share for served in self.streams.values())
        for served in self.streams.values():
            served.queue.start(None if script is None else script.scaled(served.spec.share / weight), now)
        return now

    def tick(self) -> None:
        """Let everything be born that is due, and write the diary; one queue that is full ends it for all streams."""
        now = self.now()
        for served in self.streams.values():
            served.queue.advance(now)
        if self.overflowed:
            for served in self.streams.values():
                served.queue.start(None, now)
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE:
            found = self._progress()
            self._samples.append((now, sum(sum(p.produced) for p in found), sum(sum(p.read) for p in found)))

    @property
    def overflowed(self) -> bool:
        """Whether a queue was full."""
        return any(served.queue.overflowed for served in self.streams.values())

    def served(self, count: int) -> None:
        """Count bytes that have left."""
        with self._lock:
            self._served_bytes += count

    def dropped(self) -> None:
        """Count a consumer that hung up on a line port."""
        with self._lock:
            self._dropped += 1

    def totals(self) -> dict[str, Any]:
        """Return how far all streams are together; of each, the slowest group counts."""
        found = self._progress()
        return {
            "produced": sum(sum(p.produced) for p in found),
            "read": sum(sum(p.read) for p in found),
            "committed": sum(sum(p.committed) for p in found),
            **self.health(),
        }

    def health(self) -> dict[str, Any]:
        """Return the time, and what tells a good run from a bad one."""
        return {
            "now": self.now(),
            "overflowed": self.overflowed,
            "dropped": self._dropped,
            "served_bytes": self._served_bytes,
        }

    def diary(self) -> dict[str, Any]:
        """Return everything that happened, as `driver_log` reads it."""
        times, produced, read = zip(*self._samples, strict=True) if self._samples else ((), (), ())
        return {
            "series": {"time": times, "produced": produced, "read": read},
            "pulls": {name: served.queue.pulls() for name, served in self.streams.items()},
            "marks": {
                name: {
                    "partitions": served.spec.partitions,
                    "disorder": served.spec.disorder,
                    "schedule": served.queue.schedule.to_json(),
                }
                for name, served in self.streams.items()
            },
        }

    def _progress(self) -> list[Progress]:
        return [served.queue.progress() for served in self.streams.values()]
