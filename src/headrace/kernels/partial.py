"""Partial aggregates of a slice, sparse by key and cell: the form that is shuffled, stored, and read when windows close."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

IntegerArray = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ValueEntries:
    """Values stored individually (distinct values, extremes of strings): key code, cell, value columns, counts."""

    keys: IntegerArray
    cells: IntegerArray
    values: list[pa.Array]
    counts: IntegerArray


@dataclass(frozen=True, slots=True)
class PartialAggregate:
    """Partial aggregates of some rows of a slice, for one shared aggregation.

    The cells of key k are the entries starts[k] … starts[k + 1] − 1, ascending by cell. `dense[c]` has the 64-bit arrays of
    component c, parallel to them (none for a listed component, whose entries are in `listed[c]`).
    """

    slice_start: int
    keys: list[pa.Array]
    starts: IntegerArray
    cells: IntegerArray
    dense: list[list[IntegerArray]]
    listed: dict[int, ValueEntries] = field(default_factory=dict)

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return len(self.starts) - 1

    @property
    def bytes(self) -> int:
        """Approximate size of the arrays in bytes; an array that is used several times counts once."""
        dense = {id(array): array.nbytes for arrays in self.dense for array in arrays}
        columns = [*self.keys, *(value for entries in self.listed.values() for value in entries.values)]
        return int(self.starts.nbytes + self.cells.nbytes + sum(dense.values()) + sum(column.nbytes for column in columns))


def find_group_starts(sorted_codes: IntegerArray) -> tuple[IntegerArray, IntegerArray]:
    """Return (distinct codes, start of each and the end) of an ascending array."""
    heads = (
        np.flatnonzero(np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]]))
        if sorted_codes.size
        else np.zeros(0, np.int64)
    )
    return sorted_codes[heads], np.append(heads, sorted_codes.size)
