"""What queries are charged for: reading streams, selecting and aggregating, keeping rows for joins, and the steps of joins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.plan.join import JoinQuery
from headrace.sharing.account import Charge
from headrace.sharing.explain import alone_costs, shared_cost
from headrace.sharing.join_order import JoinStatistics, Work, cost
from headrace.sharing.joining import Leaf, Step, chains
from headrace.sharing.shared_plan import Buckets, LiveQuery, StreamPlan

_SECOND = 1_000_000
_NANO = 1e-9
_READING_NS = 40.0  # a row that is read and decoded: of 26 M rows/s with one query on 1.2 cores, less what the query itself takes
# Measured with one join of two streams in which few rows find a partner: 310 ns for each row of either on one core. The cost
# model of orders counts three for each two rows then.
_KEEPING_NS = 150.0  # a row that is kept
_JOINING_NS = 105.0  # one of what the cost model of orders counts


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
            for member, each in zip(operator.members, alone_costs(operator, plan.stats), strict=True):
                alone[member.query] += each * rate
            yield Charge(shared_cost(operator, plan.stats) * rate, alone)


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
    counted = cost(work, order) - cost(work, order[:-1])
    return counted * _JOINING_NS * _NANO * _SECOND / plan.ends.step
