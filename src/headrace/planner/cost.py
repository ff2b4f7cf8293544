"""Shared and standalone cost of each query, as estimated by the cost model, and the cost that a new query would add.

Costs cover reading streams, selecting and aggregating, buffering rows for window joins, and join steps; `join.cost` adds those of
sliding joins. The cost of shared work is divided among its users in proportion to their standalone costs: no query pays more than
it would alone, and the shares add up to the total. The cost of adding a query is found by planning with and without it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.plan.derived import AnyQuery
from headrace.planner.changelog import Changelog, apply_changelog, root_query_id, split_query
from headrace.planner.join.window_join_cost import JoinStatistics
from headrace.planner.join.window_join_replanning import list_joining_queries, share_steps
from headrace.planner.operator_grouping import estimate_layout_costs
from headrace.planner.shared_plan import (
    JoinBuffer,
    LiveQuery,
    SessionAggregation,
    SharedAggregation,
    SharedOperator,
    StatelessRouter,
    StreamPlan,
)
from headrace.planner.statistics import StreamStatistics, estimate_load


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


_SECONDS_PER_NANO = 1e-9
# Measured nanoseconds per row on one core (docs/performance.md); the model that chooses layouts knows only their differences.
_READ_NS = 20.0  # read and decode
_OPERATOR_NS: dict[type[SharedOperator], float] = {
    SharedAggregation: 20.0,
    SessionAggregation: 110.0,
    StatelessRouter: 48.0,
}  # group, sort, or route
_BUFFER_NS = 150.0  # buffer for a join


def estimate_read_costs(live: Sequence[LiveQuery], rates: Mapping[str, float]) -> Iterator[SharedCost]:
    """Yield the cost of reading each declared stream at the given rows per second: once if shared, once per query if not."""
    for name, rate in rates.items():
        seconds = rate * _READ_NS * _SECONDS_PER_NANO
        readers = [query.id for query in live if name in query.plan.streams]
        if readers:
            yield SharedCost(seconds, dict.fromkeys(readers, seconds))


def estimate_operator_costs(plans: Iterable[StreamPlan], rates: Mapping[str, float]) -> Iterator[SharedCost]:
    """Yield the cost of selection and aggregation at the given rows per second of each stream."""
    for plan in plans:
        rate = rates.get(plan.stream, 0.0) * _SECONDS_PER_NANO
        for operator in plan.operators:
            alone: dict[int, float] = defaultdict(float)
            fixed = _OPERATOR_NS[type(operator)]
            for member, nanoseconds in zip(operator.subscribers, estimate_standalone_costs(operator, plan.stats), strict=True):
                alone[member.query_id] += (fixed + nanoseconds) * rate
            together = fixed * _count_computations(operator) + estimate_shared_cost(operator, plan.stats)
            yield SharedCost(min(together * rate, sum(alone.values())), alone)


def _count_computations(operator: SharedOperator) -> int:
    """Return how often an operator computes: an aggregation once for all, sessions once per distinct definition."""
    if isinstance(operator, SharedAggregation):
        return 1
    if isinstance(operator, SessionAggregation):
        return len({(member.predicate, member.window, member.components) for member in operator.subscribers})
    return len(operator.subscribers)


def estimate_window_join_costs(
    live: Sequence[LiveQuery], plans: Iterable[StreamPlan], statistics: JoinStatistics
) -> Iterator[SharedCost]:
    """Yield the cost of window joins: buffered rows, and join steps, each shared step once."""
    for plan in plans:
        rate = statistics.rates.get(plan.stream, 0.0) * _SECONDS_PER_NANO * _BUFFER_NS
        for buckets in plan.join_buffers:
            yield _estimate_buffer_cost(plan.stream, buckets, rate, statistics)
    measured = [query for query in live if all(statistics.rates.get(name) for name in query.plan.streams)]
    for step in share_steps(list_joining_queries(measured, statistics)).steps.values():
        prefix, loads = step.prefix, step.loads_by_query
        alone = {number: prefix.estimate_work(load).nanoseconds * _SECONDS_PER_NANO for number, load in loads.items()}
        yield SharedCost(min(step.cost * _SECONDS_PER_NANO, sum(alone.values())), alone)


def _estimate_buffer_cost(stream: str, buckets: JoinBuffer, rate: float, statistics: JoinStatistics) -> SharedCost:
    def rows(bits: Iterable[int]) -> float:
        return rate * statistics.estimate_share(stream, buckets.slot, bits)

    members = {member.query_id: bit for member, bit in zip(buckets.subscribers, buckets.query_bits, strict=True)}
    return SharedCost(rows(members.values()), {number: rows([bit]) for number, bit in members.items()})


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


def estimate_shared_cost(operator: SharedOperator, stats: StreamStatistics) -> float:
    """Return the model's cost of an operator per row, in nanoseconds."""
    operator_load = estimate_load((m.window for m in operator.subscribers), operator.keys, stats)
    return {c.layout: c.nanoseconds for c in estimate_layout_costs(operator.predicate_index.predicates, operator_load)}[
        operator.predicate_index.layout
    ] / operator_load.rows


def estimate_standalone_costs(operator: SharedOperator, stats: StreamStatistics) -> list[float]:
    """Return the standalone cost per row of each subscriber, in nanoseconds."""
    rows = estimate_load((m.window for m in operator.subscribers), operator.keys, stats).rows
    return [
        min(c.nanoseconds for c in estimate_layout_costs([m.predicate], estimate_load([m.window], m.keys, stats))) / rows
        for m in operator.subscribers
    ]
