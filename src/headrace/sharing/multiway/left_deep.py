"""Generalised left-deep trees under a storage budget: one intermediate result grows input by input within the budget.

The root joins it with the remaining inputs in one operator of many children.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.sharing.multiway.probe_orders import JoinCostModel, OrderSearch, find_greedy_order, find_joinable
from headrace.sharing.multiway.trees import OperatorTree, build_left_deep_tree, choose_cheapest_tree


def optimize_left_deep(cost_model: JoinCostModel, budget: float, search: OrderSearch = find_greedy_order) -> OperatorTree:
    """Return the tree with the least probe cost among all steps of the growth from each input, including the flat tree.

    It stores at most `budget` rows, unless the inputs alone are more: those are stored in any case. The last tree of each growth
    spends most of the budget; it is often not the cheapest, because a large result needs many tasks, each of which receives a
    copy.
    """
    trees = {tree for name in sorted(cost_model.join_graph.relations) for tree in iter_left_deep_trees(name, cost_model, budget)}
    return choose_cheapest_tree(trees, cost_model, search)


def iter_left_deep_trees(start: str, cost_model: JoinCostModel, budget: float) -> Iterator[OperatorTree]:
    """Yield the flat tree, and the tree after each input that joins the intermediate result, within the budget.

    The next input is the one with the smallest result. The last input is left to the root, whose result is not stored.
    """
    chain, remaining = [start], set(cost_model.join_graph.relations) - {start}
    stored_rows = sum(cost_model.cardinalities.estimate_stored(relation) for relation in cost_model.list_inputs())
    yield build_left_deep_tree(chain, remaining)
    while len(remaining) > 1:
        sizes = {
            name: cost_model.cardinalities.estimate_stored(cost_model.subgraph({*chain, name}))
            for name in _find_joinable_inputs(chain, remaining, cost_model)
        }
        chosen = min(sizes, key=lambda name: (sizes[name], name))
        stored_rows += sizes[chosen]
        if stored_rows > budget:
            return
        chain.append(chosen)
        remaining.remove(chosen)
        yield build_left_deep_tree(chain, remaining)


def _find_joinable_inputs(chain: list[str], remaining: set[str], cost_model: JoinCostModel) -> list[str]:
    candidates = find_joinable(
        [cost_model.subgraph(chain)], [cost_model.subgraph({name}) for name in remaining], cost_model.join_graph
    )
    return [str(relation) for relation in candidates]
