"""Group keys: encode rows to small codes, hash keys to partitions, and unify the codes of several sources.

Keys of any number and type become one code per row; the distinct keys are stored beside it as Arrow columns. NULL is a key;
NaN is one key; −0.0 and 0.0 are the same key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute.columns import combine_chunks, from_numbers, take, to_numbers, valid_mask
from headrace.engine.kernels import group as group_kernels
from headrace.engine.kernels import select as select_kernels
from headrace.model.partition_map import HASH_BITS, PartitionMap

KeyCodes = npt.NDArray[np.int64]
_MIN_DIRECT_SPAN = 1 << 12


@dataclass(frozen=True, slots=True)
class EncodedKeys:
    """Encoded keys: `codes[i]` is the index of the key of row i in `columns`; of the `count` keys some may have no row."""

    codes: KeyCodes
    columns: list[pa.Array]
    count: int


def encode_keys(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> EncodedKeys:
    """Assign codes to the distinct keys of rows."""
    if not columns:
        return EncodedKeys(np.zeros(rows, np.int64), [], 1)
    keys = _encode_column(combine_chunks(columns[0]))
    for column in columns[1:]:
        keys = _combine_keys(keys, _encode_column(combine_chunks(column)))
    return keys


def _encode_column(array: pa.Array) -> EncodedKeys:
    domain = find_direct_domain(array)
    if domain is not None:
        codes = to_numbers(array).astype(np.int64) - domain[0]
        if array.null_count:
            codes[~valid_mask(array)] = len(domain[1]) - 1
        return EncodedKeys(codes, [domain[1]], len(domain[1]))
    if pa.types.is_floating(array.type):
        values = to_numbers(array) + 0.0
        array = from_numbers(
            np.where(np.isnan(values), np.nan, values), array.type, None if array.null_count == 0 else ~valid_mask(array)
        )
    encoded = array.dictionary_encode(null_encoding="encode")
    codes = np.asarray(encoded.indices).astype(np.int64)
    return EncodedKeys(codes, [encoded.dictionary], len(encoded.dictionary))


def find_direct_domain(column: pa.Array | pa.ChunkedArray) -> tuple[int, pa.Array] | None:
    """Return (least value, all values up to the greatest, NULL last) if that domain is small; None otherwise."""
    kind = column.type
    if not pa.types.is_integer(kind) or len(column) == 0:
        return None
    limits = pc.min_max(column).as_py()
    if limits["min"] is None or limits["max"] - limits["min"] >= max(_MIN_DIRECT_SPAN, len(column) // 2):
        return None
    values = pa.array(np.arange(limits["max"] - limits["min"] + 1) + np.int64(limits["min"])).cast(kind)
    return limits["min"], pa.concat_arrays([values, pa.nulls(1, kind)]) if column.null_count else values


def _combine_keys(left: EncodedKeys, right: EncodedKeys) -> EncodedKeys:
    distinct, codes = select_kernels.factorize_values(left.codes * right.count + right.codes)
    columns = [take(c, distinct // right.count) for c in left.columns] + [take(right.columns[0], distinct % right.count)]
    return EncodedKeys(codes, columns, len(distinct))


def assign_partitions(columns: Sequence[pa.Array], count: int, partitions: PartitionMap) -> npt.NDArray[np.int64]:
    """Return the partition of each of `count` keys: a function of the value of the key alone."""
    return find_range_partitions(hash_to_range(columns, count), partitions)


def find_range_partitions(hashes: npt.NDArray[np.int64], partitions: PartitionMap) -> npt.NDArray[np.int64]:
    """Return the partition of each hash that a partition map divides."""
    if partitions.is_equal:
        return (hashes * partitions.count) >> HASH_BITS
    bounds, owners = _get_ranges(partitions)
    return owners[np.searchsorted(bounds, hashes, side="right")]


def hash_to_range(columns: Sequence[pa.Array], count: int) -> npt.NDArray[np.int64]:
    """Return the hash of each of `count` keys that a partition map divides; without columns it is 0."""
    return (hash_keys(columns, count) >> np.uint64(64 - HASH_BITS)).astype(np.int64)


@lru_cache(maxsize=8)
def _get_ranges(partitions: PartitionMap) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.array(partitions.bounds, np.int64), np.array(partitions.owners, np.int64)


def hash_keys(columns: Sequence[pa.Array], count: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each of `count` keys; equal keys have equal hashes, and for a single integer column the hash is unique."""
    state = np.zeros(count, np.uint64)
    for column in columns:
        _mix_column(column, state)
    return state


def _mix_column(column: pa.Array, state: npt.NDArray[np.uint64]) -> None:
    if pa.types.is_string(column.type):
        filled = pc.fill_null(column, "\x00null")
        offsets = np.frombuffer(filled.buffers()[1], np.int32, len(filled) + 1, filled.offset * 4)
        raw = filled.buffers()[2]
        data = np.frombuffer(raw, np.uint8) if raw is not None and len(raw) else np.zeros(1, np.uint8)
        group_kernels.hash_strings(offsets, data, state)
        return
    if pa.types.is_decimal(column.type) and column.type.precision > 18:
        _mix_column(pc.cast(column, pa.string()), state)
        return
    values: Any = to_numbers(column)
    bits = (values + 0.0).view(np.int64) if values.dtype == np.float64 else values.astype(np.int64)
    if values.dtype == np.float64:
        bits = np.where(np.isnan(values), np.int64(0x7FF8 << 48), bits)
    if column.null_count:
        bits = np.where(valid_mask(column), bits, np.int64(-0x5DEECE66D))
    group_kernels.hash_integers(bits, state)


def unify_keys(parts: Sequence[tuple[Sequence[pa.Array], int]]) -> tuple[list[pa.Array], int, list[KeyCodes]]:
    """Give keys of several sources common codes: (columns of all keys, number of keys, for each source old code → new code)."""
    counts = [count for _, count in parts]
    width = len(parts[0][0]) if parts else 0
    columns = [pa.concat_arrays([keys[i] for keys, _ in parts]) for i in range(width)]
    unified = _drop_unused_keys(encode_keys(columns, sum(counts)))
    return unified.columns, unified.count, np.split(unified.codes, np.cumsum(counts)[:-1])


def _drop_unused_keys(keys: EncodedKeys) -> EncodedKeys:
    """Return the keys that occur: of a range of integers, a partition has but its share."""
    used = np.zeros(keys.count, np.bool_)
    used[keys.codes] = True
    if used.all():
        return keys
    places = np.flatnonzero(used)
    new_codes = np.cumsum(used) - 1
    return EncodedKeys(new_codes[keys.codes], [take(column, places) for column in keys.columns], places.size)
