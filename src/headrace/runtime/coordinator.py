"""The coordinator: plans, logs, runs and commits one micro-batch after the other.

It never touches rows. Every decision about a batch, including the division of its input into tasks, is in the log before the
batch runs, so an interrupted batch is run again exactly as planned. A batch that fails because of a query is run again without
that query: the decision to remove it is added to the log entry. So are commands that arrive while a batch cannot finish.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from headrace.connectors import Source, is_sink_set, sink_set_from_json
from headrace.engine.batch_job import BatchJob, ReduceReport, query_file_name
from headrace.engine.failures import blame
from headrace.errors import (
    CheckpointError,
    HeadraceError,
    NameTakenError,
    OperatorError,
    SourceError,
    StorageError,
    WorkerLostError,
)
from headrace.model.budget import DEFAULT_BATCH_SECONDS, DEFAULT_BUDGET, DEFAULT_TEXT_BYTES, QueryBudget
from headrace.model.join_slices import DEFAULT_JOIN_SLICES, JoinSliceOptions
from headrace.model.late_materialization import LateMaterialization
from headrace.model.partition_map import PartitionMap
from headrace.model.sliding_join_options import SlidingJoinOptions
from headrace.model.stream import Stream
from headrace.model.window_join_options import WindowJoinOptions
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.changelog import collect_unnested_streams, compute_stream_depths, count_window_levels, root_query_id
from headrace.planner.join.row_storage import RowStoragePlanner, find_fetched_inputs
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.join.window_join_cost import JoinStatistics
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime import epochs, sliding_join_epochs
from headrace.runtime.attached_sources import AttachedSources
from headrace.runtime.backend import Backend, get_max_map_tasks, measure_parallelism
from headrace.runtime.batch_figures import StepTimer
from headrace.runtime.batch_log import BatchLogEntry, DeclaredStream
from headrace.runtime.batch_outcome import record_outcome
from headrace.runtime.batch_planner import BatchSettings, plan_batch
from headrace.runtime.cleanup import run_all_steps
from headrace.runtime.command_queue import CommandQueue
from headrace.runtime.commands import AddQuery, DropStream, RemoveQuery
from headrace.runtime.engine_state import EngineState, StreamState, describe_stream
from headrace.runtime.isolation import find_culprit
from headrace.runtime.metrics import BatchReport, attribute_state_bytes
from headrace.runtime.partition_scaling import PartitionLoad, PartitionScaler, PartitionSetting, parse_partitions
from headrace.runtime.replanning import JoinOptimizers, SlidingJoinOptimizer, WindowJoinOptimizer
from headrace.runtime.sink_publication import SWEEP_INTERVAL, SinkPublisher
from headrace.runtime.sink_queue import NeededFiles
from headrace.runtime.stream_plans import StreamPlanner, read_plans
from headrace.sql import Catalog
from headrace.storage import documents
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.fault_points import reach_fault_point
from headrace.storage.locations import use_storage_options
from headrace.storage.result_log import ResultPacker, Retention
from headrace.storage.store import Store

_LOG = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a session for each micro-batch: the budget of queries without one of their own, and those of all queries.

    `max_text_bytes` is for a text that an expression makes; 0 `max_batch_seconds` are unlimited; `join_slices` limits the pairs
    that joins keep.
    """

    budget: QueryBudget = DEFAULT_BUDGET
    max_text_bytes: int = DEFAULT_TEXT_BYTES
    max_batch_seconds: float = DEFAULT_BATCH_SECONDS
    join_slices: JoinSliceOptions = DEFAULT_JOIN_SLICES


class PreparedBatch(NamedTuple):
    """A batch that is about to run: the state that it changes, and the queries that are live in it."""

    state: EngineState
    live_queries: dict[int, LiveQuery]
    sliding_join_plan: SlidingJoinPlan | None


class Coordinator:
    """Holds the state after the last committed batch. Callers serialize calls of `advance`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        partitions: PartitionSetting | None,
        rows_per_batch: int,
        sliding_joins: SlidingJoinOptions = SlidingJoinOptions(),  # noqa: B008  a frozen value
        window_joins: WindowJoinOptions = WindowJoinOptions(),  # noqa: B008  a frozen value
        late_materialization: LateMaterialization = LateMaterialization.AUTO,
    ) -> None:
        """Recover the state of the checkpoint; the first `advance` runs a batch that was logged but not committed.

        `partitions` defaults to the number in the checkpoint, or to the back-end's parallelism in a new checkpoint.
        """
        setting = None if partitions is None else parse_partitions(partitions)
        self.checkpoint, self.backend, self.rows_per_batch = checkpoint, backend, rows_per_batch
        self.state: EngineState
        self.command_queue = CommandQueue()
        self.sources = AttachedSources(checkpoint)
        self.publisher = SinkPublisher(checkpoint, self.command_queue, self.sources)
        self.live_queries: dict[int, LiveQuery] = {}
        self.planner = StreamPlanner(checkpoint.store)
        self.optimizers = JoinOptimizers(WindowJoinOptimizer(window_joins), SlidingJoinOptimizer(options=sliding_joins))
        self.late_materialization = late_materialization
        self.sliding_join_plan: SlidingJoinPlan | None = None
        self.unfinished_entry: BatchLogEntry | None = None
        self.limits = RunLimits()
        self.read_clock: Callable[[], int] = lambda: time.time_ns() // 1_000
        self.result_packer, self.retention = ResultPacker(checkpoint.store), Retention()
        self.dropping: frozenset[str] = frozenset()  # streams that the next batch drops
        self._has_failed_attempt = False  # whether workers may have written files that do not count
        self.timer = StepTimer()
        self.list_needed_files: Callable[[], NeededFiles] = NeededFiles  # see `ResultDelivery`
        with use_storage_options(checkpoint.options):
            self._recover(setting)
        self.scaler = PartitionScaler(self.state.partitions if setting is None else setting)

    def advance(self, *, final: bool = False) -> BatchReport:
        """Run one micro-batch with the queued commands and the new rows of all streams; `final` closes every window.

        If a batch is unfinished, run that one, with the queued commands. A failure loses no commands: they return to the queue,
        or are in the log entry that the next call runs. If the source of a stream cannot be read, nothing has been committed: the
        stream is degraded, and the batch is planned again without it. A batch that was logged earlier is first planned again with
        it, from what its source offers now. Without anything left to do no batch is committed.
        """
        with use_storage_options(self.checkpoint.options):
            return self._advance(final=final)

    def _advance(self, *, final: bool) -> BatchReport:
        unreadable: set[str] = set()
        self.timer.take()
        if self.state.unpublished:
            with self.timer.measure("publication"):
                self.publisher.retry(self.state)
        while True:
            is_replay = self.unfinished_entry is not None
            if self.unfinished_entry is not None:
                self._add_commands_to_entry(self.unfinished_entry)
            elif not self._plan_and_log(final=final, excluded=frozenset(unreadable)):
                return BatchReport(self.state.batch, 0, 0)
            entry = self.unfinished_entry
            assert entry is not None
            try:
                report = self._run_isolated()
            except SourceError as error:
                self._abandon_entry()
                if not error.stream or error.stream in unreadable:
                    raise
                if not is_replay:
                    unreadable.add(error.stream)
                    self.sources.health.record_failure(error.stream, error)
                continue
            for name in entry.positions:
                self.sources.health.record_success(name)
            return report

    def _abandon_entry(self) -> None:
        """Give up a logged batch whose input cannot be read, so that it is planned again: from other input, in other tasks."""
        entry = self.unfinished_entry
        assert entry is not None
        self.command_queue.requeue(entry.commands)
        self.unfinished_entry = None

    def _run_isolated(self) -> BatchReport:
        """Run the unfinished batch until it is committed, without the queries that make it fail.

        A first failure is repeated before a query is blamed: it may have been that of a worker.
        """
        is_repeated = False
        while True:
            assert self.unfinished_entry is not None
            try:
                return self._run_and_commit(self.unfinished_entry)
            except (OperatorError, WorkerLostError) as error:
                self._has_failed_attempt = True
                self.checkpoint.verify_owner()
                if is_repeated:
                    self._hold_out_culprit(self.unfinished_entry, error)
                is_repeated = True
            except Exception:
                self._has_failed_attempt = True
                self.checkpoint.verify_owner()
                raise
            except BaseException:
                self._has_failed_attempt = True
                raise

    def _hold_out_culprit(self, entry: BatchLogEntry, error: HeadraceError) -> None:
        """Find the query that makes the batch fail, and log that it ends with this batch; raises `error` if there is none."""
        removed = {command.id for command in entry.commands if isinstance(command, RemoveQuery)}
        queries = {root_query_id(part) for part in self.live_queries} - removed | _list_added(entry)
        suspects = {root_query_id(part) for part in getattr(error, "queries", ())} & queries or queries
        culprit = find_culprit(suspects, str(error), partial(self._run_trial, entry, suspects))
        if culprit is None and suspects < queries:
            culprit = find_culprit(queries, str(error), partial(self._run_trial, entry, queries))
        if culprit is None:
            raise error
        self._log_entry(replace(entry, commands=(*entry.commands, RemoveQuery(*culprit))))

    def _run_trial(self, entry: BatchLogEntry, suspects: set[int], held_out: frozenset[int]) -> str | None:
        """Run a batch without some queries, and commit nothing; return the error that another suspect may have caused.

        A suspect that has an operator for itself in the trial fails alone there: that is the error, too.
        """
        removals = [RemoveQuery(number, "held out") for number in sorted(held_out)]
        try:
            batch = self._prepare_batch(replace(entry, commands=(*entry.commands, *removals)))
            reports = self._run_job(batch, entry, trial=True)
        except (OperatorError, WorkerLostError) as error:
            return str(error)
        failures = (failure for report in reports for failure in report.failures.items())
        return next((message for part, message in failures if root_query_id(part) in suspects - held_out), None)

    def _add_commands_to_entry(self, entry: BatchLogEntry, *, everything: bool = False) -> None:
        """Let queued commands overtake an unfinished batch: a query can be removed although the batch cannot finish."""
        commands = self.command_queue.take(everything=everything)
        if not commands:
            return
        streams = {name: DeclaredStream(s.stream, s.source) for name, s in self.state.declared_streams().items()}
        try:
            joined = replace(entry.join_commands(commands), streams={**entry.streams, **streams}, udfs=self.state.udfs)
            self._log_entry(joined)
        except BaseException:
            self.command_queue.requeue(commands)
            raise

    def log_commands(self) -> None:
        """Log the queued commands, in the unfinished batch or the next one, so that no crash loses them; run nothing."""
        with use_storage_options(self.checkpoint.options):
            if self.unfinished_entry is not None:
                self._add_commands_to_entry(self.unfinished_entry, everything=True)
            elif self.command_queue:
                self._plan_and_log(final=False, excluded=frozenset(), everything=True)

    def _log_entry(self, entry: BatchLogEntry) -> None:
        self._reach("log")
        with self.timer.measure("log"):
            self.checkpoint.log_batch(entry.batch, entry)
        self.unfinished_entry = entry
        self._reach("logged")

    def _plan_and_log(self, *, final: bool, excluded: frozenset[str], everything: bool = False) -> bool:
        """Decide about the next batch and write the decisions to the log; return False if there is nothing to do."""
        commands = self.command_queue.take(everything=everything)
        excluded |= self.dropping
        parallelism, clock = self.backend.parallelism, self.read_clock()
        change = self.scaler.plan(self.state.partition_map, parallelism, clock / 1e6)
        settings = BatchSettings(
            self.rows_per_batch,
            parallelism,
            change.partitions,
            final,
            excluded,
            clock,
            rescale_reason=change.reason,
            max_tasks=get_max_map_tasks(self.backend),
        )
        try:
            with self.timer.measure("planning"):
                entry = plan_batch(
                    self.state, self.live_queries, self.sliding_join_plan, self.sources, self.optimizers, settings, commands
                )
            if not entry.has_work(self.state.streams):
                return False
            self._log_entry(entry)
        except BaseException:
            if self.unfinished_entry is None:
                self.command_queue.requeue(commands)
            raise
        return True

    def _run_and_commit(self, entry: BatchLogEntry) -> BatchReport:
        """Run a logged batch on a copy of the state, and commit the copy."""
        with self.timer.measure("preparation"):
            batch = self._prepare_batch(entry)
        self._reach("planned")
        with self.timer.measure("run"):
            reports = self._run_job(batch, entry)
        with self.timer.measure("record"):
            self.publisher.check_reports(reports)
            report = self._record_reports(batch, entry, reports)
        dropped = [command.name for command in entry.commands if isinstance(command, DropStream)]
        self._delete_source_folders(dropped)
        self._reach("commit")
        batch.state.writer = self.checkpoint.writer
        with self.timer.measure("commit"):
            self.checkpoint.commit(batch.state.batch, batch.state)
        superseded = self.state.referenced_files() - batch.state.referenced_files()
        self._record_load(report, batch.state.partition_map, repartitioned=self.state.partition_map != batch.state.partition_map)
        self.state, self.live_queries, self.sliding_join_plan = batch
        self.unfinished_entry = None
        self.sources.record_message_sizes([map_report for report in reports for map_report in report.map_reports])
        self._forget_streams(dropped)
        self._reach("committed")
        with self.timer.measure("publication"):
            self.publisher.publish(self.state)
        self._reach("published")
        with self.timer.measure("cleanup"):
            self.publisher.sweep(self.state, report.failed, entry.tasks, everything=self._has_failed_attempt)
            self._delete_unreferenced(superseded)
        return replace(report, figures=replace(report.figures, steps=self.timer.take()))

    def _prepare_batch(self, entry: BatchLogEntry) -> PreparedBatch:
        """Apply the decisions of a log entry to a copy of the state; write the plans and queries of the batch for workers."""
        with blame("planning", _list_added(entry)):
            state = self.state.snapshot()
            state.begin_batch(entry.partition_map, {name: (d.stream, d.source) for name, d in entry.streams.items()})
            live = epochs.apply_commands(state, self.live_queries, entry.commands, is_shared=entry.sharing != "none")
            self._write_new_queries(state, live)
            epochs.update_join_orders(state, live, entry.join_orders)
            self.planner.replan_streams(state, live, self._plan_row_storage(state, live))
            sliding_join_plan = sliding_join_epochs.replan_sliding_joins(
                state, live, self.sliding_join_plan, entry, partial(documents.put_record, self.checkpoint.store)
            )
            for name, position in entry.positions.items():
                state.streams[name].position = position
            for name, partitions in entry.source_partitions.items():
                if name in state.streams:
                    state.streams[name].set_partitions(partitions)
        return PreparedBatch(state, live, sliding_join_plan)

    def _plan_row_storage(self, state: EngineState, live: Mapping[int, LiveQuery]) -> RowStoragePlanner:
        """Return the planner of join buffers for a batch."""
        statistics = partial(self.optimizers.window_joins.collect_statistics, state, live)
        return RowStoragePlanner(self.late_materialization, statistics, frozenset(compute_stream_depths(live.values())))

    def _record_reports(self, batch: PreparedBatch, entry: BatchLogEntry, reports: Sequence[ReduceReport]) -> BatchReport:
        """Record what the tasks report in the state of the batch: it is then the state to commit."""
        state = batch.state
        with blame("record of the batch", ()):
            self.optimizers.record_batch(reports, frozenset(query.id for query in state.live_queries()))
            report = record_outcome(
                self.state,
                state,
                batch.live_queries,
                entry,
                reports,
                self.limits.budget,
                self.sources.count_lag,
                self.list_needed_files().queries,
            )
            self._fail_queries_over_state_budget(batch)
        self._drop_delivered(state)
        state.results = self.result_packer.update(state.results).trim(self.retention, state.batch)
        return report

    def _drop_delivered(self, state: EngineState) -> None:
        """Drop the files, and the sinks that were taken away, whose rows every sink has received."""
        needed = self.list_needed_files()
        state.deliveries = tuple(f for f in state.deliveries if f.last_batch > needed.queued_batch or f.key in needed.keys)
        oldest = min((file.first_batch for file in state.deliveries), default=state.batch + 1)
        for query in state.queries.values():
            if is_sink_set(query.sink):
                sinks = sink_set_from_json(query.sink)
                kept = sinks.drop_delivered(oldest - 1)
                query.sink = query.sink if kept is sinks else kept.to_json()

    def _fail_queries_over_state_budget(self, batch: PreparedBatch) -> None:
        """End the queries with too much state, with the next batch; a cheap sum decides whether any query can have too much."""
        state, default = batch.state, self.limits.budget
        budgets = {query.id: query.budget or default for query in state.live_queries() if query.id in batch.live_queries}
        refs = (state.aggregation_refs, state.session_refs, state.join_buffer_refs, state.store_refs)
        total = sum(ref.bytes for group in refs for ref in group)
        if total <= min((budget.state_bytes for budget in budgets.values()), default=total):
            return
        for number, used in attribute_state_bytes(state, batch.sliding_join_plan).items():
            limit = budgets[number].state_bytes
            if used > limit:
                message = f"query has {used:,} bytes of state, more than {limit:,} (state_bytes)"
                self.command_queue.append(RemoveQuery(number, message))

    def _delete_source_folders(self, streams: Sequence[str]) -> None:
        """Delete the bookkeeping of the sources of dropped streams.

        That precedes the commit: the log has the drop already, so that a crash in between repeats it, whereas a folder left over
        after the commit would be taken for that of a later stream of the same name.
        """
        for name in streams:
            self.sources.delete_folder(name, set(self.state.declared_streams()) - set(streams))

    def _forget_streams(self, streams: Sequence[str]) -> None:
        self.dropping -= frozenset(streams)
        run_all_steps([partial(self.sources.drop, name) for name in streams])

    def _delete_unreferenced(self, superseded: Iterable[str]) -> None:
        """Delete what the committed batch no longer needs. The batch does not fail with it: a later one tries again."""
        state = self.state
        try:
            self.checkpoint.delete_superseded(state.batch, superseded)
            if self._has_failed_attempt or state.batch % SWEEP_INTERVAL == 0:  # a late or speculative task leaves files, too
                self.checkpoint.sweep(state.batch, state.referenced_files(), is_running=True)
                self._has_failed_attempt = False
            self.sources.prune({name: stream.position for name, stream in state.declared_streams().items()})
        except StorageError as error:
            _LOG.warning("files that are not needed any more are not deleted yet: %s", error)
            self._has_failed_attempt = True

    def _run_job(self, batch: PreparedBatch, entry: BatchLogEntry, *, trial: bool = False) -> list[ReduceReport]:
        if not entry.tasks and not entry.final:
            return []
        job = replace(self._build_job(*batch, entry), attempt=secrets.token_hex(4), trial=trial)
        return self.backend.run(job, entry.tasks or [()])

    def _build_job(
        self, state: EngineState, live: Mapping[int, LiveQuery], sliding_join_plan: SlidingJoinPlan | None, entry: BatchLogEntry
    ) -> BatchJob:
        sliding_join_levels = sliding_join_plan.last_level if sliding_join_plan else 0
        nesting = compute_stream_depths(live.values(), sliding_join_levels)
        epoch_plans = {name: [state.plans[epoch.plan] for epoch in s.epochs] for name, s in state.streams.items()}
        fetched_inputs = find_fetched_inputs(live.values(), epoch_plans)
        return BatchJob(
            batch=state.batch,
            partition_map=state.partition_map,
            state_map=state.state_map,
            samples_load=self.scaler.samples_load,
            directory=self.checkpoint.location,
            storage_options=self.checkpoint.options,
            streams={name: s.make_job() for name, s in state.streams.items()},
            plan_bases=state.plan_bases,
            queries=tuple(query.id for query in state.live_queries()),
            aggregation_refs=state.aggregation_refs,
            session_refs=state.session_refs,
            join_buffer_refs=state.join_buffer_refs,
            extra_shuffles=max(sliding_join_levels, count_window_levels(live.values(), nesting, fetched_inputs)),
            stream_levels=nesting,
            order_versions={query.id: query.order_versions for query in live.values() if query.order_versions},
            join_bits={query.id: query.bit for query in live.values() if isinstance(query.plan, WindowJoinQuery)},
            fetched_inputs=fetched_inputs,
            final=entry.final,
            final_except=entry.left_open,
            drained=state.drained,
            drained_except=state.left_open,
            checkpoint_id=self.checkpoint.identity,
            sliding_join_plan_file=state.sliding_join_plan_file,
            segment_refs=state.store_refs,
            udf_tags=state.udfs.all_tags,
            budget=self.limits.budget,
            budgets={query.id: query.budget for query in state.live_queries() if query.budget is not None},
            max_text_bytes=self.limits.max_text_bytes,
            max_seconds=self.limits.max_batch_seconds,
            join_slices=self.limits.join_slices,
            clock=entry.clock,
            unnested_streams=collect_unnested_streams(live.values()),
            sink_sets={query.id: sink_set_from_json(query.sink) for query in state.live_queries() if is_sink_set(query.sink)},
            first_batches=(
                {query.id: state.queries[query.id].first_batch for query in sliding_join_plan.queries}
                if sliding_join_plan
                else {}
            ),
        )

    def _recover(self, setting: PartitionSetting | None) -> None:
        store = self.checkpoint.store
        manifest = self.checkpoint.read_manifest()
        if manifest is None:
            partitions = setting if isinstance(setting, int) else measure_parallelism(self.backend)
            self.state = EngineState(partition_map=PartitionMap(partitions), writer=self.checkpoint.writer)
            self.checkpoint.commit(self.state.batch, self.state)
        else:
            self.state = manifest
            self.state.writer = self.checkpoint.writer
            self.checkpoint.claim(self.state)
        self.unfinished_entry = self.checkpoint.read_log_entry(self.state.batch + 1)
        self._has_failed_attempt = self.unfinished_entry is not None
        self.publisher.recover(self.state, self.unfinished_entry.tasks if self.unfinished_entry else ())
        referenced = self.state.referenced_files()
        commands = self.unfinished_entry.commands if self.unfinished_entry else ()
        self.dropping = frozenset(command.name for command in commands if isinstance(command, DropStream))
        deleted = {file for name in self.dropping & self.state.streams.keys() for file in self.state.streams[name].source_files}
        needed, is_logged = referenced - self.state.query_files() - deleted, self.unfinished_entry is not None
        self.checkpoint.check_files(self.state.batch, needed, self.state.is_known_query_file, logged=is_logged)
        self.checkpoint.sweep(self.state.batch, referenced)
        self.state.plans = read_plans(store, self.state)
        if self.state.sliding_join_plan_file:
            self.sliding_join_plan = documents.get_record(store, self.state.sliding_join_plan_file)
        if self.unfinished_entry is not None:
            self.state.udfs = self.unfinished_entry.udfs
        for query in self.state.live_queries():
            self.live_queries[query.id] = epochs.recover_query(self.state, query)
            self._write_query(self.live_queries[query.id], query.sink)
        is_shared = self.optimizers.sliding_joins.options.is_shared
        sliding_join_epochs.check_sharing_mode(self.sliding_join_plan, self.live_queries, is_shared=is_shared)

    def build_catalog(self) -> Catalog:
        """Return the declared streams and registered functions."""
        return self.state.build_catalog(self.dropping)

    def claim_source_folder(self, name: str, source: Source) -> tuple[str, Store] | None:
        """Return what to attach the source of a stream with that is about to be declared; see `AttachedSources.claim_folder`."""
        return self.sources.claim_folder(name, source, recovered=self.has_stream(name))

    def drop_stream(self, name: str) -> None:
        """Drop a declared stream that no query reads: it is not read any more, and the next batch deletes it."""
        self.dropping |= {name}
        self.command_queue.append(DropStream(name))

    def declared_streams(self) -> dict[str, StreamState]:
        """Return the declared streams without those that are being dropped."""
        return {name: stream for name, stream in self.state.declared_streams().items() if name not in self.dropping}

    def has_stream(self, name: str) -> bool:
        """Return whether a stream of that name is declared, or was when a batch that is not committed was logged."""
        return name in self.state.streams or (self.unfinished_entry is not None and name in self.unfinished_entry.streams)

    def declare_stream(self, stream: Stream, source: Source) -> None:
        """Declare a stream over an attached source, or let a recovered stream read it.

        A new stream starts with the oldest row that the source retains: if the source deletes rows that were read, and another
        stream reads it, at the position of that stream.

        Raises NameTakenError if another stream's name differs only in case, and CheckpointError if a recovered stream was
        declared differently.
        """
        twin = next((n for n in self.state.streams if n.lower() == stream.name.lower() and n != stream.name), None)
        if twin is not None:
            raise NameTakenError(
                f"stream '{twin}' already exists; names must differ in more than case", hint="choose another name"
            )
        earlier = self.state.streams.get(stream.name)
        if earlier is None:
            state = StreamState(stream, self.state.next_stream_number(), source.definition())
            sibling = self.sources.find_sibling(source)
            if sibling is not None and hasattr(source, "prune"):
                state.position = self.state.streams[sibling].position
            isolated = EngineState(next_epoch=self.state.next_epoch, streams={stream.name: state})
            self.planner.replan_streams(isolated, {}, RowStoragePlanner())
            self.state.plans |= isolated.plans
            state.source_files = self.sources.list_files(stream.name)
            self.state.next_epoch += 1
            self.state.streams[stream.name] = state
        elif (earlier.stream, earlier.source) != (stream, source.definition()):
            raise CheckpointError(
                f"stream '{stream.name}' was declared differently in this checkpoint",
                detail=f"before: {describe_stream(earlier.stream, earlier.source)}; "
                f"now: {describe_stream(stream, source.definition())}",
                hint="declare it as before, or start with a new checkpoint",
            )
        else:
            logged = self.unfinished_entry.positions if self.unfinished_entry else {}
            self.sources.verify(source, logged.get(stream.name, earlier.position))
        self.sources.add(stream.name, source)

    def _record_load(self, report: BatchReport, partitions: PartitionMap, *, repartitioned: bool) -> None:
        now, parallelism = self.read_clock() / 1e6, self.backend.parallelism
        load = PartitionLoad(now, partitions, parallelism, report.reduce_seconds, repartitioned, report.split_hashes)
        self.scaler.record(load)

    def collect_join_statistics(self) -> JoinStatistics:
        """Return the statistics of window joins that recent batches measured."""
        return self.optimizers.window_joins.collect_statistics(self.state, self.live_queries)

    def has_work(self) -> bool:
        """Return whether a source has new rows, an unfinished batch must be run again, or sink files were not published."""
        if self.unfinished_entry is not None or self.publisher.has_due_files(self.state):
            return True
        names = [name for name in self.sources if name not in self.dropping]
        with use_storage_options(self.checkpoint.options):
            return any(self.sources.has_new_rows(name, self.state.streams[name].position) for name in names)

    def close(self) -> None:
        """Close the sources and background threads; raise the first error after all of them."""
        sources = [getattr(source, "close", None) for source in self.sources.values()]
        closing = [close for close in sources if close is not None]
        run_all_steps([*closing, self.optimizers.sliding_joins.close, self.result_packer.close, self.publisher.close])

    def _write_new_queries(self, state: EngineState, live: Mapping[int, LiveQuery]) -> None:
        for query in state.live_queries():
            if query.first_batch == state.batch:
                self._write_query(live[query.id], query.sink)

    def _write_query(self, live: LiveQuery, sink: object) -> None:
        """Write the query for workers. Not synced: recovery rebuilds the file from the manifest."""
        documents.put_record(self.checkpoint.store, query_file_name(live.id), (live, sink), sync=False)

    def _reach(self, step: str) -> None:
        reach_fault_point(self.checkpoint.location, step)


def _list_added(entry: BatchLogEntry) -> set[int]:
    """Return the queries that are live from a batch on."""
    added = {command.id for command in entry.commands if isinstance(command, AddQuery)}
    return added - {command.id for command in entry.commands if isinstance(command, RemoveQuery)}
