"""Execution plan of a window join: a chain of steps, each joining the rows so far with the join buffer of one more input.

    orders ──┐
             ├─ step 1, by user ──┐
    clicks ──┘                    ├─ step 2, by campaign ──→
    campaigns ────────────────────┘

Steps by the same keys run in one partition; where the keys change, rows are shuffled by the new ones. Rows without keys, those of
steps without equalities, lie in a single partition. Queries whose chains have a common prefix share its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.model.expression import Expression
from headrace.plan.join import (
    JoinEquality,
    JoinKind,
    JoinNode,
    JoinTree,
    WindowJoinQuery,
    iter_join_nodes,
    split_joined_name,
    to_stream_columns,
)
from headrace.sharing.arrangement import JoinOrderVersion, build_join_tree, get_written_order

JoinKeys = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class WindowJoinLeaf:
    """The rows of one input: a join buffer of a stream by keys (over its own columns), for the queries of one group.

    `slot` distinguishes the inputs of a query that read the same stream.
    """

    input_index: int
    stream: str
    keys: JoinKeys
    slot: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class WindowJoinStep:
    """Join the rows so far with a leaf; if `repartitions`, they are first shuffled by `left_keys`."""

    kind: JoinKind
    left_keys: JoinKeys
    leaf: WindowJoinLeaf
    repartitions: bool


@dataclass(frozen=True, slots=True)
class WindowJoinChain:
    """The steps of a join: the first leaf, then the steps. Queries share equal prefixes of chains."""

    first_leaf: WindowJoinLeaf
    steps: tuple[WindowJoinStep, ...]

    @property
    def extra_shuffles(self) -> int:
        """The number of shuffles after the first one."""
        return sum(step.repartitions for step in self.steps)


def build_chain(plan: WindowJoinQuery, tree: JoinNode, group: int = 0) -> WindowJoinChain:
    """Return the chain of a join under a left-deep tree."""
    nodes = list(iter_join_nodes(tree))

    def leaf(index: JoinTree, keys: JoinKeys) -> WindowJoinLeaf:
        assert isinstance(index, int)
        return WindowJoinLeaf(
            index, plan.inputs[index].stream, tuple(map(to_stream_columns, keys)), plan.stream_occurrence(index), group
        )

    first = leaf(nodes[0].left, tuple(e.left for e in nodes[0].equalities))
    steps: list[WindowJoinStep] = []
    partitioning: list[frozenset[Expression]] = []
    for node in nodes:
        keys = tuple(e.left for e in node.equalities)
        moves = bool(steps) and not _is_partitioned_by(partitioning, keys)
        right = tuple(e.right for e in node.equalities)
        steps.append(WindowJoinStep(node.kind, keys, leaf(node.right, right), moves))
        if not steps[:-1] or moves:
            partitioning = [frozenset({key}) for key in keys]
        partitioning = _partitioning_after(partitioning, node)
    return WindowJoinChain(first, tuple(steps))


def build_chains(
    plan: WindowJoinQuery, arrangements: Sequence[JoinOrderVersion]
) -> list[tuple[JoinOrderVersion, JoinNode, WindowJoinChain]]:
    """Return the tree and the chain of a join for each join order version; for the written order if there are no versions."""
    result = []
    for version in arrangements or (JoinOrderVersion(get_written_order(plan)),):
        tree = build_join_tree(plan, version.order)
        result.append((version, tree, build_chain(plan, tree, version.group)))
    return result


def _is_partitioned_by(partitioning: list[frozenset[Expression]], keys: JoinKeys) -> bool:
    """Return whether rows with this partitioning (each key with its equal expressions) are already partitioned by these keys."""
    return len(partitioning) == len(keys) and all(key in names for key, names in zip(keys, partitioning, strict=True))


def _partitioning_after(partitioning: list[frozenset[Expression]], node: JoinNode) -> list[frozenset[Expression]]:
    """Return the partitioning of rows after a join; where rows may lack their left side, only the right side counts."""

    def extend_names(known: frozenset[Expression], equalities: tuple[JoinEquality, ...]) -> frozenset[Expression]:
        equal = frozenset(e.right for e in equalities if e.left in known)
        if node.kind is JoinKind.FULL:
            return frozenset()
        if node.kind is JoinKind.RIGHT:
            return equal
        return known | equal if node.kind is JoinKind.INNER else known

    return [extend_names(known, node.equalities) for known in partitioning]


def count_extra_shuffles(plan: WindowJoinQuery, arrangements: Sequence[JoinOrderVersion]) -> int:
    """Return the number of shuffles of a join after the first: where keys change, and where joined rows are grouped."""
    return max(chain.extra_shuffles for *_, chain in build_chains(plan, arrangements)) + (plan.grouping is not None)


def iter_buffer_keys(
    plan: WindowJoinQuery, arrangements: Sequence[JoinOrderVersion], stream: str
) -> Iterator[tuple[int, int, JoinKeys]]:
    """Yield the distinct (input, slot, keys) of each input that reads a stream, for the keys of all join order versions."""
    distinct: dict[tuple[int, int, JoinKeys], None] = {}
    for _, _, chain in reversed(build_chains(plan, arrangements)):
        for leaf in (chain.first_leaf, *(step.leaf for step in chain.steps)):
            if leaf.stream == stream:
                distinct[leaf.input_index, leaf.slot, leaf.keys] = None
    yield from distinct


def find_needed_columns(plan: WindowJoinQuery, index: int) -> frozenset[str]:
    """Return the columns of an input that are read after the selection of its rows."""
    owners = (split_joined_name(column.name) for column in plan.joined_columns)
    return frozenset(name for input_index, name in owners if input_index == index and name)
