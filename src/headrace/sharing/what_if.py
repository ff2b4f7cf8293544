"""Cost forecast of adding a query: the same planning, with and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.plan.stacked import AnyQuery
from headrace.sharing.account import SharedCost, sum_shared_costs
from headrace.sharing.changelog import Changelog, apply_changelog
from headrace.sharing.parts import root_query_id, split_query
from headrace.sharing.shared_plan import LiveQuery

CostModel = Callable[[Sequence[LiveQuery]], Iterable[SharedCost]]


@dataclass(frozen=True, slots=True)
class CostChange:
    """Cost in seconds of work per second (model): of all live queries, with the new one, and of the new one alone."""

    before: float
    after: float
    standalone: float


def estimate_added_cost(live: Sequence[LiveQuery], query: AnyQuery, cost_model: CostModel) -> CostChange:
    """Return the cost change that adding a query would cause; `cost_model` plans queries and yields their costs."""
    query_id = 1 + max((root_query_id(each.id) for each in live), default=0)
    additions = tuple(part.addition for part in split_query(query_id, "new", query))
    both = apply_changelog(live, Changelog(additions))
    alone = tuple(each for each in both if each not in live)
    return CostChange(*(sum_shared_costs(cost_model(queries)) for queries in (live, both, alone)))
