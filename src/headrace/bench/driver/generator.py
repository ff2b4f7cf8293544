"""Row generation: build pools of rows in advance and reuse them with new event times.

A pool holds one partition's share. Row i of the partition is row i modulo the pool length, and row i × partitions + p of the
stream; reading rows is slicing, without a copy. Columns that must not repeat (Nexmark's numbers) advance with every pass over the
pool; the relations of TPC-H repeat unchanged.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.driver import nexmark, tpch
from headrace.bench.driver.distributions import KeyArray, draw_keys
from headrace.bench.driver.streams import StreamSpec
from headrace.connectors import generate

_ROWS_PER_KEY = 4  # enough for nearly all keys of the range to occur
_MAX_POOL_ROWS = 16_000_000  # rows; of a range of keys beyond it only some occur
_SMALL_RELATION_ROWS = 1 << 16  # rows; up to this size every key has equally many rows in the pools
_MIN_POOL_ROWS = 1 << 12  # rows; a read ends at the end of the pool, and small reads are slow


@dataclass(frozen=True, slots=True)
class RowPool:
    """The rows of one partition without their times; `increments` is the increment of a column for each pass over the pool."""

    columns: Mapping[str, pa.Array]
    rows: int
    increments: Mapping[str, int] = field(default_factory=dict)

    def split_range(self, start: int, stop: int, max_rows: int) -> Iterator[tuple[int, int]]:
        """Split rows [start, stop) into ranges of at most `max_rows` rows that do not cross the end of the pool."""
        while start < stop:
            end = min(stop, start + max_rows, start - start % self.rows + self.rows)
            yield start, end
            start = end

    def slice_column(self, name: str, start: int, stop: int) -> pa.Array:
        """Return a column of rows [start, stop), which must lie within one pass over the pool."""
        passes, offset = divmod(start, self.rows)
        values = self.columns[name].slice(offset, stop - start)
        increment = self.increments.get(name, 0) * passes
        return pc.add(values, pa.scalar(increment, values.type)) if increment else values


def build_pools(spec: StreamSpec) -> list[RowPool]:
    """Build a pool for each partition of a stream."""
    columns, increments = _generate_columns(spec)
    rows = len(next(iter(columns.values()))) // spec.partitions
    return [
        RowPool({name: _take_every(column, spec.partitions, partition) for name, column in columns.items()}, rows, increments)
        for partition in range(spec.partitions)
    ]


def _generate_columns(spec: StreamSpec) -> tuple[dict[str, pa.Array], dict[str, int]]:
    """Generate the columns of all partitions, equally many rows for each, and the increments of advancing columns."""
    if spec.generator in nexmark.NEXMARK_SCHEMAS:
        return _generate_nexmark(spec)
    if spec.generator in tpch.TPCH_SCHEMAS:
        return _generate_tpch(spec), {}
    if spec.generator in tpch.CHAIN_SCHEMAS:
        return tpch.generate_chain(spec.seed, spec.keys, spec.field_max, _round_up(spec.pool_rows, spec.partitions)), {}
    return _generate_keyed(spec)


def _round_up(rows: int, unit: int) -> int:
    """Return the next multiple of `unit`."""
    return -(-rows // unit) * unit


def _take_every(column: pa.Array, step: int, first: int) -> pa.Array:
    return column if step == 1 else column.take(pa.array(np.arange(first, len(column), step)))


def _generate_keyed(spec: StreamSpec) -> tuple[dict[str, pa.Array], dict[str, int]]:
    unit = math.lcm(spec.partitions, spec.keys) if spec.distribution == "round_robin" else spec.partitions
    rows_for_keys = _ROWS_PER_KEY * spec.keys if spec.distribution != "single" else 0
    wanted_rows = max(spec.pool_rows, rows_for_keys if rows_for_keys <= _MAX_POOL_ROWS else 0)
    rows = _round_up(wanted_rows, unit)
    names = [name for name in spec.schema.names if name not in {spec.time_column, spec.key_column}]
    table = generate(spec.generator, spec.seed, 0, rows, columns=names, field_max=spec.field_max)
    columns = {name: table.column(name).combine_chunks() for name in names}
    seed = (spec.seed, zlib.crc32(spec.generator.encode()))  # different streams draw different keys
    keys = draw_keys(spec.distribution, seed, rows, spec.keys)
    increments = {}
    if spec.match_every:
        rows -= rows % (2 * spec.partitions)
        keys = _assign_matching_keys(keys[:rows], spec)
        columns = {name: column[:rows] for name, column in columns.items()}
        increments = {spec.key_column: -rows}  # even, so that the parity of keys is preserved
    columns[spec.key_column] = pa.array(keys)
    return {name: columns[name] for name in _non_time_columns(spec)}, increments


def _assign_matching_keys(keys: KeyArray, spec: StreamSpec) -> KeyArray:
    """Replace every `match_every`-th key by a negative key that only the same row of other streams has."""
    stream_keys = keys * np.int32(2) + np.int32(spec.seed % 2)
    stream_keys[:: spec.match_every] = -1 - np.arange(0, len(stream_keys), spec.match_every, dtype=np.int32)
    return stream_keys


def _generate_nexmark(spec: StreamSpec) -> tuple[dict[str, pa.Array], dict[str, int]]:
    rounds = nexmark.count_rounds(spec.partitions)
    columns = nexmark.generate_events(spec.generator, spec.seed, rounds)
    increments = {
        name: rounds * nexmark.ROWS_PER_ROUND[entity] for name, entity in nexmark.ADVANCING_COLUMNS[spec.generator].items()
    }
    return {name: columns[name] for name in _non_time_columns(spec)}, increments


def _generate_tpch(spec: StreamSpec) -> dict[str, pa.Array]:
    """Repeat a relation until it fills pools of equal parts; of a large relation repeat only a few rows."""
    columns = tpch.generate_relation(spec.generator, spec.seed, spec.scale)
    rows = len(next(iter(columns.values())))
    if rows * spec.partitions <= _SMALL_RELATION_ROWS:
        unit = math.lcm(rows, spec.partitions)
        wanted_rows = _round_up(_MIN_POOL_ROWS * spec.partitions, unit)
    else:
        wanted_rows = _round_up(rows, spec.partitions)
    indexes = pa.array(np.arange(wanted_rows) % rows)
    return {name: columns[name].take(indexes) for name in _non_time_columns(spec)}


def _non_time_columns(spec: StreamSpec) -> Sequence[str]:
    return [name for name in spec.schema.names if name != spec.time_column]
