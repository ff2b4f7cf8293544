"""Partners in a step without equalities: searched by a comparison, in sorted values, or everything with everything.

Queries that share a step differ in their conditions. They search together by the comparisons that all of them have; those with
other comparisons search by themselves where that is fewer pairs to look at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.execution.joined_rows import JoinedRows
from headrace.execution.searching import Bound, SortedIndex, bound_of, by_value, searched, sorted_index, sorted_together
from headrace.kernels.columns import flat
from headrace.model.expression import Expression, conjunction, conjuncts
from headrace.plan.join import owner

Integers = npt.NDArray[np.int64]
Rests = dict[Expression, list[int]]
"""What is to be looked at for pairs, with the bits of the queries that ask for it."""
Known = dict[tuple[Expression, ...], tuple[SortedIndex, ...] | None]
"""Rows sorted by a value, or by two at once where that can be."""


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Partners of left row i are among the right rows order[begins[i] : ends[i]], for the queries of `rests`."""

    begins: Integers
    ends: Integers
    order: npt.NDArray[np.int32]
    rests: Rests

    @property
    def candidates(self) -> int:
        """How many pairs there are to look at."""
        return int((self.ends - self.begins).sum())


def searches(left: JoinedRows, right: JoinedRows, index: int, rests: Rests, known: Known) -> list[Search]:
    """Return how partners are found for queries with these conditions; each query is in one search.

    The right side is input `index`; `known` has its rows sorted by values that were asked for before.
    """
    sides = _Sides(left, right, index, known)
    alike: dict[tuple[Bound, ...], Rests] = defaultdict(dict)
    for rest, bits in rests.items():
        alike[sides.bounds(conjuncts(rest))][rest] = bits
    if len(alike) == 1:
        return [sides.search(*one) for one in alike.items()]
    common = frozenset.intersection(*map(frozenset, alike))
    together = sides.search(tuple(one for one in next(iter(alike)) if one in common), rests)
    if () in alike:
        return [together]
    apart = [sides.search(*one) for one in alike.items()]
    return apart if sum(one.candidates for one in apart) < together.candidates else [together]


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The two sides of a step."""

    left: JoinedRows
    right: JoinedRows
    index: int
    known: Known

    def bounds(self, conditions: Iterable[Expression]) -> tuple[Bound, ...]:
        return tuple(one for condition in conditions if (one := bound_of(condition, self._is_right)) is not None)

    def search(self, bounds: tuple[Bound, ...], rests: Rests) -> Search:
        """Return the rows that bounds allow, as far as one order of rows can tell, and what is still to be looked at."""
        begins, ends = np.zeros(self.left.count, np.int64), np.full(self.left.count, self.right.count, np.int64)
        order = np.arange(self.right.count, dtype=np.int32)
        used: list[Bound] = []
        for index, about in self._indexes(by_value(bounds)):
            values = [(bound.operator, flat(self.left.evaluate(bound.arriving))) for bound in about]
            least, most = searched(index, values)
            begins, ends, order = np.maximum(begins, least), np.minimum(ends, most), index.order
            used += about
        left: Rests = defaultdict(list)
        for rest, bits in rests.items():
            left[conjunction([part for part in conjuncts(rest) if bound_of(part, self._is_right) not in used])] += bits
        return Search(begins, np.maximum(begins, ends), order, left)

    def _indexes(self, bounds: Mapping[Expression, tuple[Bound, ...]]) -> list[tuple[SortedIndex, tuple[Bound, ...]]]:
        """Return the right side by the value most bounds are about, and in the same order by one that makes a band of it."""
        if not bounds:
            return []
        first = max(bounds, key=lambda value: len(bounds[value]))
        upper = {one.is_upper for one in bounds[first]}
        for other, found in bounds.items():
            if len(upper) == 1 and other != first and any(one.is_upper not in upper for one in found):
                both = self._sorted(first, other)
                if both is not None:
                    return [(both[0], bounds[first]), (both[1], found)]
        (index,) = self._sorted(first) or ()
        return [(index, bounds[first])]

    def _sorted(self, *values: Expression) -> tuple[SortedIndex, ...] | None:
        if values not in self.known:
            columns = [flat(self.right.evaluate(value)) for value in values]
            self.known[values] = sorted_together(*columns) if len(columns) == 2 else (sorted_index(*columns),)
        return self.known[values]

    def _is_right(self, name: str) -> bool:
        return owner(name)[0] == self.index
