"""By which attribute each store is partitioned: every sensible scheme is tried with whichever optimizer is given.

An attribute is sensible for a store if an equality compares it with an input outside: whoever probes may then know its value
and goes to one partition. Attributes that only hold a kept join together find no more partners and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Generic, TypeVar

from headrace.sharing.multiway.cost import Order
from headrace.sharing.multiway.probe_orders import Partitioning, Search, Setting, greedy_order, probe_orders
from headrace.sharing.multiway.relations import Attribute, Join
from headrace.sharing.multiway.trees import Tree, operator_cost, operators, relations_of

Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class Choice(Generic[Plan]):
    """The cheapest plan, its cost, and the attribute of each store; None for rows that are spread at random."""

    cost: float
    plan: Plan
    partitioning: Partitioning


def attributes(relation: Join, join: Join) -> tuple[Attribute, ...]:
    """Return what a store of a relation may be partitioned by: its sides of equalities that leave it."""
    leaving = join.between(relation.relations, join.relations - relation.relations)
    return tuple(sorted({side for one in leaving for side in one.sides if side.relation in relation.relations}))


def every_scheme(relations: Iterable[Join], join: Join) -> Iterator[dict[Join, Attribute | None]]:
    """Yield every scheme: one attribute for each store that has candidates, none for the others."""
    among = sorted(relations, key=str)
    candidates: list[tuple[Attribute | None, ...]] = [attributes(one, join) or (None,) for one in among]
    for chosen in product(*candidates):
        yield dict(zip(among, chosen, strict=True))


def best_partitioning(
    setting: Setting, optimize: Callable[[Setting], tuple[float, Plan]], relations: Iterable[Join] | None = None
) -> Choice[Plan]:
    """Return the plan that an optimizer makes at least cost, over all schemes for the given relations (else the inputs).

    `optimize` returns cost and plan under the partitioning of the setting it is given; of equals, the first scheme counts.
    Attributes that the setting has for other relations stay.
    """
    best: Choice[Plan] | None = None
    for scheme in every_scheme(setting.inputs() if relations is None else relations, setting.join):
        partitioning = {**setting.partitioning, **scheme}
        cost, plan = optimize(replace(setting, partitioning=partitioning))
        if best is None or cost < best.cost:
            best = Choice(cost, plan, partitioning)
    assert best is not None, "there is always a scheme, if only the one without attributes"
    return best


def partitioned_orders(setting: Setting, search: Search = greedy_order) -> Choice[dict[Join, Order]]:
    """Return the best scheme for the flat tree, with its probe orders."""

    def optimize(under: Setting) -> tuple[float, dict[Join, Order]]:
        orders = probe_orders(under.inputs(), under, search)
        return sum(under.order_cost(order) for order in orders.values()), orders

    return best_partitioning(setting, optimize)


def partitioned_tree(tree: Tree, setting: Setting, search: Search = greedy_order) -> Choice[Tree]:
    """Return the best scheme for all stores of a tree, those of kept joins included.

    A store is probed within one operator only, so that each operator's schemes can be tried on their own.
    """
    cost, partitioning = 0.0, dict(setting.partitioning)
    for operator in operators(tree):
        best = _partitioned_operator(operator, setting, search)
        cost += best.cost
        partitioning.update({one: best.partitioning[one] for one in relations_of(operator, setting.join)})
    return Choice(cost, tree, partitioning)


def _partitioned_operator(operator: Tree, setting: Setting, search: Search) -> Choice[Tree]:
    relations = relations_of(operator, setting.join)
    return best_partitioning(setting, lambda under: (operator_cost(operator, under, search), operator), relations)


def best_partitioned_tree(setting: Setting, optimize: Callable[[Setting], Tree], search: Search = greedy_order) -> Choice[Tree]:
    """Return the cheapest of the trees that an optimizer makes under each scheme for the inputs, all its stores partitioned.

    While it makes a tree, the optimizer knows attributes of kept joins only where the setting has some, and takes rows of the
    others to be spread at random.
    """

    def priced(under: Setting) -> tuple[float, Choice[Tree]]:
        choice = partitioned_tree(optimize(under), setting, search)
        return choice.cost, choice

    return best_partitioning(setting, priced).plan
