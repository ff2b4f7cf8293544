"""EXPLAIN of sliding joins: the state stores, and for each relation the stores that its new rows probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.window import format_duration
from headrace.sharing.multiway.asked import format_expression
from headrace.sharing.multiway.pictured import format_probe_conditions
from headrace.sharing.multiway.probes import ProbeStep, RoutingKind, SlidingJoinPlan, StoreSpec
from headrace.sharing.wording import format_list, format_users

_ROUTING_NOTES = {RoutingKind.BROADCAST: ", broadcast to every partition", RoutingKind.LOCAL: "", RoutingKind.STORED: ""}


def explain_sliding_joins(plan: SlidingJoinPlan | None) -> list[str]:
    """Return the lines; none without a plan."""
    return _SlidingJoinExplanation.from_plan(plan).format_lines() if plan is not None else []


def describe_stores(plan: SlidingJoinPlan) -> dict[StoreSpec, tuple[str, frozenset[int]]]:
    """Return the description of each store and the ids of the queries that use it."""
    explanation = _SlidingJoinExplanation.from_plan(plan)
    return {store: (explanation.format_store(store), explanation.find_users(store)) for store in plan.stores}


def plan_to_json(plan: SlidingJoinPlan) -> dict[str, Any]:
    """Return the explanation as JSON; `then` of a probe holds the probes that follow it."""
    return _SlidingJoinExplanation.from_plan(plan).to_document()


@dataclass(frozen=True, slots=True)
class _SlidingJoinExplanation:
    plan: SlidingJoinPlan
    stores: Mapping[int, StoreSpec]
    query_names: Mapping[int, str]

    @classmethod
    def from_plan(cls, plan: SlidingJoinPlan) -> _SlidingJoinExplanation:
        return cls(plan, {store.number: store for store in plan.stores}, {query.id: query.name for query in plan.queries})

    def format_lines(self) -> list[str]:
        lines = ["", f"joins in SLIDING windows · used by {format_users(sorted(self.query_names.values()))}"]
        lines += [f"  {self.format_store(store)}" for store in self.plan.stores]
        for name in sorted(self.plan.root_probes):
            lines.append(f"  new rows of {name}")
            for probe in self.plan.root_probes[name]:
                lines += [f"    {line}" for line in self._iter_probe_lines(probe)]
        return lines

    def format_store(self, store: StoreSpec) -> str:
        kind = "" if store.relation.is_input else ", a materialized join"
        life = (
            f"since batch {store.from_batch}"
            if store.until_batch is None
            else f"of batches {store.from_batch} to {store.until_batch - 1}"
        )
        length = f", for {format_duration(self._find_longest_range(store))}" if store.relation.is_input else ""
        used = f"used by {format_users(self._list_user_names(store))}"
        return (
            f"store {store.number} of {store.relation} {_format_store_partitioning(store)}{kind} · rows {life}{length} · {used}"
        )

    def _find_longest_range(self, store: StoreSpec) -> int:
        name = min(store.relation.relations)
        return max((query.inputs[name].length for query in self.plan.queries if name in query.inputs), default=0)

    def _list_user_names(self, store: StoreSpec) -> list[str]:
        """Return the names of the queries that probe a store or use the join materialized in it."""
        return sorted(self.query_names[query_id] for query_id in self.find_users(store))

    def find_users(self, store: StoreSpec) -> frozenset[int]:
        query_ids = {
            query_id for _, probe in self.plan.probes if probe.store_number == store.number for query_id in probe.query_ids
        }
        return frozenset(query_ids | set(self.plan.used_since.get(store.number, ())))

    def _iter_probe_lines(self, probe: ProbeStep) -> Iterator[str]:
        store = self.stores[probe.store_number]
        before = "" if probe.before_batch is None else f", rows before batch {probe.before_batch}"
        on = " and ".join(format_probe_conditions(self.plan, probe)) or "a cross product"
        note = _ROUTING_NOTES.get(probe.routing.kind, ", repartitioned")
        yield f"probe {store.relation} (store {store.number}{before}) by {on}{note} · used by {format_users(self._list_query_names(probe.query_ids))}"
        if probe.completed_queries:
            yield f"  → results of {format_list(self._list_query_names(probe.completed_queries))}"
        for feed in probe.feeds:
            yield f"  → stored in store {feed.store_number}"
        for child in probe.children:
            yield from (f"  {line}" for line in self._iter_probe_lines(child))

    def _list_query_names(self, query_ids: frozenset[int] | tuple[int, ...]) -> list[str]:
        return sorted(self.query_names[query_id] for query_id in query_ids)

    def to_document(self) -> dict[str, Any]:
        probes = {
            name: [self._probe_to_json(probe) for probe in self.plan.root_probes[name]] for name in sorted(self.plan.root_probes)
        }
        return {
            "queries": sorted(self.query_names.values()),
            "stores": [self._store_to_json(store) for store in self.plan.stores],
            "probes": probes,
        }

    def _store_to_json(self, store: StoreSpec) -> dict[str, Any]:
        return {
            "store": store.number,
            "relations": sorted(store.relation.relations),
            "by": None if store.partitioned_by is None else str(store.partitioned_by),
            "since": store.from_batch,
            "until": store.until_batch,
            "queries": self._list_user_names(store),
        }

    def _probe_to_json(self, probe: ProbeStep) -> dict[str, Any]:
        return {
            "store": probe.store_number,
            "before": probe.before_batch,
            "conditions": list(format_probe_conditions(self.plan, probe)),
            "way": probe.routing.kind.value,
            "by": None if probe.routing.key is None else format_expression(probe.routing.key),
            "queries": self._list_query_names(probe.query_ids),
            "results": self._list_query_names(probe.completed_queries),
            "kept": [feed.store_number for feed in probe.feeds],
            "then": [self._probe_to_json(child) for child in probe.children],
        }


def _format_store_partitioning(store: StoreSpec) -> str:
    return (
        "in any partition"
        if store.partitioned_by is None
        else f"by {store.partitioned_by.name}"
        if store.relation.is_input
        else f"by {store.partitioned_by}"
    )
