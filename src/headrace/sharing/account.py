"""Shared and standalone cost of each query, as estimated by the cost model.

The cost of shared work is divided among its users in proportion to their standalone costs. No query pays more than it would
alone, and the shares add up to the total.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.sharing.parts import root_query_id


@dataclass(frozen=True, slots=True)
class SharedCost:
    """Work done once for all its users, in seconds of work per second; `standalone` maps query ids to their standalone costs."""

    shared: float
    standalone: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """Cost of one query in seconds of work per second; `share` is its fraction of the total cost of all queries."""

    alone: float
    shared: float
    share: float


def sum_shared_costs(charges: Iterable[SharedCost]) -> float:
    """Return the total shared cost."""
    return math.fsum(charge.shared for charge in charges)


def divide_costs(charges: Iterable[SharedCost]) -> dict[int, CostBreakdown]:
    """Return the cost of each query, by id; parts of a nested query count for the query itself."""
    alone: dict[int, float] = defaultdict(float)
    shared: dict[int, float] = defaultdict(float)
    for charge in charges:
        total = sum(charge.standalone.values())
        for query_id, cost in charge.standalone.items():
            fraction = cost / total if total else 1 / len(charge.standalone)
            alone[root_query_id(query_id)] += cost
            shared[root_query_id(query_id)] += charge.shared * fraction
    total_shared = sum(shared.values()) or 1.0
    return {query_id: CostBreakdown(alone[query_id], shared[query_id], shared[query_id] / total_shared) for query_id in alone}
