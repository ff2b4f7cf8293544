"""The meaning of a single stateless or aggregation query.

The binder flattens sub-queries and pushes down unions, so a query is a flat value: a tuple of branches, one for each stream
it reads, each with its own predicate and expressions over the columns of that stream. A stateless query emits one row for
each row that passes; an aggregation groups the rows of all its branches by window and key. Joins are in
`headrace.plan.window_join` (TUMBLE and HOP windows) and `headrace.plan.sliding_join` (SLIDING windows).

After aggregation, `output` and `having` are expressions over these columns: `window_start`, `window_end`, `key0` …
and `agg0` … (see `key_column`, `agg_column`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Column, Expression
from headrace.model.record import record
from headrace.model.types import TIMESTAMP, Schema
from headrace.model.window import Window
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import WindowJoinQuery

WINDOW_START = Column("window_start", TIMESTAMP)
WINDOW_END = Column("window_end", TIMESTAMP)


def key_column(index: int, kind: pa.DataType) -> Column:
    """Return the column that holds group key `index` after aggregation."""
    return Column(f"key{index}", kind)


def agg_column(index: int, kind: pa.DataType) -> Column:
    """Return the column that holds aggregate `index` after aggregation."""
    return Column(f"agg{index}", kind)


@record("select-branch")
@dataclass(frozen=True, slots=True)
class SelectBranch:
    """The branch of a stateless query that reads one stream."""

    stream: str
    outputs: tuple[Expression, ...]
    predicate: Expression = TRUE


@record("stateless-query")
@dataclass(frozen=True, slots=True)
class StatelessQuery:
    """Filter and projection, row by row; `schema` has the names and types of the outputs of every branch."""

    branches: tuple[SelectBranch, ...]
    schema: Schema

    def __post_init__(self) -> None:
        """Check that every branch matches the schema."""
        for branch in self.branches:
            if tuple(e.type for e in branch.outputs) != tuple(f.type for f in self.schema):
                raise ValueError(f"branch over '{branch.stream}' does not match the schema of the query")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams read, each once, in order."""
        if len(self.branches) == 1:
            return (self.branches[0].stream,)
        return tuple(dict.fromkeys(branch.stream for branch in self.branches))


@record("aggregate-branch")
@dataclass(frozen=True, slots=True)
class AggregateBranch:
    """The branch of an aggregation that reads one stream: predicate, group keys and aggregates."""

    stream: str
    keys: tuple[Expression, ...]
    aggregates: tuple[AggregateCall, ...]
    predicate: Expression = TRUE


@record("aggregate-query")
@dataclass(frozen=True, slots=True)
class AggregateQuery:
    """A windowed aggregation: group the rows of all branches by window and key, then apply HAVING and the outputs."""

    window: Window
    branches: tuple[AggregateBranch, ...]
    output: tuple[Expression, ...]
    schema: Schema
    having: Expression = TRUE

    def __post_init__(self) -> None:
        """Check that all branches agree on the types of keys and aggregates, and that outputs match the schema."""
        shapes = {
            (tuple(k.type for k in b.keys), tuple((a.function, a.parameter, a.type) for a in b.aggregates)) for b in self.branches
        }
        if len(shapes) != 1:
            raise ValueError("the branches of an aggregation disagree on keys or aggregates")
        if tuple(e.type for e in self.output) != tuple(f.type for f in self.schema):
            raise ValueError("the outputs of an aggregation do not match its schema")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams read, each once, in order."""
        if len(self.branches) == 1:
            return (self.branches[0].stream,)
        return tuple(dict.fromkeys(branch.stream for branch in self.branches))


LogicalQuery: TypeAlias = StatelessQuery | AggregateQuery | WindowJoinQuery | SlidingJoinQuery
