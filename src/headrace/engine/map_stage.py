"""The map stage: a task reads its ranges and, in one pass, selects, slices and aggregates for all live queries.

Its output are partial aggregates, session runs and rows of stateless queries and joins, each addressed to a partition; rows
that no query selects do not leave the task.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors import Range, read_with_policy
from headrace.engine.batch_job import BatchJob, MapReport, ShuffleBlock, StreamJob
from headrace.engine.component_timer import ComponentTimer, measured
from headrace.engine.compute.columns import combine_chunks, to_numbers
from headrace.engine.compute.text_limits import limit_text
from headrace.engine.dead_letters import SkippedRowLog
from headrace.engine.failures import QueryFailures, blame
from headrace.engine.joins.ingest import BufferIngest, StreamIngest, buffer_rows
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.routing import BufferAddress, RoutedRows
from headrace.engine.joins.row_references import make_row_ids
from headrace.engine.joins.sampling import estimate_key_count, sample_sets
from headrace.engine.operators.aggregation import aggregate_batch
from headrace.engine.operators.late_rows import count_late_in_aggregation, count_late_in_buffer, mask_open_rows
from headrace.engine.operators.query_sets import make_bitmap
from headrace.engine.operators.selection import CellAssigner, CellAssignment
from headrace.engine.operators.sessions import build_runs
from headrace.engine.operators.stateless import route_rows
from headrace.engine.operators.unnest import derive_rows, find_needed_columns, list_row_streams
from headrace.engine.row_batch import KeyEncoder, RowBatch
from headrace.engine.worker_cache import LoadedPlan
from headrace.model.time import MIN_TIME
from headrace.planner.predicate_index import Dimension
from headrace.planner.shared_plan import JoinBuffer, SharedAggregation, SharedOperator, Subscriber
from headrace.planner.statistics import format_key_tuple
from headrace.storage.locations import use_storage_options


def run_map_task(job: BatchJob, task: int, ranges: Sequence[Range]) -> list[tuple[int, ShuffleBlock]]:
    """Run one map task; return a shuffle block for every partition. Raises OperatorError if an operator fails unexpectedly."""
    with blame("map task", ()), limit_text(job.max_text_bytes), use_storage_options(job.storage_options):
        return _run_map_task(job, task, ranges)


def _run_map_task(job: BatchJob, task: int, ranges: Sequence[Range]) -> list[tuple[int, ShuffleBlock]]:
    started_at = time.perf_counter()
    job.prepare_cache()
    job.load_udfs()
    report = MapReport()
    timer = ComponentTimer(report.component_seconds)
    skipped = SkippedRowLog(report)
    blocks = [ShuffleBlock(task, report) for _ in range(job.partitions)]
    by_stream: dict[str, list[Range]] = defaultdict(list)
    for split in ranges:
        by_stream[split.stream].append(split)
    for name, splits in by_stream.items():
        map_pass = MapPass(job, job.streams[name], report, blocks, timer)
        map_pass.run_with_derived(map_pass.read_ranges(splits, skipped))
    skipped.write_dead_letters(job, task)
    report.seconds = time.perf_counter() - started_at
    timer.close(report.seconds)
    return list(enumerate(blocks))


class MapPass:
    """The pass of the rows of one stream, in one task, through the shared operators."""

    def __init__(
        self, job: BatchJob, stream_job: StreamJob, report: MapReport, blocks: list[ShuffleBlock], timer: ComponentTimer
    ) -> None:
        """Report to `report`, and add output to `blocks`, one for each partition."""
        self.timer = timer
        self.job, self.stream_job, self.report, self.blocks = job, stream_job, report, blocks
        self.stream_name, self.task = stream_job.stream.name, blocks[0].task
        self.current_plan = job.load_plan(stream_job.plan)
        self.failures = QueryFailures(report.failures)
        subscribers = self.current_plan.plan.subscribers
        by_streams = {
            streams: job.watermark_of(streams, job.get_reached_times())
            for streams in {subscriber.streams for subscriber in subscribers}
        }
        self.watermarks = {subscriber.query_id: by_streams[subscriber.streams] for subscriber in subscribers}

    def run_with_derived(self, table: pa.Table) -> None:
        """Process rows with the operators of their stream, and with those of the streams that derive from its rows."""
        timely = self.run(table)
        for derived in list_row_streams(self.job, self.stream_name):
            rows, error = derive_rows(derived, self.stream_name, timely)
            for query in self.job.queries if error else ():
                if derived in self.job.load_query(query).live.unnested:
                    self.failures.add(query, error)
            MapPass(self.job, self.job.streams[derived.name], self.report, self.blocks, self.timer).run_with_derived(rows)

    def run(self, table: pa.Table) -> pa.Table:
        """Run selection and slicing, then aggregation, join buffers, late-row counts, sliding joins, sessions and routing.

        Return the rows that count: those with an event time that is not too far in the future.
        """
        position = self.report.row_counts.get(self.stream_name, 0)
        self.report.row_counts[self.stream_name] = position + table.num_rows
        table = self._drop_ahead_rows(self._drop_untimed_rows(table))
        if table.num_rows == 0:
            return table
        stream_batch = RowBatch(table, self.stream_job.stream.time)
        self.report.max_event_times[self.stream_name] = max(
            self.report.max_event_times.get(self.stream_name, MIN_TIME), stream_batch.max_time
        )
        for epoch, start, loaded, batch in self._split_by_epoch(stream_batch):
            encoder = KeyEncoder(batch, self.job.partition_map, start)
            self._aggregate_rows(epoch, encoder, loaded, batch)
            self._buffer_join_rows(epoch, encoder, loaded, batch, position)
            position += batch.row_count
        self._count_late_rows(stream_batch)
        self._ingest_sliding_joins(stream_batch)
        self._build_session_runs(stream_batch)
        self._route_rows(stream_batch)
        return table

    def _list_live(self, operator: SharedOperator | JoinBuffer) -> list[int]:
        """Return the live queries that use an operator."""
        return [subscriber.query_id for subscriber in operator.subscribers if subscriber.query_id in self.watermarks]

    @measured("input")
    def read_ranges(self, ranges: Iterable[Range], skipped: SkippedRowLog) -> pa.Table:
        """Return the rows of ranges, with the columns that queries need; record what is skipped."""
        needed_columns = find_needed_columns(self.job, self.stream_job)
        schema, time = self.stream_job.stream.schema, self.stream_job.stream.time
        columns = [f.name for f in schema if f.name in needed_columns or f.name == time]
        tables = []
        for split in ranges:
            outcome = read_with_policy(split, schema, columns)
            skipped.add(self.stream_name, split, outcome)
            if self.stream_job.stream.watermark_by == "partition":
                self._record_partition_time(split.partition, outcome.table)
            tables.append(outcome.table)
        return pa.concat_tables(tables) if tables else pa.table({c: pa.array([], schema.find(c).type) for c in columns})  # type: ignore[union-attr]

    def _record_partition_time(self, partition: int, table: pa.Table) -> None:
        """Record the greatest event time of a range, without rows that are too far in the future."""
        times = to_numbers(combine_chunks(table[self.stream_job.stream.time].drop_null()))
        limit = self.job.find_time_limit(self.stream_job.stream)
        times = times if limit is None else times[times <= limit]
        if times.size:
            latest = self.report.partition_times.setdefault(self.stream_name, {})
            latest[partition] = max(latest.get(partition, MIN_TIME), int(times.max()))

    def _drop_untimed_rows(self, table: pa.Table) -> pa.Table:
        """Drop and count the rows without an event time."""
        time = self.stream_job.stream.time
        untimed = table[time].null_count
        if untimed:
            self.report.untimed_rows[self.stream_name] = self.report.untimed_rows.get(self.stream_name, 0) + untimed
            table = table.filter(pc.is_valid(table[time]))
        return table

    def _drop_ahead_rows(self, table: pa.Table) -> pa.Table:
        """Drop and count the rows that are too far in the future; they move no watermark."""
        limit = self.job.find_time_limit(self.stream_job.stream)
        if limit is None or not table.num_rows:
            return table
        is_ahead = to_numbers(combine_chunks(table[self.stream_job.stream.time])) > limit
        if is_ahead.any():
            count = int(np.count_nonzero(is_ahead))
            self.report.ahead_rows[self.stream_name] = self.report.ahead_rows.get(self.stream_name, 0) + count
            table = table.filter(pa.array(~is_ahead))
        return table

    def _split_by_epoch(self, batch: RowBatch) -> Iterable[tuple[int, int, LoadedPlan, RowBatch]]:
        """Yield (epoch, its start, its plan, its rows); rows before the first retained epoch are late for every window."""
        epochs = self.stream_job.epochs
        if batch.min_time >= epochs[-1].start:
            yield epochs[-1].number, epochs[-1].start, self.job.load_plan(epochs[-1].plan), batch
            return
        epoch_of_row = np.searchsorted(np.array([epoch.start for epoch in epochs]), batch.times, side="right") - 1
        for index, epoch in enumerate(epochs):
            rows = np.flatnonzero(epoch_of_row == index)
            if rows.size:
                loaded = self.job.load_plan(epoch.plan)
                unused = loaded.find_unused(frozenset(self.watermarks))
                old_rows = RowBatch(batch.table.take(pa.array(rows)), self.stream_job.stream.time, unused)
                yield epoch.number, epoch.start, loaded, old_rows

    @measured("join")
    def _buffer_join_rows(self, epoch: int, encoder: KeyEncoder, loaded: LoadedPlan, batch: RowBatch, position: int) -> None:
        """Buffer the rows that window joins select; the first row has this position in the task."""
        buffers = loaded.plan.join_buffers
        row_ids = partial(make_row_ids, self.job.batch, self.task, position, batch.row_count)
        ingest = BufferIngest(buffers, loaded.set_assigners, batch, row_ids)
        for number, operator in enumerate(buffers):
            users = self._list_live(operator)
            if users:
                with blame("join buffer", users, self.failures):
                    self._fill_buffer(BufferAddress(self.stream_name, epoch, number, 0), operator, encoder, loaded, ingest)

    def _fill_buffer(
        self, address: BufferAddress, operator: JoinBuffer, encoder: KeyEncoder, loaded: LoadedPlan, ingest: BufferIngest
    ) -> None:
        set_assigner, batch = loaded.set_assigners[address.operator], ingest.batch
        if any(_has_errors(dimension, batch) for dimension in set_assigner.dimensions):
            record_predicate_errors(operator.subscribers, batch, self.watermarks, self.failures)
        users = zip(operator.subscribers, operator.query_bits, strict=True)
        live = make_bitmap([bit for user, bit in users if user.query_id in self.watermarks], set_assigner.width)
        with self.timer.measure("selection"):
            sets = ingest.assign_sets(address.operator) & live
        self.report.set_samples.setdefault((self.stream_name, operator.slot), []).append(sample_sets(live, sets))
        oldest, columns = self._find_oldest_time(operator), ingest.collect_columns(address.operator)
        for partition, start, rows in buffer_rows(
            operator, columns, sets, batch, encoder, self.job.partition_map, oldest, self.task
        ):
            self.blocks[partition].join_rows.append(RoutedRows(replace(address, slice_start=start), rows))
        for keys in {operator.keys, *((key,) for key in operator.keys)}:
            self._count_keys(format_key_tuple(keys), estimate_key_count(keys, batch))

    @measured("aggregation")
    def _aggregate_rows(self, epoch: int, encoder: KeyEncoder, loaded: LoadedPlan, batch: RowBatch) -> None:
        numbered = [
            (index, operator)
            for index, operator in enumerate(loaded.plan.aggregations)
            if any(subscriber.query_id in self.watermarks for subscriber in operator.subscribers)
        ]
        if not numbered:
            return
        users = [query for _, operator in numbered for query in self._list_live(operator)]
        with blame("aggregation", users, self.failures):
            self._aggregate_operators(epoch, numbered, encoder, loaded, batch)

    def _aggregate_operators(
        self,
        epoch: int,
        numbered: Sequence[tuple[int, SharedAggregation]],
        encoder: KeyEncoder,
        loaded: LoadedPlan,
        batch: RowBatch,
    ) -> None:
        operators = [operator for _, operator in numbered]
        assigners = [loaded.get_cell_assigner(operator) for operator in operators]
        oldest = [self._find_oldest_time(operator) for operator in operators]
        partials = aggregate_batch(
            operators,
            assigners,
            lambda operator, chunk: self._assign_cells(operator, loaded.get_cell_assigner(operator), chunk),
            batch,
            encoder,
            oldest,
        )
        for index, partition, groups in partials:
            self.blocks[partition].partials.append((self.stream_name, epoch, numbered[index][0], groups))
        for operator in operators:
            self._count_keys(format_key_tuple(operator.keys), encoder.get_key_table(operator.keys).key_count)

    def _count_keys(self, name: str, count: int) -> None:
        counts = self.report.key_counts.setdefault(self.stream_name, {})
        counts[name] = max(counts.get(name, 0), count)

    def _find_oldest_time(self, operator: SharedAggregation | JoinBuffer) -> int:
        """Return the least event time that an open window of a live query can contain."""
        floor = min(
            self.watermarks[subscriber.query_id] for subscriber in operator.subscribers if subscriber.query_id in self.watermarks
        )
        return MIN_TIME if floor == MIN_TIME else floor - operator.retention + 1

    @measured("selection")
    def _assign_cells(self, operator: SharedOperator, assigner: CellAssigner, batch: RowBatch) -> CellAssignment:
        assignment = assigner.assign_cells(batch)
        _record_operator_errors(operator, assignment, batch, self.watermarks, self.failures)
        return assignment

    def _count_late_rows(self, batch: RowBatch) -> None:
        """Select the rows behind the watermark again, and count the late ones of each query."""
        late_before = self.job.watermark_of([self.stream_name], self.job.get_reached_times())
        rows = np.flatnonzero(batch.times < late_before) if batch.min_time < late_before else np.zeros(0, np.int64)
        with blame("count of late rows", self.watermarks):
            self._count_late_rows_at(rows, batch)

    def _count_late_rows_at(self, rows: npt.NDArray[np.int64], batch: RowBatch) -> None:
        if rows.size:
            late_batch = RowBatch(batch.table.take(pa.array(rows)), self.stream_job.stream.time)
            for aggregation in self.current_plan.plan.aggregations:
                assignment = self.current_plan.get_cell_assigner(aggregation).assign_cells(late_batch)
                for query, count in count_late_in_aggregation(aggregation, assignment, late_batch, self.watermarks):
                    self._add_late_rows(query, count)
            for buffer, set_assigner in zip(self.current_plan.plan.join_buffers, self.current_plan.set_assigners, strict=True):
                for query, count in count_late_in_buffer(buffer, set_assigner, late_batch, self.watermarks):
                    self._add_late_rows(query, count)

    def _add_late_rows(self, query: int, count: int) -> None:
        late_key = (query, self.stream_job.base_streams[0] if self.stream_job.base_streams else self.stream_name)
        self.report.late_rows[late_key] = self.report.late_rows.get(late_key, 0) + count

    @measured("join")
    def _ingest_sliding_joins(self, batch: RowBatch) -> None:
        """Send rows to the state stores of sliding joins and to the partitions where they probe."""
        if not self.job.sliding_join_plan_file:
            return
        loaded_plan = self.job.load_sliding_join_plan()
        with blame("input of sliding joins", (query.id for query in loaded_plan.plan.queries), self.failures):
            self._ingest_joined_stream(loaded_plan, batch)

    def _ingest_joined_stream(self, loaded_plan: LoadedSlidingJoinPlan, batch: RowBatch) -> None:
        watermarks = {
            query.id: self.job.watermark_of(query.streams, self.job.get_reached_times()) for query in loaded_plan.plan.queries
        }
        ingest = StreamIngest(loaded_plan, self.stream_name, batch, watermarks)
        subscribers = [
            Subscriber(query.id, 0, query.inputs[name].predicate, (), None, query.since, query.streams)
            for query, name in ingest.list_readers()
        ]
        record_predicate_errors(subscribers, batch, watermarks, self.failures)
        for query, count in ingest.count_late_rows():
            self._add_late_rows(query, count)
        for partition, routed in ingest.route_rows(self.task, self.job.partition_map):
            self.blocks[partition].join_rows.append(routed)
        for relation, sample in ingest.samples.items():
            self.report.relation_samples.setdefault(relation, []).append(sample)

    @measured("aggregation")
    def _build_session_runs(self, batch: RowBatch) -> None:
        encoder = KeyEncoder(batch, self.job.partition_map, MIN_TIME)
        for operator in self.current_plan.plan.sessions if batch.row_count else ():
            with blame("session windows", self._list_live(operator), self.failures):
                assignment = self._assign_cells(operator, self.current_plan.get_cell_assigner(operator), batch)
                for partition, query, query_runs, late_rows in build_runs(operator, assignment, batch, encoder, self.watermarks):
                    if partition < 0:
                        self._add_late_rows(query, late_rows)
                    else:
                        self.blocks[partition].session_runs.append((query, query_runs))

    @measured("routing")
    def _route_rows(self, batch: RowBatch) -> None:
        for operator in self.current_plan.plan.routers:
            with blame("routing of rows", self._list_live(operator), self.failures):
                assignment = self._assign_cells(operator, self.current_plan.get_cell_assigner(operator), batch)
                for query, branch, columns in route_rows(operator, assignment, batch, self.failures):
                    self.blocks[query % self.job.partitions].stateless_rows.append((query, branch, columns))


def _record_operator_errors(
    operator: SharedOperator, assignment: CellAssignment, batch: RowBatch, watermarks: Mapping[int, int], failures: QueryFailures
) -> None:
    """Fail the queries for which an expression has an error on a selected row; errors are rare, so this may be slow."""
    if any(_has_errors(dimension, batch) for dimension in operator.predicate_index.dimensions):
        record_predicate_errors(operator.subscribers, batch, watermarks, failures)
    if all(batch.mask_errors(argument) is None for argument in operator.arguments):
        return
    for subscriber, predicate in zip(operator.subscribers, operator.predicate_numbers, strict=True):
        if subscriber.query_id not in watermarks:
            continue
        selected = _mask_matching_rows(assignment, predicate, batch) & mask_open_rows(
            subscriber, batch.times, watermarks[subscriber.query_id]
        )
        for expression in (*subscriber.keys, *(argument for component in subscriber.components for argument in component.args)):
            errors = batch.mask_errors(expression)
            if errors is not None and (errors & selected).any():
                failures.add(subscriber.query_id, batch.get_error_message(expression))


def record_predicate_errors(
    subscribers: Iterable[Subscriber], batch: RowBatch, live: Container[int], failures: QueryFailures
) -> None:
    """Fail the live queries whose predicate has an error on a row that they read."""
    for subscriber in subscribers:
        if subscriber.query_id not in live:
            continue
        errors = batch.mask_errors(subscriber.predicate)
        if errors is not None and errors[batch.times >= subscriber.since].any():
            failures.add(subscriber.query_id, batch.get_error_message(subscriber.predicate))


def _has_errors(dimension: Dimension, batch: RowBatch) -> bool:
    return batch.mask_errors(dimension.expression) is not None


def _mask_matching_rows(
    assignment: CellAssignment, predicate: int, batch: RowBatch
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    cell_matches = np.zeros(assignment.cell_count + 1, np.bool_)
    for low, high in assignment.spans.get_spans(predicate):
        cell_matches[low:high] = True
    mask = np.zeros(batch.row_count, np.bool_)
    hits = cell_matches[assignment.cells]
    mask[np.flatnonzero(hits) if assignment.rows is None else assignment.rows[hits]] = True
    return mask
