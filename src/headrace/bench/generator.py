"""Rows made once, in advance, and handed out over and over: only their times are new.

A pool holds one partition's share of them. Row i of the partition is row i of the pool, modulo its length, and row
i × partitions + p of the stream; taking rows is slicing, nothing is copied. Columns that must not repeat (Nexmark's numbers)
advance each time around; the relations of TPC-H come again as they are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench import chain, nexmark, tpch
from headrace.bench.distribution import Keys, draw
from headrace.bench.stream import StreamSpec
from headrace.connectors import generate

_KEYS_SEEN = 4  # a pool has this many rows a key, so that nearly all keys of the range do come
_LARGEST_POOL = 16_000_000  # rows; of a range of keys beyond it only some do come
_SMALL_RELATION = 1 << 16  # rows: one that is not larger has equally many rows of each key in its pools
_SMALLEST_POOL = 1 << 12  # rows: what is handed out ends with the pool, and few rows at a time are dear


@dataclass(frozen=True, slots=True)
class Pool:
    """The rows of one partition but for their times; `advancing` is by how much a column grows each time around."""

    columns: Mapping[str, pa.Array]
    rows: int
    advancing: Mapping[str, int] = field(default_factory=dict)

    def cuts(self, start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
        """Cut rows [start, stop) into parts of at most `most`, none of which goes beyond the end of the pool."""
        while start < stop:
            end = min(stop, start + most, start - start % self.rows + self.rows)
            yield start, end
            start = end

    def column(self, name: str, start: int, stop: int) -> pa.Array:
        """Return a column of rows [start, stop), which must lie within one time around."""
        around, at = divmod(start, self.rows)
        found = self.columns[name].slice(at, stop - start)
        step = self.advancing.get(name, 0) * around
        return pc.add(found, pa.scalar(step, found.type)) if step else found


def pools(spec: StreamSpec) -> list[Pool]:
    """Return a pool for each partition of a stream."""
    made, advancing = _made(spec)
    rows = len(next(iter(made.values()))) // spec.partitions
    return [
        Pool({name: _every(column, spec.partitions, p) for name, column in made.items()}, rows, advancing)
        for p in range(spec.partitions)
    ]


def _made(spec: StreamSpec) -> tuple[dict[str, pa.Array], dict[str, int]]:
    """Return the columns of all partitions, equally many rows for each, and by how much some of them advance."""
    if spec.generator in nexmark.SCHEMAS:
        return _nexmark(spec)
    if spec.generator in tpch.SCHEMAS:
        return _tpch(spec), {}
    if spec.generator in chain.SCHEMAS:
        return chain.columns(spec.seed, spec.keys, spec.field_max, _whole(spec.pool_rows, spec.partitions)), {}
    return _keyed(spec)


def _whole(rows: int, unit: int) -> int:
    """Return the next multiple."""
    return -(-rows // unit) * unit


def _every(column: pa.Array, step: int, first: int) -> pa.Array:
    return column if step == 1 else column.take(pa.array(np.arange(first, len(column), step)))


def _keyed(spec: StreamSpec) -> tuple[dict[str, pa.Array], dict[str, int]]:
    unit = math.lcm(spec.partitions, spec.keys) if spec.distribution == "round_robin" else spec.partitions
    seen = _KEYS_SEEN * spec.keys if spec.distribution != "single" else 0
    wanted = max(spec.pool_rows, seen if seen <= _LARGEST_POOL else 0)
    rows = _whole(wanted, unit)
    names = [name for name in spec.schema.names if name not in {spec.time, spec.key_column}]
    table = generate(spec.generator, spec.seed, 0, rows, columns=names, field_max=spec.field_max)
    found = {name: table.column(name).combine_chunks() for name in names}
    seed = (spec.seed, zlib.crc32(spec.generator.encode()))  # keys of two streams are not drawn alike
    keys = draw(spec.distribution, seed, rows, spec.keys)
    advancing = {}
    if spec.match_every:
        rows -= rows % (2 * spec.partitions)
        keys = _matching(keys[:rows], spec)
        found = {name: column[:rows] for name, column in found.items()}
        advancing = {spec.key_column: -rows}  # an even number: what is odd stays odd
    found[spec.key_column] = pa.array(keys)
    return {name: found[name] for name in _without_time(spec)}, advancing


def _matching(keys: Keys, spec: StreamSpec) -> Keys:
    """Return keys of which every so many are those of the same row in other streams: below zero, and so apart from the rest."""
    own = keys * np.int32(2) + np.int32(spec.seed % 2)
    own[:: spec.match_every] = -1 - np.arange(0, len(own), spec.match_every, dtype=np.int32)
    return own


def _nexmark(spec: StreamSpec) -> tuple[dict[str, pa.Array], dict[str, int]]:
    rounds = nexmark.rounds(spec.partitions)
    made = nexmark.columns(spec.generator, spec.seed, rounds)
    steps = {name: rounds * nexmark.PROPORTIONS[whose] for name, whose in nexmark.ADVANCING[spec.generator].items()}
    return {name: made[name] for name in _without_time(spec)}, steps


def _tpch(spec: StreamSpec) -> dict[str, pa.Array]:
    """Return a relation as often as fills pools of equal parts; of a large one a few rows come once more instead."""
    made = tpch.columns(spec.generator, spec.seed, spec.scale)
    rows = len(next(iter(made.values())))
    if rows * spec.partitions <= _SMALL_RELATION:
        unit = math.lcm(rows, spec.partitions)
        wanted = _whole(_SMALLEST_POOL * spec.partitions, unit)
    else:
        wanted = _whole(rows, spec.partitions)
    again = pa.array(np.arange(wanted) % rows)
    return {name: made[name].take(again) for name in _without_time(spec)}


def _without_time(spec: StreamSpec) -> Sequence[str]:
    return [name for name in spec.schema.names if name != spec.time]
