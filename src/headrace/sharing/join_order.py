"""The optimizer of joins: who is joined together with whom, and in which order inputs are joined. Pure: figures in, plan out.

The cost of a step is that of AJoin: rows that are indexed (those of a leaf, and joined rows that move), keys that are looked
up, and, in the last step, rows that are put together; and the pairs it finds, which are gone through one by one. A step that
several queries share costs each of them its part. A step without an equality sorts rows instead of indexing them, and each of
its conditions lets a third of all pairs pass; an order has as few of these as can be, whatever they cost: their rows meet in one
place. What selections let pass is not guessed but counted, on samples of query-sets: the rows that a group of queries wants of an
input are those whose set has a bit of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from headrace.model.expression import Call, Expression
from headrace.plan.join import JoinQuery, lowered
from headrace.sharing.arrangement import Arrangement, conditions, equality, inputs, is_free, products, written
from headrace.sharing.shared_plan import LiveQuery
from headrace.sharing.statistics import GUESS

_SECOND = 1_000_000
RELATIONS = 5  # so many inputs are ordered at once; beyond, the best beginning is kept and ordering goes on from there
GAIN = 0.67  # an order is changed when the new one costs less than this part of the old
FULL = 0.5  # when more than this part of the queries changed, all are looked at anew

Share = Callable[[int, frozenset[int]], float]
Shape = tuple[frozenset[tuple[int, str]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class JoinStatistics:
    """What was measured: rows/s of streams, distinct keys by (stream, key), the share of rows that some queries want.

    `wanted(stream, slot, bits)` is between 0 and 1; None where nothing was sampled yet. `measured` has the rows of a window
    after so many steps of the path of a query, lately.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[tuple[str, str], int] = field(default_factory=dict)
    wanted: Callable[[str, int, frozenset[int]], float | None] = lambda _stream, _slot, _bits: None
    measured: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """A join with its cardinalities, for the queries of one group: they differ in what they select only.

    `rows` are those of each input in one window that anybody in the group wants; `conditions` all between inputs.
    """

    plan: JoinQuery
    statistics: JoinStatistics
    rows: tuple[float, ...]
    conditions: tuple[Expression, ...]

    @staticmethod
    def of(plan: JoinQuery, bits: frozenset[int], statistics: JoinStatistics) -> Work:
        """Return the work of the queries with these bits."""
        found = []
        for index, each in enumerate(plan.inputs):
            share = statistics.wanted(each.stream, plan.slot(index), bits)
            rate = statistics.rates.get(each.stream) or float(GUESS.rate)
            found.append(max(1.0, rate * each.window.size / _SECOND * (1.0 if share is None else share)))
        return Work(plan, statistics, tuple(found), tuple(conditions(plan)))

    def distinct(self, expression: Expression) -> float:
        """Return how many distinct values a side of an equality has."""
        index = min(inputs(expression))
        stream = self.plan.inputs[index].stream
        known = self.statistics.keys.get((stream, str(lowered(expression))))
        return min(self.rows[index], float(known or GUESS.default_keys))

    def cardinality(self, among: frozenset[int]) -> float:
        """Return how many joined rows of these inputs there are in a window."""
        found = 1.0
        for index in among:
            found *= self.rows[index]
        for one in self.conditions:
            if inputs(one) <= among and len(inputs(one)) > 1:
                pair = _sides(one)
                found /= max(self.distinct(side) for side in pair) if pair else 3.0
        return max(found, 1e-6)

    def step(self, inside: frozenset[int], index: int, *, moves: bool) -> float:
        """Return the cost of joining one more input."""
        reached = inside | {index}
        keys = [e for one in self.conditions if inputs(one) <= reached and (e := equality(one, inside, index)) is not None]
        looked_up = min((min(self.distinct(e.left), self.distinct(e.right)) for e in keys), default=self.cardinality(inside))
        indexed = self.rows[index] + (self.rows[next(iter(inside))] if len(inside) == 1 else 0.0)
        moved = self.cardinality(inside) if moves else 0.0
        last = self.cardinality(reached) if len(reached) == len(self.plan.inputs) else 0.0
        return indexed + moved + looked_up + last + self.cardinality(reached)


def _sides(condition: Expression) -> tuple[Expression, Expression] | None:
    for one in inputs(condition):
        found = equality(condition, inputs(condition) - {one}, one)
        if found is not None:
            return found.left, found.right
    return None


def best_order(work: Work, share: Share | None = None, relations: int = RELATIONS) -> tuple[int, ...]:
    """Return the best order by dynamic programming over sets of inputs, `relations` at a time."""
    everything = frozenset(range(len(work.plan.inputs)))
    beginnings: list[tuple[int, ...]] = [(index,) for index in sorted(everything)]
    while True:
        known = {frozenset(order): order for order in beginnings}
        size = len(beginnings[0])
        until = min(len(everything), size + relations - (1 if size == 1 else 0))
        for _ in range(size, until):
            following: dict[frozenset[int], tuple[int, ...]] = {}
            for inside, order in known.items():
                for index in sorted(everything - inside):
                    _keep_better(following, work, (*order, index), share)
            known = following
        if everything in known:
            return min(known[everything], written(work.plan), key=lambda order: products(work.conditions, order))
        beginnings = [min(known.values(), key=lambda order: _rank(work, order, share))]


def _keep_better(known: dict[frozenset[int], tuple[int, ...]], work: Work, order: tuple[int, ...], share: Share | None) -> None:
    at = frozenset(order)
    if at not in known or _rank(work, order, share) < _rank(work, known[at], share):
        known[at] = order


def _rank(work: Work, order: tuple[int, ...], share: Share | None) -> tuple[int, float, tuple[int, ...]]:
    return products(work.conditions, order), cost(work, order, share), order


def cost(work: Work, order: Sequence[int], share: Share | None = None) -> float:
    """Return the cost of an order, or of a beginning of one, in one window; `share` gives the part of a step that counts."""
    total, inside = 0.0, frozenset({order[0]})
    placed: frozenset[str] = frozenset()
    for number, index in enumerate(order[1:]):
        keys = _keys(work, inside, index)
        moves = number > 0 and not (keys[0] <= placed and bool(keys[0]) == bool(placed))
        total += (1.0 if share is None else share(index, inside | {index})) * work.step(inside, index, moves=moves)
        placed = (placed if not moves and number else keys[0]) | keys[1]
        inside |= {index}
    return total


def _keys(work: Work, inside: frozenset[int], index: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys of a step, on both sides, as text."""
    found = [e for one in work.conditions if inputs(one) <= inside | {index} and (e := equality(one, inside, index)) is not None]
    return frozenset(str(e.left) for e in found), frozenset(str(e.right) for e in found)


def shape(plan: JoinQuery, among: frozenset[int] | None = None) -> Shape:
    """Return what queries must agree on to share the join of some inputs: streams and all equalities, not windows.

    Equalities decide which orders are good ones, so that an order of one query is one for all of its shape.
    """
    chosen = frozenset(range(len(plan.inputs))) if among is None else among
    equal = (one for one in conditions(plan) if isinstance(one, Call) and one.function == "eq" and inputs(one) <= chosen)
    return frozenset((index, plan.inputs[index].stream) for index in chosen), frozenset(map(str, equal))


def groups_of(queries: Sequence[LiveQuery], statistics: JoinStatistics, known: Mapping[int, int]) -> dict[int, int]:
    """Return the group of each query: those that are joined together cost less than apart. `known` groups are kept.

    Greedy: a query joins the first group of its shape in which it is not a loss, or begins one.
    """
    found: dict[int, int] = {}
    members: dict[Shape, dict[int, list[LiveQuery]]] = {}
    for query in sorted(queries, key=lambda q: (q.id not in known, q.id)):
        assert isinstance(query.plan, JoinQuery)
        here = members.setdefault(shape(query.plan), {})
        number = known.get(query.id)
        if number is None:
            number = next((n for n, group in here.items() if _gains(group, query, statistics)), None)
        if number is None:
            number = max(here, default=-1) + 1
        here.setdefault(number, []).append(query)
        found[query.id] = number
    return found


def _gains(group: Sequence[LiveQuery], query: LiveQuery, statistics: JoinStatistics) -> bool:
    """Tell whether a query and a group cost no more together than apart."""
    plan, bits = query.plan, frozenset(one.bit for one in group)
    assert isinstance(plan, JoinQuery)

    def whole(some: frozenset[int]) -> float:
        return cost(Work.of(plan, some, statistics), written(plan))

    return whole(bits | {query.bit}) <= whole(bits) + whole(frozenset({query.bit}))


def arrange(
    queries: Iterable[LiveQuery], statistics: JoinStatistics, *, anew: bool = False, relations: int = RELATIONS
) -> dict[int, Arrangement]:
    """Return new arrangements for joins that are better worked off otherwise; `anew` looks at groups from scratch, too."""
    joins = [(query, query.plan) for query in queries if isinstance(query.plan, JoinQuery) and is_free(query.plan)]
    now = {query.id: query.arrangements[-1] if query.arrangements else Arrangement(written(plan)) for query, plan in joins}
    known = {} if anew else {query.id: now[query.id].group for query, _ in joins if query.arrangements}
    groups = groups_of([query for query, _ in joins], statistics, known)
    alike: dict[tuple[int, Shape], list[tuple[LiveQuery, JoinQuery]]] = {}
    for query, plan in joins:
        alike.setdefault((groups[query.id], shape(plan)), []).append((query, plan))
    sharing: dict[tuple[int, Shape], int] = {}
    for (group, _), members in alike.items():
        for part in _parts(members[0][1]):
            sharing[group, part] = sharing.get((group, part), 0) + len(members)
    changed: dict[int, Arrangement] = {}
    for (group, _), members in alike.items():
        plan = members[0][1]
        work = Work.of(plan, frozenset(query.bit for query, _ in members), statistics)
        costs = _Costs(work, {among: 1.0 / sharing[group, part] for part, among in _parts(plan).items()})
        best = best_order(work, costs.share, relations)
        for query, _ in members:
            before = now[query.id]
            gains = best != before.order and costs.of(best) < GAIN * costs.of(before.order)
            if gains or group != before.group:
                changed[query.id] = Arrangement(best if gains else before.order, group)
    return changed


def _parts(plan: JoinQuery) -> dict[Shape, frozenset[int]]:
    """Return every join of two or more inputs that is part of a join, by its shape."""
    every = range(len(plan.inputs))
    sets = [frozenset(among) for size in range(2, len(plan.inputs) + 1) for among in combinations(every, size)]
    return {shape(plan, among): among for among in sets}


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs of orders of one join, where parts of it are shared."""

    work: Work
    parts: Mapping[frozenset[int], float]

    def share(self, _index: int, among: frozenset[int]) -> float:
        return self.parts[among]

    def of(self, order: Sequence[int]) -> float:
        return cost(self.work, order, self.share)
