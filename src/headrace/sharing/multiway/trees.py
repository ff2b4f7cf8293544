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

from headrace.sharing.multiway.cost import Figures
from headrace.sharing.multiway.probe_orders import Search, Setting, greedy_order, probe_orders
from headrace.sharing.multiway.relations import Join

Child: TypeAlias = "str | Tree"
Shape: TypeAlias = "tuple[Shape, ...]"


@dataclass(frozen=True, slots=True)
class Tree:
    """An operator with its children: inputs by name, or operators."""

    children: frozenset[Child]
    inputs: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check that there are at least two children, and that no input occurs twice."""
        names = [name for child in self.children for name in inputs_of(child)]
        if len(self.children) < 2 or len(set(names)) < len(names):
            raise ValueError("an operator needs at least two children with disjoint inputs")
        object.__setattr__(self, "inputs", frozenset(names))

    def __str__(self) -> str:
        """Return nested parentheses, children in the order of their names."""
        return f"({', '.join(sorted(map(str, self.children), key=lambda text: text.lstrip('(')))})"


def inputs_of(child: Child) -> frozenset[str]:
    """Return the inputs below a child; for an input, the input itself."""
    return child.inputs if isinstance(child, Tree) else frozenset({child})


def flat(names: Iterable[str]) -> Tree:
    """Return the tree of a single operator, which stores only the inputs."""
    return Tree(frozenset(names))


def nested(names: Sequence[str], rest: Iterable[str]) -> Tree:
    """Return the generalised left-deep tree: the first inputs joined one by one, the result and the rest in one operator."""
    inner: Child = names[0]
    for name in names[1:]:
        inner = Tree(frozenset({inner, name}))
    return Tree(frozenset({inner, *rest}))


def grouped(tree: Tree, children: frozenset[Child]) -> Tree:
    """Return the tree in which some, but not all, children of one operator become an operator of their own."""
    if children < tree.children:
        return Tree(tree.children - children | {Tree(children)})
    below = inputs_of(next(iter(children)))
    return Tree(
        frozenset(
            grouped(child, children) if isinstance(child, Tree) and below < child.inputs else child for child in tree.children
        )
    )


def operators(tree: Tree) -> Iterator[Tree]:
    """Yield the root and every operator below it."""
    yield tree
    for child in sorted(tree.children, key=str):
        if isinstance(child, Tree):
            yield from operators(child)


def relations_of(operator: Tree, join: Join) -> tuple[Join, ...]:
    """Return the children of an operator as relations, in the order of their names."""
    return tuple(sorted((join.within(inputs_of(child)) for child in operator.children), key=str))


def stores(tree: Tree, join: Join) -> tuple[Join, ...]:
    """Return the stored relations: the inputs, then the results of inner operators, smaller ones first."""
    relations = (relation for operator in operators(tree) for relation in relations_of(operator, join))
    return tuple(sorted(relations, key=lambda relation: (len(relation.relations), str(relation))))


def every_tree(names: Iterable[str]) -> Iterator[Tree]:
    """Yield every tree over some inputs once: 1, 4, 26, 236, 2752 for two to six inputs."""
    for blocks in _partitions(tuple(sorted(names))):
        if len(blocks) > 1:
            for children in _choices(blocks):
                yield Tree(frozenset(children))


def _partitions(names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield every partition of names into groups; the first name's group comes first."""
    if not names:
        yield ()
        return
    first, others = names[0], names[1:]
    for size in range(len(others) + 1):
        for companions in combinations(others, size):
            for rest in _partitions(tuple(name for name in others if name not in companions)):
                yield ((first, *companions), *rest)


def _choices(blocks: Sequence[tuple[str, ...]]) -> Iterator[tuple[Child, ...]]:
    """Yield every combination of one child for each block."""
    if not blocks:
        yield ()
        return
    heads: Iterable[Child] = blocks[0] if len(blocks[0]) == 1 else every_tree(blocks[0])
    for head in heads:
        for others in _choices(blocks[1:]):
            yield (head, *others)


def joined_trees(join: Join) -> Iterator[Tree]:
    """Yield every tree in which all operators except the root join connected inputs."""
    for tree in every_tree(join.relations):
        if all(join.within(operator.inputs).is_connected() for operator in operators(tree) if operator is not tree):
            yield tree


def shape(tree: Tree) -> Shape:
    """Return a tree without its names: trees of equal shape differ only in the positions of inputs."""
    return tuple(sorted(shape(child) if isinstance(child, Tree) else () for child in tree.children))


def storage_cost(tree: Tree, join: Join, cardinalities: Figures) -> float:
    """Return the number of stored rows: those of inputs and of inner operators."""
    return sum(cardinalities.stored(relation) for relation in stores(tree, join))


def operator_cost(operator: Tree, cost_model: Setting, search: Search = greedy_order) -> float:
    """Return the number of rows that one operator sends to probe, without those below it: one probe order for each child."""
    orders = probe_orders(relations_of(operator, cost_model.join), cost_model, search)
    return sum(cost_model.order_cost(order) for order in orders.values())


def probe_cost(tree: Tree, cost_model: Setting, search: Search = greedy_order) -> float:
    """Return the number of rows that all operators of a tree send to probe."""
    return sum(operator_cost(operator, cost_model, search) for operator in operators(tree))


def cheapest(trees: Iterable[Tree], cost_model: Setting, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost; ties go to the least storage cost, then to the first by name."""
    return min(trees, key=lambda tree: (probe_cost(tree, cost_model, search), *_kept(tree, cost_model)))


def _kept(tree: Tree, cost_model: Setting) -> tuple[float, str]:
    return storage_cost(tree, cost_model.join, cost_model.figures), str(tree)


def hops(tree: Tree, name: str) -> int:
    """Return the number of stores that a row of an input, and the rows joined from it, visit until the result is complete."""
    return sum(len(operator.children) - 1 for operator in operators(tree) if name in operator.inputs)


def latency(tree: Tree, weights: Mapping[str, float] | None = None) -> float:
    """Return the average number of hops over all inputs; with weights (rates, sizes), over all rows."""
    shares = {name: 1.0 if weights is None else weights[name] for name in tree.inputs}
    return sum(share * hops(tree, name) for name, share in shares.items()) / sum(shares.values())
