"""Random rows: one schema, small domains so that groups collide, hot keys, NULLs, disorder.

A row is decoded from two small integers (the index of a prepared row, and a timing), so that it costs two draws and shrinks fast,
to a row of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st

from headrace.model.stream import Stream
from headrace.model.types import Schema

SCHEMA = Schema.parse(
    "k INT, s STRING, x INT, y DOUBLE, d DECIMAL(10,2), f BIGINT, b BOOLEAN, day DATE, time TIMESTAMP",
)
BASE = datetime(2024, 1, 1, tzinfo=UTC)

# The first value of each column is the simplest; repeated values are the skew.
_POOLS: dict[str, tuple[Any, ...]] = {
    "k": (0, 0, 0, 0, 1, 1, 2, 3, None),
    "x": (0, 1, 2, 3, 5, 7, -3, 10, 50, 100, None),
    "s": ("a", "a", "b", "ab", "", "Ba c", "é%_", None),
    "y": (0.0, 0.5, 1.25, -2.5, 10.0, 1e6, -0.0, None),
    "d": (Decimal("0.00"), Decimal("1.00"), Decimal("0.50"), Decimal("-2.25"), Decimal("99.99"), None),
    "f": (0, 1, 2, 1000, -5, 10**12, None),
    "b": (True, False, None),
    "day": (date(2024, 1, 1), date(2024, 1, 2), date(2024, 2, 29), date(1969, 12, 31), None),
}
_SPECIAL = (math.nan, math.inf, -math.inf)
_STEPS = (0, 250, 1_000, 1_000, 1, 2_500, 4_000, 10_000)  # milliseconds from one row to the next
_DELAYS = (0, 0, 0, 0, 0, 400, 2_000, 5_000, 20_000)  # milliseconds a row lags behind
_TIMINGS = len(_STEPS) * len(_DELAYS)  # and one more timing: no event time


def _prepare_rows() -> Iterator[dict[str, Any]]:
    """Yield the simplest row, all rows that differ from it in one column, many random rows, and rows with special doubles."""
    simplest = {name: pool[0] for name, pool in _POOLS.items()}
    yield simplest
    for name, pool in _POOLS.items():
        yield from ({**simplest, name: value} for value in pool[1:])
    random = Random(7)
    for _ in range(300):
        yield {name: random.choice(pool) for name, pool in _POOLS.items()}
    yield from ({name: random.choice(pool) for name, pool in _POOLS.items()} | {"y": special} for special in _SPECIAL * 3)


_ROWS = tuple({name: row[name] for name in SCHEMA.names if name != "time"} for row in _prepare_rows())
_PLAIN = len(_ROWS) - 3 * len(_SPECIAL)


@dataclass(frozen=True, slots=True)
class RowCode:
    """An undecoded row: `fields` is the index of the prepared row, `timing` the time step and delay."""

    fields: int
    timing: int


def row_codes(*, special: bool = True) -> st.SearchStrategy[RowCode]:
    """Draw a row; `special` allows NaN, infinities and missing event times."""
    values = st.integers(0, (len(_ROWS) if special else _PLAIN) - 1)
    return st.tuples(values, st.integers(0, _TIMINGS - (not special))).map(lambda pair: RowCode(*pair))


def decode(codes: Sequence[RowCode], clock: int) -> tuple[list[dict[str, Any]], int]:
    """Return the rows, and the clock (milliseconds since BASE) after them."""
    rows = []
    for code in codes:
        back, step = divmod(code.timing, len(_STEPS))
        clock += _STEPS[step]
        missing = code.timing == _TIMINGS
        rows.append(_ROWS[code.fields] | {"time": None if missing else BASE + timedelta(milliseconds=clock - _DELAYS[back])})
    return rows, clock


def streams() -> st.SearchStrategy[tuple[Stream, ...]]:
    """Draw streams `alpha` and `beta`, each with its own watermark delay."""
    delays = st.sampled_from([0, 2_000_000, 500_000, 10_000_000, 3_600_000_000])
    return st.tuples(delays, delays).map(
        lambda pair: (Stream("alpha", SCHEMA, "time", pair[0]), Stream("beta", SCHEMA, "time", pair[1])),
    )
