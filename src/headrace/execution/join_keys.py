"""The keys of the two sides of a join: an index over the right side, and look-ups from the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.searching import is_whole
from headrace.kernels import compiled_join
from headrace.kernels.columns import ALL_VALID, flat, numbers, validity
from headrace.kernels.keys import encode

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matched:
    """Which right rows have the key of a left row: those of order[starts[k]:starts[k + 1]], where k = codes[row]; −1: none."""

    codes: Integers
    starts: Integers
    order: Integers


def match_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Matched:
    """Match keys of any number and type; a NULL has no partner."""
    packed = _packed(left, right)
    if packed is not None:
        (one, one_valid), (two, two_valid) = packed
        return Matched(*compiled_join.index_keys(two, two_valid, one, one_valid))
    rows = len(left[0])
    found = encode([pa.concat_arrays([flat(a), flat(b)]) for a, b in zip(left, right, strict=True)], rows + len(right[0]))
    codes = found.codes.copy()
    codes[~np.concatenate([_valid(left), _valid(right)])] = -1
    return Matched(codes[:rows], *compiled_join.by_key(codes[rows:], found.count))


Packed = tuple[Integers, npt.NDArray[np.bool_]]


def _packed(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Packed, Packed] | None:
    """Return keys as one integer each, if their types and the room they take allow it."""
    if not all(is_whole(column.type) for column in left):
        return None
    ones, twos = [numbers(flat(c)) for c in left], [numbers(flat(c)) for c in right]
    if len(left) == 1:
        one, two = ones[0].astype(np.int64, copy=False), twos[0].astype(np.int64, copy=False)
    else:
        room = 1
        one, two = np.zeros(len(ones[0]), np.int64), np.zeros(len(twos[0]), np.int64)
        for a, b in zip(ones, twos, strict=True):
            ends = [int(f(side)) for side in (a, b) if side.size for f in (np.min, np.max)]
            low, high = min(ends, default=0), max(ends, default=0)
            room *= high - low + 1
            if room >= 1 << 62:
                return None
            compiled_join.fold_keys(a, low, high - low + 1, one)
            compiled_join.fold_keys(b, low, high - low + 1, two)
    return (one, _mask(left)), (two, _mask(right))


def _mask(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    return ALL_VALID if all(column.null_count == 0 for column in columns) else _valid(columns)


def _valid(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    found = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        valid = validity(flat(column))
        if valid.size:
            found &= valid
    return found
