"""Streams derived from rows as they are read, in a worker: unnested lists, and unions. They have operators of their own."""

from __future__ import annotations

import pyarrow as pa

from headrace.engine.batch_job import BatchJob, StreamJob
from headrace.engine.compute.columns import combine_chunks
from headrace.engine.compute.evaluator import Evaluator
from headrace.model.expression import column_names
from headrace.plan.derived import RowStream, UnionBranch, UnitedStream, UnnestedStream


def find_needed_columns(job: BatchJob, stream: StreamJob) -> set[str]:
    """Return the columns of a stream that queries need, over the stream itself or over streams derived from its rows."""
    plans = (stream.plan, *(epoch.plan for epoch in stream.epochs))
    needed = {name for plan in plans for name in job.load_plan(plan).plan.columns}
    for derived in list_row_streams(job, stream.stream.name):
        if isinstance(derived, UnnestedStream):
            needed |= set(column_names(derived.list_expression)) | find_needed_columns(job, job.streams[derived.name])
        else:
            expressions = (e for branch in derived.branches for e in (*branch.columns, branch.predicate))
            needed |= {name for expression in expressions for name in column_names(expression)}
    return needed


def list_row_streams(job: BatchJob, stream: str) -> list[RowStream]:
    """Return the streams derived directly from the rows of a stream."""
    return [derived for derived in job.unnested_streams if stream in derived.bases]


def derive_rows(derived: RowStream, base: str, table: pa.Table) -> tuple[pa.Table, str]:
    """Return the rows that a derived stream has for those of one of its streams, and the error of evaluating them, if any."""
    if isinstance(derived, UnnestedStream):
        return _unnest_rows(derived, table)
    parts, message = [], ""
    for branch in derived.branches:
        if branch.base == base:
            rows, error = _select_rows(derived, branch, table)
            parts.append(rows)
            message = message or error
    return pa.concat_tables(parts), message


def _unnest_rows(unnested: UnnestedStream, table: pa.Table) -> tuple[pa.Table, str]:
    """Return a row for each element; a list that fails counts as empty."""
    evaluator = _make_evaluator(table)
    lists = combine_chunks(evaluator(unnested.list_expression))
    rows = table.take(pa.compute.list_parent_indices(lists))
    return rows.append_column(unnested.element.name, pa.compute.list_flatten(lists)), evaluator.message(unnested.list_expression)


def _select_rows(united: UnitedStream, branch: UnionBranch, table: pa.Table) -> tuple[pa.Table, str]:
    """Return the rows that a branch of a union selects; a value that fails is NULL."""
    selecting = _make_evaluator(table)
    holds = combine_chunks(selecting(branch.predicate)).fill_null(False)
    selected = table.filter(holds)
    evaluator = _make_evaluator(selected)
    columns = [combine_chunks(evaluator(column)) for column in branch.columns]
    expressions = ((selecting, branch.predicate), *((evaluator, column) for column in branch.columns))
    message = next((text for by, expression in expressions if (text := by.message(expression))), "")
    return pa.Table.from_arrays(columns, schema=united.stream.schema.to_arrow()), message


def _make_evaluator(table: pa.Table) -> Evaluator:
    return Evaluator({name: table[name] for name in table.schema.names}, table.num_rows, is_guarded=True)
