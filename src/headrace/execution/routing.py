"""Routing of stateless queries: the only place where a row is copied, once for each query that wants it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.execution.batch import Batch
from headrace.execution.result import Failures
from headrace.execution.selection import Tagged, rows_by_predicate
from headrace.kernels.columns import flat
from headrace.sharing.shared_plan import Router


def route(operator: Router, tagged: Tagged, batch: Batch, failures: Failures) -> Iterator[tuple[int, int, list[pa.Array]]]:
    """Yield (query, branch, output columns) for every query that has rows, rows in order of arrival."""
    rows_of = rows_by_predicate(tagged, sorted(set(operator.predicate_of)))
    for member, predicate in zip(operator.members, operator.predicate_of, strict=True):
        rows = rows_of[predicate]
        rows = rows[batch.times[rows] >= member.since]
        for output in member.outputs:
            bad = batch.errors(output)
            if bad is not None and bad[rows].any():
                failures.add(member.query, batch.message(output))
        if rows.size and member.query not in failures.messages:
            picked = pa.array(rows)
            everything = rows.size == batch.rows and bool(np.all(rows == np.arange(batch.rows)))
            yield (
                member.query,
                member.branch,
                [flat(batch.evaluate(o)) if everything else flat(batch.evaluate(o)).take(picked) for o in member.outputs],
            )
