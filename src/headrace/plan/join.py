"""What a windowed join means, whatever else is live.

Inputs are rows of streams in windows; a stream may be read more than once. Windows of different inputs belong together
when they end at the same time, so equal windows are simply the same window. Rows of windows that belong together are
joined, as a tree of two-sided joins says, when the windows close.

Expressions over joined rows see column `c` of input i as column `i.c` (see `joined_column`); it is NULL where an outer
join found no partner (`present_column` tells). `window_end` is the common end, `window_start` the earliest start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Call, Column, Expression, walk
from headrace.model.schema import Schema
from headrace.model.window import Ends, Sliding, common_ends

MAX_INPUTS = 5


def joined_column(index: int, name: str, kind: pa.DataType) -> Column:
    """Return the column that stands for column `name` of input `index` in joined rows."""
    return Column(f"{index}.{name}", kind)


def present_column(index: int) -> Column:
    """Return the column that is TRUE where a joined row has a row of input `index`, and NULL where it has none."""
    return Column(f"{index}.", pa.bool_())


def owner(name: str) -> tuple[int, str]:
    """Return input and column of a joined column's name."""
    index, _, column = name.partition(".")
    return int(index), column


def lifted(expression: Expression, index: int) -> Expression:
    """Return an expression over a stream's columns as one over those of input `index`."""
    if isinstance(expression, Column):
        return joined_column(index, expression.name, expression.type)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(lifted(arg, index) for arg in expression.args), expression.type)
    return expression


def lowered(expression: Expression) -> Expression:
    """Undo `lifted`: return an expression over columns of one input as one over the columns of its stream."""
    if isinstance(expression, Column):
        return Column(owner(expression.name)[1], expression.type)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(map(lowered, expression.args)), expression.type)
    return expression


class JoinKind(Enum):
    """How two sides are joined; SEMI and ANTI keep columns of the left side only."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @property
    def keeps_left(self) -> bool:
        """Whether left rows without a partner are in the result."""
        return self in (JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI)

    @property
    def keeps_right(self) -> bool:
        """Whether right rows without a partner are in the result."""
        return self in (JoinKind.RIGHT, JoinKind.FULL)

    @property
    def pairs(self) -> bool:
        """Whether the result has columns of both sides."""
        return self not in (JoinKind.SEMI, JoinKind.ANTI)


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One input: the rows of a stream that pass, in windows; `predicate` is over the stream's own columns.

    Rows that are results of windows that end with these have the length of those as `span`.
    """

    stream: str
    window: Sliding
    predicate: Expression = TRUE
    span: int = 0


@dataclass(frozen=True, slots=True)
class Equality:
    """`left` = `right`: each over joined columns of inputs of its own side only, and of one type; NULL equals nothing."""

    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class JoinNode:
    """A two-sided join: rows are partners when all equalities hold, and then `rest` (over joined columns) does.

    Without equalities `rest` alone tells; where that is TRUE, too, everything is joined with everything.
    """

    kind: JoinKind
    left: JoinTree
    right: JoinTree
    equalities: tuple[Equality, ...]
    rest: Expression = TRUE


JoinTree: TypeAlias = int | JoinNode


def inputs_of(tree: JoinTree) -> Iterator[int]:
    """Yield the inputs below a node, left to right."""
    if isinstance(tree, int):
        yield tree
    else:
        yield from inputs_of(tree.left)
        yield from inputs_of(tree.right)


def visible(tree: JoinTree) -> frozenset[int]:
    """Return the inputs whose columns the rows of a tree have."""
    if isinstance(tree, int):
        return frozenset({tree})
    return visible(tree.left) | (visible(tree.right) if tree.kind.pairs else frozenset())


def nodes_of(tree: JoinTree) -> Iterator[JoinNode]:
    """Yield all joins of a tree, inner ones first."""
    if isinstance(tree, JoinNode):
        yield from nodes_of(tree.left)
        yield from nodes_of(tree.right)
        yield tree


@dataclass(frozen=True, slots=True)
class JoinGrouping:
    """An aggregation of the joined rows of a window: keys and arguments are over joined columns."""

    keys: tuple[Expression, ...]
    aggregates: tuple[AggregateCall, ...]
    having: Expression = TRUE


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """A windowed join; then `predicate` (WHERE, over joined columns); then an aggregation, if asked; then the outputs.

    `output` is over joined columns and the window's bounds; with a grouping it is over the columns of an aggregation.
    """

    inputs: tuple[JoinInput, ...]
    tree: JoinNode
    output: tuple[Expression, ...]
    schema: Schema
    predicate: Expression = TRUE
    grouping: JoinGrouping | None = None

    def __post_init__(self) -> None:
        """Check that the tree is over the inputs, that windows meet, and that outputs fit the schema."""
        if sorted(inputs_of(self.tree)) != list(range(len(self.inputs))):
            raise ValueError("the tree of a join must have every input once")
        if common_ends([each.window for each in self.inputs]) is None:
            raise ValueError("the windows of a join never end at the same time")
        if tuple(e.type for e in self.output) != tuple(f.type for f in self.schema):
            raise ValueError("the outputs of a join do not fit its schema")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams read, each once, in order."""
        return tuple(dict.fromkeys(each.stream for each in self.inputs))

    def slot(self, index: int) -> int:
        """Return how many inputs before this one read the same stream: it tells them apart."""
        return sum(each.stream == self.inputs[index].stream for each in self.inputs[:index])

    @property
    def joined_columns(self) -> frozenset[Column]:
        """All joined columns that are looked at after rows were selected."""
        found: list[Expression] = [self.predicate, *self.output]
        for node in nodes_of(self.tree):
            found += [node.rest, *(side for e in node.equalities for side in (e.left, e.right))]
        if self.grouping is not None:
            found += [*self.grouping.keys, *(arg for call in self.grouping.aggregates for arg in call.args)]
        used = (part for expression in found for part in walk(expression) if isinstance(part, Column))
        return frozenset(column for column in used if column.name[:1].isdigit())

    @property
    def ends(self) -> Ends:
        """When windows of all inputs end together."""
        found = common_ends([each.window for each in self.inputs])
        assert found is not None
        return found

    @property
    def size(self) -> int:
        """The longest window."""
        return max(each.window.size for each in self.inputs)

    @property
    def span(self) -> int:
        """From window_start to window_end: the longest window, also of those whose results are joined."""
        return max(each.span or each.window.size for each in self.inputs)
