"""Iterative merging of join trees: starting from the flat tree, some children of an operator become an operator of their own.

A merge is worthwhile if the merged children send more probes among them than a lower bound, so that materializing their join
saves something, and their join is smaller than an upper bound, so that storing it does not cost too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from headrace.sharing.multiway.probe_orders import JoinCostModel, OrderSearch, find_greedy_order
from headrace.sharing.multiway.trees import (
    OperatorTree,
    TreeChild,
    build_flat_tree,
    choose_cheapest_tree,
    estimate_operator_cost,
    group_children,
    inputs_below,
    iter_operators,
)


@dataclass(frozen=True, slots=True)
class MergeBounds:
    """More than `min_sent_rows` rows must be sent among the merged children, and fewer than `max_stored_rows` be stored."""

    min_sent_rows: float
    max_stored_rows: float


def derive_merge_bounds(cost_model: JoinCostModel) -> MergeBounds:
    """Return bounds relative to the largest input: half of it, and twice."""
    largest = max(cost_model.cardinalities.estimate_stored(relation) for relation in cost_model.list_inputs())
    return MergeBounds(largest / 2, largest * 2)


def merge_iteratively(
    cost_model: JoinCostModel, bounds: MergeBounds | None = None, search: OrderSearch = find_greedy_order
) -> OperatorTree:
    """Return the tree with the least probe cost among the flat tree and the result of each merge."""
    return choose_cheapest_tree(
        iter_merged_trees(cost_model, bounds or derive_merge_bounds(cost_model), search), cost_model, search
    )


def iter_merged_trees(
    cost_model: JoinCostModel, bounds: MergeBounds, search: OrderSearch = find_greedy_order
) -> Iterator[OperatorTree]:
    """Yield the flat tree, and the tree after each merge within the bounds; the merge that saves most probes comes first.

    All subsets of children are considered: suitable for joins of up to about eight fully connected inputs, and for more inputs
    with fewer predicates.
    """
    tree = build_flat_tree(cost_model.join_graph.relations)
    yield tree
    while merges := list(_iter_merges(tree, cost_model, bounds, search)):
        tree = group_children(tree, min(merges).children)
        yield tree


@dataclass(frozen=True, slots=True, order=True)
class _MergeCandidate:
    """Children that become an operator; ordered by additional probes, stored rows, name."""

    extra_probes: float
    stored_rows: float
    name: str
    children: frozenset[TreeChild] = field(compare=False)


def _iter_merges(
    tree: OperatorTree, cost_model: JoinCostModel, bounds: MergeBounds, search: OrderSearch
) -> Iterator[_MergeCandidate]:
    for operator in iter_operators(tree):
        cost_before = estimate_operator_cost(operator, cost_model, search)
        for merged in _iter_mergeable(operator, cost_model, bounds):
            sent_rows = estimate_operator_cost(merged, cost_model, search)
            if sent_rows > bounds.min_sent_rows:
                parent = OperatorTree(operator.children - merged.children | {merged})
                extra_probes = sent_rows + estimate_operator_cost(parent, cost_model, search) - cost_before
                yield _MergeCandidate(
                    extra_probes,
                    cost_model.cardinalities.estimate_stored(cost_model.subgraph(merged.inputs)),
                    str(merged),
                    merged.children,
                )


def _iter_mergeable(operator: OperatorTree, cost_model: JoinCostModel, bounds: MergeBounds) -> Iterator[OperatorTree]:
    """Yield operators of some, but not all, children that are connected and whose join is within the upper bound."""
    children = sorted(operator.children, key=str)
    for size in range(2, len(children)):
        for subset in combinations(children, size):
            part = cost_model.subgraph(name for child in subset for name in inputs_below(child))
            if part.is_connected() and cost_model.cardinalities.estimate_stored(part) < bounds.max_stored_rows:
                yield OperatorTree(frozenset(subset))
