"""All streams of a driver on one clock, and the log of the run.

The hub produces rows and tracks progress; it has no sockets. One thread calls `tick` frequently; the threads that serve
consumers call the other methods. In the log, `series` has a sample of the progress every 100 ms. `marks` holds the schedules,
which give the exact event time of every row; `pulls` the times at which the slowest consumer group had read so many rows of a
partition. A row counts as pulled when it is written to the socket.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.driver.queue import QueueProgress
from headrace.bench.driver.rates import RateScript, RowSchedule
from headrace.bench.driver.serving import ServedStream
from headrace.bench.driver.streams import StreamSpec
from headrace.errors import HeadraceError

TimeArray: TypeAlias = npt.NDArray[np.int64]

NO_TIME = -1


@dataclass(frozen=True, slots=True, eq=False)
class StreamLog:
    """The log of one stream: its schedule, and for each partition the times and row counts of its pulls."""

    schedule: RowSchedule
    disorder: int
    pulls: tuple[tuple[TimeArray, TimeArray], ...]

    def event_time_before(self, ends: TimeArray) -> TimeArray:
        """See `DriverLog.event_time_before`."""
        rows, inverse = np.unique(self.schedule.count_rows_before(ends), return_inverse=True)
        event_times = np.full(len(rows), NO_TIME, np.int64)
        if len(rows):
            event_times[rows > 0] = self.schedule.row_times(rows[rows > 0] - 1)
        return event_times[inverse]

    def rows_before(self, times: TimeArray) -> TimeArray:
        """See `DriverLog.rows_before`."""
        return self.schedule.count_rows_before(times)

    def pulled_at(self, times: TimeArray) -> TimeArray:
        """See `DriverLog.pulled_at`."""
        rows = self.schedule.count_rows_before(times + self.disorder + 1)
        pull_times = np.full(len(times), NO_TIME, np.int64)
        missing = rows == 0
        for number, (times_of_pulls, rows_pulled) in enumerate(self.pulls):
            needed_rows = (rows + len(self.pulls) - 1 - number) // len(self.pulls)
            index = np.searchsorted(rows_pulled, needed_rows, side="left")
            missing |= (index == len(rows_pulled)) & (needed_rows > 0)
            pull_times = np.maximum(pull_times, np.where(needed_rows > 0, np.append(times_of_pulls, NO_TIME)[index], NO_TIME))
        return np.where(missing, NO_TIME, pull_times)


@dataclass(frozen=True, slots=True, eq=False)
class DriverLog:
    """The log of all streams; times are microseconds, −1 for none."""

    time: TimeArray
    produced: TimeArray
    read: TimeArray
    streams: Mapping[str, StreamLog]

    def event_time_before(self, stream: str, window_ends: Sequence[int] | TimeArray) -> TimeArray:
        """Return for each window end the last event time stamped before it.

        With disorder this is the scheduled time: a row that arrives late may lie slightly closer to the window end.
        """
        return self._get_stream(stream).event_time_before(np.asarray(window_ends, np.int64))

    def rows_before(self, stream: str, times: Sequence[int] | TimeArray) -> TimeArray:
        """Return the number of rows scheduled before each time."""
        return self._get_stream(stream).rows_before(np.asarray(times, np.int64))

    def pulled_at(self, stream: str, event_times: Sequence[int] | TimeArray) -> TimeArray:
        """Return when the slowest group had pulled all rows up to each event time, from all partitions.

        With disorder this includes the rows that could still have such an event time.
        """
        return self._get_stream(stream).pulled_at(np.asarray(event_times, np.int64))

    def _get_stream(self, name: str) -> StreamLog:
        if name not in self.streams:
            raise HeadraceError(f"the driver has no stream '{name}'", detail=f"streams: {', '.join(self.streams)}")
        return self.streams[name]

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DriverLog:
        """Parse the answer to a `log` request."""
        series = {name: np.array(value["series"][name], np.int64) for name in ("time", "produced", "read")}
        streams = {name: _parse_stream_log(marks, value["pulls"][name]) for name, marks in value["marks"].items()}
        return DriverLog(streams=streams, **series)


def _parse_stream_log(marks: Mapping[str, Any], pulls: Sequence[Sequence[int]]) -> StreamLog:
    table = np.array(pulls, np.int64).reshape(-1, 3)
    by_partition = [table[table[:, 1] == number] for number in range(marks["partitions"])]
    schedule, disorder = RowSchedule.from_json(marks["schedule"]), round(marks["disorder"] * 1e6)
    return StreamLog(
        schedule, disorder, tuple((partition_pulls[:, 0], partition_pulls[:, 2]) for partition_pulls in by_partition)
    )


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
