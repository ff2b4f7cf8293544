"""Cost forecast of adding a query: the same planning, with and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.plan.stacked import AnyQuery
from headrace.sharing.account import Charge, spent
from headrace.sharing.changelog import Changelog, apply
from headrace.sharing.parts import parts_of, whole
from headrace.sharing.shared_plan import LiveQuery

Charged = Callable[[Sequence[LiveQuery]], Iterable[Charge]]


@dataclass(frozen=True, slots=True)
class Growth:
    """Cost in seconds of work per second (model): of all live queries, with the new one, and of the new one alone."""

    before: float
    after: float
    alone: float


def what_if(live: Sequence[LiveQuery], query: AnyQuery, cost_model: Charged) -> Growth:
    """Return the cost change that adding a query would cause; `cost_model` plans queries and yields their costs."""
    query_id = 1 + max((whole(each.id) for each in live), default=0)
    additions = tuple(part.addition for part in parts_of(query_id, "new", query))
    both = apply(live, Changelog(additions))
    alone = tuple(each for each in both if each not in live)
    return Growth(*(spent(cost_model(queries)) for queries in (live, both, alone)))
