"""Unfolded streams in a worker: made of the rows of another as these are read, and put through operators of their own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.execution.job import Job, StreamJob
from headrace.kernels.columns import flat
from headrace.kernels.expression import Evaluator
from headrace.model.expression import columns
from headrace.plan.unfolded import Unfolded


def looked_at(job: Job, stream: StreamJob) -> set[str]:
    """Return the columns of a stream that some query looks at: in the stream, or in one that is made of it."""
    plans = (stream.plan, *(epoch.plan for epoch in stream.epochs))
    found = {name for plan in plans for name in job.plan(plan).plan.columns}
    for one in made_of(job, stream.stream.name):
        found |= columns(one.values) | looked_at(job, job.streams[one.name])
    return found


def made_of(job: Job, stream: str) -> list[Unfolded]:
    """Return what is made of a stream directly."""
    return [one for one in job.unfolded if one.base == stream]


def unfold(one: Unfolded, table: pa.Table) -> tuple[pa.Table, str]:
    """Return a row for each element, and what went wrong with some list, if anything did; there it is taken for empty."""
    evaluator = Evaluator({name: table[name] for name in table.schema.names}, table.num_rows)
    lists = flat(evaluator(one.values))
    rows = table.take(pc.list_parent_indices(lists))
    return rows.append_column(one.element.name, pc.list_flatten(lists)), evaluator.message(one.values)
