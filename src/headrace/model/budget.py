"""Budgets: what one query may use in one micro-batch, so that it cannot take what the others need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from headrace.errors import SchemaError
from headrace.model.record import record

DEFAULT_TEXT_BYTES = 16 << 20  # of a text that an expression makes
DEFAULT_BATCH_SECONDS = 300.0


@record("query-budget")
@dataclass(frozen=True, slots=True)
class QueryBudget:
    """The most that a query may use; a query that needs more fails with the figure, the others go on.

    - `output_rows`, `output_bytes`: results of a micro-batch.
    - `join_pairs`: pairs of rows that its joins compare in a micro-batch, by key partition; shared pairs count for every user.
    - `state_bytes`: state after a micro-batch; shared state is divided among its users.
    """

    output_rows: int = 100_000_000
    output_bytes: int = 16 << 30
    join_pairs: int = 5_000_000_000
    state_bytes: int = 64 << 30

    def __post_init__(self) -> None:
        """Raise SchemaError unless every limit is a positive integer."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SchemaError(f"budget {field.name} is {value!r}", hint="give a positive integer")

    @staticmethod
    def parse(value: BudgetInput) -> QueryBudget:
        """Return a budget from limits by name, with the default for the others; raises SchemaError for an unknown name."""
        return value if isinstance(value, QueryBudget) else DEFAULT_BUDGET.with_limits(value or {})

    def with_limits(self, limits: Mapping[str, Any]) -> QueryBudget:
        """Return this budget with some limits replaced, by name; raises SchemaError for an unknown name or invalid limit."""
        unknown = [name for name in limits if name not in BUDGET_NAMES]
        if unknown:
            raise SchemaError(f"unknown budget '{unknown[0]}'", detail=f"budgets: {', '.join(BUDGET_NAMES)}")
        return replace(self, **limits)

    def capped_by(self, bound: QueryBudget) -> QueryBudget:
        """Return the lower of both budgets, limit by limit."""
        return QueryBudget(*(min(getattr(self, name), getattr(bound, name)) for name in BUDGET_NAMES))

    @staticmethod
    def parse_texts(texts: Iterable[str]) -> QueryBudget:
        """Return a budget from texts such as `output_rows=1000000`; raises SchemaError for an invalid one."""
        limits = {}
        for text in texts:
            name, equals, number = text.partition("=")
            if not equals or not number.strip().isdecimal():
                raise SchemaError(f"invalid budget '{text}'", hint="write NAME=NUMBER, such as output_rows=1000000")
            limits[name.strip()] = int(number)
        return QueryBudget.parse(limits)


BUDGET_NAMES = tuple(field.name for field in fields(QueryBudget))
DEFAULT_BUDGET = QueryBudget()
BudgetInput: TypeAlias = QueryBudget | Mapping[str, int] | None
"""A budget as users pass it: whole, by the names of some limits, or none."""


def parse_own_budget(value: BudgetInput, base: QueryBudget) -> QueryBudget | None:
    """Return the budget of one query, with the limits of `base` where it names none; None if it has none of its own."""
    return base.with_limits(value) if isinstance(value, Mapping) else value
