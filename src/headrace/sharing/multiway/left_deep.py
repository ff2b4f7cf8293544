"""Generalised left-deep trees under a storage budget: one result grows input by input, as far as the budget reaches.

What is left when the budget is spent is joined with it by the root, in one operator of many children.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order, joinable
from headrace.sharing.multiway.trees import Tree, cheapest, nested


def left_deep(setting: Setting, budget: float, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost among all that are passed when growing from each input, the flat one included.

    It keeps at most `budget` rows, unless the inputs alone are more: those are kept in any case. The last tree of each growth
    spends most of the budget; it is often not the cheapest, since a large result needs many tasks, and each gets a copy.
    """
    steps = {tree for name in sorted(setting.join.relations) for tree in left_deep_steps(name, setting, budget)}
    return cheapest(steps, setting, search)


def left_deep_steps(start: str, setting: Setting, budget: float) -> Iterator[Tree]:
    """Yield the flat tree, and the tree after each input that joins the result, while the budget is not exceeded.

    It is always that input which makes the smallest result. The last one is left to the root, whose result is not kept.
    """
    chain, left = [start], set(setting.join.relations) - {start}
    spent = sum(setting.figures.stored(one) for one in setting.inputs())
    yield nested(chain, left)
    while len(left) > 1:
        sizes = {name: setting.figures.stored(setting.part({*chain, name})) for name in _next(chain, left, setting)}
        chosen = min(sizes, key=lambda name: (sizes[name], name))
        spent += sizes[chosen]
        if spent > budget:
            return
        chain.append(chosen)
        left.remove(chosen)
        yield nested(chain, left)


def _next(chain: list[str], left: set[str], setting: Setting) -> list[str]:
    candidates = joinable([setting.part(chain)], [setting.part({name}) for name in left], setting.join)
    return [str(one) for one in candidates]
