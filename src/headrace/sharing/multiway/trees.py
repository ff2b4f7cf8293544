"""Trees of join operators: which parts of a join are kept in stores of their own, and what that costs and saves.

Each operator joins its children by probing: rows of a child visit the stores of its siblings. What an inner operator joins is
kept, and its parent sees one relation, so rows from elsewhere need one hop where they needed several. The root's result is
nobody's to probe and is not kept. Children have no order, so trees that mean the same plan are equal.
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
        """Check that there is something to join, and that no input is there twice."""
        found = [name for child in self.children for name in inputs_of(child)]
        if len(self.children) < 2 or len(set(found)) < len(found):
            raise ValueError("an operator has two children or more, and none of their inputs twice")
        object.__setattr__(self, "inputs", frozenset(found))

    def __str__(self) -> str:
        """Return it as nested parentheses, children in order of their names."""
        return f"({', '.join(sorted(map(str, self.children), key=lambda text: text.lstrip('(')))})"


def inputs_of(child: Child) -> frozenset[str]:
    """Return the inputs below a child, or the input that it is."""
    return child.inputs if isinstance(child, Tree) else frozenset({child})


def flat(names: Iterable[str]) -> Tree:
    """Return the tree of a single operator: nothing is kept but the inputs."""
    return Tree(frozenset(names))


def nested(names: Sequence[str], rest: Iterable[str]) -> Tree:
    """Return the generalised left-deep tree: the first inputs joined one by one, the result and the rest in one operator."""
    inner: Child = names[0]
    for name in names[1:]:
        inner = Tree(frozenset({inner, name}))
    return Tree(frozenset({inner, *rest}))


def grouped(tree: Tree, children: frozenset[Child]) -> Tree:
    """Return the tree in which some, but not all, children of one of its operators became an operator of their own."""
    if children < tree.children:
        return Tree(tree.children - children | {Tree(children)})
    below = inputs_of(next(iter(children)))
    return Tree(
        frozenset(grouped(one, children) if isinstance(one, Tree) and below < one.inputs else one for one in tree.children)
    )


def operators(tree: Tree) -> Iterator[Tree]:
    """Yield the root and every operator below it."""
    yield tree
    for child in sorted(tree.children, key=str):
        if isinstance(child, Tree):
            yield from operators(child)


def relations_of(operator: Tree, join: Join) -> tuple[Join, ...]:
    """Return what an operator joins: its children as relations, in order of their names."""
    return tuple(sorted((join.within(inputs_of(child)) for child in operator.children), key=str))


def stores(tree: Tree, join: Join) -> tuple[Join, ...]:
    """Return the relations that are kept: the inputs, then what inner operators join, smaller ones first."""
    found = (relation for operator in operators(tree) for relation in relations_of(operator, join))
    return tuple(sorted(found, key=lambda one: (len(one.relations), str(one))))


def every_tree(names: Iterable[str]) -> Iterator[Tree]:
    """Yield every tree over some inputs, once each: 1, 4, 26, 236, 2752 for two to six inputs."""
    for blocks in _partitions(tuple(sorted(names))):
        if len(blocks) > 1:
            for children in _choices(blocks):
                yield Tree(frozenset(children))


def _partitions(names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield every way to split names into groups; the first name's group comes first."""
    if not names:
        yield ()
        return
    first, others = names[0], names[1:]
    for size in range(len(others) + 1):
        for fellows in combinations(others, size):
            for rest in _partitions(tuple(one for one in others if one not in fellows)):
                yield ((first, *fellows), *rest)


def _choices(blocks: Sequence[tuple[str, ...]]) -> Iterator[tuple[Child, ...]]:
    """Yield every way to make a child of each block."""
    if not blocks:
        yield ()
        return
    heads: Iterable[Child] = blocks[0] if len(blocks[0]) == 1 else every_tree(blocks[0])
    for head in heads:
        for others in _choices(blocks[1:]):
            yield (head, *others)


def joined_trees(join: Join) -> Iterator[Tree]:
    """Yield every tree of which no operator but the root joins what no predicate ties together."""
    for tree in every_tree(join.relations):
        if all(join.within(one.inputs).is_connected() for one in operators(tree) if one is not tree):
            yield tree


def shape(tree: Tree) -> Shape:
    """Return a tree without its names: trees of equal shape differ only in which input is where."""
    return tuple(sorted(shape(child) if isinstance(child, Tree) else () for child in tree.children))


def storage_cost(tree: Tree, join: Join, figures: Figures) -> float:
    """Return how many rows are kept: those of inputs and of inner operators."""
    return sum(figures.stored(relation) for relation in stores(tree, join))


def operator_cost(operator: Tree, setting: Setting, search: Search = greedy_order) -> float:
    """Return how many rows one operator sends to be probed, without those below it: one probe order for each child."""
    orders = probe_orders(relations_of(operator, setting.join), setting, search)
    return sum(setting.order_cost(order) for order in orders.values())


def probe_cost(tree: Tree, setting: Setting, search: Search = greedy_order) -> float:
    """Return how many rows all operators of a tree send to be probed."""
    return sum(operator_cost(one, setting, search) for one in operators(tree))


def cheapest(trees: Iterable[Tree], setting: Setting, search: Search = greedy_order) -> Tree:
    """Return the tree with the least probe cost; of equals that which keeps less, then the first by name."""
    return min(trees, key=lambda tree: (probe_cost(tree, setting, search), *_kept(tree, setting)))


def _kept(tree: Tree, setting: Setting) -> tuple[float, str]:
    return storage_cost(tree, setting.join, setting.figures), str(tree)


def hops(tree: Tree, name: str) -> int:
    """Return how many stores a row of an input, and the rows made of it, visit until a result is there."""
    return sum(len(one.children) - 1 for one in operators(tree) if name in one.inputs)


def latency(tree: Tree, weights: Mapping[str, float] | None = None) -> float:
    """Return the average number of hops over all inputs; with weights (rates, sizes) over all rows."""
    shares = {name: 1.0 if weights is None else weights[name] for name in tree.inputs}
    return sum(share * hops(tree, name) for name, share in shares.items()) / sum(shares.values())
