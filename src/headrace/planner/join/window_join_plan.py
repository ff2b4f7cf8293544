"""Execution plan of a window join: a chain of steps, each joining the rows so far with the join buffer of one more input.

    orders ──┐
             ├─ step 1, by user ──┐
    clicks ──┘                    ├─ step 2, by campaign ──→
    campaigns ────────────────────┘

Steps by the same keys run in one partition; where the keys change, rows are shuffled by the new ones. Rows without keys are
spread evenly, and at a step without equalities one side is copied to all partitions: each pair of rows meets in one of them, and
all have equal shares of the pairs. Queries whose chains have a common prefix share its steps.

The optimizer chooses the order of inputs and the group of queries that share it, and may change both: a `JoinOrderVersion`
applies to windows from an event time on. After a change, windows that started earlier are still joined by the old version from
buffers partitioned by the old keys; rows are buffered by old and new keys until the last of those windows closes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import accumulate

from headrace.model.expression import TRUE, Call, Column, Expression, column_names, combine_conjuncts, split_conjuncts
from headrace.model.record import record
from headrace.model.time import MIN_TIME
from headrace.plan.window_join import (
    JoinEquality,
    JoinKind,
    JoinNode,
    JoinTree,
    WindowJoinQuery,
    iter_inputs,
    iter_join_nodes,
    joined_column,
    split_joined_name,
    to_stream_columns,
)


@record("join-order-version")
@dataclass(frozen=True, slots=True)
class JoinOrderVersion:
    """An order of inputs and the groups in which it is shared, valid for windows that start at `since` or later.

    `group` is that of the first step, `later_groups` those of the steps after it; without them, all steps are in `group`. Queries
    share a step if they share all steps before it, and are in the same group.
    """

    order: tuple[int, ...]
    group: int = 0
    since: int = MIN_TIME
    later_groups: tuple[int, ...] = ()

    @property
    def step_groups(self) -> tuple[int, ...]:
        """The group of each step."""
        missing = len(self.order) - 2 - len(self.later_groups)
        return (self.group, *self.later_groups, *([self.group] * missing))


def is_reorderable(plan: WindowJoinQuery) -> bool:
    """Return whether the inputs may be reordered: all joins must be inner joins."""
    return all(node.kind is JoinKind.INNER for node in iter_join_nodes(plan.tree))


def get_written_order(plan: WindowJoinQuery) -> tuple[int, ...]:
    """Return the order of inputs in the query text."""
    return tuple(iter_inputs(plan.tree))


def canonicalize_join(plan: WindowJoinQuery) -> WindowJoinQuery:
    """Return an inner join with its inputs numbered by stream name, so that equal joins written in different orders are equal."""
    if not is_reorderable(plan):
        return plan
    return renumber_inputs(plan, sorted(range(len(plan.inputs)), key=lambda i: (plan.inputs[i].stream, i)))


def renumber_inputs(plan: WindowJoinQuery, order: Sequence[int]) -> WindowJoinQuery:
    """Return the same join with its inputs numbered in an order: `order[i]` becomes input i."""
    if list(order) == list(range(len(order))):
        return plan
    number = {old: new for new, old in enumerate(order)}

    def renumber(expression: Expression) -> Expression:
        return _renumber_columns(expression, number)

    def renumber_tree(node: JoinTree) -> JoinTree:
        if isinstance(node, int):
            return number[node]
        equalities = tuple(JoinEquality(renumber(e.left), renumber(e.right)) for e in node.equalities)
        return JoinNode(node.kind, renumber_tree(node.left), renumber_tree(node.right), equalities, renumber(node.residual))

    grouping = plan.grouping
    if grouping is not None:
        calls = tuple(replace(call, args=tuple(map(renumber, call.args))) for call in grouping.aggregates)
        grouping = replace(grouping, keys=tuple(map(renumber, grouping.keys)), aggregates=calls)
    root = renumber_tree(plan.tree)
    assert isinstance(root, JoinNode)
    output = plan.output if grouping is not None else tuple(map(renumber, plan.output))
    return WindowJoinQuery(tuple(plan.inputs[i] for i in order), root, output, plan.schema, renumber(plan.predicate), grouping)


def _renumber_columns(expression: Expression, number: Mapping[int, int]) -> Expression:
    if isinstance(expression, Column):
        if not expression.name[:1].isdigit():
            return expression
        index, name = split_joined_name(expression.name)
        return joined_column(number[index], name, expression.type)
    if isinstance(expression, Call):
        arguments = tuple(_renumber_columns(argument, number) for argument in expression.args)
        return Call(expression.function, arguments, expression.type)
    return expression


def build_join_tree(plan: WindowJoinQuery, order: Sequence[int]) -> JoinNode:
    """Return the left-deep tree that joins the inputs in an order and applies each condition as early as possible.

    Equalities are sorted by the keys of the joined input, so that queries that write them in different orders share steps.
    """
    if not is_reorderable(plan):
        return plan.tree
    conditions = tuple(iter_conditions(plan))
    tree: JoinTree = order[0]
    for position, index in enumerate(order[1:], 1):
        tree = make_inner_node(conditions, tree, frozenset(order[:position]), index)
    assert isinstance(tree, JoinNode)
    return tree


def make_inner_node(conditions: Sequence[Expression], left: JoinTree, joined: frozenset[int], index: int) -> JoinNode:
    """Return the inner join of some inputs with one more, with the conditions that can be applied then, but not before."""
    reached, is_first = joined | {index}, len(joined) == 1
    due = [c for c in conditions if find_inputs(c) <= reached and (is_first or not find_inputs(c) <= joined)]
    candidates = [to_equality(condition, joined, index) for condition in due]
    found = [candidate for candidate in candidates if candidate is not None]
    equalities = tuple(sorted(found, key=lambda e: (str(to_stream_columns(e.right)), str(to_stream_columns(e.left)))))
    rest = combine_conjuncts([condition for condition, candidate in zip(due, candidates, strict=True) if candidate is None])
    return JoinNode(JoinKind.INNER, left, index, equalities, rest)


def count_cross_products(conditions: Sequence[Expression], order: Sequence[int]) -> int:
    """Return the number of cross products: steps of an order without an equality."""
    count, joined = 0, frozenset({order[0]})
    for index in order[1:]:
        count += all(to_equality(condition, joined, index) is None for condition in conditions)
        joined |= {index}
    return count


def iter_conditions(plan: WindowJoinQuery) -> Iterable[Expression]:
    """Yield all conditions between inputs, node by node, the equalities of a node first."""
    for node in iter_join_nodes(plan.tree):
        for pair in node.equalities:
            yield Call("eq", tuple(sorted((pair.left, pair.right), key=str)), TRUE.type)
        yield from (part for part in split_conjuncts(node.residual) if part != TRUE)


@lru_cache(maxsize=1 << 14)
def find_inputs(condition: Expression) -> frozenset[int]:
    """Return the inputs that a condition refers to."""
    return frozenset(split_joined_name(name)[0] for name in column_names(condition))


@lru_cache(maxsize=1 << 14)
def to_equality(condition: Expression, joined: frozenset[int], index: int) -> JoinEquality | None:
    """Return a condition as an equality between the joined inputs and one more; None for any other condition."""
    if isinstance(condition, Call) and condition.function == "eq":
        first, second = condition.args
        if find_inputs(second) == {index} and find_inputs(first) and find_inputs(first) <= joined:
            return JoinEquality(first, second)
        if find_inputs(first) == {index} and find_inputs(second) and find_inputs(second) <= joined:
            return JoinEquality(second, first)
    return None


JoinKeys = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class WindowJoinLeaf:
    """The rows of one input: a join buffer of a stream by keys (over its own columns), for the queries of one group.

    `input_index` is the position in the chain, so that queries share a prefix whatever other inputs they have. `slot`
    distinguishes the inputs of a query that read the same stream.
    """

    input_index: int
    stream: str
    keys: JoinKeys
    slot: int
    group: int = 0


class StepExchange(Enum):
    """How the rows of a step and of its leaf meet: by keys, or by copies of the side of which each row may be joined alone."""

    KEYS = "by keys"
    COPY_LEAF = "the leaf in all partitions"  # each row so far is in one partition, and meets all rows of the leaf
    COPY_ROWS = "rows in all partitions"  # each row of the leaf is in one partition
    GATHER = "one partition"  # a full outer join needs all rows of both sides, to tell which have no partner

    @property
    def moves_leaf(self) -> bool:
        """Whether the rows of the leaf leave their partitions."""
        return self in (StepExchange.COPY_LEAF, StepExchange.GATHER)


@dataclass(frozen=True, slots=True)
class WindowJoinStep:
    """Join the rows so far with a leaf; if `repartitions`, they are first shuffled: by `left_keys`, if there are any.

    Columns in `left_keys` are those of positions in the chain.
    """

    kind: JoinKind
    left_keys: JoinKeys
    leaf: WindowJoinLeaf
    repartitions: bool

    @property
    def exchange(self) -> StepExchange:
        """How rows meet; what moves arrives with the last shuffle before the step."""
        if self.left_keys:
            return StepExchange.KEYS
        if self.kind is JoinKind.FULL:
            return StepExchange.GATHER
        return StepExchange.COPY_ROWS if self.kind is JoinKind.RIGHT else StepExchange.COPY_LEAF


JoinPath = tuple[WindowJoinLeaf | WindowJoinStep, ...]


@dataclass(frozen=True, slots=True)
class WindowJoinChain:
    """The steps of a join: the first leaf, then the steps. Queries share equal prefixes of chains."""

    first_leaf: WindowJoinLeaf
    steps: tuple[WindowJoinStep, ...]

    @property
    def leaves(self) -> tuple[WindowJoinLeaf, ...]:
        """The leaves, in their order."""
        return (self.first_leaf, *(step.leaf for step in self.steps))

    @property
    def path(self) -> JoinPath:
        """The first leaf and the steps: queries share the prefixes of it that are equal."""
        return (self.first_leaf, *self.steps)

    @property
    def extra_shuffles(self) -> int:
        """The number of shuffles after the first one."""
        return self.step_levels[-1]

    @property
    def step_levels(self) -> tuple[int, ...]:
        """The number of shuffles after the first one before each step."""
        return tuple(accumulate(int(step.repartitions) for step in self.steps))


_KEEPS_PARTITIONING = (StepExchange.KEYS, StepExchange.COPY_LEAF)
Partitioning = tuple[frozenset[Expression], ...]  # each key with the expressions that are equal to it


@dataclass(frozen=True, slots=True)
class ChainPrefix:
    """The first inputs of a chain, and by what their joined rows are partitioned (None: by nothing that is known)."""

    order: tuple[int, ...]
    first_leaf: WindowJoinLeaf | None = None
    steps: tuple[WindowJoinStep, ...] = ()
    partitioning: Partitioning | None = None

    @property
    def level(self) -> int:
        """The number of shuffles after the first one."""
        return sum(step.repartitions for step in self.steps)


def extend_chain(plan: WindowJoinQuery, prefix: ChainPrefix, node: JoinNode, group: int = 0) -> ChainPrefix:
    """Return the prefix with one more input: the right side of the join node."""
    assert isinstance(node.right, int)
    order = (*prefix.order, node.right)
    positions = {index: position for position, index in enumerate(order)}

    def leaf(index: int, keys: JoinKeys) -> WindowJoinLeaf:
        stream_keys = tuple(map(to_stream_columns, keys))
        return WindowJoinLeaf(positions[index], plan.inputs[index].stream, stream_keys, plan.stream_occurrence(index), group)

    keys = tuple(e.left for e in node.equalities)
    left_keys = keys if order == tuple(range(len(order))) else tuple(_renumber_columns(key, positions) for key in keys)
    right = leaf(node.right, tuple(e.right for e in node.equalities))
    step = WindowJoinStep(node.kind, left_keys, right, repartitions=False)
    partitioning = prefix.partitioning
    if step.exchange is StepExchange.KEYS:
        moves = bool(prefix.steps) and not _is_partitioned_by(partitioning, keys)
    else:  # a leaf can be copied by any shuffle before the step
        moves = step.exchange is not StepExchange.COPY_LEAF or not any(earlier.repartitions for earlier in prefix.steps)
    if keys and (moves or not prefix.steps):
        partitioning = tuple(frozenset({key}) for key in keys)
    partitioning = _partitioning_after(partitioning, node) if step.exchange in _KEEPS_PARTITIONING else None
    first_leaf = prefix.first_leaf or leaf(prefix.order[0], keys)
    return ChainPrefix(order, first_leaf, (*prefix.steps, replace(step, repartitions=moves)), partitioning)


def build_chain(plan: WindowJoinQuery, tree: JoinNode, groups: Sequence[int] = ()) -> WindowJoinChain:
    """Return the chain of a join under a left-deep tree; `groups` has the group of each step, by default 0."""
    nodes = list(iter_join_nodes(tree))
    assert isinstance(nodes[0].left, int)
    prefix = ChainPrefix((nodes[0].left,))
    for node, group in zip(nodes, groups or [0] * len(nodes), strict=True):
        prefix = extend_chain(plan, prefix, node, group)
    assert prefix.first_leaf is not None
    return WindowJoinChain(prefix.first_leaf, prefix.steps)


def build_chains(
    plan: WindowJoinQuery, arrangements: Sequence[JoinOrderVersion]
) -> list[tuple[JoinOrderVersion, JoinNode, WindowJoinChain]]:
    """Return the tree and the chain of a join for each join order version; for the written order if there are no versions."""
    result = []
    for version in arrangements or (JoinOrderVersion(get_written_order(plan)),):
        tree = build_join_tree(plan, version.order)
        result.append((version, tree, build_chain(plan, tree, version.step_groups)))
    return result


def _is_partitioned_by(partitioning: Partitioning | None, keys: JoinKeys) -> bool:
    """Return whether rows with this partitioning are already partitioned by these keys."""
    return (
        partitioning is not None
        and len(partitioning) == len(keys)
        and all(key in names for key, names in zip(keys, partitioning, strict=True))
    )


def _partitioning_after(partitioning: Partitioning | None, node: JoinNode) -> Partitioning | None:
    """Return the partitioning of rows after a join; where rows may lack their left side, only the right side counts."""
    if partitioning is None:
        return None

    def extend_names(known: frozenset[Expression], equalities: tuple[JoinEquality, ...]) -> frozenset[Expression]:
        equal = frozenset(e.right for e in equalities if e.left in known)
        if node.kind is JoinKind.FULL:
            return frozenset()
        if node.kind is JoinKind.RIGHT:
            return equal
        return known | equal if node.kind is JoinKind.INNER else known

    return tuple(extend_names(known, node.equalities) for known in partitioning)


def count_extra_shuffles(plan: WindowJoinQuery, arrangements: Sequence[JoinOrderVersion]) -> int:
    """Return the number of shuffles of a join after the first: where keys change, and where joined rows are grouped."""
    return max(chain.extra_shuffles for *_, chain in build_chains(plan, arrangements)) + (plan.grouping is not None)


def iter_buffer_keys(
    plan: WindowJoinQuery, arrangements: Sequence[JoinOrderVersion], stream: str
) -> Iterator[tuple[int, int, JoinKeys]]:
    """Yield the distinct (input, slot, keys) of each input that reads a stream, for the keys of all join order versions."""
    distinct: dict[tuple[int, int, JoinKeys], None] = {}
    for version, _, chain in reversed(build_chains(plan, arrangements)):
        for leaf in chain.leaves:
            if leaf.stream == stream:
                distinct[version.order[leaf.input_index], leaf.slot, leaf.keys] = None
    yield from distinct


def find_needed_columns(plan: WindowJoinQuery, index: int) -> frozenset[str]:
    """Return the columns of an input that are read after the selection of its rows."""
    owners = (split_joined_name(column.name) for column in plan.joined_columns)
    return frozenset(name for input_index, name in owners if input_index == index and name)
