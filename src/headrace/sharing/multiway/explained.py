"""EXPLAIN of sliding joins: the state stores, and for each relation the stores that its new rows probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.window import format_duration
from headrace.sharing.multiway.asked import shown
from headrace.sharing.multiway.pictured import told_conditions
from headrace.sharing.multiway.probes import EdgeKind, Probe, ProbePlan, StoreSpec
from headrace.sharing.wording import listed, users

_WAYS = {EdgeKind.ALL: ", broadcast to every partition", EdgeKind.LOCAL: "", EdgeKind.STORED: ""}


def explained(plan: ProbePlan | None) -> list[str]:
    """Return the lines; none without a plan."""
    return _Explanation.of(plan).lines() if plan is not None else []


def told_stores(plan: ProbePlan) -> dict[StoreSpec, tuple[str, frozenset[int]]]:
    """Return the description of each store and the ids of the queries that use it."""
    explanation = _Explanation.of(plan)
    return {store: (explanation.told_store(store), explanation.users(store)) for store in plan.stores}


def to_json(plan: ProbePlan) -> dict[str, Any]:
    """Return the explanation as JSON; `then` of a probe holds the probes that follow it."""
    return _Explanation.of(plan).document()


@dataclass(frozen=True, slots=True)
class _Explanation:
    plan: ProbePlan
    stores: Mapping[int, StoreSpec]
    names: Mapping[int, str]

    @classmethod
    def of(cls, plan: ProbePlan) -> _Explanation:
        return cls(plan, {store.number: store for store in plan.stores}, {query.id: query.name for query in plan.queries})

    def lines(self) -> list[str]:
        lines = ["", f"joins in SLIDING windows · used by {users(sorted(self.names.values()))}"]
        lines += [f"  {self.told_store(store)}" for store in self.plan.stores]
        for name in sorted(self.plan.roots):
            lines.append(f"  new rows of {name}")
            for probe in self.plan.roots[name]:
                lines += [f"    {line}" for line in self._told_probe(probe)]
        return lines

    def told_store(self, store: StoreSpec) -> str:
        kind = "" if store.relation.is_input else ", a materialized join"
        life = f"since batch {store.since}" if store.until is None else f"of batches {store.since} to {store.until - 1}"
        length = f", for {format_duration(self._longest(store))}" if store.relation.is_input else ""
        used = f"used by {users(self._probing(store))}"
        return f"store {store.number} of {store.relation} {_by(store)}{kind} · rows {life}{length} · {used}"

    def _longest(self, store: StoreSpec) -> int:
        name = min(store.relation.relations)
        return max((query.inputs[name].length for query in self.plan.queries if name in query.inputs), default=0)

    def _probing(self, store: StoreSpec) -> list[str]:
        """Return the names of the queries that probe a store or use the join materialized in it."""
        return sorted(self.names[query_id] for query_id in self.users(store))

    def users(self, store: StoreSpec) -> frozenset[int]:
        query_ids = {query_id for _, probe in self.plan.probes if probe.store == store.number for query_id in probe.users}
        return frozenset(query_ids | set(self.plan.uses.get(store.number, ())))

    def _told_probe(self, probe: Probe) -> Iterator[str]:
        store = self.stores[probe.store]
        before = "" if probe.before is None else f", rows before batch {probe.before}"
        on = " and ".join(told_conditions(self.plan, probe)) or "a cross product"
        note = _WAYS.get(probe.edge.kind, ", repartitioned")
        yield f"probe {store.relation} (store {store.number}{before}) by {on}{note} · used by {users(self._names(probe.users))}"
        if probe.ends:
            yield f"  → results of {listed(self._names(probe.ends))}"
        for feed in probe.feeds:
            yield f"  → stored in store {feed.store}"
        for child in probe.children:
            yield from (f"  {line}" for line in self._told_probe(child))

    def _names(self, query_ids: frozenset[int] | tuple[int, ...]) -> list[str]:
        return sorted(self.names[query_id] for query_id in query_ids)

    def document(self) -> dict[str, Any]:
        probes = {name: [self._probe(probe) for probe in self.plan.roots[name]] for name in sorted(self.plan.roots)}
        return {
            "queries": sorted(self.names.values()),
            "stores": [self._store(store) for store in self.plan.stores],
            "probes": probes,
        }

    def _store(self, store: StoreSpec) -> dict[str, Any]:
        return {
            "store": store.number,
            "relations": sorted(store.relation.relations),
            "by": None if store.by is None else str(store.by),
            "since": store.since,
            "until": store.until,
            "queries": self._probing(store),
        }

    def _probe(self, probe: Probe) -> dict[str, Any]:
        return {
            "store": probe.store,
            "before": probe.before,
            "conditions": list(told_conditions(self.plan, probe)),
            "way": probe.edge.kind.value,
            "by": None if probe.edge.by is None else shown(probe.edge.by),
            "queries": self._names(probe.users),
            "results": self._names(probe.ends),
            "kept": [feed.store for feed in probe.feeds],
            "then": [self._probe(child) for child in probe.children],
        }


def _by(store: StoreSpec) -> str:
    return "in any partition" if store.by is None else f"by {store.by.name}" if store.relation.is_input else f"by {store.by}"
