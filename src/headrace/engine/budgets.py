"""Enforcement of budgets in a task: output rows and bytes, and pairs of joins, each by query.

A task enforces them on its own share; the driver adds up the output of all tasks, and checks the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.engine.failures import QueryFailures
from headrace.errors import OperatorError
from headrace.model.budget import QueryBudget


@dataclass(slots=True)
class BudgetMeter:
    """What the queries of a task have used so far; `budgets` has those that differ from the `default`."""

    default: QueryBudget
    budgets: Mapping[int, QueryBudget]
    failures: QueryFailures
    _rows: dict[int, int] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _pairs: dict[int, int] = field(default_factory=dict)

    def _budget_of(self, query: int) -> QueryBudget:
        return self.budgets.get(query, self.default)

    def add_output(self, query: int, rows: int, size: int) -> None:
        """Count results; a query over its budget fails."""
        budget = self._budget_of(query)
        self._rows[query] = used_rows = self._rows.get(query, 0) + rows
        self._bytes[query] = used_bytes = self._bytes.get(query, 0) + size
        if message := describe_output_excess(budget, used_rows, used_bytes):
            self.failures.add(query, message)

    def add_pairs(self, queries: Iterable[int], pairs: int) -> None:
        """Count pairs that a join is about to compare for all of these queries.

        Raises OperatorError, before they are compared, with the queries that are over their budget.
        """
        over: dict[int, int] = {}
        for query in queries:
            self._pairs[query] = used = self._pairs.get(query, 0) + pairs
            limit = self._budget_of(query).join_pairs
            if used > limit:
                over[query] = limit
        if over:
            limit = min(over.values())
            raise OperatorError(
                f"join compares more than {limit:,} pairs of rows in a micro-batch (join_pairs)", queries=tuple(over)
            )


def describe_output_excess(budget: QueryBudget, rows: int, size: int) -> str:
    """Return the error of a query that emits more than its budget in a micro-batch; empty if it does not."""
    if rows > budget.output_rows:
        return f"query emits {rows:,} rows in a micro-batch, more than {budget.output_rows:,} (output_rows)"
    if size > budget.output_bytes:
        return f"query emits {size:,} bytes in a micro-batch, more than {budget.output_bytes:,} (output_bytes)"
    return ""
