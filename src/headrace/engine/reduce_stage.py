"""The reduce stage: a task takes the shuffle blocks of its key partition and evaluates the windows that close.

It writes results to their sinks and stores the state that open windows still need. Every attempt of a task writes files of its
own; the report names them. Joins whose keys change, aggregations over joins, and windows over the results of other windows
continue at later levels (`run_later_level`), each after one more shuffle in the same job.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.engine.batch_job import (
    BatchJob,
    MapReport,
    PartitionState,
    ReduceReport,
    SegmentRef,
    SessionRef,
    ShuffleBlock,
    StateRef,
    StoreCounts,
)
from headrace.engine.budgets import BudgetMeter
from headrace.engine.component_timer import ComponentTimer, measured
from headrace.engine.compute.accumulators import PartialAggregate
from headrace.engine.compute.columns import combine_chunks, from_numbers, to_numbers
from headrace.engine.compute.text_limits import limit_text
from headrace.engine.failures import QueryFailures, blame
from headrace.engine.joins.join_output import JoinOutput
from headrace.engine.joins.kept_pairs import name_segment
from headrace.engine.joins.routing import Address, BufferAddress, StoreAddress, make_key_selector, take_share
from headrace.engine.joins.row_fetch import HomeRows
from headrace.engine.joins.segment import RowSegment
from headrace.engine.joins.segment_compaction import ShuffleFilePromoter, compact_buffers
from headrace.engine.joins.sliding_join import SlidingJoinLevel
from headrace.engine.joins.state_store import JoinStateStore
from headrace.engine.joins.window_join import BufferSlice, WindowJoinLevel, find_closing_joins, list_first_steps
from headrace.engine.load_sampling import KeyedInput, find_split_hash
from headrace.engine.map_stage import MapPass
from headrace.engine.operators import sessions
from headrace.engine.operators.compaction import compact_slices, make_constant_loader
from headrace.engine.operators.windows import SlicePartial, build_due_windows, evaluate_windows
from headrace.engine.result_writer import ResultWriter, TaskRows
from headrace.engine.stage_messages import LevelMessage, Outbox
from headrace.engine.worker_cache import LoadedPlan, LoadedQuery
from headrace.model.expression import Expression
from headrace.model.time import MIN_TIME
from headrace.model.types import TIMESTAMP
from headrace.model.window import HopWindow, SessionWindow
from headrace.plan.derived import HIDDEN_TIME
from headrace.plan.logical import AggregateQuery, StatelessQuery
from headrace.planner.join.normalized_join import NormalizedJoin
from headrace.planner.query_bits import BitTranslation, translate_bits
from headrace.planner.shared_plan import JoinBuffer, SharedAggregation
from headrace.planner.slicing import find_closing_windows, find_last_window_end
from headrace.storage import container
from headrace.storage.locations import use_storage_options
from headrace.storage.result_files import BatchResults
from headrace.storage.store import make_attempt_key

_MAX_BUNDLED_BYTES = 1 << 20  # of state, or of results, that share a file


def run_reduce_task(
    job: BatchJob, partition: int, blocks: Iterable[ShuffleBlock]
) -> tuple[ReduceReport, dict[int, LevelMessage]]:
    """Run the reduce task of one partition; `blocks` holds one block of every map task, in any order.

    Return its report, and the messages to the partitions of the next level. Raises OperatorError if an operator fails.
    """
    with blame("reduce task", ()), limit_text(job.max_text_bytes), use_storage_options(job.storage_options):
        job.prepare_cache()
        job.fetch_state(partition)
        job.load_udfs()
        ordered = sorted(blocks, key=lambda block: block.task)
        return _ReduceTask(job, partition, ReduceInput(0, ordered, [], [], job.get_previous_times())).run()


def run_later_level(
    job: BatchJob, level: int, partition: int, messages: Iterable[LevelMessage]
) -> tuple[ReduceReport, dict[int, LevelMessage]]:
    """Run one partition of a later level: joins by further keys, groups of joined rows, windows over results."""
    with blame("reduce task", ()), limit_text(job.max_text_bytes), use_storage_options(job.storage_options):
        job.prepare_cache()
        job.fetch_state(partition)
        job.load_udfs()
        ordered = sorted(messages, key=lambda message: message.sender)
        blocks = [message.result_block for message in ordered if message.result_block is not None]
        deferred_inputs = [message.deferred_inputs for message in ordered if message.deferred_inputs is not None]
        task_input = ReduceInput(level, blocks, deferred_inputs, ordered, ordered[0].max_event_times, ordered[0].reached_times)
        return _ReduceTask(job, partition, task_input).run()


@dataclass(frozen=True, slots=True)
class ReduceInput:
    """The input of a partition at a level; `max_event_times` is the greatest event time of each stream before the level.

    `reached_times` is the event time that each stream has reached in the batch; the first level computes it from its blocks.
    """

    level: int
    blocks: Sequence[ShuffleBlock]
    deferred_inputs: Sequence[ShuffleBlock]
    messages: Sequence[LevelMessage]
    max_event_times: dict[str, int]
    reached_times: Mapping[str, int] | None = None


class _ReduceTask:
    """One key partition in one micro-batch, at one level.

    A partition stores the state of the streams whose rows arrive at its level. A query is evaluated at the level of its last
    stream; its inputs from streams of earlier levels are deferred to that level.
    """

    def __init__(self, job: BatchJob, partition: int, task_input: ReduceInput) -> None:
        self.started_at, self.component_seconds = time.perf_counter(), dict[str, float]()
        self.timer = ComponentTimer(self.component_seconds)
        self.job, self.partition, self.level, self.task_input = job, partition, task_input.level, task_input
        self.blocks, self.max_event_times = task_input.blocks, dict(task_input.max_event_times)
        self.failures, self.results = QueryFailures(), BatchResults()
        meter = BudgetMeter(job.budget, job.budgets, self.failures)
        self.result_writer = ResultWriter(job, partition, self.level, self.results, self.failures, meter)
        self.state_file = make_attempt_key("state", f"{job.batch:010d}-{partition:05d}-{self.level}", ".part")
        self.new_segments: list[RowSegment] = []  # of sliding joins
        for block in self.blocks:
            for query, message in block.report.failures.items():
                self.failures.add(query, message)
            for name, latest in block.report.max_event_times.items():
                self.max_event_times[name] = max(self.max_event_times[name], latest)
        reached = task_input.reached_times
        if reached is None:
            reached = job.reach_times(self.max_event_times, (block.report for block in self.blocks))
        self.reached_times = dict(reached)
        self.origin = job.find_state_origin(partition)
        self.queries = job.load_queries()
        self.query_levels = (
            {number: job.get_level(query.plan) for number, query in self.queries.items()} if job.stream_levels else {}
        )
        self.watermarks: dict[tuple[str, ...], tuple[int, int]] = {}
        self.retention_windows: dict[int, set[tuple[HopWindow, int, int]]] = {}
        self.translations: dict[tuple[str, int, int], BitTranslation | None] = {}
        self.slices, self.buffers = self._collect_slices(deferred=False), self._collect_buffers(deferred=False)
        self.outbox = Outbox(partition, job.partition_map)
        self.join_output = JoinOutput(self.outbox, self.results, self.failures, self.result_writer.flush_if_full, meter)
        self.pair_keeper = job.make_pair_keeper(partition, self.level)
        self.join_counts: dict[tuple[int, int], tuple[int, int]] = {}
        self.probe_counts: dict[int, tuple[int, int]] = {}
        self.store_counts: dict[int, StoreCounts] = {}

    def run(self) -> tuple[ReduceReport, dict[int, LevelMessage]]:
        """Evaluate windows and joins, send messages, write results and state."""
        self._evaluate_windows()
        self._run_window_joins()
        segment_refs = self._run_sliding_joins()
        open_runs, kept_sessions = self._merge_sessions()
        self._add_stateless_results()
        with self.timer.measure("output"):
            rows = self.result_writer.take_rows()
        self._send_messages()
        refs = self._write_state(open_runs, kept_sessions, rows)
        map_reports = [block.report for block in self.blocks] if self.partition == 0 else []
        report = ReduceReport(
            self.partition,
            *refs,
            self.result_writer.emitted_rows,
            self.failures.messages,
            map_reports,
            self.result_writer.result_files,
            self.result_writer.delivery_files,
        )
        report.join_counts, report.segment_refs, report.probe_counts = self.join_counts, segment_refs, self.probe_counts
        report.pair_counts = self.pair_keeper.counts
        report.sink_files, report.store_counts = self.result_writer.sink_files, self.store_counts
        counts = Counter[str]()
        for block in self.blocks:
            counts.update(block.count_rows())
        report.input_rows = dict(counts)
        report.split_hash = find_split_hash(list(self._list_keyed_inputs())) if self.job.samples_load else None
        report.seconds = time.perf_counter() - self.started_at
        self.timer.close(report.seconds)
        report.component_seconds = self.component_seconds
        return report, self.outbox.messages

    def _list_keyed_inputs(self) -> Iterator[KeyedInput]:
        """Yield the input that the hash of a key has brought here."""
        for block in self.blocks:
            for *_, partial in block.partials:
                yield KeyedInput.of_columns(partial.key_count, partial.keys)
            for _, runs in block.session_runs:
                yield KeyedInput.of_columns(len(runs.firsts), runs.keys)
            for routed in block.join_rows:
                keys = self._find_routing_keys(routed.address)
                if keys is not None:
                    yield KeyedInput(routed.rows.row_count, make_key_selector(keys, routed.rows))

    def _find_routing_keys(self, address: Address) -> Sequence[Expression] | None:
        """Return the keys that rows with an address are routed by; None if they are spread evenly."""
        if isinstance(address, BufferAddress):
            return self._get_join_buffer(address.stream, address.epoch, address.operator).keys or None
        if isinstance(address, StoreAddress):
            key = self.job.load_sliding_join_plan().store_specs[address.store].partition_key
            return None if key is None else (key,)
        return None

    def _is_due(self, query: int) -> bool:
        """Return whether the windows of a query are evaluated at this level."""
        return self.query_levels.get(query, 0) == self.level

    def _is_deferred(self, query: int) -> bool:
        """Return whether the windows of a query are evaluated at a later level."""
        return self.query_levels.get(query, 0) > self.level

    def _select_refs(self, refs: Sequence[StateRef], *, deferred: bool) -> Iterator[StateRef]:
        """Yield references to stored state of streams of this level, or (`deferred`) of earlier levels."""
        for ref in refs:
            stream_level = self.job.stream_levels.get(ref.stream, 0)
            if self.origin.has(ref) and (stream_level < self.level if deferred else stream_level == self.level):
                yield ref

    def _get_watermarks(self, query: LoadedQuery) -> tuple[int, int]:
        """Return the query's watermark before this batch and after it."""
        streams = query.streams
        if streams not in self.watermarks:
            after = self.job.next_watermark_of(streams, self.reached_times)
            self.watermarks[streams] = self.job.watermark_of(streams, self.job.get_reached_times()), after
        return self.watermarks[streams]

    @measured("state")
    def _collect_slices(self, *, deferred: bool) -> list[tuple[tuple[str, int, int, int], StateRef | None, SlicePartial]]:
        slices: list[tuple[tuple[str, int, int, int], StateRef | None, SlicePartial]] = []
        for ref in self._select_refs(self.job.aggregation_refs, deferred=deferred):
            load = _make_partial_loader(self.job, ref)
            if not self.origin.is_moved:
                slices.append((ref.slice_key, self.origin.adopt(ref), self._make_slice(*ref.slice_key, load)))
            elif (filtered := self.origin.filter_partial(load())).key_count:
                slices.append((ref.slice_key, None, self._make_slice(*ref.slice_key, make_constant_loader(filtered))))
        for block in self.task_input.deferred_inputs if deferred else self.blocks:
            for stream, epoch, operator, partial in block.partials:
                slice_key = (stream, epoch, operator, partial.slice_start)
                slices.append((slice_key, None, self._make_slice(*slice_key, make_constant_loader(partial))))
        return [entry for entry in slices if not deferred or self._has_due_subscriber(entry[2].operator)]

    def _make_slice(
        self, stream: str, epoch: int, operator: int, start: int, load: Callable[[], PartialAggregate]
    ) -> SlicePartial:
        loaded = self._load_epoch_plan(stream, epoch)
        aggregation = loaded.plan.aggregations[operator]
        return SlicePartial(aggregation, loaded.get_cell_assigner(aggregation), start, load)

    def _load_epoch_plan(self, stream: str, epoch: int) -> LoadedPlan:
        return self.job.load_plan(next(version.plan for version in self.job.streams[stream].epochs if version.number == epoch))

    @measured("state")
    def _collect_buffers(self, *, deferred: bool) -> list[tuple[StateRef, JoinBuffer, BufferSlice]]:
        buffers: list[tuple[StateRef, JoinBuffer, BufferSlice]] = []
        for ref in self._select_refs(self.job.join_buffer_refs, deferred=deferred):
            stored = self.job.load_buffered_rows(ref)
            if not self.origin.is_moved:
                buffers.append(self._make_buffer_slice(self.origin.adopt(ref), stored))
            else:
                keys = self._get_join_buffer(ref.stream, ref.epoch, ref.operator).keys
                share = take_share(keys or None, stored, ref.partition, self.origin)
                if share.row_count:
                    buffers.append(self._make_buffer_slice(replace(ref, file="", partition=self.partition), share))
        for block in self.task_input.deferred_inputs if deferred else self.blocks:
            for index, routed in enumerate(block.join_rows):
                address = routed.address
                if isinstance(address, BufferAddress):
                    slice_key = (address.stream, address.epoch, address.operator, address.slice_start)
                    new_ref = StateRef(block.file, index, self.partition, *slice_key, routed.rows.bytes, routed.rows.row_count)
                    buffers.append(self._make_buffer_slice(new_ref, routed.rows))
        return [entry for entry in buffers if not deferred or self._has_due_subscriber(entry[1])]

    def _make_buffer_slice(self, ref: StateRef, rows: RowSegment) -> tuple[StateRef, JoinBuffer, BufferSlice]:
        buffer = self._get_join_buffer(ref.stream, ref.epoch, ref.operator)
        translation = self._find_translation(ref.stream, ref.epoch, ref.operator)
        name = name_segment(ref.file, ref.index) if ref.file else rows
        return ref, buffer, BufferSlice(ref.stream, buffer.keys, buffer.slot, ref.slice_start, name, rows, translation)

    def _find_translation(self, stream: str, epoch: int, operator: int) -> BitTranslation | None:
        """Return the translation from the bits in a join buffer of an epoch to those of now; None if no bit has moved."""
        key = stream, epoch, operator
        if key not in self.translations:
            buffer = self._get_join_buffer(stream, epoch, operator)
            then = {user.query_id: bit for user, bit in zip(buffer.subscribers, buffer.query_bits, strict=True)}
            translation = translate_bits(then, self.job.join_bits)
            self.translations[key] = translation if translation.moved else None
        return self.translations[key]

    def _get_join_buffer(self, stream: str, epoch: int, operator: int) -> JoinBuffer:
        return self._load_epoch_plan(stream, epoch).plan.join_buffers[operator]

    def _has_due_subscriber(self, operator: SharedAggregation | JoinBuffer) -> bool:
        return any(self._is_due(subscriber.query_id) for subscriber in operator.subscribers)

    @measured("join")
    def _run_window_joins(self) -> None:
        """Join the windows that close, and continue joins of earlier levels."""
        joiners = self.job.list_joiners()
        closing_ends = find_closing_joins(self.job, joiners, self.max_event_times, self.reached_times)
        home_rows = HomeRows(joiners, closing_ends, () if self.level else self.buffers)
        home_rows.add_forwarded(self.task_input.messages, self.job.load_buffered_rows)
        home_rows.forward(self.outbox, self.level)
        levels = {joiner.live.id: self.query_levels.get(joiner.live.id, 0) for joiner in joiners}
        starting = [joiner for joiner in joiners if levels[joiner.live.id] == self.level]
        self.pair_keeper.begin_batch(list_first_steps(starting), (joiner.bit for joiner in starting), self.job.partitions)
        for first_level in sorted(set(levels.values())):
            level_joiners = [joiner for joiner in joiners if levels[joiner.live.id] == first_level]
            join_level = WindowJoinLevel(level_joiners, closing_ends, self.join_output, home_rows, self.pair_keeper)
            with blame("window join", (joiner.live.id for joiner in level_joiners), self.failures):
                if first_level == self.level and closing_ends:
                    buffers = [*self.buffers, *(self._collect_buffers(deferred=True) if first_level else ())]
                    join_level.join_buffers([buffer_slice for *_, buffer_slice in buffers])
                elif first_level < self.level:
                    join_level.join_forwarded(self.level - first_level, self.task_input.messages)
            self.join_counts |= join_level.row_counts

    @measured("join")
    def _run_sliding_joins(self) -> list[SegmentRef]:
        """Run the sliding joins; return the segments that stay in their state."""
        if not self.job.sliding_join_plan_file:
            return []
        messages = self.task_input.messages
        forwarded = [ref for message in messages for ref in message.segment_refs]
        state_store = JoinStateStore(self.job, self.partition, self.level, self._get_watermark_after, forwarded, self.state_file)
        join_level = SlidingJoinLevel(
            self.job, self.level, state_store, self.join_output, lambda query: self._get_watermarks(self.queries[query.id])
        )
        block_rows = [routed for block in self.blocks for routed in block.join_rows] if self.level == 0 else []
        arrived_rows = [*block_rows, *(routed for message in messages for routed in message.join_rows)]
        segment_refs: list[SegmentRef] = []
        queries = self.job.load_sliding_join_plan().plan.queries
        with blame("sliding join", (query.id for query in queries), self.failures):
            segment_refs = join_level.run(arrived_rows)
            self.new_segments = state_store.new_segments
        self.probe_counts, self.store_counts = join_level.probe_counts, dict(join_level.store_counts)
        return segment_refs

    def _get_watermark_after(self, query: NormalizedJoin) -> int:
        return self._get_watermarks(self.queries[query.id])[1]

    @measured("messages")
    def _send_messages(self) -> None:
        """Send results that are rows of a stream, deferred inputs, and the greatest event times to the next level."""
        if self.level == self.job.extra_shuffles:
            return
        for place in range(self.job.partitions):
            message = self.outbox.get_message(place)
            message.max_event_times, message.reached_times = self.max_event_times, self.reached_times
        if self.result_writer.stream_results:  # a join may emit results before its last level: those are deferred, too
            for place, block in ingest_results(self.job, self.partition, self.result_writer.stream_results):
                self.outbox.get_message(place).result_block = block
        deferred = self._collect_deferred_inputs()
        if deferred.estimate_bytes():
            self.outbox.get_message(self.partition).deferred_inputs = deferred

    def _collect_deferred_inputs(self) -> ShuffleBlock:
        """Return the inputs received here that queries of later levels need."""
        deferred = ShuffleBlock(self.partition, MapReport())
        for block in (*self.blocks, *self.task_input.deferred_inputs) if self.query_levels else ():
            for stream, epoch, operator, partial in block.partials:
                if any(
                    self._is_deferred(subscriber.query_id)
                    for subscriber in self._load_epoch_plan(stream, epoch).plan.aggregations[operator].subscribers
                ):
                    deferred.partials.append((stream, epoch, operator, partial))
            for routed in block.join_rows:
                address = routed.address
                if isinstance(address, BufferAddress) and any(
                    self._is_deferred(subscriber.query_id)
                    for subscriber in self._get_join_buffer(address.stream, address.epoch, address.operator).subscribers
                ):
                    deferred.join_rows.append(routed)
            deferred.session_runs += [(query, runs) for query, runs in block.session_runs if self._is_deferred(query)]
        return deferred

    @measured("windows")
    def _evaluate_windows(self) -> None:
        """Find the windows that close, shape by shape, and evaluate them."""
        slices = [*self.slices, *(self._collect_slices(deferred=True) if self.level else ())]
        starts = sorted({slice_key[3] for slice_key, _, _ in slices})
        if not starts:
            return
        by_shape: dict[int, list[tuple[LoadedQuery, list[int]]]] = defaultdict(list)
        closing_starts: dict[tuple[HopWindow, int, int, int], list[int]] = {}
        for query in self.queries.values():
            plan = query.plan
            if isinstance(plan, AggregateQuery) and isinstance(plan.window, HopWindow) and self._is_due(query.live.id):
                since = query.live.since if query.live.since > starts[0] - plan.window.size else MIN_TIME
                window_key = (plan.window, since, *self._get_watermarks(query))
                if window_key not in closing_starts:
                    closing_starts[window_key] = find_closing_windows(plan.window, since, starts, window_key[2], window_key[3])
                if closing_starts[window_key]:
                    by_shape[id(query.result_shape)].append((query, closing_starts[window_key]))
        for queries_of_shape in by_shape.values():
            due = build_due_windows(
                (query.live.id, begins, query.aggregate_plan.window.size)  # type: ignore[union-attr]
                for query, begins in queries_of_shape
            )
            first = queries_of_shape[0][0]
            with blame("window evaluation", (query.live.id for query, _ in queries_of_shape), self.failures):
                evaluate_windows(
                    first.aggregate_plan,
                    first.required_components,
                    due,
                    [slice_partial for _, _, slice_partial in slices],
                    self.results,
                    self.failures,
                )

    @measured("windows")
    def _merge_sessions(self) -> tuple[dict[int, sessions.SessionRuns], list[SessionRef]]:
        """Merge runs into open sessions and emit the closed ones; return the open sessions and untouched references."""
        arrived_runs: dict[int, list[sessions.SessionRuns]] = defaultdict(list)
        for block in (*self.blocks, *self.task_input.deferred_inputs):
            for number, runs in block.session_runs:
                arrived_runs[number].append(runs)
        stored_refs: dict[int, list[SessionRef]] = defaultdict(list)
        for ref in self.job.session_refs:
            if self.origin.has(ref):
                stored_refs[ref.query_id].append(ref)
        still_open: dict[int, sessions.SessionRuns] = {}
        untouched: list[SessionRef] = []
        for number, query in self.queries.items():
            if not isinstance(query.plan, AggregateQuery) or not isinstance(query.plan.window, SessionWindow):
                continue
            if not self._is_due(number):
                continue
            before, after = self._get_watermarks(query)
            refs = stored_refs[number]
            if number not in arrived_runs and (not refs or (before == after and not self.origin.is_moved)):
                untouched += map(self.origin.adopt, refs)
                continue
            with blame("session windows", (number,), self.failures):
                open_runs = self._merge_query_sessions(number, query.plan, refs, arrived_runs[number], after)
                if len(open_runs.firsts):
                    still_open[number] = open_runs
        return still_open, untouched

    def _merge_query_sessions(
        self,
        number: int,
        plan: AggregateQuery,
        refs: Sequence[SessionRef],
        arrived_runs: Sequence[sessions.SessionRuns],
        watermark: int,
    ) -> sessions.SessionRuns:
        """Merge the runs of one query, emit its closed sessions, and return the open ones."""
        assert isinstance(plan.window, SessionWindow)
        stored_runs = [self.job.load_state(ref.file).sessions[number] for ref in refs]
        if self.origin.is_moved:
            stored_runs = [self.origin.filter_runs(runs) for runs in stored_runs]
        components, gap = self.queries[number].required_components, plan.window.gap
        merged = sessions.merge_runs(components, gap, [*stored_runs, *arrived_runs])
        closed, open_runs = sessions.split_closed(merged, gap, watermark)
        sessions.emit_closed(number, plan, gap, closed, self.results, self.failures)
        return open_runs

    @measured("routing")
    def _add_stateless_results(self) -> None:
        rows_by_query: dict[int, list[tuple[int, int, list[pa.Array]]]] = defaultdict(list)
        for block in self.blocks:
            for number, branch, columns in block.stateless_rows:
                rows_by_query[number].append((branch, block.task, columns))
        for number in sorted(rows_by_query):
            query = self.queries.get(number)
            if query is None or number in self.failures.messages:
                continue
            assert isinstance(query.plan, StatelessQuery)
            schema = query.plan.schema.to_arrow()
            batches = [
                pa.RecordBatch.from_arrays(columns, schema=schema)
                for _, _, columns in sorted(rows_by_query[number], key=lambda entry: entry[:2])
            ]
            for batch in batches:
                self.results.tables.append(batch)
                self.results.index.setdefault(number, []).append((len(self.results.tables) - 1, 0, batch.num_rows))

    @measured("state")
    def _write_state(
        self, open_runs: dict[int, sessions.SessionRuns], untouched: list[SessionRef], task_rows: TaskRows
    ) -> tuple[list[StateRef], list[SessionRef], list[StateRef]]:
        """Write what open windows still need: partials, join buffers, open sessions, segments; and the last results."""
        file = self.state_file
        refs: list[StateRef] = []
        partials: list[PartialAggregate] = []
        by_slice: dict[tuple[str, int, int, int], list[tuple[StateRef | None, SlicePartial]]] = defaultdict(list)
        for slice_key, ref, slice_partial in self.slices:
            by_slice[slice_key].append((ref, slice_partial))
        for slice_key, slice_partials in by_slice.items():
            if not self._is_retained(slice_partials[0][1].operator, slice_key[3]):
                continue
            for stored, slice_partial in compact_slices(slice_partials):
                ref = stored
                if ref is None:
                    partials.append(slice_partial.load())
                    last = partials[-1]
                    ref = StateRef(file, len(partials) - 1, self.partition, *slice_key, last.bytes, last.key_count)
                refs.append(ref)
        retained = [
            (buffer_ref, buffer_slice.rows)
            for buffer_ref, operator, buffer_slice in self.buffers
            if self._is_retained(operator, buffer_slice.start)
        ]
        buffers: list[RowSegment] = []
        buffer_refs: list[StateRef] = []
        promote = ShuffleFilePromoter(self.job.store)
        merged_parts: dict[RowSegment, list[RowSegment]] = {}
        names = {buffer_slice.rows: buffer_slice.name for *_, buffer_slice in self.buffers}
        for buffer_ref, rows in compact_buffers(retained, merged_parts):
            buffer_refs.append(
                promote(buffer_ref)
                if buffer_ref.file
                else replace(buffer_ref, file=file, index=len(buffers), bytes=rows.bytes, rows=rows.row_count)
            )
            buffers += [] if buffer_ref.file else [rows]
            parts = [names[part] for part in merged_parts.get(rows, [rows])]
            self.pair_keeper.rename_segments(parts, name_segment(buffer_refs[-1].file, buffer_refs[-1].index))
        self._write_file(PartitionState(partials, open_runs, buffers, self.new_segments), task_rows)
        return (
            refs,
            [*untouched, *(SessionRef(file, self.partition, q, runs.bytes, len(runs.firsts)) for q, runs in open_runs.items())],
            buffer_refs,
        )

    def _write_file(self, state: PartitionState, rows: TaskRows) -> None:
        """Write state and rows; in an object store to one file if both are small.

        That file exists until the rows are packed, or delivered, and keeps so long state that may be superseded.
        """
        runs = state.sessions.values()
        state_bytes = sum(part.bytes for parts in (state.partials, runs, state.join_buffers, state.segments) for part in parts)
        row_bytes = sum(stored.bytes for stored in rows if stored is not None)
        has_state = bool(state.partials or state.sessions or state.join_buffers or state.segments)
        is_small = max(state_bytes, row_bytes) <= _MAX_BUNDLED_BYTES
        if has_state and row_bytes and is_small and self.job.store.bundles_files:
            self.result_writer.add_state_file(self.state_file, rows)
            state = replace(state, results=rows.results, deliveries=rows.deliveries)
        else:
            self.result_writer.write_rows(rows)
        if has_state:
            container.write(self.job.store, self.state_file, state)

    def _is_retained(self, operator: SharedAggregation | JoinBuffer, slice_start: int) -> bool:
        """Return whether a window of a live query over this slice is still open after this batch."""
        if id(operator) not in self.retention_windows:
            live_subscribers = [
                (subscriber, self.queries[subscriber.query_id])
                for subscriber in operator.subscribers
                if subscriber.query_id in self.queries
            ]
            self.retention_windows[id(operator)] = {
                (subscriber.window, subscriber.since, self._get_watermarks(query)[1])
                for subscriber, query in live_subscribers
                if isinstance(subscriber.window, HopWindow)
            }
        ends = (
            (find_last_window_end(window, since, slice_start), watermark)
            for window, since, watermark in self.retention_windows[id(operator)]
        )
        return any(end is not None and end > watermark for end, watermark in ends)


def ingest_results(job: BatchJob, sender: int, results: Mapping[str, Sequence[pa.RecordBatch]]) -> list[tuple[int, ShuffleBlock]]:
    """Process results with the shared operators of the streams they belong to; return a shuffle block for every partition."""
    report = MapReport()
    blocks = [ShuffleBlock(sender, report) for _ in range(job.partitions)]
    for name in sorted(results):
        table = pa.Table.from_batches(results[name]).combine_chunks()
        last_times = from_numbers(to_numbers(combine_chunks(table[HIDDEN_TIME])) - 1, TIMESTAMP)
        MapPass(job, job.streams[name], report, blocks, ComponentTimer({})).run(
            table.set_column(table.schema.get_field_index(HIDDEN_TIME), HIDDEN_TIME, last_times)
        )
    return list(enumerate(blocks))


def _make_partial_loader(job: BatchJob, ref: StateRef) -> Callable[[], PartialAggregate]:
    def load() -> PartialAggregate:
        return job.load_state(ref.file).partials[ref.index]

    return load
