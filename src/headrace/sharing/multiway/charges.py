"""Costs of sliding joins: rows sent to be stored or to probe, and rows found, each shared step once.

The standalone cost of a query is estimated along its current probe orders, those that it shares included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.sharing.account import SharedCost
from headrace.sharing.multiway.asked import NormalizedJoin
from headrace.sharing.multiway.cost import WindowCardinality
from headrace.sharing.multiway.probes import ProbeStep, RoutingKind, SlidingJoinPlan
from headrace.sharing.multiway.relations import JoinGraph, input_relation
from headrace.sharing.statistics import DEFAULT_STATISTICS

_SEND_NS = 250.0  # per row sent to a store or a probe: from 1.7 M rows/s on two cores with five queries
_MATCH_NS = 60.0  # per joined row
_SECONDS_PER_NANO = 1e-9
_DEFAULT_THETA_SELECTIVITY = 1 / 3  # assumed for a condition that is not an equality and was not measured


def estimate_sliding_join_costs(plan: SlidingJoinPlan, cardinalities: WindowCardinality, tasks: int) -> Iterator[SharedCost]:
    """Yield the costs, with `tasks` partitions of each store; unknown selectivities are set to defaults."""
    queries_by_id = {query.id: query for query in plan.queries}
    defaults = {
        p: 1 / DEFAULT_STATISTICS.default_key_count if p.sides else _DEFAULT_THETA_SELECTIVITY
        for query in plan.queries
        for p in query.predicates
    }
    cardinalities = replace(cardinalities, selectivities={**defaults, **cardinalities.selectivities})
    for spec in plan.stores:
        if spec.until_batch is None:
            users = {query_id for _, probe in plan.probes if probe.store_number == spec.number for query_id in probe.query_ids}
            seconds = cardinalities.estimate_arrivals(spec.relation) * _SEND_NS * _SECONDS_PER_NANO
            yield SharedCost(seconds, dict.fromkeys(users or plan.used_since.get(spec.number, {}), seconds))
    for name, roots in plan.root_probes.items():
        for root in roots:
            yield from _estimate_probe_costs(name, frozenset({name}), root, queries_by_id, cardinalities, tasks)


def _estimate_probe_costs(
    start: str,
    joined: frozenset[str],
    probe: ProbeStep,
    queries_by_id: dict[int, NormalizedJoin],
    cardinalities: WindowCardinality,
    tasks: int,
) -> Iterator[SharedCost]:
    """Yield the costs of a probe and of those below it; `joined` are the relations of the rows that arrive."""
    if probe.before_batch is None:  # other probes serve rows from before a plan change and are transitional
        copies = tasks if probe.routing.kind is RoutingKind.BROADCAST else 1
        alone = {}
        for query_id in probe.query_ids:
            sent, matches = (
                cardinalities.estimate_sent(_to_prefix(start, names), queries_by_id[query_id].join)
                for names in (joined, probe.covered_relations)
            )
            alone[query_id] = (sent * copies * _SEND_NS + matches * _MATCH_NS) * _SECONDS_PER_NANO
        yield SharedCost(max(alone.values(), default=0.0), alone)
    for child in probe.children:
        yield from _estimate_probe_costs(start, probe.covered_relations, child, queries_by_id, cardinalities, tasks)


def _to_prefix(start: str, joined: frozenset[str]) -> tuple[JoinGraph, ...]:
    return input_relation(start), *(input_relation(name) for name in sorted(joined - {start}))
