"""Iterative merging of join trees: starting from the flat tree, some children of an operator become an operator of their own.

A merge is worthwhile if the merged children send more probes among them than a lower bound, so that materializing their join
saves something, and their join is smaller than an upper bound, so that storing it does not cost too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order
from headrace.sharing.multiway.trees import Child, Tree, cheapest, flat, grouped, inputs_of, operator_cost, operators


@dataclass(frozen=True, slots=True)
class Bounds:
    """More than `min_sent_rows` rows must be sent among the merged children, and fewer than `max_stored_rows` be stored."""

    lower: float
    upper: float


def usual_bounds(cost_model: Setting) -> Bounds:
    """Return bounds relative to the largest input: half of it, and twice."""
    largest = max(cost_model.figures.stored(relation) for relation in cost_model.inputs())
    return Bounds(largest / 2, largest * 2)


def merge_iteratively(cost_model: Setting, bounds: Bounds | None = None, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost among the flat tree and the result of each merge."""
    return cheapest(merge_steps(cost_model, bounds or usual_bounds(cost_model), search), cost_model, search)


def merge_steps(cost_model: Setting, bounds: Bounds, search: Search = greedy_order) -> Iterator[Tree]:
    """Yield the flat tree, and the tree after each merge within the bounds; the merge that saves most probes comes first.

    All subsets of children are considered: suitable for joins of up to about eight fully connected inputs, and for more inputs
    with fewer predicates.
    """
    tree = flat(cost_model.join.relations)
    yield tree
    while merges := list(_merges(tree, cost_model, bounds, search)):
        tree = grouped(tree, min(merges).children)
        yield tree


@dataclass(frozen=True, slots=True, order=True)
class _Merge:
    """Children that become an operator; ordered by additional probes, stored rows, name."""

    more_probes: float
    rows_kept: float
    name: str
    children: frozenset[Child] = field(compare=False)


def _merges(tree: Tree, cost_model: Setting, bounds: Bounds, search: Search) -> Iterator[_Merge]:
    for operator in operators(tree):
        cost_before = operator_cost(operator, cost_model, search)
        for merged in _mergeable(operator, cost_model, bounds):
            sent_rows = operator_cost(merged, cost_model, search)
            if sent_rows > bounds.lower:
                parent = Tree(operator.children - merged.children | {merged})
                extra_probes = sent_rows + operator_cost(parent, cost_model, search) - cost_before
                yield _Merge(
                    extra_probes, cost_model.figures.stored(cost_model.part(merged.inputs)), str(merged), merged.children
                )


def _mergeable(operator: Tree, cost_model: Setting, bounds: Bounds) -> Iterator[Tree]:
    """Yield operators of some, but not all, children that are connected and whose join is within the upper bound."""
    children = sorted(operator.children, key=str)
    for size in range(2, len(children)):
        for subset in combinations(children, size):
            part = cost_model.part(name for child in subset for name in inputs_of(child))
            if part.is_connected() and cost_model.figures.stored(part) < bounds.upper:
                yield Tree(frozenset(subset))
