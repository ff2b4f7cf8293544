"""Costs of sliding joins: rows sent to be stored or to probe, and rows found, each shared step once.

The standalone cost of a query is estimated along its current probe orders, those that it shares included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.sharing.account import Charge
from headrace.sharing.multiway.asked import Asked
from headrace.sharing.multiway.cost import Windowed
from headrace.sharing.multiway.probes import EdgeKind, Probe, ProbePlan
from headrace.sharing.multiway.relations import Join, input_relation
from headrace.sharing.statistics import GUESS

_SENT_NS = 250.0  # per row sent to a store or a probe: from 1.7 M rows/s on two cores with five queries
_MAKING_NS = 60.0  # per joined row
_NANO = 1e-9
_UNEQUAL = 1 / 3  # assumed for a condition that is not an equality and was not measured


def probe_charges(plan: ProbePlan, cardinalities: Windowed, tasks: int) -> Iterator[Charge]:
    """Yield the costs, with `tasks` partitions of each store; unknown selectivities are set to defaults."""
    queries_by_id = {query.id: query for query in plan.queries}
    defaults = {p: 1 / GUESS.default_keys if p.sides else _UNEQUAL for query in plan.queries for p in query.predicates}
    cardinalities = replace(cardinalities, selectivities={**defaults, **cardinalities.selectivities})
    for spec in plan.stores:
        if spec.until is None:
            users = {query_id for _, probe in plan.probes if probe.store == spec.number for query_id in probe.users}
            seconds = cardinalities.arriving(spec.relation) * _SENT_NS * _NANO
            yield Charge(seconds, dict.fromkeys(users or plan.uses.get(spec.number, {}), seconds))
    for name, roots in plan.roots.items():
        for root in roots:
            yield from _probes(name, frozenset({name}), root, queries_by_id, cardinalities, tasks)


def _probes(
    start: str, joined: frozenset[str], probe: Probe, queries_by_id: dict[int, Asked], cardinalities: Windowed, tasks: int
) -> Iterator[Charge]:
    """Yield the costs of a probe and of those below it; `joined` are the relations of the rows that arrive."""
    if probe.before is None:  # other probes serve rows from before a plan change and are transitional
        copies = tasks if probe.edge.kind is EdgeKind.ALL else 1
        alone = {}
        for query_id in probe.users:
            sent, matches = (
                cardinalities.sent(_beginning(start, names), queries_by_id[query_id].join) for names in (joined, probe.covered)
            )
            alone[query_id] = (sent * copies * _SENT_NS + matches * _MAKING_NS) * _NANO
        yield Charge(max(alone.values(), default=0.0), alone)
    for child in probe.children:
        yield from _probes(start, probe.covered, child, queries_by_id, cardinalities, tasks)


def _beginning(start: str, joined: frozenset[str]) -> tuple[Join, ...]:
    return input_relation(start), *(input_relation(name) for name in sorted(joined - {start}))
