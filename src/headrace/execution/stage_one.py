"""The map stage: a task reads its ranges and, in one pass, selects, slices and aggregates for all live queries.

Its output are partial aggregates, session runs and rows of stateless queries and joins, each addressed to a partition; rows
that no query selects do not leave the task.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors import Range, read_range
from headrace.errors import SourceError
from headrace.execution.aggregation import aggregate
from headrace.execution.batch import Batch
from headrace.execution.bucketing import bucket, keys_sampled
from headrace.execution.job import Header, Job, LoadedPlan, Parcel, StreamJob
from headrace.execution.keying import Keying
from headrace.execution.late import count_late, count_late_in_joins, counted
from headrace.execution.multiway.arriving import Arriving
from headrace.execution.query_sets import QuerySets
from headrace.execution.result import Failures
from headrace.execution.routing import route
from headrace.execution.selection import SharedSelection, Tagged
from headrace.execution.sessions import runs
from headrace.execution.unfolding import looked_at, made_of, unfold
from headrace.kernels.sets import QueryBitmaps, make_bitmap
from headrace.sharing.selection import Dimension
from headrace.sharing.shared_plan import JoinBuffer, SharedAggregation, SharedOperator, Subscriber
from headrace.sharing.slicing import MIN_TIME
from headrace.sharing.statistics import format_key_tuple


def stage_one(job: Job, task: int, ranges: Sequence[Range]) -> list[tuple[int, Parcel]]:
    """Run one map task; return a shuffle block for every partition."""
    started_at = time.perf_counter()
    job.release()
    job.load_functions()
    report = Header()
    blocks = [Parcel(task, report) for _ in range(job.partitions)]
    by_stream: dict[str, list[Range]] = defaultdict(list)
    for split in ranges:
        by_stream[split.stream].append(split)
    for name, splits in by_stream.items():
        map_pass = Pass(job, job.streams[name], report, blocks)
        map_pass.run_all(map_pass.read(splits))
    report.seconds = time.perf_counter() - started_at
    return list(enumerate(blocks))


class Pass:
    """The pass of the rows of one stream, in one task, through the shared operators."""

    def __init__(self, job: Job, stream_job: StreamJob, report: Header, blocks: list[Parcel]) -> None:
        """Report to `report`, and add output to `blocks`, one for each partition."""
        self.job, self.stream, self.header, self.parcels = job, stream_job, report, blocks
        self.name, self.task = stream_job.stream.name, blocks[0].task
        self.current = job.plan(stream_job.plan)
        self.failures = Failures(report.failures)
        subscribers = self.current.plan.subscribers
        by_streams = {
            streams: job.watermark(streams, job.before()) for streams in {subscriber.streams for subscriber in subscribers}
        }
        self.watermarks = {subscriber.query_id: by_streams[subscriber.streams] for subscriber in subscribers}

    def run_all(self, table: pa.Table) -> None:
        """Process rows with the operators of their stream, and with those of the UNNEST streams that derive from it."""
        self.run(table)
        for unnested in made_of(self.job, self.name):
            rows, error = unfold(unnested, table.filter(pc.is_valid(table[self.stream.stream.time])))
            for query in self.job.queries if error else ():
                if unnested in self.job.query(query).live.unnested:
                    self.failures.add(query, error)
            Pass(self.job, self.job.streams[unnested.name], self.header, self.parcels).run_all(rows)

    def run(self, table: pa.Table) -> None:
        """Run selection and slicing, then aggregation, join buffers, late-row counts, sliding joins, sessions and routing."""
        self.header.rows[self.name] = self.header.rows.get(self.name, 0) + table.num_rows
        table = self._timed(table)
        if table.num_rows == 0:
            return
        stream_batch = Batch(table, self.stream.stream.time)
        self.header.seen[self.name] = max(self.header.seen.get(self.name, MIN_TIME), stream_batch.last)
        for epoch, start, loaded, batch in self._epochs(stream_batch):
            encoder = Keying(batch, self.job.partitions, start)
            self._aggregate(epoch, encoder, loaded, batch)
            self._bucket(epoch, encoder, loaded, batch)
        self._count_late(stream_batch)
        self._multiway(stream_batch)
        self._sessions(stream_batch)
        self._route(stream_batch)

    def read(self, ranges: Iterable[Range]) -> pa.Table:
        """Return the rows of ranges, with the columns that queries need."""
        needed_columns = looked_at(self.job, self.stream)
        schema, time = self.stream.stream.schema, self.stream.stream.time
        columns = [f.name for f in schema if f.name in needed_columns or f.name == time]
        tables = []
        for split in ranges:
            try:
                tables.append(read_range(split, schema, columns))
            except SourceError as error:
                if split.options.get("on_error") != "skip":
                    raise
                self.header.skipped.setdefault(self.name, {})[split.path] = str(error)
        return pa.concat_tables(tables) if tables else pa.table({c: pa.array([], schema.find(c).type) for c in columns})  # type: ignore[union-attr]

    def _timed(self, table: pa.Table) -> pa.Table:
        """Drop and count the rows without an event time."""
        time = self.stream.stream.time
        untimed = table[time].null_count
        if untimed:
            self.header.untimed[self.name] = self.header.untimed.get(self.name, 0) + untimed
            table = table.filter(pc.is_valid(table[time]))
        return table

    def _epochs(self, batch: Batch) -> Iterable[tuple[int, int, LoadedPlan, Batch]]:
        """Yield (epoch, its start, its plan, its rows); rows before the first retained epoch are late for every window."""
        epochs = self.stream.epochs
        if batch.first >= epochs[-1].start:
            yield epochs[-1].number, epochs[-1].start, self.job.plan(epochs[-1].plan), batch
            return
        epoch_of_row = np.searchsorted(np.array([epoch.start for epoch in epochs]), batch.times, side="right") - 1
        for index, epoch in enumerate(epochs):
            rows = np.flatnonzero(epoch_of_row == index)
            if rows.size:
                yield (
                    epoch.number,
                    epoch.start,
                    self.job.plan(epoch.plan),
                    Batch(batch.table.take(pa.array(rows)), self.stream.stream.time),
                )

    def _bucket(self, epoch: int, encoder: Keying, loaded: LoadedPlan, batch: Batch) -> None:
        """Buffer the rows that window joins select."""
        for number, operator in enumerate(loaded.plan.buckets):
            set_assigner = loaded.sets[number]
            bits = [
                bit
                for subscriber, bit in zip(operator.subscribers, operator.query_bits, strict=True)
                if subscriber.query_id in self.watermarks
            ]
            if not bits:
                continue
            self._note_predicates(operator, set_assigner, batch)
            oldest = self._oldest(operator)
            live = make_bitmap(bits, set_assigner.width)
            samples: list[QueryBitmaps] = [live[None, :]]
            for partition, buffered in bucket(operator, set_assigner, live, batch, encoder, self.job.partitions, oldest, samples):
                self.parcels[partition].buckets.append((self.name, epoch, number, buffered))
            self.header.samples.setdefault((self.name, operator.slot), []).append(np.concatenate(samples))
            for keys in {operator.keys, *((key,) for key in operator.keys)}:
                self._count_keys(format_key_tuple(keys), keys_sampled(keys, batch))

    def _note_predicates(self, operator: JoinBuffer, set_assigner: QuerySets, batch: Batch) -> None:
        if any(_has_errors(dimension, batch) for dimension in set_assigner.dimensions):
            note_predicates(operator.subscribers, batch, self.failures)

    def _aggregate(self, epoch: int, encoder: Keying, loaded: LoadedPlan, batch: Batch) -> None:
        numbered = [
            (index, operator)
            for index, operator in enumerate(loaded.plan.stores)
            if any(subscriber.query_id in self.watermarks for subscriber in operator.subscribers)
        ]
        if not numbered:
            return
        operators = [operator for _, operator in numbered]
        assigners = [loaded.selection(operator) for operator in operators]
        oldest = [self._oldest(operator) for operator in operators]
        partials = aggregate(
            operators,
            assigners,
            lambda operator, chunk: self._tag(operator, loaded.selection(operator), chunk),
            batch,
            encoder,
            oldest,
        )
        for index, partition, partial in partials:
            self.parcels[partition].partials.append((self.name, epoch, numbered[index][0], partial))
        for operator in operators:
            self._count_keys(format_key_tuple(operator.keys), encoder.table(operator.keys).count)

    def _count_keys(self, name: str, count: int) -> None:
        counts = self.header.keys.setdefault(self.name, {})
        counts[name] = max(counts.get(name, 0), count)

    def _oldest(self, operator: SharedAggregation | JoinBuffer) -> int:
        """Return the least event time that an open window of a live query can contain."""
        floor = min(
            self.watermarks[subscriber.query_id] for subscriber in operator.subscribers if subscriber.query_id in self.watermarks
        )
        return MIN_TIME if floor == MIN_TIME else floor - operator.retention + 1

    def _tag(self, operator: SharedOperator, assigner: SharedSelection, batch: Batch) -> Tagged:
        assignment = assigner.tag(batch)
        _note_failures(operator, assignment, batch, self.watermarks, self.failures)
        return assignment

    def _count_late(self, batch: Batch) -> None:
        """Select the rows behind the watermark again, and count the late ones of each query."""
        late_before = self.job.watermark([self.name], self.job.before())
        rows = np.flatnonzero(batch.times < late_before) if batch.first < late_before else np.zeros(0, np.int64)
        if rows.size:
            late_batch = Batch(batch.table.take(pa.array(rows)), self.stream.stream.time)
            for aggregation in self.current.plan.stores:
                assignment = self.current.selection(aggregation).tag(late_batch)
                for query, count in count_late(aggregation, assignment, late_batch, self.watermarks):
                    self._add_late(query, count)
            for buffer, set_assigner in zip(self.current.plan.buckets, self.current.sets, strict=True):
                for query, count in count_late_in_joins(buffer, set_assigner, late_batch, self.watermarks):
                    self._add_late(query, count)

    def _add_late(self, query: int, count: int) -> None:
        late_key = (query, self.stream.base[0] if self.stream.base else self.name)
        self.header.late[late_key] = self.header.late.get(late_key, 0) + count

    def _multiway(self, batch: Batch) -> None:
        """Send rows to the state stores of sliding joins and to the partitions where they probe."""
        if not self.job.probing:
            return
        loaded_plan = self.job.probes()
        watermarks = {query.id: self.job.watermark(query.streams, self.job.before()) for query in loaded_plan.plan.queries}
        ingest = Arriving(loaded_plan, self.name, batch, watermarks)
        subscribers = [
            Subscriber(query.id, 0, query.inputs[name].predicate, (), None, query.since, query.streams)
            for query, name in ingest.readers()
        ]
        note_predicates(subscribers, batch, self.failures)
        for query, count in ingest.late():
            self._add_late(query, count)
        for delivery in ingest.deliveries(self.task, self.job.partitions):
            block = self.parcels[delivery.partition]
            if delivery.store is not None:
                block.storing.append((delivery.store, delivery.rows))
            elif delivery.probe is not None:
                block.probing.append((delivery.probe, delivery.rows))
        for relation, sample in ingest.samples.items():
            self.header.shown.setdefault(relation, []).append(sample)

    def _sessions(self, batch: Batch) -> None:
        encoder = Keying(batch, self.job.partitions, MIN_TIME)
        for operator in self.current.plan.sessions if batch.rows else ():
            assignment = self._tag(operator, self.current.selection(operator), batch)
            for partition, query, query_runs, late_rows in runs(operator, assignment, batch, encoder, self.watermarks):
                if partition < 0:
                    self._add_late(query, late_rows)
                else:
                    self.parcels[partition].runs.append((query, query_runs))

    def _route(self, batch: Batch) -> None:
        for operator in self.current.plan.routers:
            assignment = self._tag(operator, self.current.selection(operator), batch)
            for query, branch, columns in route(operator, assignment, batch, self.failures):
                self.parcels[query % self.job.partitions].rows.append((query, branch, columns))


def _note_failures(
    operator: SharedOperator, assignment: Tagged, batch: Batch, watermarks: Mapping[int, int], failures: Failures
) -> None:
    """Fail the queries for which an expression has an error on a selected row; errors are rare, so this may be slow."""
    if any(_has_errors(dimension, batch) for dimension in operator.predicate_index.dimensions):
        note_predicates(operator.subscribers, batch, failures)
    if all(batch.errors(argument) is None for argument in operator.arguments):
        return
    for subscriber, predicate in zip(operator.subscribers, operator.predicate_numbers, strict=True):
        if subscriber.query_id not in watermarks:
            continue
        selected = _wanted(assignment, predicate, batch) & counted(subscriber, batch.times, watermarks[subscriber.query_id])
        for expression in (*subscriber.keys, *(argument for component in subscriber.components for argument in component.args)):
            errors = batch.errors(expression)
            if errors is not None and (errors & selected).any():
                failures.add(subscriber.query_id, batch.message(expression))


def note_predicates(subscribers: Iterable[Subscriber], batch: Batch, failures: Failures) -> None:
    """Fail the queries whose predicate has an error on a row that they read."""
    for subscriber in subscribers:
        errors = batch.errors(subscriber.predicate)
        if errors is not None and errors[batch.times >= subscriber.since].any():
            failures.add(subscriber.query_id, batch.message(subscriber.predicate))


def _has_errors(dimension: Dimension, batch: Batch) -> bool:
    return batch.errors(dimension.expression) is not None


def _wanted(assignment: Tagged, predicate: int, batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    cell_matches = np.zeros(assignment.size + 1, np.bool_)
    for low, high in assignment.spans.get_spans(predicate):
        cell_matches[low:high] = True
    mask = np.zeros(batch.rows, np.bool_)
    hits = cell_matches[assignment.cells]
    mask[np.flatnonzero(hits) if assignment.rows is None else assignment.rows[hits]] = True
    return mask
