"""Equal keys to equal numbers, for the two sides of a join: an index over one side, and look-ups from the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels import compiled_join
from headrace.kernels.columns import ALL_VALID, flat, numbers, validity
from headrace.kernels.keys import encode

Integers = npt.NDArray[np.int64]


def match_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Integers, Integers, int]:
    """Return (numbers of left rows, of right rows, how many); −1 where there is no partner, as for any NULL."""
    packed = _packed(left, right)
    if packed is not None:
        (one, one_valid), (two, two_valid) = packed
        rights, lefts, count = compiled_join.number_keys(two, two_valid, one, one_valid)
        return lefts, rights, int(count)
    rows = len(left[0])
    found = encode([pa.concat_arrays([flat(a), flat(b)]) for a, b in zip(left, right, strict=True)], rows + len(right[0]))
    codes = found.codes.copy()
    codes[~np.concatenate([_valid(left), _valid(right)])] = -1
    return codes[:rows], codes[rows:], found.count


Packed = tuple[Integers, npt.NDArray[np.bool_]]


def _packed(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Packed, Packed] | None:
    """Return keys as one integer each, if their types and the room they take allow it."""
    if not all(_is_whole(column.type) for column in left):
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
            one = one * (high - low + 1) + (a.astype(np.int64) - low)
            two = two * (high - low + 1) + (b.astype(np.int64) - low)
    return (one, _mask(left)), (two, _mask(right))


def _is_whole(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= 18)
    )


def _mask(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    return ALL_VALID if all(column.null_count == 0 for column in columns) else _valid(columns)


def _valid(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    found = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        valid = validity(flat(column))
        if valid.size:
            found &= valid
    return found
