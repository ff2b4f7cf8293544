"""Equality keys of the two sides of a window join: an index over the build side, and look-ups from the probe side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.searching import is_integral_type
from headrace.kernels import compiled_join
from headrace.kernels.columns import ALL_VALID, combine_chunks, to_numbers, valid_mask
from headrace.kernels.keys import encode_keys

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """Build rows with the key of a probe row: order[starts[k]:starts[k + 1]], where k = codes[row]; k = −1: none."""

    codes: Integers
    starts: Integers
    order: Integers


def match_keys(probe: Sequence[pa.Array], build: Sequence[pa.Array]) -> KeyMatches:
    """Match keys of any number and type; a NULL matches nothing."""
    packed = _pack_keys(probe, build)
    if packed is not None:
        (probe_keys, probe_valid), (build_keys, build_valid) = packed
        return KeyMatches(*compiled_join.index_keys(build_keys, build_valid, probe_keys, probe_valid))
    rows = len(probe[0])
    encoded = encode_keys(
        [
            pa.concat_arrays([combine_chunks(probe_column), combine_chunks(build_column)])
            for probe_column, build_column in zip(probe, build, strict=True)
        ],
        rows + len(build[0]),
    )
    codes = encoded.codes.copy()
    codes[~np.concatenate([_mask_valid_rows(probe), _mask_valid_rows(build)])] = -1
    return KeyMatches(codes[:rows], *compiled_join.group_rows_by_key(codes[rows:], encoded.count))


PackedKeys = tuple[Integers, npt.NDArray[np.bool_]]


def _pack_keys(probe: Sequence[pa.Array], build: Sequence[pa.Array]) -> tuple[PackedKeys, PackedKeys] | None:
    """Return each key as one integer, if the types and the value range allow it."""
    if not all(is_integral_type(column.type) for column in probe):
        return None
    probe_columns, build_columns = (
        [to_numbers(combine_chunks(column)) for column in probe],
        [to_numbers(combine_chunks(column)) for column in build],
    )
    if len(probe) == 1:
        probe_keys, build_keys = probe_columns[0].astype(np.int64, copy=False), build_columns[0].astype(np.int64, copy=False)
    else:
        value_range = 1
        probe_keys, build_keys = np.zeros(len(probe_columns[0]), np.int64), np.zeros(len(build_columns[0]), np.int64)
        for probe_values, build_values in zip(probe_columns, build_columns, strict=True):
            ends = [
                int(extreme(values)) for values in (probe_values, build_values) if values.size for extreme in (np.min, np.max)
            ]
            low, high = min(ends, default=0), max(ends, default=0)
            value_range *= high - low + 1
            if value_range >= 1 << 62:
                return None
            compiled_join.fold_keys(probe_values, low, high - low + 1, probe_keys)
            compiled_join.fold_keys(build_values, low, high - low + 1, build_keys)
    return (probe_keys, _build_validity_mask(probe)), (build_keys, _build_validity_mask(build))


def _build_validity_mask(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    return ALL_VALID if all(column.null_count == 0 for column in columns) else _mask_valid_rows(columns)


def _mask_valid_rows(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    mask = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        valid = valid_mask(combine_chunks(column))
        if valid.size:
            mask &= valid
    return mask
