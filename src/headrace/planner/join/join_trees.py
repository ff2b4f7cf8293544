"""Join trees of operators (CLASH): which subjoins are materialized, with their storage cost and their probe cost.

Each operator joins its children by probing: rows of a child visit the stores of its siblings. The result of an inner operator is
stored, and its parent sees one relation, so that rows from elsewhere need one hop instead of several. The result of the root is
not probed and therefore not stored. Children are unordered, so trees of equal plans are equal.

Three heuristics build trees, each starting from the flat tree. *Left-deep*, under a storage budget: one intermediate result grows
input by input within the budget, and the root joins it with the remaining inputs in one operator of many children. *Chain*, top
down: materialize the smallest join of neighbours until the budget is spent; only joins of neighbours in the chain are considered,
n(n - 1)/2 in number, so large joins remain tractable. *Iterative merging*: some children of an operator become an operator of
their own, if they send more probes among them than a lower bound, so that materializing their join saves something, and their
join is smaller than an upper bound, so that storing it does not cost too much.

Partition attributes of stores are found by trying every sensible scheme, or of many schemes by improving one store after the
other. An attribute is sensible for a
store if an equality compares it with an input outside: probing rows may then know its value and visit one partition. Attributes
used only inside a materialized join find no further partners and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import TypeAlias

from headrace.planner.join.cost import CardinalityModel
from headrace.planner.join.join_graph import Attribute, JoinGraph
from headrace.planner.join.probe_orders import (
    JoinCostModel,
    OrderSearch,
    Partitioning,
    find_greedy_order,
    find_joinable,
)

TreeChild: TypeAlias = "str | OperatorTree"


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


def estimate_storage_cost(tree: OperatorTree, join: JoinGraph, cardinalities: CardinalityModel) -> float:
    """Return the number of stored rows: those of inputs and of inner operators."""
    return sum(cardinalities.estimate_stored(relation) for relation in list_stored_relations(tree, join))


def estimate_operator_cost(operator: OperatorTree, cost_model: JoinCostModel, search: OrderSearch = find_greedy_order) -> float:
    """Return the number of rows that one operator sends to probe, without those below it: one probe order for each child."""
    return cost_model.estimate_operator_cost(list_child_relations(operator, cost_model.join_graph), search)


def estimate_probe_cost(tree: OperatorTree, cost_model: JoinCostModel, search: OrderSearch = find_greedy_order) -> float:
    """Return the number of rows that all operators of a tree send to probe."""
    return sum(estimate_operator_cost(operator, cost_model, search) for operator in iter_operators(tree))


def count_hops(tree: OperatorTree, name: str) -> int:
    """Return the number of stores that a row of an input, and the rows joined from it, visit until the result is complete."""
    return sum(len(operator.children) - 1 for operator in iter_operators(tree) if name in operator.inputs)


def estimate_latency(tree: OperatorTree, weights: Mapping[str, float] | None = None) -> float:
    """Return the average number of hops over all inputs; with weights (rates, sizes), over all rows."""
    shares = {name: 1.0 if weights is None else weights[name] for name in tree.inputs}
    return sum(share * count_hops(tree, name) for name, share in shares.items()) / sum(shares.values())


def iter_left_deep_trees(start: str, cost_model: JoinCostModel, budget: float) -> Iterator[OperatorTree]:
    """Yield the flat tree, and the tree after each input that joins the intermediate result, within the budget.

    The next input is the one with the smallest result. The last input is left to the root, whose result is not stored.
    """
    chain, remaining = [start], set(cost_model.join_graph.relations) - {start}
    stored_rows = sum(cost_model.cardinalities.estimate_stored(relation) for relation in cost_model.list_inputs())
    yield build_left_deep_tree(chain, remaining)
    while len(remaining) > 1:
        sizes = {
            name: cost_model.cardinalities.estimate_stored(cost_model.subgraph({*chain, name}))
            for name in _find_joinable_inputs(chain, remaining, cost_model)
        }
        chosen = min(sizes, key=lambda name: (sizes[name], name))
        stored_rows += sizes[chosen]
        if stored_rows > budget:
            return
        chain.append(chosen)
        remaining.remove(chosen)
        yield build_left_deep_tree(chain, remaining)


def _find_joinable_inputs(chain: list[str], remaining: set[str], cost_model: JoinCostModel) -> list[str]:
    candidates = find_joinable(
        [cost_model.subgraph(chain)], [cost_model.subgraph({name}) for name in remaining], cost_model.join_graph
    )
    return [str(relation) for relation in candidates]


def find_predicate_chain(join: JoinGraph) -> tuple[str, ...] | None:
    """Return the inputs ordered so that a predicate connects each to the next; of several such chains, the first by name.

    None if there is no such chain, as in a star.
    """
    chains = (_extend_chain((name,), join) for name in sorted(join.relations))
    return next((chain for chain in chains if chain is not None), None)


def _extend_chain(chain: tuple[str, ...], join: JoinGraph) -> tuple[str, ...] | None:
    remaining = join.relations - set(chain)
    if not remaining:
        return chain
    for name in sorted(remaining):
        if any(join.predicates_between({chain[-1]}, {name})):
            extended = _extend_chain((*chain, name), join)
            if extended is not None:
                return extended
    return None


def iter_chain_trees(cost_model: JoinCostModel, budget: float, chain: Sequence[str]) -> Iterator[OperatorTree]:
    """Yield the flat tree, and the tree after each further materialized join, within the budget."""
    tree = build_flat_tree(chain)
    stored_rows = estimate_storage_cost(tree, cost_model.join_graph, cost_model.cardinalities)
    yield tree
    while runs := list(_iter_adjacent_children(tree, chain)):
        sizes = [
            cost_model.cardinalities.estimate_stored(cost_model.subgraph(name for child in run for name in inputs_below(child)))
            for run in runs
        ]
        smallest = min(range(len(runs)), key=sizes.__getitem__)
        stored_rows += sizes[smallest]
        if stored_rows > budget:
            return
        tree = group_children(tree, frozenset(runs[smallest]))
        yield tree


def _iter_adjacent_children(tree: OperatorTree, chain: Sequence[str]) -> Iterator[tuple[TreeChild, ...]]:
    """Yield the groups of children to materialize next: two or more adjacent children of an operator, but not all."""
    position = {name: index for index, name in enumerate(chain)}
    for operator in iter_operators(tree):
        children = sorted(operator.children, key=lambda child: min(position[name] for name in inputs_below(child)))
        for size in range(2, len(children)):
            for first in range(len(children) - size + 1):
                yield tuple(children[first : first + size])


@dataclass(frozen=True, slots=True)
class MergeBounds:
    """More than `min_sent_rows` rows must be sent among the merged children, and fewer than `max_stored_rows` be stored."""

    min_sent_rows: float
    max_stored_rows: float


def derive_merge_bounds(cost_model: JoinCostModel) -> MergeBounds:
    """Return bounds relative to the largest input: half of it, and twice."""
    largest = max(cost_model.cardinalities.estimate_stored(relation) for relation in cost_model.list_inputs())
    return MergeBounds(largest / 2, largest * 2)


def iter_merged_trees(
    cost_model: JoinCostModel, bounds: MergeBounds, search: OrderSearch = find_greedy_order
) -> Iterator[OperatorTree]:
    """Yield the flat tree, and the tree after each merge within the bounds; the merge that saves most probes comes first.

    All subsets of children are considered: suitable for joins of up to about eight fully connected inputs, and for more inputs
    with fewer predicates.
    """
    tree = build_flat_tree(cost_model.join_graph.relations)
    yield tree
    while merges := list(_iter_merges(tree, cost_model, bounds, search)):
        tree = group_children(tree, min(merges).children)
        yield tree


@dataclass(frozen=True, slots=True, order=True)
class _MergeCandidate:
    """Children that become an operator; ordered by additional probes, stored rows, name."""

    extra_probes: float
    stored_rows: float
    name: str
    children: frozenset[TreeChild] = field(compare=False)


def _iter_merges(
    tree: OperatorTree, cost_model: JoinCostModel, bounds: MergeBounds, search: OrderSearch
) -> Iterator[_MergeCandidate]:
    for operator in iter_operators(tree):
        cost_before = estimate_operator_cost(operator, cost_model, search)
        for merged in _iter_mergeable(operator, cost_model, bounds):
            sent_rows = estimate_operator_cost(merged, cost_model, search)
            if sent_rows > bounds.min_sent_rows:
                parent = OperatorTree(operator.children - merged.children | {merged})
                extra_probes = sent_rows + estimate_operator_cost(parent, cost_model, search) - cost_before
                yield _MergeCandidate(
                    extra_probes,
                    cost_model.cardinalities.estimate_stored(cost_model.subgraph(merged.inputs)),
                    str(merged),
                    merged.children,
                )


def _iter_mergeable(operator: OperatorTree, cost_model: JoinCostModel, bounds: MergeBounds) -> Iterator[OperatorTree]:
    """Yield operators of some, but not all, children that are connected and whose join is within the upper bound."""
    children = sorted(operator.children, key=str)
    for size in range(2, len(children)):
        for subset in combinations(children, size):
            part = cost_model.subgraph(name for child in subset for name in inputs_below(child))
            if part.is_connected() and cost_model.cardinalities.estimate_stored(part) < bounds.max_stored_rows:
                yield OperatorTree(frozenset(subset))


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


def partition_tree(
    tree: OperatorTree, cost_model: JoinCostModel, search: OrderSearch = find_greedy_order
) -> tuple[float, Partitioning]:
    """Return the least probe cost of a tree, and the attributes of all its stores, including those of materialized joins.

    A store is probed within one operator only, so the schemes of each operator are tried independently.
    """
    cost, partitioning = 0.0, dict(cost_model.partitioning)
    for operator in iter_operators(tree):
        least, scheme = _partition_operator(list_child_relations(operator, cost_model.join_graph), cost_model, search)
        cost += least
        partitioning |= scheme
    return cost, partitioning


_MAX_SCHEMES = 64  # that are all tried


def _partition_operator(
    relations: Sequence[JoinGraph], cost_model: JoinCostModel, search: OrderSearch
) -> tuple[float, Mapping[JoinGraph, Attribute | None]]:
    """Return the least cost of an operator, and the attributes of its stores: the best scheme of few, or a good one of many."""

    def price(scheme: Mapping[JoinGraph, Attribute | None]) -> float:
        model = replace(cost_model, partitioning={**cost_model.partitioning, **scheme})
        return model.estimate_operator_cost(tuple(relations), search)

    candidates = {relation: find_partition_attributes(relation, cost_model.join_graph) or (None,) for relation in relations}
    if math.prod(map(len, candidates.values())) <= _MAX_SCHEMES:
        schemes = list(enumerate_schemes(relations, cost_model.join_graph))
        costs = list(map(price, schemes))
        return min(costs), schemes[costs.index(min(costs))]
    scheme = {relation: cost_model.partitioning.get(relation, attributes[0]) for relation, attributes in candidates.items()}
    least = price(scheme)
    for relation, attributes in candidates.items():
        for attribute in attributes:
            changed = {**scheme, relation: attribute}
            cost = price(changed)
            if cost < least:
                least, scheme = cost, changed
    return least, scheme
