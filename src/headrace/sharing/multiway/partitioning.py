"""Partition attributes of stores: every sensible scheme is tried with a given optimizer.

An attribute is sensible for a store if an equality compares it with an input outside: probing rows may then know its value and
visit one partition. Attributes used only inside a materialized join find no further partners and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Generic, TypeVar

from headrace.sharing.multiway.cost import RelationOrder
from headrace.sharing.multiway.probe_orders import JoinCostModel, OrderSearch, Partitioning, find_greedy_order, find_probe_orders
from headrace.sharing.multiway.relations import Attribute, JoinGraph
from headrace.sharing.multiway.trees import OperatorTree, estimate_operator_cost, iter_operators, list_child_relations

PlanT = TypeVar("PlanT")


@dataclass(frozen=True, slots=True)
class PartitioningChoice(Generic[PlanT]):
    """The cheapest plan, its cost, and the partition attribute of each store; None for randomly distributed rows."""

    cost: float
    plan: PlanT
    partitioning: Partitioning


def find_partition_attributes(relation: JoinGraph, join: JoinGraph) -> tuple[Attribute, ...]:
    """Return the attributes that may partition a store of a relation: its sides of equalities to other inputs."""
    predicates = join.predicates_between(relation.relations, join.relations - relation.relations)
    return tuple(sorted({side for predicate in predicates for side in predicate.sides if side.relation in relation.relations}))


def enumerate_schemes(relations: Iterable[JoinGraph], join: JoinGraph) -> Iterator[dict[JoinGraph, Attribute | None]]:
    """Yield every scheme: one attribute for each store that has candidates, none for the others."""
    stored_relations = sorted(relations, key=str)
    candidates: list[tuple[Attribute | None, ...]] = [
        find_partition_attributes(relation, join) or (None,) for relation in stored_relations
    ]
    for chosen in product(*candidates):
        yield dict(zip(stored_relations, chosen, strict=True))


def find_best_partitioning(
    cost_model: JoinCostModel,
    optimize: Callable[[JoinCostModel], tuple[float, PlanT]],
    relations: Iterable[JoinGraph] | None = None,
) -> PartitioningChoice[PlanT]:
    """Return the cheapest plan of an optimizer over all schemes for the given relations (default: the inputs).

    `optimize` returns cost and plan under the partitioning of its cost model; of equal costs, the first scheme wins. Attributes
    of other relations in the cost model are retained.
    """
    best: PartitioningChoice[PlanT] | None = None
    for scheme in enumerate_schemes(cost_model.list_inputs() if relations is None else relations, cost_model.join_graph):
        partitioning = {**cost_model.partitioning, **scheme}
        cost, plan = optimize(replace(cost_model, partitioning=partitioning))
        if best is None or cost < best.cost:
            best = PartitioningChoice(cost, plan, partitioning)
    assert best is not None, "at least the scheme without attributes exists"
    return best


def partition_orders(
    cost_model: JoinCostModel, search: OrderSearch = find_greedy_order
) -> PartitioningChoice[dict[JoinGraph, RelationOrder]]:
    """Return the best scheme for the flat tree, with its probe orders."""

    def optimize(partitioned_model: JoinCostModel) -> tuple[float, dict[JoinGraph, RelationOrder]]:
        orders = find_probe_orders(partitioned_model.list_inputs(), partitioned_model, search)
        return sum(partitioned_model.estimate_order_cost(order) for order in orders.values()), orders

    return find_best_partitioning(cost_model, optimize)


def partition_tree(
    tree: OperatorTree, cost_model: JoinCostModel, search: OrderSearch = find_greedy_order
) -> PartitioningChoice[OperatorTree]:
    """Return the best scheme for all stores of a tree, including those of materialized joins.

    A store is probed within one operator only, so the schemes of each operator are tried independently.
    """
    cost, partitioning = 0.0, dict(cost_model.partitioning)
    for operator in iter_operators(tree):
        best = _partition_operator(operator, cost_model, search)
        cost += best.cost
        partitioning.update(
            {relation: best.partitioning[relation] for relation in list_child_relations(operator, cost_model.join_graph)}
        )
    return PartitioningChoice(cost, tree, partitioning)


def _partition_operator(
    operator: OperatorTree, cost_model: JoinCostModel, search: OrderSearch
) -> PartitioningChoice[OperatorTree]:
    relations = list_child_relations(operator, cost_model.join_graph)
    return find_best_partitioning(
        cost_model, lambda partitioned_model: (estimate_operator_cost(operator, partitioned_model, search), operator), relations
    )


def find_best_partitioned_tree(
    cost_model: JoinCostModel, optimize: Callable[[JoinCostModel], OperatorTree], search: OrderSearch = find_greedy_order
) -> PartitioningChoice[OperatorTree]:
    """Return the cheapest of the trees that an optimizer builds under each scheme for the inputs, with all stores partitioned.

    While it builds a tree, the optimizer knows only the attributes of materialized joins that the cost model has, and assumes
    that rows of the others are distributed at random.
    """

    def price_tree(partitioned_model: JoinCostModel) -> tuple[float, PartitioningChoice[OperatorTree]]:
        choice = partition_tree(optimize(partitioned_model), cost_model, search)
        return choice.cost, choice

    return find_best_partitioning(cost_model, price_tree).plan
