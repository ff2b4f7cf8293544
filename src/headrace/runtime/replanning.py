"""Adaptive join plans: collect samples from running batches, and choose cheaper plans for window joins and sliding joins.

The join orders of window joins are chosen between two batches, and apply to coming windows. Only the driver holds the samples,
and they are lost with it; the chosen plans are in the log and in the manifest.

The plans of sliding joins come from a search in the background. An optimizer epoch is a few batches: the search evaluates the
samples of one epoch during the next, in a thread beside the pipeline, and a new plan takes effect in the epoch after that. No
batch waits for the solver; new queries run with initial probe orders until then.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from headrace.engine.batch_job import ReduceReport
from headrace.engine.joins.sampling import RelationSample, estimate_selectivities
from headrace.engine.operators.query_sets import QueryBitmaps, list_rows_by_bit
from headrace.model.sliding_join_options import PlanSearch, SlidingJoinOptions
from headrace.model.window import UNBOUNDED_LENGTH
from headrace.model.window_join_options import WindowJoinOptions
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.join.cost import DEFAULT_RATE, MIN_WINDOW_SECONDS, WindowCardinality
from headrace.planner.join.plan_comparison import PlanComparison
from headrace.planner.join.plan_search import compare_plans, estimate_choice
from headrace.planner.join.row_storage import measure_text_bytes
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.planner.join.window_join_cost import JoinStatistics, RowSample
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.planner.join.window_join_replanning import (
    JoinFigures,
    JoinReplanning,
    find_drifted,
    replan_joins,
    summarize_statistics,
)
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime.engine_state import EngineState

_WINDOW_JOIN_SAMPLES_KEPT = 8  # samples of a stream
_QUERIES_PER_INTERVAL = 20  # planning takes some milliseconds a join, so the interval grows by itself for every so many queries


_DEFAULT_WINDOW_JOIN_OPTIONS = WindowJoinOptions()


class WindowJoinOptimizer:
    """Collects samples, and plans joins again when the set of queries changes and every few batches."""

    def __init__(self, options: WindowJoinOptions = _DEFAULT_WINDOW_JOIN_OPTIONS) -> None:
        """Plan again at least after `options.interval` batches; the interval grows with the number of queries."""
        self._options = options
        self._samples: dict[tuple[str, int], list[QueryBitmaps]] = {}
        self._sampled_queries: frozenset[int] = frozenset()
        self._planned_queries: frozenset[int] = frozenset()
        self._planned_figures: dict[int, JoinFigures] = {}
        self._last_figures: dict[int, JoinFigures] = {}
        self._last_planned_batch = -1
        self._rows_per_round: dict[tuple[int, int], float] = {}
        self.last_replanning = JoinReplanning()

    def record_batch(self, reduce_reports: Sequence[ReduceReport], live: frozenset[int]) -> None:
        """Record the row counts and samples of a batch. A change of the `live` queries discards samples: bits are reused."""
        joined: dict[tuple[int, int], tuple[int, int]] = {}
        for reduce_report in reduce_reports:
            for path, (rows, rounds) in reduce_report.join_counts.items():
                counted = joined.get(path, (0, 0))
                joined[path] = (counted[0] + rows, max(counted[1], rounds))
        self._rows_per_round |= {path: rows / rounds for path, (rows, rounds) in joined.items()}
        self._rows_per_round = {path: rows for path, rows in self._rows_per_round.items() if path[0] in live}
        if live != self._sampled_queries:
            self._samples, self._sampled_queries = {}, live
        for map_report in (map_report for reduce_report in reduce_reports for map_report in reduce_report.map_reports):
            for slot, samples in map_report.set_samples.items():
                kept = self._samples.setdefault(slot, [])
                kept += samples
                del kept[:-_WINDOW_JOIN_SAMPLES_KEPT]

    def choose_join_orders(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[int, JoinOrderVersion]:
        """Return the new orders and groups for the next batch, by query id; queries without a change are absent.

        Queries that were added, or whose statistics drifted, are placed beside the others. If these, and queries that were
        removed, are more than `options.full_above` of all, all are planned together.
        """
        if not self._samples:
            return {}
        queries = frozenset(number for number, query in live.items() if isinstance(query.plan, WindowJoinQuery))
        interval = self._options.interval * (1 + len(queries) // _QUERIES_PER_INTERVAL)
        if queries == self._planned_queries and state.batch - self._last_planned_batch < interval:
            return {}
        statistics = self.collect_statistics(state, live)
        figures = summarize_statistics(live.values(), statistics)
        drifted = find_drifted(self._planned_figures, figures, self._options.drift)
        changed = (queries ^ self._planned_queries) | drifted
        is_full = len(changed) > self._options.full_above * max(1, len(self._planned_queries))
        self._planned_queries, self._last_planned_batch = queries, state.batch
        # While samples of a change replace older ones, figures still move: the next look compares with those before the change.
        moving = find_drifted(self._last_figures, figures, 1 + (self._options.drift - 1) / 4)
        self._planned_figures |= {number: figures[number] for number in figures.keys() & (changed - moving)}
        self._last_figures = figures
        self._planned_figures = {number: kept for number, kept in self._planned_figures.items() if number in queries}
        if not changed:
            return {}
        self.last_replanning = replan_joins(live.values(), statistics, None if is_full else changed, self._options)
        return dict(self.last_replanning.changed)

    def collect_statistics(self, state: EngineState, live: Mapping[int, LiveQuery]) -> JoinStatistics:
        """Return the current rates, key counts, samples and intermediate row counts."""
        rates = {name: stream.rate for name, stream in state.streams.items() if stream.rate}
        keys = {(name, text): count for name, stream in state.streams.items() for text, count in stream.keys.items()}
        bits = [query.bit for query in live.values() if isinstance(query.plan, WindowJoinQuery)]
        samples = {place: RowSample(*list_rows_by_bit(kept, bits)) for place, kept in self._samples.items()}
        return JoinStatistics(rates, keys, samples, self._rows_per_round, state.partitions, _measure_text_bytes(state))


def _measure_text_bytes(state: EngineState) -> dict[str, float]:
    """Return the mean length of the texts that join buffers store, by stream: that in the buffer with most columns."""
    row_counts: Counter[tuple[str, int, int]] = Counter()
    byte_counts: Counter[tuple[str, int, int]] = Counter()
    for ref in state.join_buffer_refs:
        row_counts[ref.stream, ref.epoch, ref.operator] += ref.rows
        byte_counts[ref.stream, ref.epoch, ref.operator] += ref.bytes
    plans = {epoch.number: epoch.plan for stream in state.streams.values() for epoch in stream.epochs}
    widest: dict[str, tuple[int, float]] = {}
    for (name, epoch, operator), row_count in row_counts.items():
        plan = state.plans.get(plans.get(epoch, ""))
        if plan is not None and plan.join_buffers[operator].home is None:
            types = {column.name: column.type for column in state.streams[name].stream.schema}
            columns = [types[column] for column in plan.join_buffers[operator].columns]
            mean = measure_text_bytes(columns, row_count, byte_counts[name, epoch, operator])
            if mean is not None:
                widest[name] = max(widest.get(name, (0, 0.0)), (len(columns), mean))
    return {name: mean for name, (_, mean) in widest.items()}


_LOG = logging.getLogger(__name__)
_MICROSECONDS_PER_SECOND = 1_000_000
_SLIDING_JOIN_SAMPLES_KEPT = 6  # samples of a relation
_MAX_COST_RATIO = 0.8  # the plan changes when the new one costs less than this fraction of the current one
_MIN_BATCHES_OBSERVED = 2  # batches of a new query before planning with default rates: a rate is known from the second batch on


_DEFAULT_OPTIONS = SlidingJoinOptions()


class SlidingJoinOptimizer:
    """Collects samples, and searches for a cheaper plan when the set of queries changes and every few batches."""

    def __init__(
        self,
        interval: int = 4,
        *,
        options: SlidingJoinOptions = _DEFAULT_OPTIONS,
        time_limit: float = 1.0,
        background: bool = True,
    ) -> None:
        """Search at this interval of batches, in a background thread or (in tests) synchronously."""
        self.options = options
        self._interval, self._time_limit = interval, time_limit
        self._pool = ThreadPoolExecutor(1, "probe-optimizer") if background else None
        self._samples: dict[str, list[RelationSample]] = {}
        self._pending_choice: Future[ProbeOrderChoice | None] | None = None
        self._planned_queries: tuple[int, ...] = ()
        self._last_planned_batch = -1
        self._adopted: tuple[PlanSearch, tuple[int, ...]] | None = None  # the search whose plan is in force, and its queries
        self.last_comparison: PlanComparison | None = None

    def record_batch(self, reduce_reports: Sequence[ReduceReport]) -> None:
        """Record the samples of a batch."""
        for map_report in (map_report for reduce_report in reduce_reports for map_report in reduce_report.map_reports):
            for relation, samples in map_report.relation_samples.items():
                kept = self._samples.setdefault(relation, [])
                kept += samples
                del kept[:-_SLIDING_JOIN_SAMPLES_KEPT]

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        """Return the probe orders to use from the next batch on; None to keep the current ones."""
        if self._pending_choice is not None:
            if not self._pending_choice.done():
                return None
            choice = self._take_result(self._pending_choice)
            self._pending_choice = None
            if choice is not None:
                return choice
        queries = tuple(query.id for query in probes.queries)
        ready = all(self._samples.get(name) for name in probes.ranked_relations) and not _is_too_early(state, probes)
        if not ready or (queries == self._planned_queries and state.batch - self._last_planned_batch < self._interval):
            return None
        self._planned_queries, self._last_planned_batch = queries, state.batch
        statistics, partitions = self.estimate_statistics(state, probes), state.partitions
        return self._submit_search(lambda: self._find_cheaper_choice(probes, statistics, partitions))

    def _take_result(self, search: Future[ProbeOrderChoice | None]) -> ProbeOrderChoice | None:
        """Return the result of a finished search; None if it failed, so that the current plan stays in force."""
        try:
            return search.result()
        except Exception:  # noqa: BLE001  the optimizer is advisory
            _LOG.exception("the optimizer of sliding joins failed; the current plan stays in force")
            return None

    def close(self) -> None:
        """Cancel queued searches and shut the thread pool down without waiting."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit_search(self, search: Callable[[], ProbeOrderChoice | None]) -> ProbeOrderChoice | None:
        if self._pool is None:
            return search()
        self._pending_choice = self._pool.submit(search)
        return None

    def estimate_statistics(self, state: EngineState, probes: SlidingJoinPlan) -> WindowCardinality:
        """Return the estimated rates, window lengths and selectivities."""
        rates, windows = {}, {}
        for name in probes.ranked_relations:
            stream = state.streams[probes.streams[name]]
            rates[name] = max(1e-3, (stream.rate or DEFAULT_RATE) * self._estimate_selected_share(name))
            ranges = [query.inputs[name].length for query in probes.queries if name in query.inputs]
            windows[name] = max(ranges) / _MICROSECONDS_PER_SECOND or MIN_WINDOW_SECONDS
            if max(ranges) == UNBOUNDED_LENGTH:  # what is stored now, instead of a century
                windows[name] = max(1.0, _count_stored_rows(state, probes, name) / rates[name])
        selectivities = estimate_selectivities(probes.queries, self._samples)
        return WindowCardinality(rates, windows, selectivities.of_all, selectivities.by_newest)

    def _estimate_selected_share(self, relation: str) -> float:
        """Return the fraction of a stream's rows that at least one query selects as rows of a relation."""
        samples = self._samples.get(relation, ())
        return (
            sum(sample.row_count for sample in samples) / max(1, sum(sample.stream_rows for sample in samples))
            if samples
            else 1.0
        )

    def _find_cheaper_choice(
        self, probes: SlidingJoinPlan, statistics: WindowCardinality, partitions: int
    ) -> ProbeOrderChoice | None:
        """Return a choice that is better than the current one by a fifth, or that the options ask for; None if there is none."""
        queries, options = probes.queries, self.options
        comparison = self.last_comparison = compare_plans(queries, statistics, partitions, options, self._time_limit)
        taken, query_ids = comparison.taken, tuple(query.id for query in queries)
        if taken.choice == probes.choice:
            return None
        current = estimate_choice(queries, probes.choice, statistics, partitions).rank(options)
        found = taken.figures.rank(options)
        is_asked_for = options.search not in (PlanSearch.AUTO, PlanSearch.ILP) and self._adopted != (options.search, query_ids)
        if not is_asked_for and not _is_much_better(found, current):
            return None
        self._adopted = (options.search, query_ids)
        return taken.choice


def _is_much_better(found: Sequence[float], current: Sequence[float]) -> bool:
    """Return whether the first figure that differs much is a fifth less, so that small changes do not change the plan."""
    for new, old in zip(found, current, strict=True):
        if new < _MAX_COST_RATIO * old:
            return True
        if new * _MAX_COST_RATIO > old:
            return False
    return False


@dataclass(slots=True)
class JoinOptimizers:
    """The optimizers of window joins and of sliding joins; both learn from the reports of every batch."""

    window_joins: WindowJoinOptimizer
    sliding_joins: SlidingJoinOptimizer

    def record_batch(self, reports: Sequence[ReduceReport], live: frozenset[int]) -> None:
        """Record what a batch measured; `live` are the queries that were live in it."""
        self.window_joins.record_batch(reports, live)
        self.sliding_joins.record_batch(reports)


def _count_stored_rows(state: EngineState, probes: SlidingJoinPlan, relation: str) -> int:
    """Return the rows of an input in the store that has most."""
    rows: dict[int, int] = {store.number: 0 for store in probes.stores if store.relation.relations == {relation}}
    for ref in state.store_refs:
        if ref.store in rows:
            rows[ref.store] += ref.row_count
    return max(rows.values(), default=0)


def _is_too_early(state: EngineState, probes: SlidingJoinPlan) -> bool:
    """Return whether a rate is still unknown that one more batch would measure."""
    newest = max(state.queries[query.id].first_batch for query in probes.queries)
    return state.batch - newest < _MIN_BATCHES_OBSERVED and not all(
        state.streams[probes.streams[name]].rate for name in probes.ranked_relations
    )
