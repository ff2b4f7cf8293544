"""EXPLAIN of the shared plan as text: each shared operator, its state, and the queries that use it.

Sliding joins are explained by their state stores, and for each relation by the stores that its new rows probe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.expression import Expression
from headrace.model.partition_map import PartitionMap
from headrace.model.window import UNBOUNDED_LENGTH, HopWindow, SessionWindow, format_duration
from headrace.plan.derived import UnitedStream
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.changelog import compute_stream_depths
from headrace.planner.cost import estimate_shared_cost, estimate_standalone_costs
from headrace.planner.explain.plan_graph import (
    format_list,
    format_partition_keys,
    format_probe_conditions,
    format_users,
    pluralize,
)
from headrace.planner.explain.window_joins import explain_window_joins
from headrace.planner.join.normalized_join import format_expression
from headrace.planner.join.plan_comparison import PlanComparison, format_comparison
from headrace.planner.join.row_storage import RowStoragePlanner
from headrace.planner.join.sliding_join_plan import ProbeStep, RoutingKind, SlidingJoinPlan, StoreSpec
from headrace.planner.join.window_join_cost import JoinStatistics
from headrace.planner.predicate_index import CellLayout, Dimension, PredicateIndex
from headrace.planner.shared_plan import (
    JoinBuffer,
    LiveQuery,
    SessionAggregation,
    SharedAggregation,
    SharedOperator,
    StatelessRouter,
    StreamPlan,
    plan_join_buffers,
)
from headrace.planner.statistics import StreamStatistics

_SHOWN_RANGES = 32
_ROUTING_NOTES = {RoutingKind.BROADCAST: ", broadcast to every partition", RoutingKind.LOCAL: "", RoutingKind.STORED: ""}


def explain_sliding_joins(plan: SlidingJoinPlan | None, comparison: PlanComparison | None = None) -> list[str]:
    """Return the lines: the plan, and the comparison by which it was chosen, if there was one; none without a plan."""
    if plan is None:
        return []
    lines = _SlidingJoinExplanation.from_plan(plan).format_lines()
    return lines if comparison is None else [*lines, *(f"  {line}" for line in format_comparison(comparison))]


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
        for step in self.plan.unmatched_steps:
            before = _format_before(step.before_batch)
            lines.append(f"  rows of {step.relation} (store {step.store_number}{before}) that can have no further partner")
            lines += [f"    {line}" for probe in step.probes for line in self._iter_probe_lines(probe)]
            lines.append(f"    without a partner → results of {format_list(self._list_query_names(step.query_ids))}")
        return lines

    def format_store(self, store: StoreSpec) -> str:
        kind = "" if store.relation.is_input else ", a materialized join"
        life = (
            f"since batch {store.from_batch}"
            if store.until_batch is None
            else f"of batches {store.from_batch} to {store.until_batch - 1}"
        )
        longest = self._find_longest_range(store)
        kept = "ever" if longest >= UNBOUNDED_LENGTH else format_duration(longest)
        length = f", for {kept}" if store.relation.is_input else ""
        used = f"used by {format_users(self._list_user_names(store))}"
        return (
            f"store {store.number} of {store.relation} {_format_store_partitioning(store)}{kind} · rows {life}{length} · {used}"
        )

    def _find_longest_range(self, store: StoreSpec) -> int:
        name = min(store.relation.relations)
        return max((query.get_retention(name) for query in self.plan.queries if name in query.inputs), default=0)

    def _list_user_names(self, store: StoreSpec) -> list[str]:
        """Return the names of the queries that probe a store or use the join materialized in it."""
        return sorted(self.query_names[query_id] for query_id in self.find_users(store))

    def find_users(self, store: StoreSpec) -> frozenset[int]:
        query_ids = {
            query_id for _, probe in self.plan.probes if probe.store_number == store.number for query_id in probe.query_ids
        }
        return frozenset(query_ids | set(self.plan.used_since.get(store.number, ())) | self.plan.find_outer_users(store.number))

    def _iter_probe_lines(self, probe: ProbeStep) -> Iterator[str]:
        store = self.stores[probe.store_number]
        before = _format_before(probe.before_batch)
        on = " and ".join(format_probe_conditions(self.plan, probe)) or "a cross product"
        note = _ROUTING_NOTES.get(probe.routing.kind, ", repartitioned")
        users = format_users(self._list_query_names(probe.query_ids))
        yield f"probe {store.relation} (store {store.number}{before}) by {on}{note} · used by {users}"
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
            "unmatched": [
                {
                    "relation": step.relation,
                    "store": step.store_number,
                    "before": step.before_batch,
                    "queries": self._list_query_names(step.query_ids),
                    "probes": [self._probe_to_json(probe) for probe in step.probes],
                }
                for step in self.plan.unmatched_steps
            ],
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


def _format_before(batch: int | None) -> str:
    return "" if batch is None else f", rows before batch {batch}"


def _format_store_partitioning(store: StoreSpec) -> str:
    return (
        "in any partition"
        if store.partitioned_by is None
        else f"by {store.partitioned_by.name}"
        if store.relation.is_input
        else f"by {store.partitioned_by}"
    )


def explain_partition_map(partitions: PartitionMap) -> list[str]:
    """Return the ranges of hashes that partitions have, in the order of hashes; no lines if they are equal."""
    if partitions.is_equal:
        return []
    ranges = partitions.list_ranges()
    lines = [f"  {item.share:6.2%}  partition {item.partition}" for item in ranges[:_SHOWN_RANGES]]
    lines += [f"  … and {len(ranges) - _SHOWN_RANGES} more"] if len(ranges) > _SHOWN_RANGES else []
    return ["", f"{len(ranges)} key partitions, the ranges of hashes in their order", *lines]


def explain(
    live: Sequence[LiveQuery],
    plans: Iterable[StreamPlan],
    joins: JoinStatistics | None = None,
    probes: SlidingJoinPlan | None = None,
    comparison: PlanComparison | None = None,
) -> str:
    """Return the text; equal plans and statistics give equal texts."""
    names = {query.id: query.name for query in live}
    query_count = sum(not query.output_stream for query in live)
    lines = [f"{query_count} live {pluralize('query', query_count)}, one shared pipeline"]
    for plan in sorted(plans, key=lambda p: (p.stream.startswith("~"), p.stream)):
        reader_ids = {m.query_id for m in plan.subscribers} | {
            query.id for query in live if _is_sliding_join_input(query.plan, plan.stream)
        }
        readers, columns = f"{len(reader_ids)} {pluralize('query', len(reader_ids))}", format_list(sorted(plan.columns))
        lines += ["", f"stream {plan.stream}{_describe_origin(plan.stream, live)}: read once for {readers}; columns {columns}"]
        for operator in plan.operators:
            lines += [f"  {line}" for line in format_operator(operator, names, plan.stats)]
        for buckets in plan.join_buffers:
            lines += [f"  {line}" for line in format_join_buffer(buckets, plan.join_buffers, names)]
        lines += [f"  {line}" for line in _format_row_storage(plan, live, joins or JoinStatistics())]
    lines += explain_window_joins(live, names, joins or JoinStatistics())
    lines += explain_sliding_joins(probes, comparison)
    return "\n".join(lines) + "\n"


def _is_sliding_join_input(plan: LogicalQuery, stream: str) -> bool:
    """Return whether a query joins a stream in SLIDING windows."""
    return isinstance(plan, SlidingJoinQuery) and stream in plan.streams


def _describe_origin(stream: str, live: Sequence[LiveQuery]) -> str:
    makers = [query for query in live if query.output_stream == stream]
    if makers:
        return f" (results of {format_list([query.name for query in makers])}: {_describe_query(makers[0].plan)})"
    unnested = next((candidate for query in live for candidate in query.unnested if candidate.name == stream), None)
    if isinstance(unnested, UnitedStream):
        return f" (rows of {format_list(unnested.bases)})"
    return "" if unnested is None else f" (elements of {unnested.list_expression} in {unnested.base})"


def format_join_buffer(buckets: JoinBuffer, others: Sequence[JoinBuffer], names: Mapping[int, str]) -> list[str]:
    """Return the description of a join buffer, one of all `others` of its stream."""
    windows = sorted({m.window for m in buckets.subscribers if isinstance(m.window, HopWindow)}, key=lambda w: (w.size, w.slide))
    predicate_count = len({m.predicate for m in buckets.subscribers})
    return [
        f"join buffer {format_partition_keys(buckets.keys)} · used by {_format_operator_users(buckets, names)}",
        f"  selection: {predicate_count} distinct {pluralize('predicate', predicate_count)} → a query-set for each row",
        f"  slices: edges of {format_list([str(w) for w in windows])}",
        f"  buffered columns: {format_list(list(buckets.columns))}{_format_home(buckets, others)}",
    ]


def _format_home(buffer: JoinBuffer, others: Sequence[JoinBuffer]) -> str:
    """Return where the rows of a join buffer are, if several buffers share them."""
    if buffer.home is not None:
        return f"; references to the rows {format_partition_keys(others[buffer.home].keys)}"
    referring = [other for other in others if other.home is not None and others[other.home] is buffer]
    keys = format_list([format_partition_keys(other.keys) for other in referring])
    return f"; the rows of the join buffers {keys}, too" if referring else ""


def _format_row_storage(plan: StreamPlan, live: Sequence[LiveQuery], statistics: JoinStatistics) -> list[str]:
    """Return the estimated costs of rows in full and of references, for the join buffers that could share their rows."""
    nested_streams = frozenset(compute_stream_depths(live))
    readers = [query for query in live if plan.stream in query.plan.streams]
    if len(plan.join_buffers) < 2 or plan.stream in nested_streams:
        return []
    in_full = replace(plan, join_buffers=plan_join_buffers(plan.stream, sorted(readers, key=lambda query: query.id)))
    lines = []
    for storage in RowStoragePlanner(nested_streams=nested_streams).list_choices(in_full, readers):
        full, shared = storage.estimate_costs(statistics)
        keys = format_list([format_partition_keys(in_full.join_buffers[index].keys) for index in storage.references])
        home = format_partition_keys(in_full.join_buffers[storage.home].keys)
        lines.append(
            f"rows {home}, references {keys}: {shared.bytes:,.0f} bytes and {shared.nanoseconds:,.0f} ns for each row (model); "
            f"all in full: {full.bytes:,.0f} bytes and {full.nanoseconds:,.0f} ns"
        )
    return lines


def format_operator(operator: SharedOperator, names: Mapping[int, str], stats: StreamStatistics) -> list[str]:
    """Return the description of an operator: its kind and users, then selection, state and cost."""
    lines = [f"{_describe_operator(operator)} · used by {_format_operator_users(operator, names)}"]
    lines += [f"  {line}" for line in _format_predicate_index(operator.predicate_index)]
    if isinstance(operator, SharedAggregation):
        windows = sorted(
            {m.window for m in operator.subscribers if isinstance(m.window, HopWindow)}, key=lambda w: (w.size, w.slide)
        )
        lines.append(f"  slices: edges of {format_list([str(w) for w in windows])}")
        lines.append(f"  partial aggregates per slice, key and cell: {format_list([str(c) for c in operator.components])}")
    lines.append(f"  cost: {_format_saving(operator, stats)}")
    return lines


def _describe_operator(operator: SharedOperator) -> str:
    keys = f"by {format_list([str(k) for k in operator.keys])}" if operator.keys else "over all rows"
    if isinstance(operator, SharedAggregation):
        return f"aggregation {keys}"
    if isinstance(operator, SessionAggregation):
        gaps = sorted({m.window.gap for m in operator.subscribers if isinstance(m.window, SessionWindow)})
        return f"sessions {keys}, {format_list([str(SessionWindow(gap)) for gap in gaps])}"
    assert isinstance(operator, StatelessRouter)
    return "stateless routing"


def _format_predicate_index(selection: PredicateIndex) -> list[str]:
    count = len(selection.predicates)
    predicates = f"{count} distinct {pluralize('predicate', count)}"
    if not selection.dimensions:
        return ["selection: every row"]
    if selection.layout is CellLayout.PER_QUERY:
        return [f"selection: {predicates}, each evaluated once"]
    form = {CellLayout.GRID: "segments" if len(selection.dimensions) == 1 else "grid", CellLayout.SIGNATURES: "signatures"}[
        selection.layout
    ]
    dimensions = format_list([_format_dimension(dimension) for dimension in selection.dimensions])
    return [f"selection: {predicates} → {form} of {selection.cell_count} cells over {dimensions}"]


def _format_dimension(dimension: Dimension) -> str:
    name: Expression = dimension.expression
    if dimension.boundaries is None:
        return f"[{name}]"
    return f"{name} ({len(dimension.boundaries) + 1} segments)"


def _format_saving(operator: SharedOperator, stats: StreamStatistics) -> str:
    """Compare the cost of the shared selection with the sum of standalone costs, at the rate known during planning."""
    shared, standalone = estimate_shared_cost(operator, stats), sum(estimate_standalone_costs(operator, stats))
    return f"{shared:.0f} ns/row shared, {standalone:.0f} ns/row standalone (model)"


def _format_operator_users(operator: SharedOperator | JoinBuffer, names: Mapping[int, str]) -> str:
    return format_users(list(dict.fromkeys(names.get(m.query_id, str(m.query_id)) for m in operator.subscribers)))


def _describe_query(plan: LogicalQuery) -> str:
    if isinstance(plan, WindowJoinQuery):
        windows = ", ".join(dict.fromkeys(str(join_input.window) for join_input in plan.inputs))
        return f"{'aggregation over a ' if plan.grouping else ''}join of {', '.join(plan.streams)} over {windows}"
    kind = f"aggregation over {plan.window}" if isinstance(plan, AggregateQuery) else "rows"
    return f"{kind} of {', '.join(plan.streams)}"
