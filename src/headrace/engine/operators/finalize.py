"""Last step of shared aggregation: combined components to result rows, for all queries of one shape at once.

Queries with equal aggregates, HAVING and output expressions have one `ResultShape`: their results are lowered, filtered and
projected together, and only then split by query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import Numbers, combine_chunks, from_numbers
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.compute.lower import lower_aggregate, lower_listed
from headrace.engine.failures import QueryFailures
from headrace.engine.kernels import window as window_kernels
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Expression, column_names
from headrace.model.record import record
from headrace.model.types import TIMESTAMP, Schema
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery
from headrace.planner.components import Component, derive_branch_components, locate_components
from headrace.storage.result_files import BatchResults

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ResultShape:
    """Queries with equal shapes are finalized together; `calls` holds the types of arguments, not the expressions of a branch."""

    key_types: tuple[pa.DataType, ...]
    calls: tuple[tuple[str, pa.DataType, float | None, tuple[pa.DataType, ...]], ...]
    output: tuple[Expression, ...]
    having: Expression
    schema: Schema
    component_places: tuple[tuple[int, ...], ...]  # places of each aggregate's components among the required ones


def shape_of(plan: AggregateQuery) -> ResultShape:
    """Return the shape of a query."""
    branch = plan.branches[0]
    calls = tuple(
        (call.function, call.type, call.parameter, tuple(argument.type for argument in call.args)) for call in branch.aggregates
    )
    places = locate_components([branch_plan.aggregates for branch_plan in plan.branches])
    return ResultShape(tuple(key.type for key in branch.keys), calls, plan.output, plan.having, plan.schema, places)


def list_required_components(plan: AggregateQuery) -> tuple[Component, ...]:
    """Return the components that a query requires; only their kinds and types matter here."""
    return tuple(alternatives[0] for alternatives in derive_branch_components([branch.aggregates for branch in plan.branches]))


@record("listed-values")
@dataclass(frozen=True, slots=True)
class ListedValues:
    """Value lists of one component: the result row of each value, the value columns, and the count of each value."""

    rows: Integers
    values: list[pa.Array]
    counts: Integers


@dataclass(frozen=True, slots=True)
class CombinedRows:
    """Result rows before lowering, sorted by query: query, window, keys, and components (dense arrays or value lists).

    With `counts`, a query and a window are those of so many rows, which are not repeated unless an output needs it.
    """

    queries: Integers
    starts: Integers
    ends: Integers
    keys: list[pa.Array]
    dense: list[list[Numbers]]
    listed: dict[int, ListedValues]
    counts: Integers | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.queries) if self.counts is None else int(self.counts.sum())

    def repeat(self, values: Integers) -> Integers:
        """Return a value for each row, from one for each query or window."""
        if self.counts is None:
            return values
        repeated: Integers = window_kernels.repeat_values(values, self.counts, self.row_count)
        return repeated


def finalize_rows(plan: AggregateQuery, combined: CombinedRows, results: BatchResults, failures: QueryFailures) -> None:
    """Lower, filter and project rows of queries that share the shape of `plan`; a failing query emits no rows."""
    rows = combined.row_count
    if rows == 0:
        return
    shape = shape_of(plan)
    used = frozenset().union(*map(column_names, (plan.having, *plan.output)))
    windows = {WINDOW_START.name: combined.starts, WINDOW_END.name: combined.ends}
    table: dict[str, Any] = {
        **{name: from_numbers(combined.repeat(times), TIMESTAMP) for name, times in windows.items() if name in used},
        **{f"key{index}": column for index, column in enumerate(combined.keys)},
    }
    for index, call in enumerate(plan.branches[0].aggregates):
        column, overflows = _lower_aggregate(call, shape.component_places[index], combined, rows)
        table[f"agg{index}"] = column
        if overflows is not None:
            failures.add_rows(combined.repeat(combined.queries)[overflows], f"integer overflow in {call}")
    _project_rows(plan, table, combined, results, failures)


def _lower_aggregate(call: AggregateCall, places: Sequence[int], combined: CombinedRows, rows: int) -> tuple[pa.Array, Any]:
    if places[0] in combined.listed:
        entries = combined.listed[places[0]]
        return lower_listed(call, entries.rows, entries.values, entries.counts, rows), None
    return lower_aggregate(call, [combined.dense[place] for place in places])


def _project_rows(
    plan: AggregateQuery, table: dict[str, Any], combined: CombinedRows, results: BatchResults, failures: QueryFailures
) -> None:
    evaluator = Evaluator(table, combined.row_count, is_guarded=True)
    selected: npt.NDArray[np.bool_] | None = None
    if plan.having != TRUE:
        _record_errors(evaluator, plan.having, combined, selected, failures)
        selected = np.asarray(combine_chunks(evaluator(plan.having)).fill_null(False))
    for expression in plan.output:
        if column_names(expression):
            _record_errors(evaluator, expression, combined, selected, failures)
    if failures:
        alive = ~np.isin(combined.repeat(combined.queries), list(failures.messages))
        selected = alive if selected is None else selected & alive
    outputs = [combine_chunks(evaluator(expression)) for expression in plan.output]
    queries, counts = combined.queries, combined.counts
    if selected is not None and not selected.all():
        mask = pa.array(selected)
        outputs, queries, counts = [column.filter(mask) for column in outputs], combined.repeat(queries)[selected], None
    results.add(queries, pa.RecordBatch.from_arrays(outputs, schema=plan.schema.to_arrow()), counts)


def _record_errors(
    evaluator: Evaluator,
    expression: Expression,
    combined: CombinedRows,
    selected: npt.NDArray[np.bool_] | None,
    failures: QueryFailures,
) -> None:
    errors = evaluator.errors(expression)
    if errors is not None:
        mask = np.asarray(errors.to_numpy(zero_copy_only=False), np.bool_)
        mask = mask if selected is None else mask & selected
        failures.add_rows(combined.repeat(combined.queries)[mask], evaluator.message(expression))
