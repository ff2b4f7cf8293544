"""Rows of a relation that wait for partners, with the indexes that partners are looked up by.

They are immutable. What a batch stores is one bucket for each store and partition; from time to time neighbours are made one,
without rows that nobody wants any more, so that there are never many. A row's birth is the batch that stored it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.multiway.tuples import Bits, Integers, Packed
from headrace.execution.searching import SortedIndex, sorted_index
from headrace.kernels import compiled_probe
from headrace.kernels.columns import ALL_VALID, flat, numbers, validity
from headrace.kernels.expression import Evaluator
from headrace.kernels.keys import hashes
from headrace.kernels.sets import Sets, widened
from headrace.model.expression import Expression
from headrace.sharing.multiway.asked import time_of

Keys = tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HashIndex:
    """Rows by the hash of their key; those with a NULL in it are left out. See `compiled_probe.index_hashes`."""

    directory: Integers
    hashes: Bits
    order: npt.NDArray[np.int32]
    bits: int


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Rows of a relation; `births` has the batch of each, `fresh` (of rows of this batch) what is new in them."""

    columns: dict[str, pa.Array]
    sets: Sets
    births: npt.NDArray[np.int32]
    fresh: Bits
    meant: int  # the batch as of which bits of query-sets mean queries
    by_hash: dict[Keys, HashIndex] = field(default_factory=dict)
    by_value: dict[Expression, SortedIndex] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.sets)

    @property
    def bytes(self) -> int:
        """About how many bytes they take, without indexes."""
        own = self.sets.nbytes + self.births.nbytes + self.fresh.nbytes
        return int(own + sum(column.nbytes for column in self.columns.values()))

    def times(self, relation: str) -> Integers:
        """Return the event times of a relation's rows."""
        return numbers(flat(self.columns[time_of(relation)]))

    def evaluate(self, expression: Expression) -> pa.Array:
        """Return the values of an expression over the columns."""
        return flat(Evaluator(self.columns, self.rows)(expression))

    def with_columns(self, types: Mapping[str, pa.DataType]) -> Stored:
        """Return the rows with all of these columns; those that nobody looked at when they were stored are NULL."""
        lacking = {name: pa.nulls(self.rows, kind) for name, kind in types.items() if name not in self.columns}
        return replace(self, columns={**self.columns, **lacking}) if lacking else self

    def hash_index(self, keys: Keys) -> HashIndex:
        """Return the index by some keys; it is made where it was not foreseen."""
        if keys not in self.by_hash:
            self.by_hash[keys] = hash_index([self.evaluate(key) for key in keys], self.rows)
        return self.by_hash[keys]

    def sorted_index(self, value: Expression) -> SortedIndex:
        """Return the index by a value; it is made where it was not foreseen."""
        if value not in self.by_value:
            self.by_value[value] = sorted_index(self.evaluate(value))
        return self.by_value[value]


def hash_index(columns: Sequence[pa.Array], rows: int) -> HashIndex:
    """Return an index over keys."""
    bits = max(1, rows.bit_length() - 1)
    directory, ordered, order = compiled_probe.index_hashes(hashes(columns, rows), valid_keys(columns), bits)
    return HashIndex(directory, ordered, order, bits)


def valid_keys(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Tell which rows have no NULL in their key; an empty array if none has."""
    found = [validity(column) for column in columns if column.null_count]
    return np.logical_and.reduce(found) if found else ALL_VALID


def stored(parts: Sequence[Packed], batch: int, hashed: Iterable[Keys], sorted_by: Iterable[Expression], width: int) -> Stored:
    """Return rows that a batch stores, with the indexes that probes will ask for."""
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    columns = {name: pa.concat_arrays([part.columns[name] for part in parts]) for name in names}
    sets = np.concatenate([widened(part.sets, width) for part in parts])
    births, fresh = np.full(len(sets), batch, np.int32), np.concatenate([part.fresh for part in parts])
    found = Stored(columns, sets, births, fresh, batch)
    return indexed(found, hashed, sorted_by)


def indexed(found: Stored, hashed: Iterable[Keys], sorted_by: Iterable[Expression]) -> Stored:
    """Make the indexes that will be asked for; return the rows."""
    for keys in hashed:
        found.hash_index(keys)
    for value in sorted_by:
        found.sorted_index(value)
    return found


def united(buckets: Sequence[Stored], kept: Sequence[Integers], width: int, meant: int) -> Stored:
    """Return some rows of several buckets as one bucket, without indexes; a column that one lacks is NULL there.

    Bits must mean the same in all of them: what they mean as of batch `meant`.
    """
    types = {name: column.type for one in buckets for name, column in one.columns.items()}
    columns = {}
    for name, kind in types.items():
        pieces = []
        for one, rows in zip(buckets, kept, strict=True):
            column = one.columns.get(name)
            pieces.append(pa.nulls(len(rows), kind) if column is None else column.take(pa.array(rows)))
        columns[name] = pa.concat_arrays(pieces)
    pairs = list(zip(buckets, kept, strict=True))
    sets = np.concatenate([widened(one.sets, width)[rows] for one, rows in pairs])
    births = np.concatenate([one.births[rows] for one, rows in pairs])
    return Stored(columns, sets, births, np.zeros(len(sets), np.uint64), meant)
