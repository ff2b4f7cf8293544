"""Plans of single queries from join trees (CLASH, chapter 5): flat, left-deep, chain and iterative merging.

A tree becomes a plan for execution: rows of an input visit the siblings in its operator, then those of the operator's result in
the next one, up to the root; the result of each inner operator is materialized. Trees are chosen with every store partitioned by
the attribute that most equalities use, then the attributes of the chosen tree are optimized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from headrace.model.sliding_join_options import PlanSearch, PlanTarget
from headrace.planner.join.candidates import weigh_inputs
from headrace.planner.join.cost import CardinalityModel, RelationOrder
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.join_trees import (
    OperatorTree,
    build_flat_tree,
    derive_merge_bounds,
    estimate_latency,
    estimate_probe_cost,
    estimate_storage_cost,
    find_predicate_chain,
    iter_chain_trees,
    iter_left_deep_trees,
    iter_merged_trees,
    iter_operators,
    list_child_relations,
    partition_tree,
)
from headrace.planner.join.probe_orders import JoinCostModel, find_probe_orders
from headrace.planner.join.sliding_join_planner import choose_partition_attribute
from headrace.planner.join.strategy import JoinProbePlan, JoinStrategy, PartitionedStore, ProbeOrder, SolverReport

TREE_SEARCHES = (PlanSearch.FLAT, PlanSearch.LEFT_DEEP, PlanSearch.CHAIN, PlanSearch.MERGING)


def plan_trees(
    queries: Sequence[JoinGraph],
    cardinalities: CardinalityModel,
    tasks: int,
    search: PlanSearch,
    target: PlanTarget,
    budget: float,
) -> tuple[JoinStrategy, ...] | None:
    """Return a strategy for each query alone; None if the search is not possible for one: its inputs are no chain.

    Queries take from the storage budget one after the other; what an earlier one materializes costs a later one nothing.
    """
    inputs = {name: JoinGraph(frozenset({name})) for query in queries for name in query.relations}
    spare = budget - sum(map(cardinalities.estimate_stored, inputs.values()))
    materialized: set[JoinGraph] = set()
    strategies = []
    for query in dict.fromkeys(queries):
        model = _build_cost_model(query, cardinalities, tasks)
        own_inputs = sum(map(cardinalities.estimate_stored, model.list_inputs()))
        tree = _choose_tree(model, search, target, own_inputs + max(0.0, spare))
        if tree is None:
            return None
        strategy = build_tree_strategy(tree, model)
        stored = {plan.join_graph for plan in strategy.materialized_plans} - materialized
        spare -= sum(map(cardinalities.estimate_stored, stored))
        materialized |= stored
        strategies.append(strategy)
    return tuple(strategies)


def _build_cost_model(query: JoinGraph, cardinalities: CardinalityModel, tasks: int) -> JoinCostModel:
    names = sorted(query.relations)
    parts = [query.subgraph(chosen) for size in range(1, len(names)) for chosen in combinations(names, size)]
    partitioning = {part: choose_partition_attribute(query, part) for part in parts}
    return JoinCostModel(query, cardinalities, dict.fromkeys(parts, tasks), partitioning)


def _choose_tree(model: JoinCostModel, search: PlanSearch, target: PlanTarget, budget: float) -> OperatorTree | None:
    """Return the tree within the budget that has least of the target, then of the probes; None if the search finds none."""
    query, cardinalities = model.join_graph, model.cardinalities
    weights = weigh_inputs(query, cardinalities)

    def rank(tree: OperatorTree) -> tuple[float, float, str]:
        probes = estimate_probe_cost(tree, model)
        if target is PlanTarget.LATENCY:
            return estimate_latency(tree, weights), probes, str(tree)
        if target is PlanTarget.STORAGE:
            return estimate_storage_cost(tree, query, cardinalities), probes, str(tree)
        return probes, estimate_storage_cost(tree, query, cardinalities), str(tree)

    trees = dict.fromkeys(_iter_trees(model, search, budget))
    flat = build_flat_tree(query.relations)
    allowed = [tree for tree in trees if tree == flat or estimate_storage_cost(tree, query, cardinalities) <= budget]
    return min(allowed, key=rank, default=None)


def _iter_trees(model: JoinCostModel, search: PlanSearch, budget: float) -> Iterator[OperatorTree]:
    names = sorted(model.join_graph.relations)
    if search is PlanSearch.FLAT:
        yield build_flat_tree(names)
    elif search is PlanSearch.LEFT_DEEP:
        for name in names:
            yield from iter_left_deep_trees(name, model, budget)
    elif search is PlanSearch.CHAIN:
        chain = find_predicate_chain(model.join_graph)
        if chain is not None:
            yield from iter_chain_trees(model, budget, chain)
    else:
        yield from iter_merged_trees(model, derive_merge_bounds(model))


def build_tree_strategy(tree: OperatorTree, model: JoinCostModel) -> JoinStrategy:
    """Return a tree as a strategy with the best attributes found for its stores; its costs are not estimated."""
    query = model.join_graph
    partitioned = replace(model, partitioning=partition_tree(tree, model)[1])
    orders = {
        operator: find_probe_orders(list_child_relations(operator, query), partitioned) for operator in iter_operators(tree)
    }

    def build_plan(operator: OperatorTree) -> JoinProbePlan:
        visited = [(start, _list_visits(start, operator, orders)) for start in sorted(operator.inputs)]
        return JoinProbePlan(
            query.subgraph(operator.inputs),
            tuple(
                ProbeOrder(start, tuple(PartitionedStore(visit, partitioned.partitioning[visit]) for visit in visits))
                for start, visits in visited
            ),
        )

    inner = tuple(build_plan(operator) for operator in orders if operator != tree)
    return JoinStrategy((build_plan(tree),), inner, 0.0, 0.0, SolverReport("greedy", 1.0))


def _list_visits(
    start: str, target: OperatorTree, orders: Mapping[OperatorTree, Mapping[JoinGraph, RelationOrder]]
) -> list[JoinGraph]:
    """Return the relations that rows of an input visit until the result of an operator is complete."""
    path = [operator for operator in orders if start in operator.inputs and operator.inputs <= target.inputs]
    visits: list[JoinGraph] = []
    for operator in sorted(path, key=lambda each: len(each.inputs)):
        child = next(relation for relation in orders[operator] if start in relation.relations)
        visits += orders[operator][child][1:]
    return visits
