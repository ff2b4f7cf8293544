"""Optimizer of window joins (AJoin: query grouping and join order): which queries join together, in which order of inputs.

The step cost is that of AJoin: indexed rows (those of a leaf, and joined rows that are repartitioned), looked-up keys and, in the
last step, materialized rows; plus the pairs that the step finds, which are processed one by one. Queries that share a step divide
its cost. A step without an equality sorts rows instead of indexing them, and each of its conditions is assumed to pass a third of
all pairs; an order has as few such steps as possible, regardless of cost, because their rows meet in a single partition.
Selectivities of selections are not guessed but counted on samples of query-sets: a group of queries needs the rows of an input
whose query-set contains a bit of the group. Pure: statistics in, plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from headrace.model.expression import Call, Expression
from headrace.plan.window_join import WindowJoinQuery, to_stream_columns
from headrace.planner.join.window_join_plan import (
    JoinOrderVersion,
    count_cross_products,
    find_inputs,
    get_written_order,
    is_reorderable,
    iter_conditions,
    to_equality,
)
from headrace.planner.shared_plan import LiveQuery
from headrace.planner.statistics import DEFAULT_STATISTICS

_MICROS_PER_SECOND = 1_000_000
MAX_ORDERED_INPUTS = 5  # inputs ordered at once; for more, the best prefix is fixed and the search continues from it
REORDER_THRESHOLD = 0.67  # an order changes when the new one costs less than this fraction of the old
REGROUP_THRESHOLD = 0.5  # when more than this fraction of the queries changed, all are regrouped

StepShare = Callable[[int, frozenset[int]], float]
JoinShape = tuple[frozenset[tuple[int, str]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class JoinStatistics:
    """Measured statistics: rows/s of streams, distinct keys by (stream, key), the fraction of rows that some queries select.

    `wanted_share(stream, slot, bits)` is between 0 and 1; None before the first sample. `measured_rows` maps (query id, path
    length) to the recent number of rows per window after that many steps. `text_bytes` is the mean length of the texts that join
    buffers store, by stream.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    distinct_keys: Mapping[tuple[str, str], int] = field(default_factory=dict)
    wanted_share: Callable[[str, int, frozenset[int]], float | None] = lambda _stream, _slot, _bits: None
    measured_rows: Mapping[tuple[int, int], float] = field(default_factory=dict)
    text_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepKeys:
    """Keys of a step on the left and the right side, as text, and their distinct values; None without an equality."""

    left: frozenset[str]
    right: frozenset[str]
    distinct: float | None


@dataclass(frozen=True, slots=True)
class JoinWorkload:
    """A join with its cardinalities, for the queries of one group, which differ only in their selections.

    `input_rows` counts the rows of each input in one window that any query of the group selects; `conditions` are all between
    inputs.
    """

    plan: WindowJoinQuery
    statistics: JoinStatistics
    input_rows: tuple[float, ...]
    conditions: tuple[Expression, ...]
    _known_cardinalities: dict[frozenset[int], float] = field(init=False, repr=False, compare=False, default_factory=dict)
    _known_keys: dict[tuple[frozenset[int], int], StepKeys] = field(init=False, repr=False, compare=False, default_factory=dict)

    @staticmethod
    def for_queries(plan: WindowJoinQuery, bits: frozenset[int], statistics: JoinStatistics) -> JoinWorkload:
        """Return the workload of the queries with these bits."""
        row_counts = []
        for index, join_input in enumerate(plan.inputs):
            share = statistics.wanted_share(join_input.stream, plan.stream_occurrence(index), bits)
            rate = statistics.rates.get(join_input.stream) or float(DEFAULT_STATISTICS.rate)
            row_counts.append(max(1.0, rate * join_input.window.size / _MICROS_PER_SECOND * (1.0 if share is None else share)))
        return JoinWorkload(plan, statistics, tuple(row_counts), tuple(iter_conditions(plan)))

    def estimate_distinct(self, expression: Expression) -> float:
        """Return the number of distinct values of one side of an equality."""
        index = min(find_inputs(expression))
        stream = self.plan.inputs[index].stream
        known = self.statistics.distinct_keys.get((stream, str(to_stream_columns(expression))))
        return min(self.input_rows[index], float(known or DEFAULT_STATISTICS.default_key_count))

    def estimate_cardinality(self, among: frozenset[int]) -> float:
        """Return the number of joined rows of these inputs in a window."""
        if among not in self._known_cardinalities:
            cardinality = 1.0
            for index in among:
                cardinality *= self.input_rows[index]
            for condition in self.conditions:
                if find_inputs(condition) <= among and len(find_inputs(condition)) > 1:
                    sides = _split_equality(condition)
                    cardinality /= max(self.estimate_distinct(side) for side in sides) if sides else 3.0
            self._known_cardinalities[among] = max(cardinality, 1e-6)
        return self._known_cardinalities[among]

    def find_step_keys(self, joined: frozenset[int], index: int) -> StepKeys:
        """Return the keys of the step that joins one more input."""
        if (joined, index) not in self._known_keys:
            equalities = [e for condition in self.conditions if (e := to_equality(condition, joined, index)) is not None]
            self._known_keys[joined, index] = StepKeys(
                frozenset(str(e.left) for e in equalities),
                frozenset(str(e.right) for e in equalities),
                min((min(self.estimate_distinct(e.left), self.estimate_distinct(e.right)) for e in equalities), default=None),
            )
        return self._known_keys[joined, index]

    def estimate_step_cost(self, joined: frozenset[int], index: int, *, repartitions: bool) -> float:
        """Return the cost of joining one more input."""
        reached = joined | {index}
        distinct = self.find_step_keys(joined, index).distinct
        lookups = self.estimate_cardinality(joined) if distinct is None else distinct
        indexed = self.input_rows[index] + (self.input_rows[next(iter(joined))] if len(joined) == 1 else 0.0)
        moved = self.estimate_cardinality(joined) if repartitions else 0.0
        last = self.estimate_cardinality(reached) if len(reached) == len(self.plan.inputs) else 0.0
        return indexed + moved + lookups + last + self.estimate_cardinality(reached)


def _split_equality(condition: Expression) -> tuple[Expression, Expression] | None:
    for index in find_inputs(condition):
        pair = to_equality(condition, find_inputs(condition) - {index}, index)
        if pair is not None:
            return pair.left, pair.right
    return None


def find_best_order(work: JoinWorkload, share: StepShare | None = None, max_inputs: int = MAX_ORDERED_INPUTS) -> tuple[int, ...]:
    """Return the cheapest order by dynamic programming over sets of inputs, `max_inputs` inputs at a time."""
    all_inputs = frozenset(range(len(work.plan.inputs)))
    prefixes = [_rank_order(work, (index,), share) for index in sorted(all_inputs)]
    while True:
        best_by_set = {frozenset(ranked.order): ranked for ranked in prefixes}
        size = len(prefixes[0].order)
        until = min(len(all_inputs), size + max_inputs - (1 if size == 1 else 0))
        for _ in range(size, until):
            following: dict[frozenset[int], _RankedOrder] = {}
            for joined, ranked in best_by_set.items():
                for index in sorted(all_inputs - joined):
                    extended = _rank_order(work, (*ranked.order, index), share)
                    following[joined | {index}] = min(following.get(joined | {index}, extended), extended)
            best_by_set = following
        if all_inputs in best_by_set:
            return min(
                best_by_set[all_inputs].order,
                get_written_order(work.plan),
                key=lambda order: count_cross_products(work.conditions, order),
            )
        prefixes = [min(best_by_set.values())]


@dataclass(frozen=True, slots=True, order=True)
class _RankedOrder:
    """An order, or a prefix of one: fewer cross products come first, then the lower cost."""

    cross_products: int
    cost: float
    order: tuple[int, ...]


def _rank_order(work: JoinWorkload, order: tuple[int, ...], share: StepShare | None) -> _RankedOrder:
    return _RankedOrder(count_cross_products(work.conditions, order), estimate_order_cost(work, order, share), order)


def estimate_order_cost(work: JoinWorkload, order: Sequence[int], share: StepShare | None = None) -> float:
    """Return the cost of an order, or of a prefix of one, in one window; `share` returns the fraction of a step that counts."""
    total, joined = 0.0, frozenset({order[0]})
    partitioned_by: frozenset[str] = frozenset()
    for step_number, index in enumerate(order[1:]):
        keys = work.find_step_keys(joined, index)
        moves = step_number > 0 and not (keys.left <= partitioned_by and bool(keys.left) == bool(partitioned_by))
        total += (1.0 if share is None else share(index, joined | {index})) * work.estimate_step_cost(
            joined, index, repartitions=moves
        )
        partitioned_by = (partitioned_by if not moves and step_number else keys.left) | keys.right
        joined |= {index}
    return total


def derive_join_shape(plan: WindowJoinQuery, among: frozenset[int] | None = None) -> JoinShape:
    """Return what queries must have in common to share the join of some inputs: streams and all equalities, but not windows.

    Equalities decide which orders are good, so an order of one query suits all queries of the same shape.
    """
    chosen = frozenset(range(len(plan.inputs))) if among is None else among
    equalities = (
        condition
        for condition in iter_conditions(plan)
        if isinstance(condition, Call) and condition.function == "eq" and find_inputs(condition) <= chosen
    )
    return frozenset((index, plan.inputs[index].stream) for index in chosen), frozenset(map(str, equalities))


def group_join_queries(queries: Sequence[LiveQuery], statistics: JoinStatistics, known: Mapping[int, int]) -> dict[int, int]:
    """Return the group of each query such that joining a group together is cheaper than apart; `known` groups are kept.

    Greedy (AJoin query grouping): a query joins the first group of its shape where sharing costs no more, or starts a new one.
    """
    group_by_query: dict[int, int] = {}
    groups_by_shape: dict[JoinShape, dict[int, list[LiveQuery]]] = {}
    for query in sorted(queries, key=lambda q: (q.id not in known, q.id)):
        assert isinstance(query.plan, WindowJoinQuery)
        shape_groups = groups_by_shape.setdefault(derive_join_shape(query.plan), {})
        number = known.get(query.id)
        if number is None:
            number = next((n for n, group in shape_groups.items() if _is_sharing_cheaper(group, query, statistics)), None)
        if number is None:
            number = max(shape_groups, default=-1) + 1
        shape_groups.setdefault(number, []).append(query)
        group_by_query[query.id] = number
    return group_by_query


def _is_sharing_cheaper(group: Sequence[LiveQuery], query: LiveQuery, statistics: JoinStatistics) -> bool:
    """Return whether joining a query with a group costs no more than joining them separately."""
    plan, bits = query.plan, frozenset(member.bit for member in group)
    assert isinstance(plan, WindowJoinQuery)

    def estimate_cost(query_bits: frozenset[int]) -> float:
        return estimate_order_cost(JoinWorkload.for_queries(plan, query_bits, statistics), get_written_order(plan))

    return estimate_cost(bits | {query.bit}) <= estimate_cost(bits) + estimate_cost(frozenset({query.bit}))


def reorder_joins(
    queries: Iterable[LiveQuery], statistics: JoinStatistics, *, regroup: bool = False, max_inputs: int = MAX_ORDERED_INPUTS
) -> dict[int, JoinOrderVersion]:
    """Return new join order versions for joins that gain from another order or group; `regroup` also regroups from scratch."""
    reorderable = [
        (query, query.plan) for query in queries if isinstance(query.plan, WindowJoinQuery) and is_reorderable(query.plan)
    ]
    current = {
        query.id: query.order_versions[-1] if query.order_versions else JoinOrderVersion(get_written_order(plan))
        for query, plan in reorderable
    }
    known_groups = {} if regroup else {query.id: current[query.id].group for query, _ in reorderable if query.order_versions}
    groups = group_join_queries([query for query, _ in reorderable], statistics, known_groups)
    queries_by_shape: dict[tuple[int, JoinShape], list[tuple[LiveQuery, WindowJoinQuery]]] = {}
    for query, plan in reorderable:
        queries_by_shape.setdefault((groups[query.id], derive_join_shape(plan)), []).append((query, plan))
    sharing: dict[tuple[int, JoinShape], int] = {}
    for (group, _), members in queries_by_shape.items():
        for part in _enumerate_subjoins(members[0][1]):
            sharing[group, part] = sharing.get((group, part), 0) + len(members)
    changed: dict[int, JoinOrderVersion] = {}
    for (group, _), members in queries_by_shape.items():
        plan = members[0][1]
        work = JoinWorkload.for_queries(plan, frozenset(query.bit for query, _ in members), statistics)
        costs = _OrderCosts(work, {among: 1.0 / sharing[group, part] for part, among in _enumerate_subjoins(plan).items()})
        best = find_best_order(work, costs.get_share, max_inputs)
        for query, _ in members:
            version = current[query.id]
            gains = best != version.order and costs.estimate_cost(best) < REORDER_THRESHOLD * costs.estimate_cost(version.order)
            if gains or group != version.group:
                changed[query.id] = JoinOrderVersion(best if gains else version.order, group)
    return changed


def _enumerate_subjoins(plan: WindowJoinQuery) -> dict[JoinShape, frozenset[int]]:
    """Return every subjoin of two or more inputs, by its shape."""
    every = range(len(plan.inputs))
    sets = [frozenset(among) for size in range(2, len(plan.inputs) + 1) for among in combinations(every, size)]
    return {derive_join_shape(plan, among): among for among in sets}


@dataclass(frozen=True, slots=True)
class _OrderCosts:
    """Costs of orders of one join, parts of which are shared."""

    workload: JoinWorkload
    shares: Mapping[frozenset[int], float]

    def get_share(self, _index: int, among: frozenset[int]) -> float:
        return self.shares[among]

    def estimate_cost(self, order: Sequence[int]) -> float:
        return estimate_order_cost(self.workload, order, self.get_share)
