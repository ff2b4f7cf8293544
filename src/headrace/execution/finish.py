"""Shared aggregation, last step: combined components to result rows, for all queries of one shape at once.

Queries whose aggregates, HAVING and output expressions are equal have one `Shape`: their results are lowered, filtered
and projected together, and only then cut into one piece a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.result import Failures, Results
from headrace.kernels.columns import Numbers, flat, from_numbers
from headrace.kernels.expression import Evaluator
from headrace.kernels.lower import lower, lower_listed
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Expression, columns
from headrace.model.schema import TIMESTAMP, Schema
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery
from headrace.sharing.aggregation import Component, components_of, pattern

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """What must be equal for results to be finished together; `calls` carry no branch's expressions, only their types."""

    key_types: tuple[pa.DataType, ...]
    calls: tuple[tuple[str, pa.DataType, float | None, tuple[pa.DataType, ...]], ...]
    output: tuple[Expression, ...]
    having: Expression
    schema: Schema
    pattern: tuple[tuple[int, ...], ...]  # places of each aggregate's components among the components needed


def shape_of(plan: AggregateQuery) -> Shape:
    """Return the shape of a query."""
    branch = plan.branches[0]
    calls = tuple((a.function, a.type, a.parameter, tuple(x.type for x in a.args)) for a in branch.aggregates)
    places = pattern([one.aggregates for one in plan.branches])
    return Shape(tuple(k.type for k in branch.keys), calls, plan.output, plan.having, plan.schema, places)


def needs_of(plan: AggregateQuery) -> tuple[Component, ...]:
    """Return the components a query needs; only kinds and types matter here."""
    return tuple(one[0] for one in components_of([branch.aggregates for branch in plan.branches]))


@dataclass(frozen=True, slots=True)
class Listed:
    """Values of one component: the result row each belongs to, value columns, how often."""

    rows: Integers
    values: list[pa.Array]
    counts: Integers


@dataclass(frozen=True, slots=True)
class Combined:
    """Result rows before lowering, sorted by query: their query, window, keys, and the components (dense or listed)."""

    queries: Integers
    starts: Integers
    ends: Integers
    keys: list[pa.Array]
    dense: list[list[Numbers]]
    listed: dict[int, Listed]


def finish(plan: AggregateQuery, combined: Combined, results: Results, failures: Failures) -> None:
    """Lower, filter and project rows of queries that share the shape of `plan`; a failing query gives no rows."""
    rows = len(combined.queries)
    if rows == 0:
        return
    shape = shape_of(plan)
    table: dict[str, Any] = {
        WINDOW_START.name: from_numbers(combined.starts, TIMESTAMP),
        WINDOW_END.name: from_numbers(combined.ends, TIMESTAMP),
        **{f"key{i}": column for i, column in enumerate(combined.keys)},
    }
    for index, call in enumerate(plan.branches[0].aggregates):
        column, bad = _lower(call, shape.pattern[index], combined, rows)
        table[f"agg{index}"] = column
        if bad is not None:
            failures.add_rows(combined.queries[bad], f"integer overflow in {call}")
    _project(plan, table, combined.queries, results, failures)


def _lower(call: AggregateCall, places: Sequence[int], combined: Combined, rows: int) -> tuple[pa.Array, Any]:
    if places[0] in combined.listed:
        found = combined.listed[places[0]]
        return lower_listed(call, found.rows, found.values, found.counts, rows), None
    return lower(call, [combined.dense[p] for p in places])


def _project(plan: AggregateQuery, table: dict[str, Any], queries: Integers, results: Results, failures: Failures) -> None:
    evaluator = Evaluator(table, len(queries))
    wanted = np.ones(len(queries), np.bool_)
    if plan.having != TRUE:
        _note(evaluator, plan.having, queries, wanted, failures)
        wanted = np.asarray(flat(evaluator(plan.having)).fill_null(False))
    for expression in plan.output:
        if columns(expression):
            _note(evaluator, expression, queries, wanted, failures)
    if failures:
        wanted = wanted & ~np.isin(queries, list(failures.messages))
    picked = [flat(evaluator(e)) for e in plan.output]
    if not wanted.all():
        mask = pa.array(wanted)
        picked, queries = [c.filter(mask) for c in picked], queries[wanted]
    results.add(queries, pa.RecordBatch.from_arrays(picked, schema=plan.schema.to_arrow()))


def _note(
    evaluator: Evaluator, expression: Expression, queries: Integers, wanted: npt.NDArray[np.bool_], failures: Failures
) -> None:
    bad = evaluator.errors(expression)
    if bad is not None:
        mask = np.asarray(bad.to_numpy(zero_copy_only=False), np.bool_) & wanted
        failures.add_rows(queries[mask], evaluator.message(expression))
