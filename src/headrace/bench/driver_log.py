"""What the driver remembers of a run: how far it was, which row was born when, and when it was pulled.

`series` has a sample every 100 ms. `marks` are the schedules (which row is born when, exactly), `pulls` the moments at which
the slowest group of consumers had so many rows of a partition. A row counts as pulled when it has been handed to the socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.schedule import Schedule
from headrace.errors import HeadraceError

Times: TypeAlias = npt.NDArray[np.int64]

NEVER = -1


@dataclass(frozen=True, slots=True, eq=False)
class StreamLog:
    """One stream: its schedule, and for each partition when so many rows had been pulled."""

    schedule: Schedule
    disorder: int
    pulls: tuple[tuple[Times, Times], ...]

    def event_time_before(self, ends: Times) -> Times:
        """See `DriverLog`."""
        rows, which = np.unique(self.schedule.rows_before(ends), return_inverse=True)
        found = np.full(len(rows), NEVER, np.int64)
        if len(rows):
            found[rows > 0] = self.schedule.times(rows[rows > 0] - 1)
        return found[which]

    def pulled_at(self, times: Times) -> Times:
        """See `DriverLog`."""
        rows = self.schedule.rows_before(times + self.disorder + 1)
        found = np.full(len(times), NEVER, np.int64)
        missing = rows == 0
        for number, (when, stops) in enumerate(self.pulls):
            wanted = (rows + len(self.pulls) - 1 - number) // len(self.pulls)
            at = np.searchsorted(stops, wanted, side="left")
            missing |= (at == len(stops)) & (wanted > 0)
            found = np.maximum(found, np.where(wanted > 0, np.append(when, NEVER)[at], NEVER))
        return np.where(missing, NEVER, found)


@dataclass(frozen=True, slots=True, eq=False)
class DriverLog:
    """All streams; times are microseconds, −1 where there is none."""

    time: Times
    produced: Times
    read: Times
    streams: Mapping[str, StreamLog]

    def event_time_before(self, stream: str, window_ends: Sequence[int] | Times) -> Times:
        """Return for each window end the last event time stamped before it.

        With disorder it is the one that the script has: a row that comes late may lie a little nearer to the end.
        """
        return self._stream(stream).event_time_before(np.asarray(window_ends, np.int64))

    def pulled_at(self, stream: str, event_times: Sequence[int] | Times) -> Times:
        """Return when all rows up to each event time had been pulled, by the slowest group, from all partitions.

        With disorder, rows are waited for that could still have such a time.
        """
        return self._stream(stream).pulled_at(np.asarray(event_times, np.int64))

    def _stream(self, name: str) -> StreamLog:
        if name not in self.streams:
            raise HeadraceError(f"the driver has no stream '{name}'", detail=f"streams: {', '.join(self.streams)}")
        return self.streams[name]

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DriverLog:
        """Read the answer to a `log` request."""
        series = {name: np.array(value["series"][name], np.int64) for name in ("time", "produced", "read")}
        streams = {name: _stream_log(marks, value["pulls"][name]) for name, marks in value["marks"].items()}
        return DriverLog(streams=streams, **series)


def _stream_log(marks: Mapping[str, Any], pulls: Sequence[Sequence[int]]) -> StreamLog:
    table = np.array(pulls, np.int64).reshape(-1, 3)
    parts = [table[table[:, 1] == number] for number in range(marks["partitions"])]
    schedule, disorder = Schedule.from_json(marks["schedule"]), round(marks["disorder"] * 1e6)
    return StreamLog(schedule, disorder, tuple((part[:, 0], part[:, 2]) for part in parts))
