"""Routing of stateless queries: the only operator that copies a row, once for each query that selects it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.failures import QueryFailures
from headrace.engine.operators.selection import CellAssignment, group_rows_by_predicate
from headrace.engine.row_batch import RowBatch
from headrace.planner.shared_plan import StatelessRouter


def route_rows(
    operator: StatelessRouter, assignment: CellAssignment, batch: RowBatch, failures: QueryFailures
) -> Iterator[tuple[int, int, list[pa.Array]]]:
    """Yield (query, branch, output columns) for every query with rows, in order of arrival."""
    rows_of = group_rows_by_predicate(assignment, sorted(set(operator.predicate_numbers)))
    for subscriber, predicate in zip(operator.subscribers, operator.predicate_numbers, strict=True):
        rows = rows_of[predicate]
        rows = rows[batch.times[rows] >= subscriber.since]
        for output in subscriber.outputs:
            errors = batch.mask_errors(output)
            if errors is not None and errors[rows].any():
                failures.add(subscriber.query_id, batch.get_error_message(output))
        if rows.size and subscriber.query_id not in failures.messages:
            row_ids = pa.array(rows)
            is_full = rows.size == batch.row_count and bool(np.all(rows == np.arange(batch.row_count)))
            yield (
                subscriber.query_id,
                subscriber.branch,
                [
                    combine_chunks(batch.evaluate(output)) if is_full else combine_chunks(batch.evaluate(output)).take(row_ids)
                    for output in subscriber.outputs
                ],
            )
