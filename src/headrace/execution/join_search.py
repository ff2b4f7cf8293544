"""Join partners for a step without equalities: by range search over sorted values, or the cross product.

Queries that share a step differ in their conditions. They search together by the bounds that all of them have; groups of
queries with further bounds search separately where that yields fewer candidate pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.execution.joined_rows import JoinedRows
from headrace.execution.searching import (
    ComparisonBound,
    SortedIndex,
    build_band_indexes,
    build_sorted_index,
    find_bound,
    group_bounds,
    search_ranges,
)
from headrace.kernels.columns import combine_chunks
from headrace.model.expression import Expression, combine_conjuncts, split_conjuncts
from headrace.plan.join import split_joined_name

Integers = npt.NDArray[np.int64]
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
