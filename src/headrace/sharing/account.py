"""What each query costs: its part of what is shared, and what it would cost alone. All of it by the model.

An operator's cost is divided among its members in proportion to what each would take alone, so that nobody pays more for
being in company, and all parts together are what is spent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.sharing.explain import alone_costs, shared_cost
from headrace.sharing.parts import whole
from headrace.sharing.shared_plan import StreamPlan


@dataclass(frozen=True, slots=True)
class Account:
    """Seconds of work a second; `share` is the query's part of all that the pipeline spends on selecting and aggregating."""

    alone: float
    shared: float
    share: float


def accounts(plans: Iterable[StreamPlan], rates: Mapping[str, float]) -> dict[int, Account]:
    """Return the account of each query, by id, at these rows a second of each stream."""
    alone: dict[int, float] = defaultdict(float)
    shared: dict[int, float] = defaultdict(float)
    for plan in plans:
        rate = rates.get(plan.stream, 0.0) * 1e-9
        for operator in plan.operators:
            apart, together = alone_costs(operator, plan.stats), shared_cost(operator, plan.stats)
            total = sum(apart) or 1.0
            for member, cost in zip(operator.members, apart, strict=True):
                alone[whole(member.query)] += cost * rate
                shared[whole(member.query)] += together * cost / total * rate
    spent = sum(shared.values()) or 1.0
    return {number: Account(alone[number], shared[number], shared[number] / spent) for number in alone}
