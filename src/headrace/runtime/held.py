"""State bytes by query: each live query's share of the state that is kept between micro-batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from headrace.runtime.state import EngineState
from headrace.sharing.multiway.probes import SlidingJoinPlan
from headrace.sharing.parts import root_query_id


def attribute_state_bytes(state: EngineState, probes: SlidingJoinPlan | None) -> dict[int, int]:
    """Return the state bytes of each live query, by id; shared state is divided evenly among its users."""
    live = {root_query_id(query.id) for query in state.live_queries()}
    shares: dict[int, float] = dict.fromkeys(live, 0.0)

    def divide(count: int, queries: Iterable[int]) -> None:
        users = {root_query_id(number) for number in queries} & live
        for number in users:
            shares[number] += count / len(users)

    plans = {epoch.number: epoch.plan for stream in state.streams.values() for epoch in stream.epochs}
    for refs, operators in ((state.aggregation_refs, "stores"), (state.join_buffer_refs, "buckets")):
        sizes: Counter[tuple[int, int]] = Counter()
        for ref in refs:
            sizes[ref.epoch, ref.operator] += ref.bytes
        for (epoch, store), count in sizes.items():
            if epoch in plans:
                operator = getattr(state.plans[plans[epoch]], operators)[store]
                divide(count, (subscriber.query for subscriber in operator.members))
    for session in state.session_refs:
        divide(session.bytes, [session.query_id])
    store_users = _map_store_users(probes)
    for segment in state.store_refs:
        divide(segment.bytes, store_users[segment.store])
    return {number: round(count) for number, count in shares.items()}


def _map_store_users(probes: SlidingJoinPlan | None) -> dict[int, set[int]]:
    """Return the queries that use each state store of sliding joins."""
    queries: dict[int, set[int]] = defaultdict(set)
    if probes is not None:
        for _, probe in probes.probes:
            queries[probe.store_number] |= probe.query_ids
        for store, uses in probes.used_since.items():
            queries[store] |= set(uses)
    return queries
