"""Partners by comparison: rows sorted by a value, and for each value of the other side the range of places it compares with.

Values are numbers in the order of the language: NaN is the greatest and equals itself, -0.0 equals 0.0, NULL is in no range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels.columns import numbers, validity
from headrace.model.expression import Call, Expression, columns

Integers = npt.NDArray[np.int64]
Stored = Callable[[str], bool]
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison that partners can be searched by: stored value, operator, arriving value."""

    stored: Expression
    operator: str
    arriving: Expression

    @property
    def is_upper(self) -> bool:
        """Whether stored values are at most the arriving one."""
        return self.operator in ("lt", "le")


@dataclass(frozen=True, slots=True, eq=False)
class SortedIndex:
    """Rows by a value, ascending (NaN is the greatest); those without a value are left out."""

    values: npt.NDArray[np.generic]
    order: npt.NDArray[np.int32]


def is_whole(kind: pa.DataType) -> bool:
    """Tell whether values of a type are integers to the kernels."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= 18)
    )


def bound_of(condition: Expression, stored: Stored) -> Bound | None:
    """Return a comparison with stored columns on one side and others on the other, if it can be searched by."""
    if not isinstance(condition, Call) or condition.function not in _MIRRORED:
        return None
    one, two = condition.args
    if not (is_whole(one.type) or pa.types.is_floating(one.type)):
        return None
    first, second = ({stored(name) for name in columns(side)} for side in (one, two))
    if first == {True} and second == {False}:
        return Bound(one, condition.function, two)
    if first == {False} and second == {True}:
        return Bound(two, _MIRRORED[condition.function], one)
    return None


def best_bounds(conditions: Iterable[Expression], stored: Stored) -> tuple[Bound, ...]:
    """Return the comparisons of the stored value that most are about: two make a band."""
    found = by_value(one for condition in conditions if (one := bound_of(condition, stored)) is not None)
    return max(found.values(), key=len, default=())


def by_value(bounds: Iterable[Bound]) -> dict[Expression, tuple[Bound, ...]]:
    """Return bounds by the stored value that they are about."""
    found: dict[Expression, tuple[Bound, ...]] = {}
    for one in bounds:
        found[one.stored] = (*found.get(one.stored, ()), one)
    return found


def sorted_index(column: pa.Array) -> SortedIndex:
    """Return an index over values that are numbers."""
    values = numbers(column)
    rows = np.flatnonzero(validity(column)) if column.null_count else np.arange(len(values))
    order = rows[np.argsort(values[rows], kind="stable")]
    return SortedIndex(values[order], order.astype(np.int32))


def sorted_together(first: pa.Array, second: pa.Array) -> tuple[SortedIndex, SortedIndex] | None:
    """Return indexes over two values in one order of rows, which sorts both; None if no order does.

    There is one where both grow together: x - 1 and x + 1, or the ends of intervals of equal length.
    """
    valid = [validity(column) for column in (first, second) if column.null_count]
    rows = np.flatnonzero(np.logical_and.reduce(valid)) if valid else np.arange(len(first))
    one, two = numbers(first)[rows], numbers(second)[rows]
    places = np.lexsort((two, one))
    one, two, order = one[places], two[places], rows[places].astype(np.int32)
    grows = (two[:-1] <= two[1:]) | np.isnan(two[1:])
    return (SortedIndex(one, order), SortedIndex(two, order)) if grows.all() else None


def searched(index: SortedIndex, bounds: Sequence[tuple[str, pa.Array]]) -> tuple[Integers, Integers]:
    """Return (begins, ends): for each row the places of the index that all bounds, (operator, arriving values), allow."""
    count = len(bounds[0][1])
    begins, ends = np.zeros(count, np.int64), np.full(count, len(index.order), np.int64)
    for operator, column in bounds:
        values = numbers(column)
        if operator in ("lt", "le"):
            most = np.searchsorted(index.values, values, side="left" if operator == "lt" else "right")
            ends = np.minimum(ends, most)
        else:
            least = np.searchsorted(index.values, values, side="right" if operator == "gt" else "left")
            begins = np.maximum(begins, least)
        if column.null_count:
            ends[~validity(column)] = 0
    return begins, np.maximum(begins, ends)
