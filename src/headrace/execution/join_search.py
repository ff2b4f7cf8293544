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
from headrace.execution.searching import Bound, SortedIndex, bound_of, by_value, searched, sorted_index, sorted_together
from headrace.kernels.columns import combine_chunks
from headrace.model.expression import Expression, combine_conjuncts, split_conjuncts
from headrace.plan.join import split_joined_name

Integers = npt.NDArray[np.int64]
Rests = dict[Expression, list[int]]
"""Predicates to evaluate on pairs, each with the bits of the queries that require it."""
Known = dict[tuple[Expression, ...], tuple[SortedIndex, ...] | None]
"""Sorted indexes by one value, or by two values that share a row order; None if they share none."""


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """The candidates of probe row i are the build rows order[begins[i] : ends[i]], for the queries of `residuals`."""

    begins: Integers
    ends: Integers
    order: npt.NDArray[np.int32]
    rests: Rests

    @property
    def candidates(self) -> int:
        """The number of candidate pairs."""
        return int((self.ends - self.begins).sum())


def searches(left: JoinedRows, right: JoinedRows, index: int, residuals: Rests, index_cache: Known) -> list[Search]:
    """Return the searches for queries with these residual predicates; each query is in exactly one search.

    The build side is input `index`; `index_cache` caches its sorted indexes.
    """
    sides = _Sides(left, right, index, index_cache)
    by_bounds: dict[tuple[Bound, ...], Rests] = defaultdict(dict)
    for residual, bits in residuals.items():
        by_bounds[sides.bounds(split_conjuncts(residual))][residual] = bits
    if len(by_bounds) == 1:
        return [sides.search(*group) for group in by_bounds.items()]
    common = frozenset.intersection(*map(frozenset, by_bounds))
    together = sides.search(tuple(bound for bound in next(iter(by_bounds)) if bound in common), residuals)
    if () in by_bounds:
        return [together]
    separate = [sides.search(*group) for group in by_bounds.items()]
    return separate if sum(search.candidates for search in separate) < together.candidates else [together]


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The two sides of a step: probe (left) and build (right)."""

    left: JoinedRows
    right: JoinedRows
    index: int
    known: Known

    def bounds(self, conditions: Iterable[Expression]) -> tuple[Bound, ...]:
        return tuple(one for condition in conditions if (one := bound_of(condition, self._is_right)) is not None)

    def search(self, bounds: tuple[Bound, ...], residuals: Rests) -> Search:
        """Return the candidates that the bounds allow, as far as one row order supports them, and the residual predicates."""
        begins, ends = np.zeros(self.left.count, np.int64), np.full(self.left.count, self.right.count, np.int64)
        order = np.arange(self.right.count, dtype=np.int32)
        used_bounds: list[Bound] = []
        for index, index_bounds in self._indexes(by_value(bounds)):
            values = [(bound.operator, combine_chunks(self.left.evaluate(bound.arriving))) for bound in index_bounds]
            lower, upper = searched(index, values)
            begins, ends, order = np.maximum(begins, lower), np.minimum(ends, upper), index.order
            used_bounds += index_bounds
        remaining: Rests = defaultdict(list)
        for residual, bits in residuals.items():
            remaining[
                combine_conjuncts(
                    [term for term in split_conjuncts(residual) if bound_of(term, self._is_right) not in used_bounds]
                )
            ] += bits
        return Search(begins, np.maximum(begins, ends), order, remaining)

    def _indexes(self, bounds: Mapping[Expression, tuple[Bound, ...]]) -> list[tuple[SortedIndex, tuple[Bound, ...]]]:
        """Return the index of the value with most bounds, and one in the same order whose bounds make it a band."""
        if not bounds:
            return []
        first = max(bounds, key=lambda value: len(bounds[value]))
        upper_kinds = {bound.is_upper for bound in bounds[first]}
        for other, other_bounds in bounds.items():
            if len(upper_kinds) == 1 and other != first and any(bound.is_upper not in upper_kinds for bound in other_bounds):
                band = self._sorted(first, other)
                if band is not None:
                    return [(band[0], bounds[first]), (band[1], other_bounds)]
        (index,) = self._sorted(first) or ()
        return [(index, bounds[first])]

    def _sorted(self, *values: Expression) -> tuple[SortedIndex, ...] | None:
        if values not in self.known:
            columns = [combine_chunks(self.right.evaluate(value)) for value in values]
            self.known[values] = sorted_together(*columns) if len(columns) == 2 else (sorted_index(*columns),)
        return self.known[values]

    def _is_right(self, name: str) -> bool:
        return split_joined_name(name)[0] == self.index
