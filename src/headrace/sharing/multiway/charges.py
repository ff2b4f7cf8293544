"""What joins in SLIDING windows are charged for: rows sent to be kept or to be probed, and rows found, each step once.

What a query would pay alone is reckoned along the ways that are in force: those that it shares, for itself.
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

_SENT_NS = 250.0  # a row that is sent, to be kept or to be probed: of 1.7 M rows/s on two cores with five queries
_MAKING_NS = 60.0  # a joined row that is found
_NANO = 1e-9
_UNEQUAL = 1 / 3  # of all pairs satisfy a condition that nobody knows, if it is not an equality


def probe_charges(plan: ProbePlan, figures: Windowed, tasks: int) -> Iterator[Charge]:
    """Yield the charges; each store is in so many partitions, and what selectivity is not known is guessed."""
    known = {one.id: one for one in plan.queries}
    guesses = {one: 1 / GUESS.default_keys if one.sides else _UNEQUAL for query in plan.queries for one in query.predicates}
    figures = replace(figures, selectivities={**guesses, **figures.selectivities})
    for spec in plan.stores:
        if spec.until is None:
            users = {number for _, probe in plan.probes if probe.store == spec.number for number in probe.users}
            each = figures.arriving(spec.relation) * _SENT_NS * _NANO
            yield Charge(each, dict.fromkeys(users or plan.uses.get(spec.number, {}), each))
    for name, roots in plan.roots.items():
        for root in roots:
            yield from _probes(name, frozenset({name}), root, known, figures, tasks)


def _probes(
    start: str, made: frozenset[str], probe: Probe, known: dict[int, Asked], figures: Windowed, tasks: int
) -> Iterator[Charge]:
    """Yield what a probe costs, and those below it; rows made of some relations come to it."""
    if probe.before is None:  # others are for what was there before a change of plan, and pass
        copies = tasks if probe.edge.kind is EdgeKind.ALL else 1
        alone = {}
        for number in probe.users:
            sent, found = (figures.sent(_beginning(start, names), known[number].join) for names in (made, probe.covered))
            alone[number] = (sent * copies * _SENT_NS + found * _MAKING_NS) * _NANO
        yield Charge(max(alone.values(), default=0.0), alone)
    for child in probe.children:
        yield from _probes(start, probe.covered, child, known, figures, tasks)


def _beginning(start: str, made: frozenset[str]) -> tuple[Join, ...]:
    return input_relation(start), *(input_relation(name) for name in sorted(made - {start}))
