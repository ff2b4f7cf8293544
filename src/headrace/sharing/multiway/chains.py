"""Chain heuristic, top down: starting from the flat tree, materialize the smallest join of neighbours until the budget is spent.

Only joins of neighbours in the chain are considered, n(n - 1)/2 in number, so large joins remain tractable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order
from headrace.sharing.multiway.relations import Join
from headrace.sharing.multiway.trees import Child, Tree, cheapest, flat, grouped, inputs_of, operators, storage_cost


def chain_of(join: Join) -> tuple[str, ...]:
    """Return the inputs ordered so that a predicate connects each to the next; of several such chains, the first by name.

    Raises ValueError if there is none, as in a star.
    """
    for name in sorted(join.relations):
        chain = _prolonged((name,), join)
        if chain is not None:
            return chain
    raise ValueError(f"no chain of predicates connects all of {', '.join(sorted(join.relations))}")


def _prolonged(chain: tuple[str, ...], join: Join) -> tuple[str, ...] | None:
    remaining = join.relations - set(chain)
    if not remaining:
        return chain
    for name in sorted(remaining):
        if any(join.between({chain[-1]}, {name})):
            extended = _prolonged((*chain, name), join)
            if extended is not None:
                return extended
    return None


def chain_top_down(cost_model: Setting, budget: float, chain: Sequence[str] | None = None, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost among the flat tree and those with each further materialized join.

    It stores at most `budget` rows, unless the inputs alone are more. The last tree of `iter_chain_trees` spends most of the
    budget; it is not always the cheapest, because a join that is small to store need not save probes.
    """
    return cheapest(chain_steps(cost_model, budget, chain or chain_of(cost_model.join)), cost_model, search)


def chain_steps(cost_model: Setting, budget: float, chain: Sequence[str]) -> Iterator[Tree]:
    """Yield the flat tree, and the tree after each further materialized join, within the budget."""
    tree = flat(chain)
    stored_rows = storage_cost(tree, cost_model.join, cost_model.figures)
    yield tree
    while runs := list(_runs(tree, chain)):
        sizes = [cost_model.figures.stored(cost_model.part(name for child in run for name in inputs_of(child))) for run in runs]
        smallest = min(range(len(runs)), key=sizes.__getitem__)
        stored_rows += sizes[smallest]
        if stored_rows > budget:
            return
        tree = grouped(tree, frozenset(runs[smallest]))
        yield tree


def _runs(tree: Tree, chain: Sequence[str]) -> Iterator[tuple[Child, ...]]:
    """Yield the groups of children to materialize next: two or more adjacent children of an operator, but not all."""
    position = {name: index for index, name in enumerate(chain)}
    for operator in operators(tree):
        children = sorted(operator.children, key=lambda child: min(position[name] for name in inputs_of(child)))
        for size in range(2, len(children)):
            for first in range(len(children) - size + 1):
                yield tuple(children[first : first + size])
