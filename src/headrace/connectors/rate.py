"""Rate source: synthetic rows at a constant rate, for demonstrations and benchmarks.

Row i is a pure function of the generator's parameters and i. Any worker can therefore generate any range at any time without
state, a replay gives the same rows, and two machines agree. Random values are splitmix64 of a counter, with one sequence for
each column.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.formats import to_utc
from headrace.connectors.source import RANGE_ROWS, Option, Position, Range, require_attached
from headrace.errors import SchemaError
from headrace.model.types import TIMESTAMP, Schema
from headrace.storage.documents import get_document, put_document
from headrace.storage.store import Store

DEFAULT_START_TIME = 1_767_225_600_000_000  # 2026-01-01T00:00Z

_Array: TypeAlias = npt.NDArray[Any]
_BLOCK_ROWS = 1 << 15  # rows generated at a time, so that intermediate arrays stay in the CPU cache
_GOLDEN, _MIX_1, _MIX_2, _MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """The parameters of a generator: with its number, they determine a row."""

    generator: str
    seed: int = 0
    rows_per_second: float = 1000
    start_time: int = DEFAULT_START_TIME  # microseconds
    keys: int = 1000
    field_max: int = 1000

    def __post_init__(self) -> None:
        """Raise SchemaError for invalid parameters."""
        if self.generator not in GENERATORS:
            raise SchemaError(f"unknown generator '{self.generator}'", detail=f"generators: {', '.join(GENERATORS)}")
        if not self.rows_per_second > 0:
            raise SchemaError(f"rows_per_second is {self.rows_per_second}, but must be positive")
        for name in ("keys", "field_max"):
            if not 0 < getattr(self, name) < 1 << 31:
                raise SchemaError(f"{name} is {getattr(self, name)}, but must be positive and fit an INT")


def uniform_integers(recipe: GeneratorSpec, column: str, index: _Array, below: int) -> _Array:
    """Return uniform random integers in [0, below), as INT, for an array of row numbers."""
    base = np.uint64(_splitmix(recipe.seed ^ zlib.crc32(f"{recipe.generator}.{column}".encode()) << 31))
    z = index.astype(np.uint64)
    z *= np.uint64(_GOLDEN)
    z += base
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX_2)
    z >>= np.uint64(32)  # the upper half has the better randomness, and the last step of splitmix64 does not change it
    z *= np.uint64(below)
    z >>= np.uint64(32)
    return z.astype(np.int32)


def _splitmix(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = (x ^ x >> 30) * _MIX_1 & _MASK
    x = (x ^ x >> 27) * _MIX_2 & _MASK
    return x ^ x >> 31


def event_times(recipe: GeneratorSpec, index: _Array) -> _Array:
    """Return start_time + i / rows_per_second in microseconds, rounded down, for an array of row numbers i."""
    rate = recipe.rows_per_second
    if float(rate).is_integer():
        return index * 1_000_000 // int(rate) + recipe.start_time
    return np.floor(index * (1_000_000 / rate)).astype(np.int64) + recipe.start_time


def _time_column(recipe: GeneratorSpec, _: str, index: _Array) -> _Array:
    return event_times(recipe, index)


def _key_column(recipe: GeneratorSpec, column: str, index: _Array) -> _Array:
    return uniform_integers(recipe, column, index, recipe.keys)


def _round_robin_column(recipe: GeneratorSpec, _: str, index: _Array) -> _Array:
    return (index % recipe.keys).astype(np.int32)


def _field_column(recipe: GeneratorSpec, column: str, index: _Array) -> _Array:
    return uniform_integers(recipe, column, index, recipe.field_max)


def _uniform_column(limit: int) -> _ColumnFunction:
    return lambda recipe, column, index: uniform_integers(recipe, column, index, limit)


def _cents_column(limit: int) -> _ColumnFunction:
    return lambda recipe, column, index: uniform_integers(recipe, column, index, limit) / 100.0


_ColumnFunction: TypeAlias = Callable[[GeneratorSpec, str, _Array], _Array]


@dataclass(frozen=True, slots=True)
class StreamGenerator:
    """The schema of a synthetic stream, and the function of each column."""

    schema: Schema
    columns: Mapping[str, _ColumnFunction]


GENERATORS: Mapping[str, StreamGenerator] = {
    "purchases": StreamGenerator(
        Schema.parse("user_id INT, gem_pack INT, price DOUBLE, time TIMESTAMP"),
        {"user_id": _key_column, "gem_pack": _uniform_column(10), "price": _cents_column(10_000), "time": _time_column},
    ),
    "ads": StreamGenerator(
        Schema.parse("ad_id INT, user_id INT, gem_pack INT, cost DOUBLE, time TIMESTAMP"),
        {
            "ad_id": _uniform_column(100),
            "user_id": _key_column,
            "gem_pack": _uniform_column(10),
            "cost": _cents_column(10_000),
            "time": _time_column,
        },
    ),
    "fields": StreamGenerator(
        Schema.parse("key INT, f1 INT, f2 INT, f3 INT, f4 INT, f5 INT, time TIMESTAMP"),
        {
            "key": _round_robin_column,
            "f1": _field_column,
            "f2": _field_column,
            "f3": _field_column,
            "f4": _field_column,
            "f5": _field_column,
            "time": _time_column,
        },
    ),
}


def generate(name: str, seed: int, start: int, stop: int, *, columns: Sequence[str] | None = None, **more: Any) -> pa.Table:
    """Return rows [start, stop) of a generator as a table; `more` are further parameters, such as `rows_per_second` or `keys`.

    Raises SchemaError for an unknown generator or an invalid parameter.
    """
    return _generate_columns(GeneratorSpec(name, seed, **more), start, stop, columns or GENERATORS[name].schema.names)


def generate_range(options: Mapping[str, Option], start: int, stop: int, columns: Sequence[str]) -> pa.Table:
    """Return the columns of rows [start, stop), with the generator's parameters from the options of an input range."""
    parameters: dict[str, Any] = {name: options[name] for name in GeneratorSpec.__slots__ if name in options}
    return _generate_columns(GeneratorSpec(**parameters), start, stop, columns)


def _generate_columns(recipe: GeneratorSpec, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
    generator, arrays = GENERATORS[recipe.generator], []
    kinds = {field.name: field.type for field in generator.schema}
    for name in columns:
        values = np.empty(stop - start, np.int64 if kinds[name] == TIMESTAMP else kinds[name].to_pandas_dtype())
        for first in range(start, stop, _BLOCK_ROWS):
            index = np.arange(first, min(first + _BLOCK_ROWS, stop), dtype=np.int64)
            values[first - start : first - start + len(index)] = generator.columns[name](recipe, name, index)
        array = pa.array(values)
        arrays.append(array.view(TIMESTAMP) if kinds[name] == TIMESTAMP else array)
    return pa.Table.from_arrays(arrays, schema=pa.schema([(name, kinds[name]) for name in columns]))


_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_START_FILE = "start.json"


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
        self._stream, self._store, self._started_at = "", None, 0.0  # type: tuple[str, Store | None, float]

    @property
    def schema(self) -> Schema:
        """The columns of the generator."""
        return GENERATORS[self._spec.generator].schema

    def attach(self, stream: str, store: Store) -> None:
        """See `Source`; stores the start time on the first call, and loads it after a restart."""
        self._stream, self._store = stream, store
        if store.find_size(_START_FILE) is None:
            put_document(store, _START_FILE, {"started": self._clock()})
        self._started_at = get_document(store, _START_FILE)["started"]

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

    def count_lag(self, position: Position) -> int:
        """See `Source`."""
        return max(0, self._count_available() - _next_row(position))

    def definition(self) -> dict[str, Any]:
        """See `Source`; the clock is not part of the definition."""
        return {"kind": "rate", **asdict(self._spec), "rows": self._row_limit}

    def _count_available(self) -> int:
        require_attached(self._stream, self._store)
        due = int((self._clock() - self._started_at) * self._spec.rows_per_second)
        return due if self._row_limit is None else min(due, self._row_limit)


def _next_row(position: Position) -> int:
    return 0 if position is None else int(position["row"])


def _to_microseconds(start_time: datetime | str) -> int:
    try:
        return (to_utc(start_time) - _UNIX_EPOCH) // timedelta(microseconds=1)
    except ValueError as error:
        raise SchemaError(f"invalid start_time '{start_time}'", hint="write 2026-01-01T00:00:00Z") from error
