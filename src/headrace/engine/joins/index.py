"""Indexes that find the partners of a row, and the pairs of rows whose query-sets intersect.

For every condition, the candidates of a probe row are a range of positions in some order of the build rows: those of equal
hash, those between the bounds of a range search, or all. A range search has an index of rows sorted by a value (see
`pair_search`). Values are ordered as in SQL: NaN is the greatest value and equals itself, -0.0 equals 0.0, and NULL is in no
range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute.columns import ALL_VALID, combine_chunks, take, to_numbers, valid_mask
from headrace.engine.compute.keys import hash_keys
from headrace.engine.joins.bounds import is_integral_type
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.model.expression import Expression
from headrace.model.record import record

Integers = npt.NDArray[np.int64]
RowIds = npt.NDArray[np.int32]
IndexKeys = tuple[Expression, ...]
_MaybeArrayT = TypeVar("_MaybeArrayT", bound=npt.NDArray[Any] | None)
MAX_PAIRS = 1 << 18  # limit of pairs in memory at once
_ORDERING_FRACTION = 4  # query-sets are copied into the order of an index if at least 1/4 as many rows probe it


@record("hash-index")
@dataclass(frozen=True, slots=True, eq=False)
class HashIndex:
    """Rows by the hash of their key; rows with a NULL in the key are not in the index. See `kernels.join.index_hashes`."""

    directory: RowIds
    hashes: npt.NDArray[np.uint64]
    starts: RowIds
    order: RowIds


@record("sorted-index")
@dataclass(frozen=True, slots=True, eq=False)
class SortedIndex:
    """Rows sorted by a value, ascending (NaN is the greatest); rows with NULL are not in the index."""

    values: npt.NDArray[np.generic]
    order: RowIds


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The candidates of probe row i are the build rows order[ranges[i, 0] : ranges[i, 1]]; without `order`, these positions."""

    ranges: RowIds
    order: RowIds | None

    @property
    def pair_count(self) -> int:
        """The number of candidate pairs."""
        return int((self.ranges[:, 1] - self.ranges[:, 0]).sum(dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class PairLimits:
    """Limits of pairs: the time of the build row is in [low, high] of the probe row, and its insert batch before `before_batch`.

    Without times or insert batches, these are not limited.
    """

    low: Integers | None = None
    high: Integers | None = None
    times: Integers | None = None
    insert_batches: RowIds | None = None
    before_batch: int = 0


NO_LIMITS = PairLimits()


@dataclass(frozen=True, slots=True, eq=False)
class RowPairs:
    """Pairs of probe rows and build rows, by row id, with their query-sets."""

    probe_ids: Integers
    build_ids: Integers
    sets: QueryBitmaps

    @property
    def pair_count(self) -> int:
        """The number of pairs."""
        return len(self.sets)


def concat_pairs(parts: Sequence[RowPairs]) -> RowPairs:
    """Concatenate pairs."""
    if len(parts) == 1:
        return parts[0]
    return RowPairs(*(np.concatenate([getattr(pairs, name) for pairs in parts]) for name in ("probe_ids", "build_ids", "sets")))


def view_read_only(array: _MaybeArrayT) -> _MaybeArrayT:
    """Return a view that cannot be written: stored arrays cannot, new ones can, and numba compiles a version for each mix."""
    if array is None or not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def find_pairs(
    candidates: Candidates, probe_sets: QueryBitmaps, build_sets: QueryBitmaps, limits: PairLimits = NO_LIMITS
) -> Iterator[RowPairs]:
    """Yield the candidate pairs within limits whose query-sets intersect, a bounded number at a time."""
    row_count, width = probe_sets.shape
    in_order = candidates.order is not None and row_count * _ORDERING_FRACTION >= len(build_sets)
    if in_order:
        build_sets = build_sets[candidates.order]
    order, build_sets = view_read_only(candidates.order), view_read_only(build_sets)
    times, insert_batches = view_read_only(limits.times), view_read_only(limits.insert_batches)
    size = min(MAX_PAIRS, candidates.pair_count + 1)  # all pairs, and the kernel still has room when it has found the last one
    row = place = 0
    while row < row_count:
        probe_ids, build_ids, sets = np.empty(size, np.int64), np.empty(size, np.int64), np.empty((size, width), np.uint64)
        count, row, place = join_kernels.find_pairs(
            candidates.ranges,
            order,
            probe_sets,
            build_sets,
            in_order,
            limits.low,
            limits.high,
            times,
            insert_batches,
            limits.before_batch,
            row,
            place,
            probe_ids,
            build_ids,
            sets,
        )
        if count:
            yield RowPairs(probe_ids[:count], build_ids[:count], sets[:count])


def build_hash_index(columns: Sequence[pa.Array], rows: int) -> HashIndex:
    """Return an index over key columns."""
    return HashIndex(*join_kernels.index_hashes(hash_keys(columns, rows), _mask_valid_keys(columns)))


def search_hashes(index: HashIndex, columns: Sequence[pa.Array], rows: int) -> Candidates:
    """Return the build rows whose keys have the hash of the key of each probe row; a NULL matches nothing.

    Unless `is_exact_key`, the equality must still be checked: see `keep_equal_keys`, or as a condition on pairs.
    """
    ranges = join_kernels.look_up_hashes(
        hash_keys(columns, rows), _mask_valid_keys(columns), index.directory, index.hashes, index.starts
    )
    return Candidates(ranges, index.order)


def is_exact_key(keys: Sequence[Expression]) -> bool:
    """Return whether equal hashes of keys imply equal keys."""
    return len(keys) == 1 and is_integral_type(keys[0].type)


def keep_equal_keys(pairs: RowPairs, probe_keys: Sequence[pa.Array], build_keys: Sequence[pa.Array]) -> RowPairs:
    """Return the pairs whose keys are equal, not only the hashes of their keys; no key of a pair is NULL."""
    is_equal = np.ones(pairs.pair_count, np.bool_)
    for probe_key, build_key in zip(probe_keys, build_keys, strict=True):
        is_equal &= _compare_values(take(probe_key, pairs.probe_ids), take(build_key, pairs.build_ids))
    if is_equal.all():
        return pairs
    return RowPairs(pairs.probe_ids[is_equal], pairs.build_ids[is_equal], pairs.sets[is_equal])


def _compare_values(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    is_equal: npt.NDArray[np.bool_] = np.asarray(pc.equal(left, right))
    if pa.types.is_floating(left.type):
        is_equal = is_equal | (np.isnan(to_numbers(left)) & np.isnan(to_numbers(right)))
    return is_equal


def _mask_valid_keys(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return the mask of rows without a NULL in their key; an empty array if no key has a NULL."""
    masks = [valid_mask(column) for column in columns if column.null_count]
    return np.logical_and.reduce(masks) if masks else ALL_VALID


def build_sorted_index(column: pa.Array) -> SortedIndex:
    """Return an index over numeric values."""
    values = to_numbers(column)
    rows = np.flatnonzero(valid_mask(column)) if column.null_count else np.arange(len(values))
    order = rows[np.argsort(values[rows], kind="stable")]
    return SortedIndex(values[order], order.astype(np.int32))


def build_band_indexes(first: pa.Array, second: pa.Array) -> tuple[SortedIndex, SortedIndex] | None:
    """Return indexes over two values that share one row order, which sorts both; None if no such order exists.

    It exists where both values grow together: x - 1 and x + 1, or the ends of intervals of equal length.
    """
    valid = [valid_mask(column) for column in (first, second) if column.null_count]
    rows = np.flatnonzero(np.logical_and.reduce(valid)) if valid else np.arange(len(first))
    first_values, second_values = to_numbers(first)[rows], to_numbers(second)[rows]
    places = np.lexsort((second_values, first_values))
    first_values, second_values, order = first_values[places], second_values[places], rows[places].astype(np.int32)
    grows = (second_values[:-1] <= second_values[1:]) | np.isnan(second_values[1:])
    return (SortedIndex(first_values, order), SortedIndex(second_values, order)) if grows.all() else None


IndexCache = dict[str, Any]
"""Indexes by name (`name_index`); by two values: two sorted indexes that share a row order, or None."""


@lru_cache(maxsize=1 << 12)
def name_index(kind: str, expressions: IndexKeys) -> str:
    """Return the name of an index in state files: the same in all processes, and different for different expressions."""
    return f"{kind} {expressions!r}"


class RowIndexes:
    """The indexes over the rows of a build side, each built on first use."""

    def __init__(self, evaluate: Callable[[Expression], pa.Array], row_count: int, cache: IndexCache) -> None:
        """`evaluate` returns the values of an expression for all rows; `cache` has the indexes built before."""
        self._evaluate, self._row_count, self._cache = evaluate, row_count, cache

    def evaluate(self, expression: Expression) -> pa.Array:
        """Return the values of an expression for all rows."""
        return combine_chunks(self._evaluate(expression))

    def get_hash_index(self, keys: IndexKeys) -> HashIndex:
        """Return the index by the hash of keys."""
        index: HashIndex = self._get_index("hash", keys, lambda columns: build_hash_index(columns, self._row_count))
        return index

    def get_sorted_index(self, value: Expression) -> SortedIndex:
        """Return the index by a value."""
        index: SortedIndex = self._get_index("sorted", (value,), lambda columns: build_sorted_index(*columns))
        return index

    def get_band_indexes(self, first: Expression, second: Expression) -> tuple[SortedIndex, SortedIndex] | None:
        """Return the indexes by two values, if they share a row order."""
        band: tuple[SortedIndex, SortedIndex] | None
        band = self._get_index("band", (first, second), lambda columns: build_band_indexes(*columns))
        return band

    def _get_index(self, kind: str, expressions: IndexKeys, build: Callable[[list[pa.Array]], Any]) -> Any:
        name = name_index(kind, expressions)
        if name not in self._cache:
            self._cache[name] = build(list(map(self.evaluate, expressions)))
        return self._cache[name]
