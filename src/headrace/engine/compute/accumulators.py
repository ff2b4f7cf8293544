"""Partial aggregates of slices, and the accumulators that produce them.

A `PartialAggregate` is sparse by key and cell: the form that is shuffled, stored, and read when windows close. An `Accumulator`
lifts rows into the components of aggregates; `combine_partials` combines partial results. Both take `at`, the group of each
row or partial result (−1: dropped).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import (
    ALL_VALID,
    Mask,
    Numbers,
    combine_chunks,
    copy_narrow,
    narrow_integers,
    split_decimal_words,
    take,
    to_numbers,
    valid_mask,
    widen_integers,
)
from headrace.engine.compute.keys import encode_keys
from headrace.engine.kernels import group as group_kernels
from headrace.engine.kernels import select as select_kernels
from headrace.model.record import record

IntegerArray = npt.NDArray[Any]


@record("value-entries")
@dataclass(frozen=True, slots=True)
class ValueEntries:
    """Values stored individually (distinct values, extremes of strings): key code, cell, value columns, counts."""

    keys: IntegerArray
    cells: IntegerArray
    values: list[pa.Array]
    counts: IntegerArray


@record("partial-aggregate")
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


GroupIndices = npt.NDArray[np.int64]
_SPLIT_FACTOR = 134217729.0
_LOW_LIMB_MASK = (1 << 32) - 1
_PACKED_CAPACITY = int(group_kernels.PACKED_HALF_ROW) - 1


def split_limbs(array: pa.Array) -> list[Numbers]:
    """Return exact numbers as 32-bit limbs, lowest first; a single array where 64-bit sums cannot overflow."""
    if pa.types.is_decimal(array.type) and array.type.precision > 18:
        low, high = split_decimal_words(array)
        return [
            (low & np.uint64(_LOW_LIMB_MASK)).astype(np.int64),
            (low >> np.uint64(32)).astype(np.int64),
            high & _LOW_LIMB_MASK,
            high >> 32,
        ]
    values = to_numbers(array)
    if pa.types.is_decimal(array.type) or array.type == pa.int64():
        return [values & _LOW_LIMB_MASK, values >> 32]
    return [values]


def allocate_neutral(kind: str, types: Sequence[pa.DataType], count: int) -> list[Numbers]:
    """Return the arrays of a dense component for `count` groups, all at the neutral element."""
    if kind in {"rows", "count"}:
        return [np.zeros(count, np.int64)]
    if kind == "add":
        return [np.zeros(count, np.int64) for _ in range(limb_count(types[0]))]
    if kind in {"float", "square"}:
        return [np.zeros(count), np.zeros(count)]
    return [np.full(count, neutral_extreme(kind, types[0]))]


def limb_count(kind: pa.DataType) -> int:
    """Return the number of arrays in an exact sum of that type."""
    if pa.types.is_decimal(kind):
        return 2 if kind.precision <= 18 else 4
    return 2 if kind == pa.int64() else 1


def neutral_extreme(kind: str, of: pa.DataType) -> Any:
    """Return the initial value of a minimum or maximum; NaN is the greatest float."""
    if pa.types.is_floating(of):
        return np.float64(np.nan if kind == "min" else -np.inf)
    info = np.iinfo(np.int64)
    return np.int64(info.max if kind == "min" else info.min)


@dataclass(frozen=True, slots=True)
class PackedExport:
    """The groups with rows of a range of slots, from packed words: like a `PartialAggregate`, with slots instead of keys."""

    slots: GroupIndices
    starts: IntegerArray
    cells: IntegerArray
    dense: list[list[IntegerArray]]


@dataclass(frozen=True, slots=True)
class _PackedScratch:
    """Arrays that packed words are unpacked to, range after range: so they stay in the cache."""

    slots: GroupIndices
    starts: GroupIndices
    cells: IntegerArray
    counts: GroupIndices
    sums: GroupIndices

    @classmethod
    def allocate(cls, groups: int) -> _PackedScratch:
        wide = [np.empty(size, np.int64) for size in (groups, groups + 1, groups, groups)]
        return cls(wide[0], wide[1], np.empty(groups, np.int32), wide[2], wide[3])


class Accumulator:
    """The dense components of a shared aggregation for a number of groups, filled from rows, batch after batch.

    A count of values is stored as its difference from the row count: usually zero, and then it *is* the row count. Components
    without signature (None) are listed components, stored elsewhere. Memory is the bottleneck: the first plain sum is
    stored beside the row count, and both share one word where a query needs only them, until sums might no longer fit. Without
    a plain sum, the first sum of floats is stored there.
    """

    def __init__(
        self,
        signatures: Sequence[tuple[str, Sequence[pa.DataType]] | None],
        count: int,
        always_null: frozenset[int] = frozenset(),
    ) -> None:
        """Start with all groups neutral; components in `always_null` have arguments that are always NULL."""
        self._kinds = ["" if s is None else s[0] for s in signatures]
        self._group_count = count
        self._packed: Numbers | None = None
        self._count_and_sum: Numbers | None = None
        self._packed_headroom = _PACKED_CAPACITY
        self._scratch: _PackedScratch | None = None
        self._null_counts: dict[int, Numbers] = {}
        self._paired_sum = next(
            (
                i
                for i, s in enumerate(signatures)
                if s is not None and s[0] == "add" and limb_count(s[1][0]) == 1 and i not in always_null
            ),
            None,
        )
        self._always_null = always_null
        self._arrays = [[] if s is None or s[0] in {"rows", "count"} else allocate_neutral(s[0], s[1], count) for s in signatures]
        self._paired_float: tuple[int, Numbers, Numbers] | None = None
        first_float = next((i for i, kind in enumerate(self._kinds) if kind == "float" and i not in always_null), None)
        if self._paired_sum is None and first_float is not None:
            self._count_and_sum = np.zeros((count, 3), np.int64)
            sums = self._count_and_sum.view(np.float64)
            self._paired_float, self._arrays[first_float] = (first_float, self._count_and_sum, sums), [sums[:, 1], sums[:, 2]]

    @property
    def count_and_sum(self) -> Numbers:
        """Row count and first sum of every group, side by side."""
        if self._count_and_sum is None:
            self._count_and_sum = np.zeros((self._group_count, 2), np.int64)
        if self._packed is not None and self._packed_headroom < _PACKED_CAPACITY:
            group_kernels.unpack_counts_and_sums(self._packed, self._count_and_sum)
            self._packed_headroom = _PACKED_CAPACITY
        return self._count_and_sum

    def occupied_groups(self) -> GroupIndices:
        """Return the groups that have rows, ascending."""
        return np.flatnonzero(self.count_and_sum[:, 0])

    def add_selected(
        self, table: tuple[Numbers, int, Numbers], slots: GroupIndices, size: int, addends: Numbers, largest: int
    ) -> bool:
        """Add rows in one fused pass; return False, and add nothing, where |values| (up to `largest`) are too large for it.

        Valid only after `find_fusable_sum` returned the component to sum; `table` is (values, base, cells) of the selection.
        """
        weight = max(largest, _PACKED_CAPACITY >> 23) * addends.size  # at most 2²³ rows fit the count
        if weight > _PACKED_CAPACITY:
            return False
        if self._packed is None:
            self._packed = np.zeros(self._group_count, np.int64)
        elif weight > self._packed_headroom:
            self.count_and_sum  # noqa: B018  the property unpacks, which frees the packed range
        group_kernels.select_and_add_packed(*table, slots, size, addends, self._packed)
        self._packed_headroom -= weight
        return True

    def add(self, at: GroupIndices, columns: Sequence[Sequence[Any]], rows: GroupIndices | None) -> None:
        """Add rows: `at` is the group of each, `columns[c]` the arguments of component c; `rows` picks and repeats rows."""
        arguments: dict[int, tuple[list[pa.Array], Mask]] = {}
        for index, kind in enumerate(self._kinds):
            if kind in {"", "rows"} or index in self._always_null:
                continue
            key = id(columns[index][0])
            if key not in arguments:
                arrays = [combine_chunks(c) if rows is None else take(combine_chunks(c), rows) for c in columns[index]]
                arguments[key] = arrays, _combine_validity(arrays)
            arrays, valid = arguments[key]
            if kind == "count":
                self._add_null_counts(index, at, valid)
            elif index == self._paired_sum:
                group_kernels.count_rows_and_sum_integers(at, to_numbers(arrays[0]), valid, self.count_and_sum)
            elif self._paired_float is not None and index == self._paired_float[0]:
                group_kernels.count_rows_and_sum_floats(at, to_numbers(arrays[0]), valid, *self._paired_float[1:])
            else:
                _accumulate_rows(kind, arrays[0], valid, at, self._arrays[index])
        if self._paired_sum is None and self._paired_float is None:
            group_kernels.count_rows(at, self.count_and_sum)

    def find_fusable_sum(self, columns: Sequence[Sequence[Any]]) -> int | None:
        """Return the component to sum if the only work is to count rows and sum it, without NULLs; None otherwise."""
        has_others = any(kind not in {"rows", "count"} for i, kind in enumerate(self._kinds) if i != self._paired_sum)
        return None if has_others or any(c.null_count for args in columns for c in args) else self._paired_sum

    def _add_null_counts(self, index: int, at: GroupIndices, valid: Mask) -> None:
        if valid.size:
            null_counts = self._null_counts.setdefault(index, np.zeros(self._group_count, np.int64))
            group_kernels.count_valid(at, ~valid, null_counts)

    def export_arrays(self, occupied: GroupIndices) -> list[list[Numbers]]:
        """Return the arrays of every component for some groups, in the narrowest width; equal counts are the same object."""
        counts, sums = self.count_and_sum[occupied, 0], self.count_and_sum[occupied, 1]
        rows = narrow_integers(counts)
        components: list[list[Numbers]] = []
        for index, kind in enumerate(self._kinds):
            if kind == "count" and index in self._always_null:
                components.append([np.zeros(len(rows), np.int8)])
            elif kind == "rows" or (kind == "count" and index not in self._null_counts):
                components.append([rows])
            elif kind == "count":
                components.append([narrow_integers(counts - self._null_counts[index][occupied])])
            elif index == self._paired_sum:
                components.append([narrow_integers(sums)])
            else:
                components.append([narrow_integers(a[occupied]) for a in self._arrays[index]])
        return components

    @property
    def is_packed(self) -> bool:
        """Return whether every component is a part of the packed words."""
        return self._count_and_sum is None and self._packed is not None

    def export_packed(self, first_slot: int, last_slot: int, cell_count: int) -> PackedExport:
        """Return the groups with rows of a range of slots, each of which has `cell_count` groups, if `is_packed`."""
        assert self._packed is not None
        groups = (last_slot - first_slot) * cell_count
        if self._scratch is None or self._scratch.cells.size < groups:
            self._scratch = _PackedScratch.allocate(groups)
        scratch = self._scratch
        packed = self._packed[first_slot * cell_count : last_slot * cell_count]
        used, size, count_bound, sum_bound = group_kernels.extract_packed_groups(
            packed, cell_count, scratch.slots, scratch.starts, scratch.cells, scratch.counts, scratch.sums
        )
        rows = copy_narrow(scratch.counts[:size], count_bound)
        sums = copy_narrow(scratch.sums[:size], sum_bound)
        empty = np.zeros(size if self._always_null else 0, np.int8)
        dense = [
            [empty if index in self._always_null else sums if index == self._paired_sum else rows] if kind else []
            for index, kind in enumerate(self._kinds)
        ]
        cells, starts = scratch.cells[:size], scratch.starts[: used + 1]
        return PackedExport(scratch.slots[:used].copy(), copy_narrow(starts, size), copy_narrow(cells, cell_count - 1), dense)


def _accumulate_rows(kind: str, array: pa.Array, valid: Mask, at: GroupIndices, into: Sequence[Numbers]) -> None:
    """Add rows to the arrays of a component, in place."""
    if kind == "add":
        for limb, total in zip(split_limbs(array), into, strict=True):
            group_kernels.sum_integers(at, limb, valid, total)
        return
    values = to_numbers(array)
    if kind == "float":
        group_kernels.sum_floats(at, values, valid, *into)
    elif kind == "square":
        product, rest = _square_exactly(values)
        group_kernels.sum_floats(at, product, valid, *into)
        group_kernels.sum_floats(at, rest, valid, *into)
    else:
        _select_extreme_kernel(kind, values)(at, values, valid, into[0])


def _combine_validity(arrays: Sequence[pa.Array]) -> Mask:
    masks = [m for m in map(valid_mask, arrays) if m.size]
    return np.logical_and.reduce(masks) if masks else ALL_VALID


def _square_exactly(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return x² rounded, and its rounding error."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = values * values
        big = values * _SPLIT_FACTOR
        high = big - (big - values)
        low = values - high
        rest = low * low - ((product - high * high) - 2 * high * low)
    return product, np.where(np.isfinite(rest), rest, 0.0)


def _select_extreme_kernel(kind: str, values: Numbers) -> Any:
    if values.dtype == np.float64:
        return group_kernels.min_floats if kind == "min" else group_kernels.max_floats
    return group_kernels.min_integers if kind == "min" else group_kernels.max_integers


def combine_partials(kind: str, parts: Sequence[Numbers], at: GroupIndices, into: Sequence[Numbers]) -> None:
    """Add partial results to `into`, in place."""
    if kind in {"float", "square"}:
        group_kernels.sum_floats(at, parts[0], ALL_VALID, into[0], into[1])
        np.add.at(into[1], at, parts[1])
    elif kind in {"min", "max"}:
        _select_extreme_kernel(kind, parts[0])(at, parts[0], ALL_VALID, into[0])
    else:
        for part, total in zip(parts, into, strict=True):
            group_kernels.sum_integers(at, widen_integers(part), ALL_VALID, total)


def reduce_listed(
    kind: str, columns: Sequence[Any], at: GroupIndices, counts: Numbers | None = None
) -> tuple[GroupIndices, list[pa.Array], Numbers]:
    """Reduce values per group; return (groups, value columns, counts). NULLs are skipped.

    "values" keeps every distinct value of a group with its count; "lowest" and "highest" keep one value per group.
    """
    arrays = [combine_chunks(c) for c in columns]
    valid = _combine_validity(arrays)
    positions = np.flatnonzero((at >= 0) & valid) if valid.size else np.flatnonzero(at >= 0)
    groups = at[positions]
    values = [take(a, positions) for a in arrays]
    weights = np.ones(positions.size, np.int64) if counts is None else widen_integers(counts)[positions]
    if kind == "values":
        keys = encode_keys(values, positions.size)
        distinct, codes = select_kernels.factorize_values(groups * keys.count + keys.codes)
        totals = np.zeros(distinct.size, np.int64)
        group_kernels.sum_integers(codes, weights, ALL_VALID, totals)
        return distinct // keys.count, [take(c, distinct % keys.count) for c in keys.columns], totals
    table = (
        pa.table({"at": groups, "value": values[0]}).group_by("at").aggregate([("value", "min" if kind == "lowest" else "max")])
    )
    occupied = np.asarray(table["at"]).astype(np.int64)
    return occupied, [combine_chunks(table[f"value_{'min' if kind == 'lowest' else 'max'}"])], np.ones(occupied.size, np.int64)
