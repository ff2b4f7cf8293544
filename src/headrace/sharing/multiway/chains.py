"""Chains, top down: from the flat tree on, the neighbours whose join is smallest are kept, until the budget is spent.

Only joins of neighbours in the chain are thought of, so large joins remain tractable: there are n(n - 1)/2 of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order
from headrace.sharing.multiway.relations import Join
from headrace.sharing.multiway.trees import Child, Tree, cheapest, flat, grouped, inputs_of, operators, storage_cost


def chain_of(join: Join) -> tuple[str, ...]:
    """Return the inputs so that a predicate ties each to the next: of several such chains, the first by name.

    Raises ValueError when there is none, as in a star.
    """
    for name in sorted(join.relations):
        found = _prolonged((name,), join)
        if found is not None:
            return found
    raise ValueError(f"no chain of predicates leads through all of {', '.join(sorted(join.relations))}")


def _prolonged(chain: tuple[str, ...], join: Join) -> tuple[str, ...] | None:
    left = join.relations - set(chain)
    if not left:
        return chain
    for name in sorted(left):
        if any(join.between({chain[-1]}, {name})):
            found = _prolonged((*chain, name), join)
            if found is not None:
                return found
    return None


def chain_top_down(setting: Setting, budget: float, chain: Sequence[str] | None = None, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost among the flat one and those that each further kept result makes.

    It keeps at most `budget` rows, unless the inputs alone are more. The last of `chain_steps` spends most of the budget;
    it is not always the cheapest, since a result that is small to keep need not be one that saves probes.
    """
    return cheapest(chain_steps(setting, budget, chain or chain_of(setting.join)), setting, search)


def chain_steps(setting: Setting, budget: float, chain: Sequence[str]) -> Iterator[Tree]:
    """Yield the flat tree, and the tree after each result that is kept in addition, while the budget is not exceeded."""
    tree = flat(chain)
    spent = storage_cost(tree, setting.join, setting.figures)
    yield tree
    while runs := list(_runs(tree, chain)):
        sizes = [setting.figures.stored(setting.part(name for child in run for name in inputs_of(child))) for run in runs]
        smallest = min(range(len(runs)), key=sizes.__getitem__)
        spent += sizes[smallest]
        if spent > budget:
            return
        tree = grouped(tree, frozenset(runs[smallest]))
        yield tree


def _runs(tree: Tree, chain: Sequence[str]) -> Iterator[tuple[Child, ...]]:
    """Yield what may be kept next: two neighbouring children of an operator or more, but not all."""
    place = {name: index for index, name in enumerate(chain)}
    for operator in operators(tree):
        row = sorted(operator.children, key=lambda child: min(place[name] for name in inputs_of(child)))
        for size in range(2, len(row)):
            for first in range(len(row) - size + 1):
                yield tuple(row[first : first + size])
