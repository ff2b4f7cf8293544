"""The coordinator: plans, logs, runs and commits one micro-batch after the other.

It never touches rows. Every decision about a batch, including the division of its input into tasks, is in the log before the
batch runs, so an interrupted batch is run again exactly as planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from headrace.connectors import Source
from headrace.engine.batch_job import BatchJob, ReduceReport, StreamJob, query_file_name
from headrace.errors import CheckpointError, NameTakenError, SessionError, SourceError
from headrace.model.stream import Stream
from headrace.planner.changelog import collect_unnested_streams, compute_query_level, compute_stream_depths
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.join.window_join_order import JoinStatistics
from headrace.planner.shared_plan import LiveQuery, StreamPlan
from headrace.runtime import epochs, sliding_join_epochs
from headrace.runtime.attached_sources import AttachedSources
from headrace.runtime.backend import Backend
from headrace.runtime.batch_log import BatchLogEntry
from headrace.runtime.batch_outcome import record_outcome
from headrace.runtime.batch_planner import BatchSettings, plan_batch
from headrace.runtime.commands import CommandQueue
from headrace.runtime.engine_state import EngineState, StreamState, describe_stream
from headrace.runtime.metrics import BatchReport
from headrace.runtime.replanning import JoinOptimizers, SlidingJoinOptimizer, WindowJoinOptimizer, parse_sharing
from headrace.sql import Catalog
from headrace.storage import documents
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.fault_points import reach_fault_point
from headrace.storage.result_log import ResultPacker, Retention

_MAX_PARTITIONS = 10_000


class Coordinator:
    """Holds the state after the last committed batch. Callers serialize calls of `advance`."""

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, partitions: int | None, rows_per_batch: int, multiway: str = "global"
    ) -> None:
        """Recover the state of the checkpoint; the first `advance` runs a batch that was logged but not committed.

        `partitions` defaults to the number in the checkpoint, or to the back-end's parallelism in a new checkpoint.
        """
        self.checkpoint, self.backend, self.rows_per_batch = checkpoint, backend, rows_per_batch
        self.state = EngineState(partitions=backend.parallelism if partitions is None else partitions)
        self.command_queue = CommandQueue()
        self.sources = AttachedSources(checkpoint)
        self.live_queries: dict[int, LiveQuery] = {}
        self.optimizers = JoinOptimizers(WindowJoinOptimizer(), SlidingJoinOptimizer(sharing=parse_sharing(multiway)))
        self.sliding_join_plan: SlidingJoinPlan | None = None
        self.unfinished_entry: BatchLogEntry | None = None
        self.result_packer, self.retention = ResultPacker(checkpoint.store), Retention()
        self._has_failed_attempt = False  # whether workers may have written files that no manifest will name
        self.delivered_batch = -1  # the last batch whose rows were delivered to callbacks and consoles
        self._recover()
        self.rescale(self.state.partitions if partitions is None else partitions)

    def advance(self, *, final: bool = False) -> BatchReport:
        """Run one micro-batch with the queued commands and the new rows of all streams; `final` closes every window.

        A failure loses no commands: they return to the queue, or are in the log entry that the next call runs. If a source
        cannot be read, nothing has been committed, so the batch is planned again from what the source then offers.
        """
        again = self.unfinished_entry is not None
        if self.unfinished_entry is None:
            self.unfinished_entry = self._plan_and_log(final=final)
        try:
            report = self._run_and_commit(self.unfinished_entry)
        except SourceError:
            self._has_failed_attempt = True
            self.command_queue.requeue(self.unfinished_entry.commands)
            self.unfinished_entry = None
            if again:
                return self.advance(final=final)
            raise
        except BaseException:
            self._has_failed_attempt = True
            raise
        self.unfinished_entry = None
        return report

    def _plan_and_log(self, *, final: bool) -> BatchLogEntry:
        """Decide about the next batch and write the decisions to the log."""
        commands = self.command_queue.take()
        settings = BatchSettings(self.rows_per_batch, self.backend.parallelism, self.partitions, final)
        try:
            entry = plan_batch(
                self.state, self.live_queries, self.sliding_join_plan, self.sources, self.optimizers, settings, commands
            )
            self._reach("log")
            self.checkpoint.log_batch(entry.batch, entry)
        except BaseException:
            self.command_queue.requeue(commands)
            raise
        self._reach("logged")
        return entry

    def _run_and_commit(self, entry: BatchLogEntry) -> BatchReport:
        """Run a logged batch on a copy of the state, and commit the copy."""
        state = self.state.snapshot()
        state.begin_batch(entry.partitions, {name: (d.stream, d.source) for name, d in entry.streams.items()})
        live = epochs.apply_commands(state, self.live_queries, entry.commands)
        self._write_new_queries(state, live)
        epochs.update_join_orders(state, live, entry.join_orders)
        epochs.replan_streams(state, live, partial(self._write_plan, state))
        sliding_join_plan = sliding_join_epochs.replan_sliding_joins(
            state, live, self.sliding_join_plan, entry, partial(documents.put_record, self.checkpoint.store)
        )
        for name, position in entry.positions.items():
            state.streams[name].position = position
        self._reach("planned")
        reports = self._run_job(state, entry, live, sliding_join_plan)
        self.optimizers.record_batch(reports, frozenset(query.id for query in state.live_queries()))
        report = record_outcome(self.state, state, live, entry, reports)
        state.deliveries = tuple(file for file in state.deliveries if file.last_batch > self.delivered_batch)
        state.results = self.result_packer.update(state.results).trim(self.retention, state.batch)
        self._reach("commit")
        self.checkpoint.commit(state.batch, state)
        self._reach("committed")
        superseded = self.state.referenced_files() - state.referenced_files()
        self.state, self.live_queries, self.sliding_join_plan = state, live, sliding_join_plan
        self.checkpoint.delete_superseded(state.batch, superseded)
        if self._has_failed_attempt:
            self.checkpoint.sweep_attempts(state.batch, state.referenced_files())
            self._has_failed_attempt = False
        self.sources.prune({name: stream.position for name, stream in state.declared_streams().items()})
        return report

    def _run_job(
        self, state: EngineState, entry: BatchLogEntry, live: Mapping[int, LiveQuery], sliding_join_plan: SlidingJoinPlan | None
    ) -> list[ReduceReport]:
        if not entry.tasks and not entry.final:
            return []
        return self.backend.run(self._build_job(state, entry, live, sliding_join_plan), entry.tasks or [()])

    def _build_job(
        self, state: EngineState, entry: BatchLogEntry, live: Mapping[int, LiveQuery], sliding_join_plan: SlidingJoinPlan | None
    ) -> BatchJob:
        nesting = compute_stream_depths(live.values())
        return BatchJob(
            batch=state.batch,
            partitions=state.partitions,
            state_partitions=state.state_partitions,
            directory=str(self.checkpoint.path),
            streams={name: StreamJob(s.stream, s.plan, s.epochs, s.seen, s.base) for name, s in state.streams.items()},
            queries=tuple(query.id for query in state.live_queries()),
            aggregation_refs=state.aggregation_refs,
            session_refs=state.session_refs,
            join_buffer_refs=state.join_buffer_refs,
            extra_shuffles=max(
                [
                    sliding_join_plan.last_level if sliding_join_plan else 0,
                    *(query.extra_shuffles + compute_query_level(query.plan, nesting) for query in live.values()),
                ]
            ),
            stream_levels=nesting,
            order_versions={query.id: query.order_versions for query in live.values() if query.order_versions},
            final=entry.final,
            drained=state.drained,
            checkpoint_id=self.checkpoint.identity,
            sliding_join_plan_file=state.sliding_join_plan_file,
            segment_refs=state.store_refs,
            udf_tags=state.udfs.all_tags,
            unnested_streams=collect_unnested_streams(live.values()),
            first_batches=(
                {query.id: state.queries[query.id].first_batch for query in sliding_join_plan.queries}
                if sliding_join_plan
                else {}
            ),
        )

    def _recover(self) -> None:
        store = self.checkpoint.store
        manifest = self.checkpoint.read_manifest()
        if manifest is None:
            self.checkpoint.commit(self.state.batch, self.state)
        else:
            self.state = manifest
        self.unfinished_entry = self.checkpoint.read_log_entry(self.state.batch + 1)
        referenced = self.state.referenced_files()
        self.checkpoint.check_files(
            self.state.batch, referenced - self.state.query_files(), logged=self.unfinished_entry is not None
        )
        self.checkpoint.sweep(referenced)
        self.state.plans = {name: documents.get_record(store, name) for name in self.state.plan_files()}
        if self.state.sliding_join_plan_file:
            self.sliding_join_plan = documents.get_record(store, self.state.sliding_join_plan_file)
        if self.unfinished_entry is not None:
            self.state.udfs = self.unfinished_entry.udfs
        for query in self.state.live_queries():
            self.live_queries[query.id] = epochs.recover_query(self.state, query)
            self._write_query(self.live_queries[query.id], query.sink)
        sharing = self.optimizers.sliding_joins.sharing
        sliding_join_epochs.check_sharing_mode(self.sliding_join_plan, self.live_queries, sharing)

    def build_catalog(self) -> Catalog:
        """Return the declared streams and registered functions."""
        return self.state.build_catalog()

    def attach_source(self, name: str, source: Source) -> None:
        """Attach the source of a stream that is about to be declared, unless another stream already reads it.

        Raises CheckpointError if the checkpoint does not have the same streams share their sources.
        """
        logged = self.unfinished_entry.streams if self.unfinished_entry else {}
        self.sources.attach(name, source, recovered=name in self.state.streams or name in logged)

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
            epochs.replan_streams(isolated, {}, partial(self._write_plan, self.state))
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

    def rescale(self, partitions: int) -> None:
        """Use another number of key partitions from the next batch on; raises SessionError for an invalid number."""
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= _MAX_PARTITIONS:
            raise SessionError(f"invalid partition count {partitions!r}", hint=f"give an integer from 1 to {_MAX_PARTITIONS}")
        self.partitions = partitions

    def collect_join_statistics(self) -> JoinStatistics:
        """Return the statistics of window joins that recent batches measured."""
        return self.optimizers.window_joins.collect_statistics(self.state)

    def has_work(self) -> bool:
        """Return whether a source has new rows or an unfinished batch must be run again."""
        return self.unfinished_entry is not None or any(
            source.pending(self.state.streams[name].position) for name, source in self.sources.items()
        )

    def _write_plan(self, state: EngineState, name: str, plan: StreamPlan) -> None:
        state.plans[name] = plan
        documents.put_record(self.checkpoint.store, name, plan)

    def _write_new_queries(self, state: EngineState, live: Mapping[int, LiveQuery]) -> None:
        for query in state.live_queries():
            if query.first_batch == state.batch:
                self._write_query(live[query.id], query.sink)

    def _write_query(self, live: LiveQuery, sink: object) -> None:
        """Write the query for workers. Not synced: recovery rebuilds the file from the manifest."""
        documents.put_record(self.checkpoint.store, query_file_name(live.id), (live, sink), sync=False)

    def _reach(self, step: str) -> None:
        reach_fault_point(str(self.checkpoint.path), step)
