"""The driver's log of a run: progress over time, the schedule of every stream, and when rows were pulled.

`series` has a sample every 100 ms. `marks` holds the schedules, which give the exact event time of every row; `pulls` the times
at which the slowest consumer group had read so many rows of a partition. A row counts as pulled when it is written to the socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.schedule import RowSchedule
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
