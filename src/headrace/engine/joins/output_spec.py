"""The output of a join query: what becomes of its complete rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.model.expression import TRUE, Expression
from headrace.model.types import Schema
from headrace.model.window import HopWindow
from headrace.plan.logical import AggregateBranch, AggregateQuery
from headrace.plan.window_join import JoinGrouping
from headrace.planner.components import Component, derive_components


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What becomes of the joined rows of a query; queries with equal ones are finished together.

    Rows that satisfy `predicate` are projected to `output`, or grouped. `span` is the length of the window of a result, and
    `window` any window of the query. Groups are complete at `group_level`, at the level where they arrive if it is 0: rows of one
    group may be finished at several levels, because not all of them are fetched, or from elsewhere.
    """

    output: tuple[Expression, ...]
    schema: Schema
    predicate: Expression = TRUE
    grouping: JoinGrouping | None = None
    span: int = 0
    group_level: int = 0
    window: HopWindow | None = field(default=None, compare=False)

    @property
    def aggregate_plan(self) -> AggregateQuery:
        """The aggregation over joined rows, as a query over a stream of them."""
        assert self.grouping is not None
        assert self.window is not None
        branch = AggregateBranch("", self.grouping.keys, self.grouping.aggregates)
        return AggregateQuery(self.window, (branch,), self.output, self.schema, self.grouping.having)

    @property
    def required_components(self) -> tuple[Component, ...]:
        """The components of an aggregation over joined rows."""
        assert self.grouping is not None
        return derive_components(self.grouping.aggregates)


@dataclass(frozen=True, slots=True)
class FinishedQuery:
    """A query whose rows are complete: its id, its bit in query-sets, and its output."""

    id: int
    bit: int
    output: OutputSpec
