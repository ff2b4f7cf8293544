"""Cost model of sliding joins: stored rows, rows sent to probe, and hops until a result is complete.

A probe order is a tuple of relations; rows of the first relation start. Step j sends the rows joined from the first j relations
to the store of the next: one copy if the rows determine the partition of the store, otherwise one copy for each partition. A
cardinality model counts these rows per second, for relations with rates and windows.

`estimate_sliding_join_costs` charges rows sent to be stored or to probe, pairs tried, and rows found, each shared step once. The
standalone cost of a query is estimated along its current probe orders, those that it shares included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from headrace.model.window import UNBOUNDED_LENGTH
from headrace.planner.cost import SharedCost
from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate, input_relation
from headrace.planner.join.normalized_join import NormalizedJoin
from headrace.planner.join.sliding_join_plan import ProbeStep, RoutingKind, SlidingJoinPlan
from headrace.planner.statistics import DEFAULT_STATISTICS

RelationOrder = tuple[JoinGraph, ...]
_SEND_NS = 250.0  # per row sent to a store or a probe: from 1.7 M rows/s on two cores with five queries
_MATCH_NS = 60.0  # per joined row
_PAIR_NS = 5.0  # per pair of rows of which a condition is evaluated


class CardinalityModel(Protocol):
    """Cardinalities of relations and of probe order prefixes."""

    def estimate_stored(self, relation: JoinGraph) -> float:
        """Return the number of rows that a store of a relation holds."""

    def estimate_arrivals(self, relation: JoinGraph) -> float:
        """Return the number of rows sent to a store of a relation, in the time unit of `estimate_sent`."""

    def estimate_sent(self, prefix: Sequence[JoinGraph], within: JoinGraph) -> float:
        """Return the number of rows joined from these relations, the starting one first, that are sent on."""

    def estimate_pair_cost(self, prefix: Sequence[JoinGraph], store: JoinGraph, within: JoinGraph) -> float:
        """Return what comparing the rows joined from these relations with those of a store costs, in rows sent."""


@dataclass(frozen=True, slots=True)
class WindowCardinality:
    """Streams with rates (rows per second) and windows (seconds); results are rows per second, and rows stored at a time.

    A condition may hold more often for new rows of one relation than for those of another: of `a.time < b.time`, new rows of b
    satisfy nearly all pairs with stored rows of a. `selectivities_by_newest` are for pairs whose newest row is of a relation.
    """

    rates: Mapping[str, float]
    windows: Mapping[str, float]
    selectivities: Mapping[JoinPredicate, float] = field(default_factory=dict)
    selectivities_by_newest: Mapping[tuple[JoinPredicate, str], float] = field(default_factory=dict)
    _known_rows: dict[JoinGraph, float] = field(init=False, repr=False, compare=False, default_factory=dict)
    _known_arrivals: dict[tuple[JoinGraph, str], float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def estimate_stored(self, relation: JoinGraph) -> float:
        """Return the number of rows in the windows at any time."""
        rows = self._known_rows.get(relation)
        if rows is None:
            contents = math.prod(self.rates[name] * self.windows[name] for name in relation.relations)
            rows = contents * math.prod(self.selectivities.get(predicate, 1.0) for predicate in relation.predicates)
            self._known_rows[relation] = rows
        return rows

    def estimate_arrivals(self, relation: JoinGraph) -> float:
        """Return the number of rows of a relation that are computed per second, by new rows of any of its inputs."""
        return sum(self._estimate_produced(relation, name) for name in sorted(relation.relations))

    def estimate_sent(self, prefix: Sequence[JoinGraph], within: JoinGraph) -> float:
        """Return the number of rows of the prefix per second that new rows of the first relation produce."""
        joined = within.subgraph(_iter_inputs(prefix))
        return sum(self._estimate_produced(joined, name) for name in sorted(prefix[0].relations))

    def estimate_tried(self, prefix: Sequence[JoinGraph], store: JoinGraph, within: JoinGraph) -> float:
        """Return the number of pairs per second of which a probe without an equality evaluates the conditions.

        A sorted index finds the pairs that one comparison selects; without a comparison, all pairs are tried.
        """
        predicates = list(within.predicates_between(_iter_inputs(prefix), store.relations))
        if any(predicate.sides for predicate in predicates):
            return 0.0
        pairs = self.estimate_sent(prefix, within) * self.estimate_stored(store)
        newest = sorted(prefix[0].relations)
        ranges = (predicate for predicate in predicates if predicate.is_range)
        return pairs * min((max(self._get_selectivity(p, name) for name in newest) for p in ranges), default=1.0)

    def estimate_pair_cost(self, prefix: Sequence[JoinGraph], store: JoinGraph, within: JoinGraph) -> float:
        """Return the cost of the pairs that a probe tries, in rows sent."""
        return self.estimate_tried(prefix, store, within) * _PAIR_NS / _SEND_NS

    def _estimate_produced(self, relation: JoinGraph, newest: str) -> float:
        """Return the number of rows of a relation per second whose newest row is one of an input."""
        rows = self._known_arrivals.get((relation, newest))
        if rows is None:
            rows = self.estimate_stored(relation) / self.windows[newest]
            if self.selectivities_by_newest:
                for predicate in relation.predicates:
                    rows *= self._get_selectivity(predicate, newest) / self.selectivities.get(predicate, 1.0)
            self._known_arrivals[relation, newest] = rows
        return rows

    def _get_selectivity(self, predicate: JoinPredicate, newest: str) -> float:
        return self.selectivities_by_newest.get((predicate, newest), self.selectivities.get(predicate, 1.0))


def _iter_inputs(relations: Iterable[JoinGraph]) -> Iterator[str]:
    for relation in relations:
        yield from relation.relations


def count_copies(
    store: JoinGraph, partitioned_by: Attribute | None, prefix: Iterable[JoinGraph], within: JoinGraph, tasks: int
) -> int:
    """Return χ: the number of partitions of a store that a row of the prefix is sent to. One if it determines the partition.

    It does if an equality of the join relates the partition attribute to an attribute of an input in the prefix.
    """
    if tasks == 1:
        return 1
    if partitioned_by is None:
        return tasks
    known = frozenset(_iter_inputs(prefix))
    for predicate in within.predicates_between(store.relations, known):
        if partitioned_by in predicate.sides and any(side.relation in known for side in predicate.sides):
            return 1
    return tasks


def estimate_step_costs(
    order: RelationOrder,
    within: JoinGraph,
    cardinalities: CardinalityModel,
    tasks: Mapping[JoinGraph, int],
    partitioning: Mapping[JoinGraph, Attribute | None] | None = None,
) -> list[float]:
    """Return the number of rows that each step of a probe order sends, including all copies."""
    costs = []
    for j in range(1, len(order)):
        by = None if partitioning is None else partitioning.get(order[j])
        sent = cardinalities.estimate_sent(order[:j], within)
        copies = count_copies(order[j], by, order[:j], within, tasks.get(order[j], 1))
        costs.append(sent * copies + cardinalities.estimate_pair_cost(order[:j], order[j], within))
    return costs


_SECONDS_PER_NANO = 1e-9
_MICROSECONDS_PER_SECOND = 1_000_000
DEFAULT_RATE = 1_000.0  # rows a second, for a relation whose rate is unknown
MIN_WINDOW_SECONDS = 1e-6
DEFAULT_HISTORY_SECONDS = 3_600.0  # of an unbounded window, where nothing is known of its rows
_DEFAULT_THETA_SELECTIVITY = 1 / 3  # assumed for a condition that is not an equality and was not measured


def estimate_sliding_join_costs(plan: SlidingJoinPlan, cardinalities: WindowCardinality, tasks: int) -> Iterator[SharedCost]:
    """Yield the costs, with `tasks` partitions of each store; unknown selectivities are set to defaults."""
    queries_by_id = {query.id: query for query in plan.queries}
    selectivities = {**_list_default_selectivities(plan.queries), **cardinalities.selectivities}
    cardinalities = replace(cardinalities, selectivities=selectivities)
    for spec in plan.stores:
        if spec.until_batch is None:
            users = {query_id for _, probe in plan.probes if probe.store_number == spec.number for query_id in probe.query_ids}
            seconds = cardinalities.estimate_arrivals(spec.relation) * _SEND_NS * _SECONDS_PER_NANO
            yield SharedCost(seconds, dict.fromkeys(users or plan.used_since.get(spec.number, {}), seconds))
    for name, roots in plan.root_probes.items():
        for root in roots:
            yield from _estimate_probe_costs(name, frozenset({name}), root, queries_by_id, cardinalities, tasks)


def _list_default_selectivities(queries: Iterable[NormalizedJoin]) -> dict[JoinPredicate, float]:
    return {
        predicate: 1 / DEFAULT_STATISTICS.default_key_count if predicate.sides else _DEFAULT_THETA_SELECTIVITY
        for query in queries
        for predicate in query.predicates
    }


def estimate_by_default(queries: Sequence[NormalizedJoin]) -> WindowCardinality:
    """Return statistics without any measurement: the same rate for all relations, and default selectivities."""
    windows: dict[str, float] = {}
    for query in queries:
        for name, join_input in query.inputs.items():
            is_unbounded = join_input.length == UNBOUNDED_LENGTH
            seconds = DEFAULT_HISTORY_SECONDS if is_unbounded else join_input.length / _MICROSECONDS_PER_SECOND
            windows[name] = max(windows.get(name, MIN_WINDOW_SECONDS), seconds)
    return WindowCardinality(dict.fromkeys(windows, DEFAULT_RATE), windows, _list_default_selectivities(queries))


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
                cardinalities.estimate_sent(_to_prefix(start, names), queries_by_id[query_id].join_graph)
                for names in (joined, probe.covered_relations)
            )
            join_graph = queries_by_id[query_id].join_graph
            store = join_graph.subgraph(probe.covered_relations - joined)
            tried = cardinalities.estimate_tried(_to_prefix(start, joined), store, join_graph)
            alone[query_id] = (sent * copies * _SEND_NS + matches * _MATCH_NS + tried * _PAIR_NS) * _SECONDS_PER_NANO
        yield SharedCost(max(alone.values(), default=0.0), alone)
    for child in probe.children:
        yield from _estimate_probe_costs(start, probe.covered_relations, child, queries_by_id, cardinalities, tasks)


def _to_prefix(start: str, joined: frozenset[str]) -> tuple[JoinGraph, ...]:
    return input_relation(start), *(input_relation(name) for name in sorted(joined - {start}))
