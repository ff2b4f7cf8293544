"""Iterative merging: from the flat tree on, some children of an operator become one of their own, if that is worth a store.

It is worth one if the probes among them are more than a lower bound, so that keeping their join saves something, and their
join is smaller than an upper bound, so that keeping it does not cost too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order
from headrace.sharing.multiway.trees import Child, Tree, cheapest, flat, grouped, inputs_of, operator_cost, operators


@dataclass(frozen=True, slots=True)
class Bounds:
    """More than `lower` rows must be sent among what is merged, fewer than `upper` rows be kept of it."""

    lower: float
    upper: float


def usual_bounds(setting: Setting) -> Bounds:
    """Return bounds that go by the largest input: half of it, and twice."""
    largest = max(setting.figures.stored(one) for one in setting.inputs())
    return Bounds(largest / 2, largest * 2)


def merge_iteratively(setting: Setting, bounds: Bounds | None = None, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost among the flat one and those that each merge makes."""
    return cheapest(merge_steps(setting, bounds or usual_bounds(setting), search), setting, search)


def merge_steps(setting: Setting, bounds: Bounds, search: Search = greedy_order) -> Iterator[Tree]:
    """Yield the flat tree, and the tree after each merge, while one is within the bounds: that first which saves most probes.

    All subsets of children are looked at, so this is for joins of up to about eight inputs that are all tied together, and
    for more where predicates are fewer.
    """
    tree = flat(setting.join.relations)
    yield tree
    while merges := list(_merges(tree, setting, bounds, search)):
        tree = grouped(tree, min(merges).children)
        yield tree


@dataclass(frozen=True, slots=True, order=True)
class _Merge:
    """Children that become an operator: by how many more probes that makes, by rows kept, by name."""

    more_probes: float
    rows_kept: float
    name: str
    children: frozenset[Child] = field(compare=False)


def _merges(tree: Tree, setting: Setting, bounds: Bounds, search: Search) -> Iterator[_Merge]:
    for operator in operators(tree):
        before = operator_cost(operator, setting, search)
        for merged in _mergeable(operator, setting, bounds):
            sent = operator_cost(merged, setting, search)
            if sent > bounds.lower:
                parent = Tree(operator.children - merged.children | {merged})
                more = sent + operator_cost(parent, setting, search) - before
                yield _Merge(more, setting.figures.stored(setting.part(merged.inputs)), str(merged), merged.children)


def _mergeable(operator: Tree, setting: Setting, bounds: Bounds) -> Iterator[Tree]:
    """Yield operators of some, but not all, children that predicates tie together and whose join is not too large to keep."""
    children = sorted(operator.children, key=str)
    for size in range(2, len(children)):
        for some in combinations(children, size):
            part = setting.part(name for child in some for name in inputs_of(child))
            if part.is_connected() and setting.figures.stored(part) < bounds.upper:
                yield Tree(frozenset(some))
