"""How a join is worked off: a chain of steps, each joining what there is so far with the buckets of one more input.

    orders ──┐
             ├─ step 1, by user ──┐
    clicks ──┘                    ├─ step 2, by campaign ──→
    campaigns ────────────────────┘

Steps by the same keys happen in one place; where the keys change, rows move to the partition of the new ones. Rows by no keys,
those of steps without equalities, lie in one partition. Queries whose chains begin alike share those steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.model.expression import Expression
from headrace.plan.join import Equality, JoinKind, JoinNode, JoinQuery, JoinTree, lowered, nodes_of, owner
from headrace.sharing.arrangement import Arrangement, arranged, written

Keys = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """The rows of one input: buckets of a stream by keys (over its own columns), for the queries of one group.

    `slot` tells apart the inputs of a query that read the same stream.
    """

    input: int
    stream: str
    keys: Keys
    slot: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Join the rows so far with a leaf; `moves` says that they must first go to the partition of `left_keys`."""

    kind: JoinKind
    left_keys: Keys
    leaf: Leaf
    moves: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """A join as it is worked off: the first leaf, then the steps. Equal beginnings of chains are worked off once."""

    first: Leaf
    steps: tuple[Step, ...]

    @property
    def levels(self) -> int:
        """How many exchanges after the first one it takes."""
        return sum(step.moves for step in self.steps)


def chain_of(plan: JoinQuery, tree: JoinNode, group: int = 0) -> Chain:
    """Return the chain of a join under a tree that leans to the left."""
    nodes = list(nodes_of(tree))

    def leaf(index: JoinTree, keys: Keys) -> Leaf:
        assert isinstance(index, int)
        return Leaf(index, plan.inputs[index].stream, tuple(map(lowered, keys)), plan.slot(index), group)

    first = leaf(nodes[0].left, tuple(e.left for e in nodes[0].equalities))
    steps: list[Step] = []
    here: list[frozenset[Expression]] = []
    for node in nodes:
        keys = tuple(e.left for e in node.equalities)
        moves = bool(steps) and not _placed(here, keys)
        right = tuple(e.right for e in node.equalities)
        steps.append(Step(node.kind, keys, leaf(node.right, right), moves))
        if not steps[:-1] or moves:
            here = [frozenset({key}) for key in keys]
        here = _after(here, node)
    return Chain(first, tuple(steps))


def chains(plan: JoinQuery, arrangements: Sequence[Arrangement]) -> list[tuple[Arrangement, JoinNode, Chain]]:
    """Return how a join is worked off: under each of its arrangements, or as it was written if there are none."""
    found = []
    for one in arrangements or (Arrangement(written(plan)),):
        tree = arranged(plan, one.order)
        found.append((one, tree, chain_of(plan, tree, one.group)))
    return found


def _placed(here: list[frozenset[Expression]], keys: Keys) -> bool:
    """Tell whether rows that lie by `here` (each key under all the names it goes by) lie by these keys already."""
    return len(here) == len(keys) and all(key in names for key, names in zip(keys, here, strict=True))


def _after(here: list[frozenset[Expression]], node: JoinNode) -> list[frozenset[Expression]]:
    """Return by what rows lie after a join; where it makes rows without a left side, only the right one tells."""

    def names(known: frozenset[Expression], equalities: tuple[Equality, ...]) -> frozenset[Expression]:
        equal = frozenset(e.right for e in equalities if e.left in known)
        if node.kind is JoinKind.FULL:
            return frozenset()
        if node.kind is JoinKind.RIGHT:
            return equal
        return known | equal if node.kind is JoinKind.INNER else known

    return [names(known, node.equalities) for known in here]


def levels(plan: JoinQuery, arrangements: Sequence[Arrangement]) -> int:
    """Return how many exchanges a join needs after the first: where keys change, and where joined rows are grouped."""
    return max(chain.levels for *_, chain in chains(plan, arrangements)) + (plan.grouping is not None)


def leaves(plan: JoinQuery, arrangements: Sequence[Arrangement], stream: str) -> Iterator[tuple[int, int, Keys]]:
    """Yield (input, slot, keys) for each input that reads a stream, by all keys that its arrangements need; each once."""
    found: dict[tuple[int, int, Keys], None] = {}
    for _, _, chain in reversed(chains(plan, arrangements)):
        for leaf in (chain.first, *(step.leaf for step in chain.steps)):
            if leaf.stream == stream:
                found[leaf.input, leaf.slot, leaf.keys] = None
    yield from found


def needed_columns(plan: JoinQuery, index: int) -> frozenset[str]:
    """Return the columns of an input that are looked at after its rows were selected."""
    owners = (owner(column.name) for column in plan.joined_columns)
    return frozenset(name for number, name in owners if number == index and name)
