"""Chain heuristic, top down: starting from the flat tree, materialize the smallest join of neighbours until the budget is spent.

Only joins of neighbours in the chain are considered, n(n - 1)/2 in number, so large joins remain tractable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.sharing.multiway.probe_orders import JoinCostModel, OrderSearch, find_greedy_order
from headrace.sharing.multiway.relations import JoinGraph
from headrace.sharing.multiway.trees import (
    OperatorTree,
    TreeChild,
    build_flat_tree,
    choose_cheapest_tree,
    estimate_storage_cost,
    group_children,
    inputs_below,
    iter_operators,
)


def find_predicate_chain(join: JoinGraph) -> tuple[str, ...]:
    """Return the inputs ordered so that a predicate connects each to the next; of several such chains, the first by name.

    Raises ValueError if there is none, as in a star.
    """
    for name in sorted(join.relations):
        chain = _extend_chain((name,), join)
        if chain is not None:
            return chain
    raise ValueError(f"no chain of predicates connects all of {', '.join(sorted(join.relations))}")


def _extend_chain(chain: tuple[str, ...], join: JoinGraph) -> tuple[str, ...] | None:
    remaining = join.relations - set(chain)
    if not remaining:
        return chain
    for name in sorted(remaining):
        if any(join.predicates_between({chain[-1]}, {name})):
            extended = _extend_chain((*chain, name), join)
            if extended is not None:
                return extended
    return None


def optimize_chain_top_down(
    cost_model: JoinCostModel, budget: float, chain: Sequence[str] | None = None, search: OrderSearch = find_greedy_order
) -> OperatorTree:
    """Return the tree with the least probe cost among the flat tree and those with each further materialized join.

    It stores at most `budget` rows, unless the inputs alone are more. The last tree of `iter_chain_trees` spends most of the
    budget; it is not always the cheapest, because a join that is small to store need not save probes.
    """
    return choose_cheapest_tree(
        iter_chain_trees(cost_model, budget, chain or find_predicate_chain(cost_model.join_graph)), cost_model, search
    )


def iter_chain_trees(cost_model: JoinCostModel, budget: float, chain: Sequence[str]) -> Iterator[OperatorTree]:
    """Yield the flat tree, and the tree after each further materialized join, within the budget."""
    tree = build_flat_tree(chain)
    stored_rows = estimate_storage_cost(tree, cost_model.join_graph, cost_model.cardinalities)
    yield tree
    while runs := list(_iter_adjacent_children(tree, chain)):
        sizes = [
            cost_model.cardinalities.estimate_stored(cost_model.subgraph(name for child in run for name in inputs_below(child)))
            for run in runs
        ]
        smallest = min(range(len(runs)), key=sizes.__getitem__)
        stored_rows += sizes[smallest]
        if stored_rows > budget:
            return
        tree = group_children(tree, frozenset(runs[smallest]))
        yield tree


def _iter_adjacent_children(tree: OperatorTree, chain: Sequence[str]) -> Iterator[tuple[TreeChild, ...]]:
    """Yield the groups of children to materialize next: two or more adjacent children of an operator, but not all."""
    position = {name: index for index, name in enumerate(chain)}
    for operator in iter_operators(tree):
        children = sorted(operator.children, key=lambda child: min(position[name] for name in inputs_below(child)))
        for size in range(2, len(children)):
            for first in range(len(children) - size + 1):
                yield tuple(children[first : first + size])
