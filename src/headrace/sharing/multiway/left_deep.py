"""Generalised left-deep trees under a storage budget: one intermediate result grows input by input within the budget.

The root joins it with the remaining inputs in one operator of many children.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order, joinable
from headrace.sharing.multiway.trees import Tree, cheapest, nested


def left_deep(cost_model: Setting, budget: float, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost among all steps of the growth from each input, including the flat tree.

    It stores at most `budget` rows, unless the inputs alone are more: those are stored in any case. The last tree of each growth
    spends most of the budget; it is often not the cheapest, because a large result needs many tasks, each of which receives a
    copy.
    """
    trees = {tree for name in sorted(cost_model.join.relations) for tree in left_deep_steps(name, cost_model, budget)}
    return cheapest(trees, cost_model, search)


def left_deep_steps(start: str, cost_model: Setting, budget: float) -> Iterator[Tree]:
    """Yield the flat tree, and the tree after each input that joins the intermediate result, within the budget.

    The next input is the one with the smallest result. The last input is left to the root, whose result is not stored.
    """
    chain, remaining = [start], set(cost_model.join.relations) - {start}
    stored_rows = sum(cost_model.figures.stored(relation) for relation in cost_model.inputs())
    yield nested(chain, remaining)
    while len(remaining) > 1:
        sizes = {name: cost_model.figures.stored(cost_model.part({*chain, name})) for name in _next(chain, remaining, cost_model)}
        chosen = min(sizes, key=lambda name: (sizes[name], name))
        stored_rows += sizes[chosen]
        if stored_rows > budget:
            return
        chain.append(chosen)
        remaining.remove(chosen)
        yield nested(chain, remaining)


def _next(chain: list[str], remaining: set[str], cost_model: Setting) -> list[str]:
    candidates = joinable([cost_model.part(chain)], [cost_model.part({name}) for name in remaining], cost_model.join)
    return [str(relation) for relation in candidates]
