"""EXPLAIN of joins in SLIDING windows: the stores there are, and for each relation along which of them its new rows go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.window import duration
from headrace.sharing.multiway.asked import shown
from headrace.sharing.multiway.pictured import told_conditions
from headrace.sharing.multiway.probes import EdgeKind, Probe, ProbePlan, StoreSpec
from headrace.sharing.wording import listed, users

_WAYS = {EdgeKind.ALL: ", a copy to every partition", EdgeKind.LOCAL: "", EdgeKind.STORED: ""}


def explained(plan: ProbePlan | None) -> list[str]:
    """Return the lines; none without a plan."""
    return _Explanation.of(plan).lines() if plan is not None else []


def told_stores(plan: ProbePlan) -> dict[StoreSpec, tuple[str, frozenset[int]]]:
    """Return for each store what is said of it, and the queries it is there for."""
    explanation = _Explanation.of(plan)
    return {one: (explanation.told_store(one), explanation.users(one)) for one in plan.stores}


def to_json(plan: ProbePlan) -> dict[str, Any]:
    """Return the same for machines; a probe has those that follow it in `then`."""
    return _Explanation.of(plan).document()


@dataclass(frozen=True, slots=True)
class _Explanation:
    plan: ProbePlan
    stores: Mapping[int, StoreSpec]
    names: Mapping[int, str]

    @classmethod
    def of(cls, plan: ProbePlan) -> _Explanation:
        return cls(plan, {one.number: one for one in plan.stores}, {one.id: one.name for one in plan.queries})

    def lines(self) -> list[str]:
        found = ["", f"joins in SLIDING windows · used by {users(sorted(self.names.values()))}"]
        found += [f"  {self.told_store(one)}" for one in self.plan.stores]
        for name in sorted(self.plan.roots):
            found.append(f"  new rows of {name}")
            for probe in self.plan.roots[name]:
                found += [f"    {line}" for line in self._told_probe(probe)]
        return found

    def told_store(self, one: StoreSpec) -> str:
        kept = "" if one.relation.is_input else ", a join that is kept"
        life = f"since batch {one.since}" if one.until is None else f"of batches {one.since} to {one.until - 1}"
        length = f", for {duration(self._longest(one))}" if one.relation.is_input else ""
        used = f"used by {users(self._probing(one))}"
        return f"store {one.number} of {one.relation} {_by(one)}{kept} · rows {life}{length} · {used}"

    def _longest(self, one: StoreSpec) -> int:
        name = min(one.relation.relations)
        return max((query.inputs[name].range for query in self.plan.queries if name in query.inputs), default=0)

    def _probing(self, one: StoreSpec) -> list[str]:
        """Return the queries whose rows look into a store, or whose joins are kept there."""
        return sorted(self.names[number] for number in self.users(one))

    def users(self, one: StoreSpec) -> frozenset[int]:
        found = {number for _, probe in self.plan.probes if probe.store == one.number for number in probe.users}
        return frozenset(found | set(self.plan.uses.get(one.number, ())))

    def _told_probe(self, probe: Probe) -> Iterator[str]:
        store = self.stores[probe.store]
        before = "" if probe.before is None else f", rows before batch {probe.before}"
        on = " and ".join(told_conditions(self.plan, probe)) or "everything"
        way = _WAYS.get(probe.edge.kind, ", rows move to other partitions")
        yield f"probe {store.relation} (store {store.number}{before}) by {on}{way} · used by {users(self._names(probe.users))}"
        if probe.ends:
            yield f"  → results of {listed(self._names(probe.ends))}"
        for feed in probe.feeds:
            yield f"  → kept in store {feed.store}"
        for child in probe.children:
            yield from (f"  {line}" for line in self._told_probe(child))

    def _names(self, numbers: frozenset[int] | tuple[int, ...]) -> list[str]:
        return sorted(self.names[number] for number in numbers)

    def document(self) -> dict[str, Any]:
        probes = {name: [self._probe(probe) for probe in self.plan.roots[name]] for name in sorted(self.plan.roots)}
        return {
            "queries": sorted(self.names.values()),
            "stores": [self._store(one) for one in self.plan.stores],
            "probes": probes,
        }

    def _store(self, one: StoreSpec) -> dict[str, Any]:
        return {
            "store": one.number,
            "relations": sorted(one.relation.relations),
            "by": None if one.by is None else str(one.by),
            "since": one.since,
            "until": one.until,
            "queries": self._probing(one),
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


def _by(one: StoreSpec) -> str:
    return "in any partition" if one.by is None else f"by {one.by.name}" if one.relation.is_input else f"by {one.by}"
