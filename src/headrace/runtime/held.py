"""What is kept for each query between micro-batches, in bytes: its part of what it shares with others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from headrace.runtime.state import EngineState
from headrace.sharing.multiway.probes import ProbePlan
from headrace.sharing.parts import whole


def held(state: EngineState, probes: ProbePlan | None) -> dict[int, int]:
    """Return the bytes of each live query, by id: what several use is divided evenly among them."""
    live = {whole(query.id) for query in state.live()}
    found: dict[int, float] = dict.fromkeys(live, 0.0)

    def divide(count: int, queries: Iterable[int]) -> None:
        users = {whole(number) for number in queries} & live
        for number in users:
            found[number] += count / len(users)

    plans = {epoch.number: epoch.plan for stream in state.streams.values() for epoch in stream.epochs}
    for refs, kept in ((state.parts, "stores"), (state.buckets, "buckets")):
        sizes: Counter[tuple[int, int]] = Counter()
        for ref in refs:
            sizes[ref.epoch, ref.store] += ref.bytes
        for (epoch, store), count in sizes.items():
            if epoch in plans:
                operator = getattr(state.plans[plans[epoch]], kept)[store]
                divide(count, (member.query for member in operator.members))
    for session in state.sessions:
        divide(session.bytes, [session.query])
    users = _users(probes)
    for one in state.stores:
        divide(one.bytes, users[one.store])
    return {number: round(count) for number, count in found.items()}


def _users(probes: ProbePlan | None) -> dict[int, set[int]]:
    """Return for each store of multi-way joins the queries it is there for."""
    found: dict[int, set[int]] = defaultdict(set)
    if probes is not None:
        for _, probe in probes.probes:
            found[probe.store] |= probe.users
        for store, uses in probes.uses.items():
            found[store] |= set(uses)
    return found
