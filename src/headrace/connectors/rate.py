"""A stream of made-up rows at a given rate, for demonstrations and measurements."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.connectors.conform import instant
from headrace.connectors.durable import replace_file
from headrace.connectors.generate import EPOCH, GENERATORS, Recipe
from headrace.connectors.source import RANGE_ROWS, Position, Range, attached
from headrace.errors import SchemaError
from headrace.model.schema import Schema

_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


class RateSource:
    """Rows become available as time goes by since the source was first attached, also while nobody is looking.

    Row i is the same whenever it is read; only how many rows there are depends on `clock` (seconds). Event time starts
    at `start_time` and advances by 1 / rows_per_second a row. `rows` bounds the stream.
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
        """Check everything; nothing runs before `attach`."""
        first = EPOCH if start_time is None else _microseconds(start_time)
        self._recipe = Recipe(generator, seed, rows_per_second, first, keys, field_max)
        if rows is not None and rows < 0:
            raise SchemaError(f"rows is {rows}, but must not be negative")
        self._rows, self._clock = rows, clock
        self._stream, self._directory, self._started = "", None, 0.0  # type: tuple[str, Path | None, float]

    @property
    def schema(self) -> Schema:
        """The columns of the generator."""
        return GENERATORS[self._recipe.generator].schema

    def attach(self, stream: str, directory: Path) -> None:
        """Note the time, once for all: a restart finds it again."""
        self._stream, self._directory = stream, Path(directory)
        note = self._directory / "start.json"
        if not note.exists():
            replace_file(note, json.dumps({"started": self._clock()}).encode())
        self._started = json.loads(note.read_text())["started"]

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"row": the next row}."""
        start = _row(position)
        stop = min(self._available(), start + max(1, limit_rows))
        if stop <= start:
            return [], position
        options = asdict(self._recipe)
        cuts = [*range(start, stop, RANGE_ROWS), stop]
        name = f"rate:{self._recipe.generator}"
        ranges = [Range(self._stream, "rate", name, a, b, b - a, options) for a, b in pairwise(cuts)]
        return ranges, {"row": stop}

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        return self._available() > _row(position)

    def definition(self) -> dict[str, Any]:
        """See `Source`; the clock is not part of it."""
        return {"kind": "rate", **asdict(self._recipe), "rows": self._rows}

    def _available(self) -> int:
        attached(self._stream, self._directory)
        due = int((self._clock() - self._started) * self._recipe.rows_per_second)
        return due if self._rows is None else min(due, self._rows)


def _row(position: Position) -> int:
    return 0 if position is None else int(position["row"])


def _microseconds(start_time: datetime | str) -> int:
    try:
        return (instant(start_time) - _ORIGIN) // timedelta(microseconds=1)
    except ValueError as error:
        raise SchemaError(f"start_time '{start_time}' is not understood", hint="write 2026-01-01T00:00:00Z") from error
