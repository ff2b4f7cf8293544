"""Costs of shared operators: reading streams, selecting and aggregating, buffering rows for window joins, and join steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.plan.join import WindowJoinQuery
from headrace.sharing.account import Charge
from headrace.sharing.explain import alone_costs, shared_cost
from headrace.sharing.join_order import JoinStatistics, Work, cost
from headrace.sharing.joining import Leaf, Step, chains
from headrace.sharing.shared_plan import Buckets, LiveQuery, Operator, Router, Sessions, Store, StreamPlan

_SECOND = 1_000_000
_NANO = 1e-9
# Measured nanoseconds per row on one core (docs/performance.md); the model that chooses layouts knows only their differences.
_READING_NS = 20.0  # read and decode
_OPERATOR_NS: dict[type[Operator], float] = {Store: 20.0, Sessions: 110.0, Router: 48.0}  # group, sort, or route
_KEEPING_NS = 150.0  # buffer for a join
_JOINING_NS = 105.0  # index, repartition or look up
_MAKING_NS = 45.0  # emit a matching pair


def reading_charges(live: Sequence[LiveQuery], rates: Mapping[str, float]) -> Iterator[Charge]:
    """Yield the cost of reading each declared stream at the given rows per second: once if shared, once per query if not."""
    for name, rate in rates.items():
        seconds = rate * _READING_NS * _NANO
        readers = [query.id for query in live if name in query.plan.streams]
        if readers:
            yield Charge(seconds, dict.fromkeys(readers, seconds))


def operator_charges(plans: Iterable[StreamPlan], rates: Mapping[str, float]) -> Iterator[Charge]:
    """Yield the cost of selection and aggregation at the given rows per second of each stream."""
    for plan in plans:
        rate = rates.get(plan.stream, 0.0) * _NANO
        for operator in plan.operators:
            alone: dict[int, float] = defaultdict(float)
            fixed = _OPERATOR_NS[type(operator)]
            for member, nanoseconds in zip(operator.members, alone_costs(operator, plan.stats), strict=True):
                alone[member.query] += (fixed + nanoseconds) * rate
            together = fixed * _times(operator) + shared_cost(operator, plan.stats)
            yield Charge(min(together * rate, sum(alone.values())), alone)


def _times(operator: Operator) -> int:
    """Return how often an operator computes: an aggregation once for all, sessions once per distinct definition."""
    if isinstance(operator, Store):
        return 1
    if isinstance(operator, Sessions):
        return len({(member.predicate, member.window, member.needs) for member in operator.members})
    return len(operator.members)


def join_charges(live: Sequence[LiveQuery], plans: Iterable[StreamPlan], statistics: JoinStatistics) -> Iterator[Charge]:
    """Yield the cost of window joins: buffered rows, and join steps, each shared step once."""
    for plan in plans:
        rate = statistics.rates.get(plan.stream, 0.0) * _NANO * _KEEPING_NS
        for buckets in plan.buckets:
            yield _keeping(plan.stream, buckets, rate, statistics)
    paths: dict[tuple[Leaf | Step, ...], list[LiveQuery]] = {}
    for query in live:
        if isinstance(query.plan, WindowJoinQuery) and all(statistics.rates.get(name) for name in query.plan.streams):
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
    """Return the cost of the last step of a path for some queries, in seconds of work per second."""
    plan = queries[0].plan
    assert isinstance(plan, WindowJoinQuery)
    work = Work.of(plan, frozenset(query.bit for query in queries), statistics)
    order = [(element if isinstance(element, Leaf) else element.leaf).input for element in path]
    matches = work.cardinality(frozenset(order))
    pairs = matches * (2 if len(order) == len(plan.inputs) else 1)  # the order model counts the last step's pairs twice
    rows = cost(work, order) - cost(work, order[:-1]) - pairs
    return (rows * _JOINING_NS + matches * _MAKING_NS) * _NANO * _SECOND / plan.ends.step
