"""Range search for join partners: an index of rows sorted by a value, and the range that each probe value compares with.

Values are ordered as in SQL: NaN is the greatest value and equals itself, -0.0 equals 0.0, and NULL is in no range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels.columns import to_numbers, valid_mask
from headrace.model.expression import Call, Expression, column_names

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
