"""Joins in TUMBLE and HOP windows: inputs, join tree, and the meaning of a window join query.

Inputs are rows of streams in windows; a query may read a stream more than once. Windows of different inputs belong together
when they end at the same time, so equal windows are the same window. When these windows close, their rows are joined by a
tree of binary joins.

Expressions over joined rows see column `c` of input i as column `i.c` (see `joined_column`); it is NULL where an outer join
has no partner (`present_column` tells these apart). `window_end` is the common end, `window_start` the earliest start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Call, Column, Expression, walk_expression
from headrace.model.record import record
from headrace.model.types import Schema
from headrace.model.window import HopWindow, WindowEnds, find_common_ends

MAX_WINDOW_JOIN_INPUTS = 8


def joined_column(index: int, name: str, kind: pa.DataType) -> Column:
    """Return the column of joined rows that holds column `name` of input `index`."""
    return Column(f"{index}.{name}", kind)


def present_column(index: int) -> Column:
    """Return the column that is TRUE where a joined row has a row of input `index`, and NULL elsewhere."""
    return Column(f"{index}.", pa.bool_())


def split_joined_name(name: str) -> tuple[int, str]:
    """Split the name of a joined column into input and column name."""
    index, _, column = name.partition(".")
    return int(index), column


def to_joined_columns(expression: Expression, index: int) -> Expression:
    """Rewrite an expression over the columns of a stream to the joined columns of input `index`."""
    if isinstance(expression, Column):
        return joined_column(index, expression.name, expression.type)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(to_joined_columns(arg, index) for arg in expression.args), expression.type)
    return expression


def to_stream_columns(expression: Expression) -> Expression:
    """Rewrite an expression over the joined columns of one input to the columns of its stream."""
    if isinstance(expression, Column):
        return Column(split_joined_name(expression.name)[1], expression.type)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(map(to_stream_columns, expression.args)), expression.type)
    return expression


@record("join-kind")
class JoinKind(Enum):
    """Kind of a binary join; SEMI and ANTI keep only the columns of the left side."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @property
    def keeps_left(self) -> bool:
        """Whether the result contains left rows without a partner."""
        return self in (JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI)

    @property
    def keeps_right(self) -> bool:
        """Whether the result contains right rows without a partner."""
        return self in (JoinKind.RIGHT, JoinKind.FULL)

    @property
    def has_both_sides(self) -> bool:
        """Whether the result has columns of both sides."""
        return self not in (JoinKind.SEMI, JoinKind.ANTI)


@record("join-input")
@dataclass(frozen=True, slots=True)
class JoinInput:
    """An input of a window join: the rows of a stream that pass `predicate` (over the columns of the stream), in windows.

    If the rows are results of inner windows that end with these windows, `span` is the size of the inner windows.
    """

    stream: str
    window: HopWindow
    predicate: Expression = TRUE
    span: int = 0


@record("join-equality")
@dataclass(frozen=True, slots=True)
class JoinEquality:
    """Equi-join condition `left` = `right`.

    Each side reads only joined columns of inputs of its own side; both have the same type; NULL equals nothing.
    """

    left: Expression
    right: Expression


@record("join-node")
@dataclass(frozen=True, slots=True)
class JoinNode:
    """A binary join: rows are partners if all equalities and the residual predicate (over joined columns) hold.

    Without equalities only the residual predicate decides; if it is TRUE, too, the node is a cross join.
    """

    kind: JoinKind
    left: JoinTree
    right: JoinTree
    equalities: tuple[JoinEquality, ...]
    residual: Expression = TRUE


JoinTree: TypeAlias = int | JoinNode


def iter_inputs(tree: JoinTree) -> Iterator[int]:
    """Yield the inputs below a node, left to right."""
    if isinstance(tree, int):
        yield tree
    else:
        yield from iter_inputs(tree.left)
        yield from iter_inputs(tree.right)


def visible_inputs(tree: JoinTree) -> frozenset[int]:
    """Return the inputs whose columns the rows of a tree contain."""
    if isinstance(tree, int):
        return frozenset({tree})
    return visible_inputs(tree.left) | (visible_inputs(tree.right) if tree.kind.has_both_sides else frozenset())


def iter_join_nodes(tree: JoinTree) -> Iterator[JoinNode]:
    """Yield all joins of a tree, bottom-up."""
    if isinstance(tree, JoinNode):
        yield from iter_join_nodes(tree.left)
        yield from iter_join_nodes(tree.right)
        yield tree


@record("join-grouping")
@dataclass(frozen=True, slots=True)
class JoinGrouping:
    """An aggregation of the joined rows of a window; keys and arguments are over joined columns."""

    keys: tuple[Expression, ...]
    aggregates: tuple[AggregateCall, ...]
    having: Expression = TRUE


@record("window-join-query")
@dataclass(frozen=True, slots=True)
class WindowJoinQuery:
    """A window join, then `predicate` (WHERE, over joined columns), then an optional aggregation, then the outputs.

    `output` is over joined columns and the window bounds; with a grouping it is over the columns of an aggregation.
    """

    inputs: tuple[JoinInput, ...]
    tree: JoinNode
    output: tuple[Expression, ...]
    schema: Schema
    predicate: Expression = TRUE
    grouping: JoinGrouping | None = None

    def __post_init__(self) -> None:
        """Check that the tree covers the inputs, that windows have common ends, and that outputs match the schema."""
        if sorted(iter_inputs(self.tree)) != list(range(len(self.inputs))):
            raise ValueError("the tree of a join must contain every input exactly once")
        if find_common_ends([source.window for source in self.inputs]) is None:
            raise ValueError("the windows of a join have no common end")
        if tuple(e.type for e in self.output) != tuple(f.type for f in self.schema):
            raise ValueError("the outputs of a join do not match its schema")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams read, each once, in order."""
        return tuple(dict.fromkeys(source.stream for source in self.inputs))

    def stream_occurrence(self, index: int) -> int:
        """Return how many earlier inputs read the same stream; distinguishes the inputs of a self-join."""
        return sum(source.stream == self.inputs[index].stream for source in self.inputs[:index])

    @property
    def joined_columns(self) -> frozenset[Column]:
        """All joined columns that the query reads after selection."""
        expressions: list[Expression] = [self.predicate, *self.output]
        for node in iter_join_nodes(self.tree):
            expressions += [node.residual, *(side for e in node.equalities for side in (e.left, e.right))]
        if self.grouping is not None:
            expressions += [*self.grouping.keys, *(arg for call in self.grouping.aggregates for arg in call.args)]
        references = (part for expression in expressions for part in walk_expression(expression) if isinstance(part, Column))
        return frozenset(column for column in references if column.name[:1].isdigit())

    @property
    def ends(self) -> WindowEnds:
        """The common ends of the windows of all inputs."""
        ends = find_common_ends([source.window for source in self.inputs])
        assert ends is not None
        return ends

    @property
    def longest_window(self) -> int:
        """The size of the longest window."""
        return max(source.window.size for source in self.inputs)

    @property
    def longest_span(self) -> int:
        """The time from window_start to window_end: the longest window, including inner windows whose results are joined."""
        return max(source.span or source.window.size for source in self.inputs)
