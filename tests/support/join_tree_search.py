"""Searches over all join trees, probe orders and partitionings: what the heuristics of the planner are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Generic, TypeAlias, TypeVar

from headrace.planner.join.cost import RelationOrder
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.join_trees import (
    MergeBounds,
    OperatorTree,
    TreeChild,
    derive_merge_bounds,
    enumerate_schemes,
    estimate_probe_cost,
    estimate_storage_cost,
    find_predicate_chain,
    iter_chain_trees,
    iter_left_deep_trees,
    iter_merged_trees,
    iter_operators,
    partition_tree,
)
from headrace.planner.join.probe_orders import (
    JoinCostModel,
    OrderSearch,
    Partitioning,
    find_greedy_order,
    find_joinable,
    find_probe_orders,
)

TreeShape: TypeAlias = "tuple[TreeShape, ...]"
PlanT = TypeVar("PlanT")


@dataclass(frozen=True, slots=True)
class PartitioningChoice(Generic[PlanT]):
    """The cheapest plan, its cost, and the partition attribute of each store; None for randomly distributed rows."""

    cost: float
    plan: PlanT
    partitioning: Partitioning


def enumerate_trees(names: Iterable[str]) -> Iterator[OperatorTree]:
    """Yield every tree over some inputs once: 1, 4, 26, 236, 2752 for two to six inputs."""
    for blocks in _enumerate_partitions(tuple(sorted(names))):
        if len(blocks) > 1:
            for children in _enumerate_children(blocks):
                yield OperatorTree(frozenset(children))


def _enumerate_partitions(names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield every partition of names into groups; the first name's group comes first."""
    if not names:
        yield ()
        return
    first, others = names[0], names[1:]
    for size in range(len(others) + 1):
        for companions in combinations(others, size):
            for rest in _enumerate_partitions(tuple(name for name in others if name not in companions)):
                yield ((first, *companions), *rest)


def _enumerate_children(blocks: Sequence[tuple[str, ...]]) -> Iterator[tuple[TreeChild, ...]]:
    """Yield every combination of one child for each block."""
    if not blocks:
        yield ()
        return
    heads: Iterable[TreeChild] = blocks[0] if len(blocks[0]) == 1 else enumerate_trees(blocks[0])
    for head in heads:
        for others in _enumerate_children(blocks[1:]):
            yield (head, *others)


def enumerate_connected_trees(join: JoinGraph) -> Iterator[OperatorTree]:
    """Yield every tree in which all operators except the root join connected inputs."""
    for tree in enumerate_trees(join.relations):
        if all(join.subgraph(operator.inputs).is_connected() for operator in iter_operators(tree) if operator is not tree):
            yield tree


def derive_tree_shape(tree: OperatorTree) -> TreeShape:
    """Return a tree without its names: trees of equal shape differ only in the positions of inputs."""
    return tuple(sorted(derive_tree_shape(child) if isinstance(child, OperatorTree) else () for child in tree.children))


def choose_cheapest_tree(
    trees: Iterable[OperatorTree], cost_model: JoinCostModel, search: OrderSearch = find_greedy_order
) -> OperatorTree:
    """Return the tree with the least probe cost; ties go to the least storage cost, then to the first by name."""
    return min(trees, key=lambda tree: (estimate_probe_cost(tree, cost_model, search), *_rank_storage(tree, cost_model)))


def _rank_storage(tree: OperatorTree, cost_model: JoinCostModel) -> tuple[float, str]:
    return estimate_storage_cost(tree, cost_model.join_graph, cost_model.cardinalities), str(tree)


def optimize_left_deep(cost_model: JoinCostModel, budget: float, search: OrderSearch = find_greedy_order) -> OperatorTree:
    """Return the tree with the least probe cost among all steps of the growth from each input, including the flat tree.

    It stores at most `budget` rows, unless the inputs alone are more: those are stored in any case. The last tree of each growth
    spends most of the budget; it is often not the cheapest, because a large result needs many tasks, each of which receives a
    copy.
    """
    trees = {tree for name in sorted(cost_model.join_graph.relations) for tree in iter_left_deep_trees(name, cost_model, budget)}
    return choose_cheapest_tree(trees, cost_model, search)


def optimize_chain_top_down(
    cost_model: JoinCostModel, budget: float, chain: Sequence[str] | None = None, search: OrderSearch = find_greedy_order
) -> OperatorTree:
    """Return the tree with the least probe cost among the flat tree and those with each further materialized join.

    It stores at most `budget` rows, unless the inputs alone are more. The last tree of `iter_chain_trees` spends most of the
    budget; it is not always the cheapest, because a join that is small to store need not save probes.
    """
    return choose_cheapest_tree(iter_chain_trees(cost_model, budget, chain or _find_chain(cost_model)), cost_model, search)


def merge_iteratively(
    cost_model: JoinCostModel, bounds: MergeBounds | None = None, search: OrderSearch = find_greedy_order
) -> OperatorTree:
    """Return the tree with the least probe cost among the flat tree and the result of each merge."""
    return choose_cheapest_tree(
        iter_merged_trees(cost_model, bounds or derive_merge_bounds(cost_model), search), cost_model, search
    )


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


def find_best_partitioned_tree(
    cost_model: JoinCostModel, optimize: Callable[[JoinCostModel], OperatorTree], search: OrderSearch = find_greedy_order
) -> PartitioningChoice[OperatorTree]:
    """Return the cheapest of the trees that an optimizer builds under each scheme for the inputs, with all stores partitioned.

    While it builds a tree, the optimizer knows only the attributes of materialized joins that the cost model has, and assumes
    that rows of the others are distributed at random.
    """

    def price_tree(partitioned_model: JoinCostModel) -> tuple[float, PartitioningChoice[OperatorTree]]:
        tree = optimize(partitioned_model)
        cost, partitioning = partition_tree(tree, cost_model, search)
        return cost, PartitioningChoice(cost, tree, partitioning)

    return find_best_partitioning(cost_model, price_tree).plan


def enumerate_orders(start: JoinGraph, others: Iterable[JoinGraph], join: JoinGraph) -> Iterator[RelationOrder]:
    """Yield every order for the rows of one relation without avoidable cross products."""
    yield from _extend_order((start,), frozenset(others), join)


def _extend_order(order: RelationOrder, remaining: frozenset[JoinGraph], join: JoinGraph) -> Iterator[RelationOrder]:
    if not remaining:
        yield order
        return
    for relation in find_joinable(order, remaining, join):
        yield from _extend_order((*order, relation), remaining - {relation}, join)


def find_best_order(start: JoinGraph, others: Iterable[JoinGraph], cost_model: JoinCostModel) -> RelationOrder:
    """Return the cheapest of all orders. For few relations only: there are up to (n - 1)! orders."""
    return min(
        enumerate_orders(start, others, cost_model.join_graph),
        key=lambda order: (cost_model.estimate_order_cost(order), [str(relation) for relation in order]),
    )


def _find_chain(cost_model: JoinCostModel) -> tuple[str, ...]:
    chain = find_predicate_chain(cost_model.join_graph)
    assert chain is not None
    return chain
