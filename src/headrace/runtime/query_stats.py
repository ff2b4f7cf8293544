"""Statistics of a running session: cost, latency, state bytes and emission rate by query, and the diagram of its plan.

Costs come from the cost model at recent input rates; latencies, bytes and rates are measured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.connectors import Range
from headrace.engine.batch_job import StoreCounts
from headrace.engine.joins.kept_pairs import PairCounts
from headrace.errors import SessionError
from headrace.planner.cost import (
    CostBreakdown,
    CostChange,
    SharedCost,
    divide_costs,
    estimate_added_cost,
    estimate_operator_costs,
    estimate_read_costs,
    estimate_window_join_costs,
)
from headrace.planner.explain.plan_diagram import PlanDiagram, build_plan_diagram
from headrace.planner.explain.plan_drawing import PlanDrawing, draw_plan_diagram
from headrace.planner.explain.plan_graph import GRAPH_FORMATS, build_physical_graph
from headrace.planner.explain.text import explain, explain_partition_map
from headrace.planner.join.cost import estimate_sliding_join_costs
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.shared_plan import LiveQuery, StreamPlan, plan_stream
from headrace.planner.statistics import build_statistics
from headrace.runtime.command_queue import QueueFigures
from headrace.runtime.coordinator import Coordinator
from headrace.runtime.metrics import BatchReport, LatencyPercentiles, TotalFigures, attribute_state_bytes, measure_latencies
from headrace.runtime.observation import SessionObserver
from headrace.runtime.sliding_join_epochs import plan_hypothetical_joins
from headrace.sql import bind_query

_RATE_WINDOW_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class QueryStats:
    """Statistics of live queries by query id; `latencies` has only the queries that emitted rows recently."""

    costs: Mapping[int, CostBreakdown]
    latencies: Mapping[int, LatencyPercentiles]
    state_bytes: Mapping[int, int]
    emission_rates: Mapping[int, float]
    """Rows emitted per second, recently."""


NO_STATS = QueryStats({}, {}, {}, {})


class SessionStatistics:
    """What a running session knows about its queries. Reads the state of the last committed batch; any thread may call it."""

    def __init__(self, coordinator: Coordinator, observer: SessionObserver) -> None:
        """Read the state of the coordinator, and what the observer has recorded."""
        self._engine, self._observer = coordinator, observer

    def get_stream_rate(self, stream: str) -> float:
        """Return the recent rows a second of event time of a stream; 0 before the first measurement."""
        state = self._engine.state.streams.get(stream)
        return 0.0 if state is None else state.rate

    def read_totals(self) -> TotalFigures:
        """Return the seconds of tasks, and the rows and state of operators, since the session was opened."""
        return self._observer.totals.read()

    def measure_queue(self) -> QueueFigures:
        """Return how many query changes wait for a micro-batch, and for how long."""
        return self._engine.command_queue.measure()

    def count_lag(self) -> dict[str, int]:
        """Return the unread rows of each stream after the last batch, where its source knows them."""
        batches = self._observer.history.list_all()[-1:]
        streams = batches[0].report.figures.streams if batches else {}
        return {name: figures.lag for name, figures in streams.items() if figures.lag is not None}

    def list_last_ranges(self) -> tuple[Range, ...]:
        """Return the input ranges of the last micro-batch."""
        entry = self._engine.checkpoint.read_log_entry(self._engine.state.batch)
        return tuple(item for task in entry.tasks for item in task) if entry else ()

    def draw_plan(self) -> tuple[PlanDiagram, PlanDrawing]:
        """Return the shared operators and the queries that use them, as boxes and lines, and their places."""
        engine = self._engine
        plans = engine.state.current_plans()
        diagram = build_plan_diagram(list(engine.live_queries.values()), plans, engine.sliding_join_plan)
        return diagram, draw_plan_diagram(diagram)

    def explain_plan(self) -> str:
        """Return the shared plan as text: every operator with the queries that use it."""
        engine, plans = self._engine, self._engine.state.current_plans()
        text = explain(
            list(engine.live_queries.values()),
            plans,
            engine.collect_join_statistics(),
            engine.sliding_join_plan,
            engine.optimizers.sliding_joins.last_comparison,
        )
        queries = (engine.state.queries[number] for number in engine.live_queries)
        notes = [f"query {query.name}: {query.note}" for query in queries if query.note]
        return "\n".join(
            [
                text,
                *notes,
                *self._explain_store_counts(),
                *self._explain_pairs(),
                *explain_partition_map(engine.state.partition_map),
            ]
        )

    def count_store_work(self) -> dict[int, dict[str, StoreCounts]]:
        """Return the work at each store of sliding joins by partition, since the session was opened or the store had rows."""
        work: dict[int, dict[str, StoreCounts]] = {}
        for (store, partition), counts in sorted(self.read_totals().stores.items()):
            work.setdefault(store, {})[partition] = counts
        return work

    def _explain_store_counts(self) -> Iterator[str]:
        """Yield a line for each store of sliding joins that did any work."""
        plan = self._engine.sliding_join_plan
        names = {} if plan is None else {store.number: str(store.relation) for store in plan.stores}
        work = {store: counts for store, counts in self.count_store_work().items() if store in names}
        if work:
            yield "work at stores of joins in SLIDING windows, since the session was opened"
        for store, by_partition in work.items():
            total = StoreCounts()
            for counts in by_partition.values():
                total.add(counts)
            busiest = max(by_partition, key=lambda partition: by_partition[partition].pairs)
            yield (
                f"  store {store} of {names[store]}: {total.rows_in:,} rows in, {total.probes:,} probes, {total.pairs:,} pairs, "
                f"{total.matches:,} matches, {total.delayed:,} delayed · most pairs in partition {busiest}: "
                f"{by_partition[busiest].pairs:,}"
            )

    def _explain_pairs(self) -> Iterator[str]:
        """Yield a line with the work of joins in TUMBLE and HOP windows, if there was any."""
        total = PairCounts()
        for counts in self.read_totals().window_pairs.values():
            total.add(counts)
        if total.has_work:
            yield (
                f"pairs of joins in TUMBLE and HOP windows, since the session was opened: {total.found:,} found by "
                f"{total.look_ups:,} look-ups, {total.kept:,} kept from earlier windows"
            )

    def render_graph(self, form: str) -> str:
        """Return the plan graph of sliding joins in one of `GRAPH_FORMATS`; raises SessionError for another form."""
        if form not in GRAPH_FORMATS:
            raise SessionError(f"unknown graph form {form!r}", detail=f"forms: {', '.join(GRAPH_FORMATS)}")
        engine = self._engine
        return GRAPH_FORMATS[form](build_physical_graph(engine.sliding_join_plan, engine.state.sliding_join_plan_partitions))

    def collect(self) -> QueryStats:
        """Return shared and standalone cost, latency, state bytes and emission rate of every live query."""
        engine, recent = self._engine, self._observer.history.list_detailed()
        state, live, probes = engine.state, engine.live_queries, engine.sliding_join_plan
        costs = divide_costs(self._list_charges(list(live.values()), state.current_plans(), probes))
        return QueryStats(
            costs, measure_latencies(recent, live), attribute_state_bytes(state, probes), _measure_emission_rates(recent)
        )

    def estimate_growth(self, sql: str) -> CostChange:
        """Return how much the work of all queries would grow with a query, without adding it."""
        engine = self._engine
        state, probes = engine.state, engine.sliding_join_plan
        statistics = {name: build_statistics(stream.rate, stream.keys) for name, stream in state.streams.items()}
        is_shared = engine.optimizers.sliding_joins.options.is_shared

        def charge_queries(live: Sequence[LiveQuery]) -> Iterator[SharedCost]:
            queries = [query for query in live if all(name in statistics for name in query.plan.streams)]
            plans = [
                plan_stream(name, [query for query in queries if name in query.plan.streams], stream_statistics)
                for name, stream_statistics in statistics.items()
            ]
            return self._list_charges(
                queries, plans, plan_hypothetical_joins(queries, probes, state.partitions, is_shared=is_shared)
            )

        return estimate_added_cost(list(engine.live_queries.values()), bind_query(sql, engine.build_catalog()), charge_queries)

    def _list_charges(
        self, queries: Sequence[LiveQuery], plans: Sequence[StreamPlan], probes: SlidingJoinPlan | None
    ) -> Iterator[SharedCost]:
        engine = self._engine
        yield from estimate_read_costs(queries, {name: stream.rate for name, stream in engine.state.declared_streams().items()})
        yield from estimate_operator_costs(plans, {name: stream.rate for name, stream in engine.state.streams.items()})
        yield from estimate_window_join_costs(queries, plans, engine.collect_join_statistics())
        if probes is not None:
            yield from estimate_sliding_join_costs(
                probes, engine.optimizers.sliding_joins.estimate_statistics(engine.state, probes), engine.state.partitions
            )


def _measure_emission_rates(batches: Sequence[tuple[BatchReport, float]]) -> dict[int, float]:
    now = time.time()
    recent = [(report, at) for report, at in batches if at > now - _RATE_WINDOW_SECONDS]
    span = max(now - min((at for _, at in recent), default=now), 1.0)
    counts: Counter[int] = Counter()
    for report, _ in recent:
        counts.update(report.emitted_by)
    return {query_id: count / span for query_id, count in counts.items()}
