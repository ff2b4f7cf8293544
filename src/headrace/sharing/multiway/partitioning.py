"""Partition attributes of stores: every sensible scheme is tried with a given optimizer.

An attribute is sensible for a store if an equality compares it with an input outside: probing rows may then know its value and
visit one partition. Attributes used only inside a materialized join find no further partners and are left out.
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
    """The cheapest plan, its cost, and the partition attribute of each store; None for randomly distributed rows."""

    cost: float
    plan: Plan
    partitioning: Partitioning


def attributes(relation: Join, join: Join) -> tuple[Attribute, ...]:
    """Return the attributes that may partition a store of a relation: its sides of equalities to other inputs."""
    predicates = join.between(relation.relations, join.relations - relation.relations)
    return tuple(sorted({side for predicate in predicates for side in predicate.sides if side.relation in relation.relations}))


def every_scheme(relations: Iterable[Join], join: Join) -> Iterator[dict[Join, Attribute | None]]:
    """Yield every scheme: one attribute for each store that has candidates, none for the others."""
    stored_relations = sorted(relations, key=str)
    candidates: list[tuple[Attribute | None, ...]] = [attributes(relation, join) or (None,) for relation in stored_relations]
    for chosen in product(*candidates):
        yield dict(zip(stored_relations, chosen, strict=True))


def best_partitioning(
    cost_model: Setting, optimize: Callable[[Setting], tuple[float, Plan]], relations: Iterable[Join] | None = None
) -> Choice[Plan]:
    """Return the cheapest plan of an optimizer over all schemes for the given relations (default: the inputs).

    `optimize` returns cost and plan under the partitioning of its cost model; of equal costs, the first scheme wins. Attributes
    of other relations in the cost model are retained.
    """
    best: Choice[Plan] | None = None
    for scheme in every_scheme(cost_model.inputs() if relations is None else relations, cost_model.join):
        partitioning = {**cost_model.partitioning, **scheme}
        cost, plan = optimize(replace(cost_model, partitioning=partitioning))
        if best is None or cost < best.cost:
            best = Choice(cost, plan, partitioning)
    assert best is not None, "at least the scheme without attributes exists"
    return best


def partitioned_orders(cost_model: Setting, search: Search = greedy_order) -> Choice[dict[Join, Order]]:
    """Return the best scheme for the flat tree, with its probe orders."""

    def optimize(partitioned_model: Setting) -> tuple[float, dict[Join, Order]]:
        orders = probe_orders(partitioned_model.inputs(), partitioned_model, search)
        return sum(partitioned_model.order_cost(order) for order in orders.values()), orders

    return best_partitioning(cost_model, optimize)


def partitioned_tree(tree: Tree, cost_model: Setting, search: Search = greedy_order) -> Choice[Tree]:
    """Return the best scheme for all stores of a tree, including those of materialized joins.

    A store is probed within one operator only, so the schemes of each operator are tried independently.
    """
    cost, partitioning = 0.0, dict(cost_model.partitioning)
    for operator in operators(tree):
        best = _partitioned_operator(operator, cost_model, search)
        cost += best.cost
        partitioning.update({relation: best.partitioning[relation] for relation in relations_of(operator, cost_model.join)})
    return Choice(cost, tree, partitioning)


def _partitioned_operator(operator: Tree, cost_model: Setting, search: Search) -> Choice[Tree]:
    relations = relations_of(operator, cost_model.join)
    return best_partitioning(
        cost_model, lambda partitioned_model: (operator_cost(operator, partitioned_model, search), operator), relations
    )


def best_partitioned_tree(
    cost_model: Setting, optimize: Callable[[Setting], Tree], search: Search = greedy_order
) -> Choice[Tree]:
    """Return the cheapest of the trees that an optimizer builds under each scheme for the inputs, with all stores partitioned.

    While it builds a tree, the optimizer knows only the attributes of materialized joins that the cost model has, and assumes
    that rows of the others are distributed at random.
    """

    def price_tree(partitioned_model: Setting) -> tuple[float, Choice[Tree]]:
        choice = partitioned_tree(optimize(partitioned_model), cost_model, search)
        return choice.cost, choice

    return best_partitioning(cost_model, price_tree).plan
