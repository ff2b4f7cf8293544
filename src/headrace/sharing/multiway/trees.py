"""Join trees of operators (CLASH): which subjoins are materialized, with their storage cost and their probe cost.

Each operator joins its children by probing: rows of a child visit the stores of its siblings. The result of an inner operator is
stored, and its parent sees one relation, so that rows from elsewhere need one hop instead of several. The result of the root is
not probed and therefore not stored. Children are unordered, so trees of equal plans are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

from headrace.sharing.multiway.cost import CardinalityModel
from headrace.sharing.multiway.probe_orders import JoinCostModel, OrderSearch, find_greedy_order, find_probe_orders
from headrace.sharing.multiway.relations import JoinGraph

TreeChild: TypeAlias = "str | OperatorTree"
TreeShape: TypeAlias = "tuple[TreeShape, ...]"


@dataclass(frozen=True, slots=True)
class OperatorTree:
    """An operator with its children: inputs by name, or operators."""

    children: frozenset[TreeChild]
    inputs: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check that there are at least two children, and that no input occurs twice."""
        names = [name for child in self.children for name in inputs_below(child)]
        if len(self.children) < 2 or len(set(names)) < len(names):
            raise ValueError("an operator needs at least two children with disjoint inputs")
        object.__setattr__(self, "inputs", frozenset(names))

    def __str__(self) -> str:
        """Return nested parentheses, children in the order of their names."""
        return f"({', '.join(sorted(map(str, self.children), key=lambda text: text.lstrip('(')))})"


def inputs_below(child: TreeChild) -> frozenset[str]:
    """Return the inputs below a child; for an input, the input itself."""
    return child.inputs if isinstance(child, OperatorTree) else frozenset({child})


def build_flat_tree(names: Iterable[str]) -> OperatorTree:
    """Return the tree of a single operator, which stores only the inputs."""
    return OperatorTree(frozenset(names))


def build_left_deep_tree(names: Sequence[str], rest: Iterable[str]) -> OperatorTree:
    """Return the generalised left-deep tree: the first inputs joined one by one, the result and the rest in one operator."""
    inner: TreeChild = names[0]
    for name in names[1:]:
        inner = OperatorTree(frozenset({inner, name}))
    return OperatorTree(frozenset({inner, *rest}))


def group_children(tree: OperatorTree, children: frozenset[TreeChild]) -> OperatorTree:
    """Return the tree in which some, but not all, children of one operator become an operator of their own."""
    if children < tree.children:
        return OperatorTree(tree.children - children | {OperatorTree(children)})
    below = inputs_below(next(iter(children)))
    return OperatorTree(
        frozenset(
            group_children(child, children) if isinstance(child, OperatorTree) and below < child.inputs else child
            for child in tree.children
        )
    )


def iter_operators(tree: OperatorTree) -> Iterator[OperatorTree]:
    """Yield the root and every operator below it."""
    yield tree
    for child in sorted(tree.children, key=str):
        if isinstance(child, OperatorTree):
            yield from iter_operators(child)


def list_child_relations(operator: OperatorTree, join: JoinGraph) -> tuple[JoinGraph, ...]:
    """Return the children of an operator as relations, in the order of their names."""
    return tuple(sorted((join.subgraph(inputs_below(child)) for child in operator.children), key=str))


def list_stored_relations(tree: OperatorTree, join: JoinGraph) -> tuple[JoinGraph, ...]:
    """Return the stored relations: the inputs, then the results of inner operators, smaller ones first."""
    relations = (relation for operator in iter_operators(tree) for relation in list_child_relations(operator, join))
    return tuple(sorted(relations, key=lambda relation: (len(relation.relations), str(relation))))


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


def estimate_storage_cost(tree: OperatorTree, join: JoinGraph, cardinalities: CardinalityModel) -> float:
    """Return the number of stored rows: those of inputs and of inner operators."""
    return sum(cardinalities.estimate_stored(relation) for relation in list_stored_relations(tree, join))


def estimate_operator_cost(operator: OperatorTree, cost_model: JoinCostModel, search: OrderSearch = find_greedy_order) -> float:
    """Return the number of rows that one operator sends to probe, without those below it: one probe order for each child."""
    orders = find_probe_orders(list_child_relations(operator, cost_model.join_graph), cost_model, search)
    return sum(cost_model.estimate_order_cost(order) for order in orders.values())


def estimate_probe_cost(tree: OperatorTree, cost_model: JoinCostModel, search: OrderSearch = find_greedy_order) -> float:
    """Return the number of rows that all operators of a tree send to probe."""
    return sum(estimate_operator_cost(operator, cost_model, search) for operator in iter_operators(tree))


def choose_cheapest_tree(
    trees: Iterable[OperatorTree], cost_model: JoinCostModel, search: OrderSearch = find_greedy_order
) -> OperatorTree:
    """Return the tree with the least probe cost; ties go to the least storage cost, then to the first by name."""
    return min(trees, key=lambda tree: (estimate_probe_cost(tree, cost_model, search), *_rank_storage(tree, cost_model)))


def _rank_storage(tree: OperatorTree, cost_model: JoinCostModel) -> tuple[float, str]:
    return estimate_storage_cost(tree, cost_model.join_graph, cost_model.cardinalities), str(tree)


def count_hops(tree: OperatorTree, name: str) -> int:
    """Return the number of stores that a row of an input, and the rows joined from it, visit until the result is complete."""
    return sum(len(operator.children) - 1 for operator in iter_operators(tree) if name in operator.inputs)


def estimate_latency(tree: OperatorTree, weights: Mapping[str, float] | None = None) -> float:
    """Return the average number of hops over all inputs; with weights (rates, sizes), over all rows."""
    shares = {name: 1.0 if weights is None else weights[name] for name in tree.inputs}
    return sum(share * count_hops(tree, name) for name, share in shares.items()) / sum(shares.values())
