"""All streams of a driver on one clock: produces rows, tracks progress, and keeps the log of the run.

The hub has no sockets. One thread calls `tick` frequently; the threads that serve consumers call the other methods.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from headrace.bench.queue import QueueProgress
from headrace.bench.rate import RateScript
from headrace.bench.served import ServedStream
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError

_SAMPLE_INTERVAL_US = 100_000  # microseconds


class DriverHub:
    """The streams of a driver; `clock` returns seconds since 1970."""

    def __init__(self, specs: Sequence[StreamSpec], capacity_rows: int, clock: Callable[[], float]) -> None:
        """Generate the rows of all streams; no row is produced yet."""
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise HeadraceError("a driver needs streams with different names", detail=f"given: {', '.join(names) or 'none'}")
        if capacity_rows < 1:
            raise HeadraceError(f"capacity_rows is {capacity_rows}, but must be positive")
        self.identity = uuid.uuid4().hex
        self.streams = {spec.name: ServedStream(spec, capacity_rows) for spec in specs}
        self._clock, self._lock = clock, threading.Lock()
        self._samples: list[tuple[int, int, int]] = []  # time, rows produced, rows read
        self._served_bytes = self._dropped = 0

    def now_us(self) -> int:
        """Return the time in microseconds."""
        return round(self._clock() * 1e6)

    def get_stream(self, name: str) -> ServedStream:
        """Return a stream; raise HeadraceError for an unknown name."""
        if name not in self.streams:
            raise HeadraceError(f"unknown stream '{name}'", detail=f"streams: {', '.join(self.streams)}")
        return self.streams[name]

    def start(self, script: RateScript | None) -> int:
        """Produce rows by a script from now on, each stream with its share of the rate; None stops production."""
        now, total_share = self.now_us(), sum(stream.spec.share for stream in self.streams.values())
        for stream in self.streams.values():
            stream.queue.start(None if script is None else script.scale(stream.spec.share / total_share), now)
        return now

    def tick(self) -> None:
        """Produce the due rows and sample the progress; a full queue stops production on all streams."""
        now = self.now_us()
        for stream in self.streams.values():
            stream.queue.advance(now)
        if self.overflowed:
            for stream in self.streams.values():
                stream.queue.start(None, now)
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_INTERVAL_US:
            progress = self._stream_progress()
            self._samples.append((now, sum(sum(each.produced) for each in progress), sum(sum(each.read) for each in progress)))

    @property
    def overflowed(self) -> bool:
        """Whether a queue is full."""
        return any(stream.queue.overflowed for stream in self.streams.values())

    def count_served_bytes(self, count: int) -> None:
        """Count bytes sent."""
        with self._lock:
            self._served_bytes += count

    def count_dropped_consumer(self) -> None:
        """Count a consumer that disconnected from a line port."""
        with self._lock:
            self._dropped += 1

    def get_totals(self) -> dict[str, Any]:
        """Return the row counts over all streams; for each stream the slowest group counts."""
        progress = self._stream_progress()
        return {
            "produced": sum(sum(each.produced) for each in progress),
            "read": sum(sum(each.read) for each in progress),
            "committed": sum(sum(each.committed) for each in progress),
            **self.get_health(),
        }

    def get_health(self) -> dict[str, Any]:
        """Return the time and the counters that tell a valid run from a failed one."""
        return {
            "now": self.now_us(),
            "overflowed": self.overflowed,
            "dropped": self._dropped,
            "served_bytes": self._served_bytes,
        }

    def get_log(self) -> dict[str, Any]:
        """Return the log of the run in the form that `DriverLog` reads."""
        times, produced, read = zip(*self._samples, strict=True) if self._samples else ((), (), ())
        return {
            "series": {"time": times, "produced": produced, "read": read},
            "pulls": {name: stream.queue.list_pulls() for name, stream in self.streams.items()},
            "marks": {
                name: {
                    "partitions": stream.spec.partitions,
                    "disorder": stream.spec.disorder,
                    "schedule": stream.queue.schedule.to_json(),
                }
                for name, stream in self.streams.items()
            },
        }

    def _stream_progress(self) -> list[QueueProgress]:
        return [stream.queue.get_progress() for stream in self.streams.values()]
