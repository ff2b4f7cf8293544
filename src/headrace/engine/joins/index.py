"""Indexes that find the partners of a row: equality keys, and range search over sorted values.

A range search has an index of rows sorted by a value, and the range that each probe value compares with. Values are ordered
as in SQL: NaN is the greatest value and equals itself, -0.0 equals 0.0, and NULL is in no range.

A step without equalities uses a range search, or else the cross product. Queries that share a step differ in their
conditions. They search together by the bounds that all of them have; groups of queries with further bounds search separately
where that yields fewer candidate pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import ALL_VALID, combine_chunks, to_numbers, valid_mask
from headrace.engine.compute.keys import encode_keys
from headrace.engine.joins.joined_rows import JoinedRows
from headrace.engine.kernels import join as join_kernels
from headrace.model.expression import Call, Expression, column_names, combine_conjuncts, split_conjuncts
from headrace.model.record import record
from headrace.plan.window_join import split_joined_name

Integers = npt.NDArray[np.int64]
IsStored = Callable[[str], bool]
_MIRRORED_OPERATORS = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@dataclass(frozen=True, slots=True)
class ComparisonBound:
    """A comparison usable for range search: build value, operator, probe value."""

    build_value: Expression
    operator: str
    probe_value: Expression

    @property
    def is_upper(self) -> bool:
        """Whether it bounds build values from above."""
        return self.operator in ("lt", "le")


@record("sorted-index")
@dataclass(frozen=True, slots=True, eq=False)
class SortedIndex:
    """Rows sorted by a value, ascending (NaN is the greatest); rows with NULL are not in the index."""

    values: npt.NDArray[np.generic]
    order: npt.NDArray[np.int32]


def is_integral_type(kind: pa.DataType) -> bool:
    """Return whether the kernels represent values of a type as integers."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= 18)
    )


def find_bound(condition: Expression, is_stored: IsStored) -> ComparisonBound | None:
    """Return a condition as a bound, if it compares build columns on one side with other columns on the other."""
    if not isinstance(condition, Call) or condition.function not in _MIRRORED_OPERATORS:
        return None
    left, right = condition.args
    if not (is_integral_type(left.type) or pa.types.is_floating(left.type)):
        return None
    left_stored, right_stored = ({is_stored(name) for name in column_names(side)} for side in (left, right))
    if left_stored == {True} and right_stored == {False}:
        return ComparisonBound(left, condition.function, right)
    if left_stored == {False} and right_stored == {True}:
        return ComparisonBound(right, _MIRRORED_OPERATORS[condition.function], left)
    return None


def choose_bounds(conditions: Iterable[Expression], is_stored: IsStored) -> tuple[ComparisonBound, ...]:
    """Return the bounds of the build value that has most of them: two make a band."""
    bounds_by_value = group_bounds(one for condition in conditions if (one := find_bound(condition, is_stored)) is not None)
    return max(bounds_by_value.values(), key=len, default=())


def group_bounds(bounds: Iterable[ComparisonBound]) -> dict[Expression, tuple[ComparisonBound, ...]]:
    """Group bounds by their build value."""
    grouped: dict[Expression, tuple[ComparisonBound, ...]] = {}
    for bound in bounds:
        grouped[bound.build_value] = (*grouped.get(bound.build_value, ()), bound)
    return grouped


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


def search_ranges(index: SortedIndex, bounds: Sequence[tuple[str, pa.Array]]) -> tuple[Integers, Integers]:
    """Return (begins, ends): for each probe row the range of the index that all bounds (operator, probe values) allow."""
    count = len(bounds[0][1])
    begins, ends = np.zeros(count, np.int64), np.full(count, len(index.order), np.int64)
    for operator, column in bounds:
        values = to_numbers(column)
        if operator in ("lt", "le"):
            upper = np.searchsorted(index.values, values, side="left" if operator == "lt" else "right")
            ends = np.minimum(ends, upper)
        else:
            lower = np.searchsorted(index.values, values, side="right" if operator == "gt" else "left")
            begins = np.maximum(begins, lower)
        if column.null_count:
            ends[~valid_mask(column)] = 0
    return begins, np.maximum(begins, ends)


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
        return KeyMatches(*join_kernels.index_keys(build_keys, build_valid, probe_keys, probe_valid))
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
    return KeyMatches(codes[:rows], *join_kernels.group_rows_by_key(codes[rows:], encoded.count))


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
            join_kernels.fold_keys(probe_values, low, high - low + 1, probe_keys)
            join_kernels.fold_keys(build_values, low, high - low + 1, build_keys)
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


ResidualPredicates = dict[Expression, list[int]]
"""Predicates to evaluate on pairs, each with the bits of the queries that require it."""
IndexCache = dict[tuple[Expression, ...], tuple[SortedIndex, ...] | None]
"""Sorted indexes by one value, or by two values that share a row order; None if they share none."""


@dataclass(frozen=True, slots=True, eq=False)
class RangeSearch:
    """The candidates of probe row i are the build rows order[begins[i] : ends[i]], for the queries of `residuals`."""

    begins: Integers
    ends: Integers
    order: npt.NDArray[np.int32]
    residuals: ResidualPredicates

    @property
    def candidate_count(self) -> int:
        """The number of candidate pairs."""
        return int((self.ends - self.begins).sum())


def plan_searches(
    left: JoinedRows, right: JoinedRows, index: int, residuals: ResidualPredicates, index_cache: IndexCache
) -> list[RangeSearch]:
    """Return the searches for queries with these residual predicates; each query is in exactly one search.

    The build side is input `index`; `index_cache` caches its sorted indexes.
    """
    sides = _JoinSides(left, right, index, index_cache)
    by_bounds: dict[tuple[ComparisonBound, ...], ResidualPredicates] = defaultdict(dict)
    for residual, bits in residuals.items():
        by_bounds[sides.find_bounds(split_conjuncts(residual))][residual] = bits
    if len(by_bounds) == 1:
        return [sides.plan_search(*group) for group in by_bounds.items()]
    common = frozenset.intersection(*map(frozenset, by_bounds))
    together = sides.plan_search(tuple(bound for bound in next(iter(by_bounds)) if bound in common), residuals)
    if () in by_bounds:
        return [together]
    separate = [sides.plan_search(*group) for group in by_bounds.items()]
    return separate if sum(search.candidate_count for search in separate) < together.candidate_count else [together]


@dataclass(frozen=True, slots=True, eq=False)
class _JoinSides:
    """The two sides of a step: probe (left) and build (right)."""

    left: JoinedRows
    right: JoinedRows
    build_input: int
    index_cache: IndexCache

    def find_bounds(self, conditions: Iterable[Expression]) -> tuple[ComparisonBound, ...]:
        return tuple(one for condition in conditions if (one := find_bound(condition, self._is_build_column)) is not None)

    def plan_search(self, bounds: tuple[ComparisonBound, ...], residuals: ResidualPredicates) -> RangeSearch:
        """Return the candidates that the bounds allow, as far as one row order supports them, and the residual predicates."""
        begins, ends = np.zeros(self.left.row_count, np.int64), np.full(self.left.row_count, self.right.row_count, np.int64)
        order = np.arange(self.right.row_count, dtype=np.int32)
        used_bounds: list[ComparisonBound] = []
        for index, index_bounds in self._choose_indexes(group_bounds(bounds)):
            values = [(bound.operator, combine_chunks(self.left.evaluate(bound.probe_value))) for bound in index_bounds]
            lower, upper = search_ranges(index, values)
            begins, ends, order = np.maximum(begins, lower), np.minimum(ends, upper), index.order
            used_bounds += index_bounds
        remaining: ResidualPredicates = defaultdict(list)
        for residual, bits in residuals.items():
            remaining[
                combine_conjuncts(
                    [term for term in split_conjuncts(residual) if find_bound(term, self._is_build_column) not in used_bounds]
                )
            ] += bits
        return RangeSearch(begins, np.maximum(begins, ends), order, remaining)

    def _choose_indexes(
        self, bounds: Mapping[Expression, tuple[ComparisonBound, ...]]
    ) -> list[tuple[SortedIndex, tuple[ComparisonBound, ...]]]:
        """Return the index of the value with most bounds, and one in the same order whose bounds make it a band."""
        if not bounds:
            return []
        first = max(bounds, key=lambda value: len(bounds[value]))
        upper_kinds = {bound.is_upper for bound in bounds[first]}
        for other, other_bounds in bounds.items():
            if len(upper_kinds) == 1 and other != first and any(bound.is_upper not in upper_kinds for bound in other_bounds):
                band = self._get_sorted_indexes(first, other)
                if band is not None:
                    return [(band[0], bounds[first]), (band[1], other_bounds)]
        (index,) = self._get_sorted_indexes(first) or ()
        return [(index, bounds[first])]

    def _get_sorted_indexes(self, *values: Expression) -> tuple[SortedIndex, ...] | None:
        if values not in self.index_cache:
            columns = [combine_chunks(self.right.evaluate(value)) for value in values]
            self.index_cache[values] = build_band_indexes(*columns) if len(columns) == 2 else (build_sorted_index(*columns),)
        return self.index_cache[values]

    def _is_build_column(self, name: str) -> bool:
        return split_joined_name(name)[0] == self.build_input
