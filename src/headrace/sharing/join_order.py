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
from headrace.plan.join import WindowJoinQuery, to_stream_columns
from headrace.sharing.arrangement import Arrangement, conditions, equality, inputs, is_free, products, written
from headrace.sharing.shared_plan import LiveQuery
from headrace.sharing.statistics import GUESS

_SECOND = 1_000_000
RELATIONS = 5  # inputs ordered at once; for more, the best prefix is fixed and the search continues from it
GAIN = 0.67  # an order changes when the new one costs less than this fraction of the old
FULL = 0.5  # when more than this fraction of the queries changed, all are regrouped

Share = Callable[[int, frozenset[int]], float]
Shape = tuple[frozenset[tuple[int, str]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class JoinStatistics:
    """Measured statistics: rows/s of streams, distinct keys by (stream, key), the fraction of rows that some queries select.

    `wanted_share(stream, slot, bits)` is between 0 and 1; None before the first sample. `measured_rows` maps (query id, path
    length) to the recent number of rows per window after that many steps.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[tuple[str, str], int] = field(default_factory=dict)
    wanted: Callable[[str, int, frozenset[int]], float | None] = lambda _stream, _slot, _bits: None
    measured: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """A join with its cardinalities, for the queries of one group, which differ only in their selections.

    `input_rows` counts the rows of each input in one window that any query of the group selects; `conditions` are all between
    inputs.
    """

    plan: WindowJoinQuery
    statistics: JoinStatistics
    rows: tuple[float, ...]
    conditions: tuple[Expression, ...]

    @staticmethod
    def of(plan: WindowJoinQuery, bits: frozenset[int], statistics: JoinStatistics) -> Work:
        """Return the workload of the queries with these bits."""
        row_counts = []
        for index, join_input in enumerate(plan.inputs):
            share = statistics.wanted(join_input.stream, plan.stream_occurrence(index), bits)
            rate = statistics.rates.get(join_input.stream) or float(GUESS.rate)
            row_counts.append(max(1.0, rate * join_input.window.size / _SECOND * (1.0 if share is None else share)))
        return Work(plan, statistics, tuple(row_counts), tuple(conditions(plan)))

    def distinct(self, expression: Expression) -> float:
        """Return the number of distinct values of one side of an equality."""
        index = min(inputs(expression))
        stream = self.plan.inputs[index].stream
        known = self.statistics.keys.get((stream, str(to_stream_columns(expression))))
        return min(self.rows[index], float(known or GUESS.default_keys))

    def cardinality(self, among: frozenset[int]) -> float:
        """Return the number of joined rows of these inputs in a window."""
        cardinality = 1.0
        for index in among:
            cardinality *= self.rows[index]
        for condition in self.conditions:
            if inputs(condition) <= among and len(inputs(condition)) > 1:
                sides = _sides(condition)
                cardinality /= max(self.distinct(side) for side in sides) if sides else 3.0
        return max(cardinality, 1e-6)

    def step(self, joined: frozenset[int], index: int, *, moves: bool) -> float:
        """Return the cost of joining one more input."""
        reached = joined | {index}
        keys = [
            e
            for condition in self.conditions
            if inputs(condition) <= reached and (e := equality(condition, joined, index)) is not None
        ]
        lookups = min((min(self.distinct(e.left), self.distinct(e.right)) for e in keys), default=self.cardinality(joined))
        indexed = self.rows[index] + (self.rows[next(iter(joined))] if len(joined) == 1 else 0.0)
        moved = self.cardinality(joined) if moves else 0.0
        last = self.cardinality(reached) if len(reached) == len(self.plan.inputs) else 0.0
        return indexed + moved + lookups + last + self.cardinality(reached)


def _sides(condition: Expression) -> tuple[Expression, Expression] | None:
    for index in inputs(condition):
        pair = equality(condition, inputs(condition) - {index}, index)
        if pair is not None:
            return pair.left, pair.right
    return None


def best_order(work: Work, share: Share | None = None, relations: int = RELATIONS) -> tuple[int, ...]:
    """Return the cheapest order by dynamic programming over sets of inputs, `max_inputs` inputs at a time."""
    all_inputs = frozenset(range(len(work.plan.inputs)))
    prefixes: list[tuple[int, ...]] = [(index,) for index in sorted(all_inputs)]
    while True:
        best_by_set = {frozenset(order): order for order in prefixes}
        size = len(prefixes[0])
        until = min(len(all_inputs), size + relations - (1 if size == 1 else 0))
        for _ in range(size, until):
            following: dict[frozenset[int], tuple[int, ...]] = {}
            for joined, order in best_by_set.items():
                for index in sorted(all_inputs - joined):
                    _keep_better(following, work, (*order, index), share)
            best_by_set = following
        if all_inputs in best_by_set:
            return min(best_by_set[all_inputs], written(work.plan), key=lambda order: products(work.conditions, order))
        prefixes = [min(best_by_set.values(), key=lambda order: _rank(work, order, share))]


def _keep_better(known: dict[frozenset[int], tuple[int, ...]], work: Work, order: tuple[int, ...], share: Share | None) -> None:
    joined = frozenset(order)
    if joined not in known or _rank(work, order, share) < _rank(work, known[joined], share):
        known[joined] = order


def _rank(work: Work, order: tuple[int, ...], share: Share | None) -> tuple[int, float, tuple[int, ...]]:
    return products(work.conditions, order), cost(work, order, share), order


def cost(work: Work, order: Sequence[int], share: Share | None = None) -> float:
    """Return the cost of an order, or of a prefix of one, in one window; `share` returns the fraction of a step that counts."""
    total, joined = 0.0, frozenset({order[0]})
    partitioned_by: frozenset[str] = frozenset()
    for step_number, index in enumerate(order[1:]):
        keys = _keys(work, joined, index)
        moves = step_number > 0 and not (keys[0] <= partitioned_by and bool(keys[0]) == bool(partitioned_by))
        total += (1.0 if share is None else share(index, joined | {index})) * work.step(joined, index, moves=moves)
        partitioned_by = (partitioned_by if not moves and step_number else keys[0]) | keys[1]
        joined |= {index}
    return total


def _keys(work: Work, joined: frozenset[int], index: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys of a step on the left and the right side, as text."""
    equalities = [
        e
        for condition in work.conditions
        if inputs(condition) <= joined | {index} and (e := equality(condition, joined, index)) is not None
    ]
    return frozenset(str(e.left) for e in equalities), frozenset(str(e.right) for e in equalities)


def shape(plan: WindowJoinQuery, among: frozenset[int] | None = None) -> Shape:
    """Return what queries must have in common to share the join of some inputs: streams and all equalities, but not windows.

    Equalities decide which orders are good, so an order of one query suits all queries of the same shape.
    """
    chosen = frozenset(range(len(plan.inputs))) if among is None else among
    equalities = (
        condition
        for condition in conditions(plan)
        if isinstance(condition, Call) and condition.function == "eq" and inputs(condition) <= chosen
    )
    return frozenset((index, plan.inputs[index].stream) for index in chosen), frozenset(map(str, equalities))


def groups_of(queries: Sequence[LiveQuery], statistics: JoinStatistics, known: Mapping[int, int]) -> dict[int, int]:
    """Return the group of each query such that joining a group together is cheaper than apart; `known` groups are kept.

    Greedy (AJoin query grouping): a query joins the first group of its shape where sharing costs no more, or starts a new one.
    """
    group_by_query: dict[int, int] = {}
    groups_by_shape: dict[Shape, dict[int, list[LiveQuery]]] = {}
    for query in sorted(queries, key=lambda q: (q.id not in known, q.id)):
        assert isinstance(query.plan, WindowJoinQuery)
        shape_groups = groups_by_shape.setdefault(shape(query.plan), {})
        number = known.get(query.id)
        if number is None:
            number = next((n for n, group in shape_groups.items() if _gains(group, query, statistics)), None)
        if number is None:
            number = max(shape_groups, default=-1) + 1
        shape_groups.setdefault(number, []).append(query)
        group_by_query[query.id] = number
    return group_by_query


def _gains(group: Sequence[LiveQuery], query: LiveQuery, statistics: JoinStatistics) -> bool:
    """Return whether joining a query with a group costs no more than joining them separately."""
    plan, bits = query.plan, frozenset(member.bit for member in group)
    assert isinstance(plan, WindowJoinQuery)

    def estimate_cost(query_bits: frozenset[int]) -> float:
        return cost(Work.of(plan, query_bits, statistics), written(plan))

    return estimate_cost(bits | {query.bit}) <= estimate_cost(bits) + estimate_cost(frozenset({query.bit}))


def arrange(
    queries: Iterable[LiveQuery], statistics: JoinStatistics, *, anew: bool = False, relations: int = RELATIONS
) -> dict[int, Arrangement]:
    """Return new join order versions for joins that gain from another order or group; `regroup` also regroups from scratch."""
    reorderable = [(query, query.plan) for query in queries if isinstance(query.plan, WindowJoinQuery) and is_free(query.plan)]
    current = {
        query.id: query.arrangements[-1] if query.arrangements else Arrangement(written(plan)) for query, plan in reorderable
    }
    known_groups = {} if anew else {query.id: current[query.id].group for query, _ in reorderable if query.arrangements}
    groups = groups_of([query for query, _ in reorderable], statistics, known_groups)
    queries_by_shape: dict[tuple[int, Shape], list[tuple[LiveQuery, WindowJoinQuery]]] = {}
    for query, plan in reorderable:
        queries_by_shape.setdefault((groups[query.id], shape(plan)), []).append((query, plan))
    sharing: dict[tuple[int, Shape], int] = {}
    for (group, _), members in queries_by_shape.items():
        for part in _parts(members[0][1]):
            sharing[group, part] = sharing.get((group, part), 0) + len(members)
    changed: dict[int, Arrangement] = {}
    for (group, _), members in queries_by_shape.items():
        plan = members[0][1]
        work = Work.of(plan, frozenset(query.bit for query, _ in members), statistics)
        costs = _Costs(work, {among: 1.0 / sharing[group, part] for part, among in _parts(plan).items()})
        best = best_order(work, costs.share, relations)
        for query, _ in members:
            version = current[query.id]
            gains = best != version.order and costs.of(best) < GAIN * costs.of(version.order)
            if gains or group != version.group:
                changed[query.id] = Arrangement(best if gains else version.order, group)
    return changed


def _parts(plan: WindowJoinQuery) -> dict[Shape, frozenset[int]]:
    """Return every subjoin of two or more inputs, by its shape."""
    every = range(len(plan.inputs))
    sets = [frozenset(among) for size in range(2, len(plan.inputs) + 1) for among in combinations(every, size)]
    return {shape(plan, among): among for among in sets}


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs of orders of one join, parts of which are shared."""

    work: Work
    parts: Mapping[frozenset[int], float]

    def share(self, _index: int, among: frozenset[int]) -> float:
        return self.parts[among]

    def of(self, order: Sequence[int]) -> float:
        return cost(self.work, order, self.share)
