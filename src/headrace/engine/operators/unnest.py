"""UNNEST streams in a worker: derived from the rows of another stream as they are read, with operators of their own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.batch_job import BatchJob, StreamJob
from headrace.engine.compute.columns import combine_chunks
from headrace.engine.compute.evaluator import Evaluator
from headrace.model.expression import column_names
from headrace.plan.derived import UnnestedStream


def find_needed_columns(job: BatchJob, stream: StreamJob) -> set[str]:
    """Return the columns of a stream that queries need, over the stream itself or over UNNEST streams derived from it."""
    plans = (stream.plan, *(epoch.plan for epoch in stream.epochs))
    needed = {name for plan in plans for name in job.load_plan(plan).plan.columns}
    for unnested in list_unnested_streams(job, stream.stream.name):
        needed |= column_names(unnested.list_expression) | find_needed_columns(job, job.streams[unnested.name])
    return needed


def list_unnested_streams(job: BatchJob, stream: str) -> list[UnnestedStream]:
    """Return the UNNEST streams directly over a stream."""
    return [unnested for unnested in job.unnested_streams if unnested.base == stream]


def unnest_rows(unnested: UnnestedStream, table: pa.Table) -> tuple[pa.Table, str]:
    """Return a row for each element, and the error of evaluating the lists, if any; a failed list counts as empty."""
    evaluator = Evaluator({name: table[name] for name in table.schema.names}, table.num_rows, is_guarded=True)
    lists = combine_chunks(evaluator(unnested.list_expression))
    rows = table.take(pc.list_parent_indices(lists))
    return rows.append_column(unnested.element.name, pc.list_flatten(lists)), evaluator.message(unnested.list_expression)
