"""Rate source: synthetic rows at a constant rate, for demonstrations and benchmarks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.connectors.conform import to_utc
from headrace.connectors.durable import replace_file
from headrace.connectors.generate import DEFAULT_START_TIME, GENERATORS, GeneratorSpec
from headrace.connectors.source import RANGE_ROWS, Position, Range, require_attached
from headrace.errors import SchemaError
from headrace.model.schema import Schema

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RateSource:
    """A source of synthetic rows at a constant rate, counted from the time at which it was first attached.

    Rows are deterministic; only the number of available rows depends on the clock. The rate continues while no session runs.
    """

    def __init__(
        self,
        rows_per_second: float,
        generator: str = "purchases",
        *,
        seed: int = 0,
        rows: int | None = None,
        start_time: datetime | str | None = None,
        keys: int = 1000,
        field_max: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a rate source.

        - `rows_per_second`: the rate, in wall-clock time and in event time.
        - `generator`: the kind of rows: "purchases", "ads" or "fields".
        - `seed`: the seed of the random values.
        - `rows`: the total number of rows; by default the stream is unbounded.
        - `start_time`: the event time of the first row, as a datetime or ISO-8601 text; by default 2026-01-01T00:00Z.
        - `keys`: the number of distinct keys.
        - `field_max`: the exclusive upper bound of the values of generator "fields".
        - `clock`: the current time in seconds, for tests.

        Raises SchemaError for an invalid argument.
        """
        first = DEFAULT_START_TIME if start_time is None else _to_microseconds(start_time)
        self._spec = GeneratorSpec(generator, seed, rows_per_second, first, keys, field_max)
        if rows is not None and rows < 0:
            raise SchemaError(f"rows is {rows}, but must not be negative")
        self._row_limit, self._clock = rows, clock
        self._stream, self._directory, self._started_at = "", None, 0.0  # type: tuple[str, Path | None, float]

    @property
    def schema(self) -> Schema:
        """The columns of the generator."""
        return GENERATORS[self._spec.generator].schema

    def attach(self, stream: str, directory: Path) -> None:
        """See `Source`; stores the start time on the first call, and loads it after a restart."""
        self._stream, self._directory = stream, Path(directory)
        start_file = self._directory / "start.json"
        if not start_file.exists():
            replace_file(start_file, json.dumps({"started": self._clock()}).encode())
        self._started_at = json.loads(start_file.read_text())["started"]

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"row": number of the next row}."""
        start = _next_row(position)
        stop = min(self._count_available(), start + max(1, limit_rows))
        if stop <= start:
            return [], position
        options = asdict(self._spec)
        cuts = [*range(start, stop, RANGE_ROWS), stop]
        name = f"rate:{self._spec.generator}"
        ranges = [Range(self._stream, "rate", name, a, b, b - a, options) for a, b in pairwise(cuts)]
        return ranges, {"row": stop}

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        return self._count_available() > _next_row(position)

    def definition(self) -> dict[str, Any]:
        """See `Source`; the clock is not part of the definition."""
        return {"kind": "rate", **asdict(self._spec), "rows": self._row_limit}

    def _count_available(self) -> int:
        require_attached(self._stream, self._directory)
        due = int((self._clock() - self._started_at) * self._spec.rows_per_second)
        return due if self._row_limit is None else min(due, self._row_limit)


def _next_row(position: Position) -> int:
    return 0 if position is None else int(position["row"])


def _to_microseconds(start_time: datetime | str) -> int:
    try:
        return (to_utc(start_time) - _UNIX_EPOCH) // timedelta(microseconds=1)
    except ValueError as error:
        raise SchemaError(f"invalid start_time '{start_time}'", hint="write 2026-01-01T00:00:00Z") from error
