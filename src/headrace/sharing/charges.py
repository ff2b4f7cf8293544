"""What queries are charged for: reading streams, selecting and aggregating, keeping rows for joins, and the steps of joins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.plan.join import JoinQuery
from headrace.sharing.account import Charge
from headrace.sharing.explain import alone_costs, shared_cost
from headrace.sharing.join_order import JoinStatistics, Work, cost
from headrace.sharing.joining import Leaf, Step, chains
from headrace.sharing.shared_plan import Buckets, LiveQuery, Operator, Router, Sessions, Store, StreamPlan

_SECOND = 1_000_000
_NANO = 1e-9
# What a row costs on one core, measured (docs/performance.md): the model that chooses layouts knows only how they differ.
_READING_NS = 20.0  # to be read and decoded
_OPERATOR_NS: dict[type[Operator], float] = {Store: 20.0, Sessions: 110.0, Router: 48.0}  # to be grouped, sorted, or passed
_KEEPING_NS = 150.0  # to be kept for a join
_JOINING_NS = 105.0  # to be indexed, moved or looked up
_MAKING_NS = 45.0  # a pair that is found


def reading_charges(live: Sequence[LiveQuery], rates: Mapping[str, float]) -> Iterator[Charge]:
    """Yield what reading declared streams costs, at these rows a second: once for all, and for everybody if they were alone."""
    for name, rate in rates.items():
        each = rate * _READING_NS * _NANO
        readers = [query.id for query in live if name in query.plan.streams]
        if readers:
            yield Charge(each, dict.fromkeys(readers, each))


def operator_charges(plans: Iterable[StreamPlan], rates: Mapping[str, float]) -> Iterator[Charge]:
    """Yield what selecting and aggregating cost, at these rows a second of each stream."""
    for plan in plans:
        rate = rates.get(plan.stream, 0.0) * _NANO
        for operator in plan.operators:
            alone: dict[int, float] = defaultdict(float)
            fixed = _OPERATOR_NS[type(operator)]
            for member, each in zip(operator.members, alone_costs(operator, plan.stats), strict=True):
                alone[member.query] += (fixed + each) * rate
            together = fixed * _times(operator) + shared_cost(operator, plan.stats)
            yield Charge(min(together * rate, sum(alone.values())), alone)


def _times(operator: Operator) -> int:
    """Return how often an operator does its part: aggregation once for all, sessions once for all that are equal."""
    if isinstance(operator, Store):
        return 1
    if isinstance(operator, Sessions):
        return len({(member.predicate, member.window, member.needs) for member in operator.members})
    return len(operator.members)


def join_charges(live: Sequence[LiveQuery], plans: Iterable[StreamPlan], statistics: JoinStatistics) -> Iterator[Charge]:
    """Yield what joins in windows that close cost: rows that are kept for them, and steps, those that several share once."""
    for plan in plans:
        rate = statistics.rates.get(plan.stream, 0.0) * _NANO * _KEEPING_NS
        for buckets in plan.buckets:
            yield _keeping(plan.stream, buckets, rate, statistics)
    paths: dict[tuple[Leaf | Step, ...], list[LiveQuery]] = {}
    for query in live:
        if isinstance(query.plan, JoinQuery) and all(statistics.rates.get(name) for name in query.plan.streams):
            chain = chains(query.plan, query.arrangements)[-1][2]
            path: tuple[Leaf | Step, ...] = (chain.first, *chain.steps)
            for length in range(2, len(path) + 1):
                paths.setdefault(path[:length], []).append(query)
    for path, queries in paths.items():
        alone = {query.id: _step(path, [query], statistics) for query in queries}
        yield Charge(min(_step(path, queries, statistics), sum(alone.values())), alone)


def _keeping(stream: str, buckets: Buckets, rate: float, statistics: JoinStatistics) -> Charge:
    def rows(bits: Iterable[int]) -> float:
        share = statistics.wanted(stream, buckets.slot, frozenset(bits))
        return rate * (1.0 if share is None else share)

    members = {member.query: bit for member, bit in zip(buckets.members, buckets.bits, strict=True)}
    return Charge(rows(members.values()), {number: rows([bit]) for number, bit in members.items()})


def _step(path: tuple[Leaf | Step, ...], queries: Sequence[LiveQuery], statistics: JoinStatistics) -> float:
    """Return what the last step of a path costs for some queries, in seconds of work a second."""
    plan = queries[0].plan
    assert isinstance(plan, JoinQuery)
    work = Work.of(plan, frozenset(query.bit for query in queries), statistics)
    order = [(one if isinstance(one, Leaf) else one.leaf).input for one in path]
    made = work.cardinality(frozenset(order))
    pairs = made * (2 if len(order) == len(plan.inputs) else 1)  # so often the model of orders counts them
    rows = cost(work, order) - cost(work, order[:-1]) - pairs
    return (rows * _JOINING_NS + made * _MAKING_NS) * _NANO * _SECOND / plan.ends.step
