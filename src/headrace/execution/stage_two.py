"""The reduce stage: a task takes the shuffle blocks of its key partition and evaluates the windows that close.

It writes results to their sinks and stores the state that open windows still need. Every file is named after the batch and the
partition, so a replay writes the same files again. Joins whose keys change, aggregations over joins, and windows over the
results of other windows continue at later levels (`run_later_level`), each after one more shuffle in the same job.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from headrace.execution import sessions
from headrace.execution.bucketing import Bucket
from headrace.execution.dealing import Share
from headrace.execution.job import Header, Job, LoadedPlan, LoadedQuery, Outcome, Parcel, PartRef, SessionRef, StoreRef
from headrace.execution.join_leaves import BucketSlice
from headrace.execution.join_outputs import Outputs
from headrace.execution.joiner import Joiner
from headrace.execution.joins import JoinLevel
from headrace.execution.keeping import Adoption, constant, few_buckets, few_slices
from headrace.execution.multiway.operator import MultiwayLevel, traffic
from headrace.execution.onward import Onward
from headrace.execution.outlet import Outlet
from headrace.execution.result import Failures, Results
from headrace.execution.stage_one import Pass
from headrace.execution.windows import Slice, due_windows, evaluate
from headrace.kernels import pack
from headrace.kernels.columns import combine_chunks, from_numbers, to_numbers
from headrace.kernels.partial import PartialAggregate
from headrace.model.schema import TIMESTAMP
from headrace.model.window import HopWindow, SessionWindow
from headrace.plan.logical import AggregateQuery, StatelessQuery
from headrace.plan.stacked import HIDDEN_TIME
from headrace.sharing.multiway.asked import NormalizedJoin
from headrace.sharing.shared_plan import JoinBuffer, SharedAggregation
from headrace.sharing.slicing import MAX_TIME, MIN_TIME, find_closing_windows, find_last_window_end


def stage_two(job: Job, partition: int, blocks: Iterable[Parcel]) -> tuple[Outcome, dict[int, Onward]]:
    """Run the reduce task of one partition; `blocks` holds one block of every map task, in any order.

    Return its report, and the messages to the partitions of the next level.
    """
    job.release()
    job.load_functions()
    ordered = sorted(blocks, key=lambda block: block.task)
    return _Partition(job, partition, Arrived(0, ordered, [], [], job.before())).run()


def stage_later(job: Job, level: int, partition: int, messages: Iterable[Onward]) -> tuple[Outcome, dict[int, Onward]]:
    """Run one partition of a later level: joins by further keys, groups of joined rows, windows over results."""
    job.load_functions()
    ordered = sorted(messages, key=lambda message: message.sender)
    blocks = [message.results for message in ordered if message.results is not None]
    deferred_inputs = [message.guests for message in ordered if message.guests is not None]
    return _Partition(job, partition, Arrived(level, blocks, deferred_inputs, ordered, ordered[0].seen)).run()


@dataclass(frozen=True, slots=True)
class Arrived:
    """The input of a partition at a level; `max_event_times` is the greatest event time of each stream before the level."""

    level: int
    parcels: Sequence[Parcel]
    guests: Sequence[Parcel]
    onward: Sequence[Onward]
    seen: dict[str, int]


class _Partition:
    """One key partition in one micro-batch, at one level.

    A partition stores the state of the streams whose rows arrive at its level. A query is evaluated at the level of its last
    stream; its inputs from streams of earlier levels are deferred to that level.
    """

    def __init__(self, job: Job, partition: int, task_input: Arrived) -> None:
        self.begun = time.perf_counter()
        self.job, self.number, self.level, self.arrived = job, partition, task_input.level, task_input
        self.parcels, self.seen = task_input.parcels, dict(task_input.seen)
        self.failures, self.results = Failures(), Results()
        self.outlet = Outlet(job, partition, self.level, self.results, self.failures)
        for block in self.parcels:
            for query, message in block.header.failures.items():
                self.failures.add(query, message)
            for name, latest in block.header.seen.items():
                self.seen[name] = max(self.seen[name], latest)
        self.share = Share(partition, job.partitions) if job.dealt != job.partitions else None
        self.queries = {q: job.query(q) for q in job.queries}
        self.levels = {number: job.level(query.plan) for number, query in self.queries.items()} if job.depths else {}
        self.marks: dict[tuple[str, ...], tuple[int, int]] = {}
        self.holders: dict[int, set[tuple[HopWindow, int, int]]] = {}
        self.slices, self.buckets = self._slices(guests=False), self._buckets(guests=False)
        self.onward: dict[int, Onward] = {}
        self.joined: dict[tuple[int, int], tuple[int, int]] = {}
        self.probed: dict[int, tuple[int, int]] = {}

    def run(self) -> tuple[Outcome, dict[int, Onward]]:
        """Evaluate windows and joins, flush results, send messages, write state."""
        self._windows()
        self._joins()
        segment_refs = self._multiway()
        open_runs, kept_sessions = self._sessions()
        self._stateless()
        self.outlet.give_out()
        self._go_on()
        refs = self._keep(open_runs, kept_sessions)
        map_reports = [block.header for block in self.parcels] if self.number == 0 else []
        report = Outcome(self.number, *refs, self.outlet.emitted, self.failures.messages, map_reports, self.outlet.files)
        report.joined, report.stores, report.probed = self.joined, segment_refs, self.probed
        report.seconds = time.perf_counter() - self.begun
        return report, self.onward

    def _is_due(self, query: int) -> bool:
        """Return whether the windows of a query are evaluated at this level."""
        return self.levels.get(query, 0) == self.level

    def _waits(self, query: int) -> bool:
        """Return whether the windows of a query are evaluated at a later level."""
        return self.levels.get(query, 0) > self.level

    def _refs(self, refs: Sequence[PartRef], *, guests: bool) -> Iterator[PartRef]:
        """Yield references to stored state of streams of this level, or (`deferred`) of earlier levels."""
        for ref in refs:
            stream_level = self.job.depths.get(ref.stream, 0)
            is_local = ref.partition == self.number or self.share is not None
            if is_local and (stream_level < self.level if guests else stream_level == self.level):
                yield ref

    def _marks(self, query: LoadedQuery) -> tuple[int, int]:
        """Return the query's watermark before this batch and after it."""
        streams = query.streams
        if streams not in self.marks:
            after = MAX_TIME if self.job.final else self.job.watermark(streams, self.seen)
            self.marks[streams] = self.job.watermark(streams, self.job.before()), after
        return self.marks[streams]

    def _slices(self, *, guests: bool) -> list[tuple[tuple[str, int, int, int], PartRef | None, Slice]]:
        slices: list[tuple[tuple[str, int, int, int], PartRef | None, Slice]] = []
        for ref in self._refs(self.job.parts, guests=guests):
            load = _loader(self.job, ref)
            if self.share is None:
                slices.append((ref.slice, ref, self._slice(*ref.slice, load)))
            elif (filtered := self.share.partial(load())).key_count:
                slices.append((ref.slice, None, self._slice(*ref.slice, constant(filtered))))
        for block in self.arrived.guests if guests else self.parcels:
            for stream, epoch, operator, partial in block.partials:
                slice_key = (stream, epoch, operator, partial.slice_start)
                slices.append((slice_key, None, self._slice(*slice_key, constant(partial))))
        return [entry for entry in slices if not guests or self._is_wanted(entry[2].store)]

    def _slice(self, stream: str, epoch: int, operator: int, start: int, load: Callable[[], PartialAggregate]) -> Slice:
        loaded = self._plan(stream, epoch)
        aggregation = loaded.plan.stores[operator]
        return Slice(aggregation, loaded.selection(aggregation), start, load)

    def _plan(self, stream: str, epoch: int) -> LoadedPlan:
        return self.job.plan(next(version.plan for version in self.job.streams[stream].epochs if version.number == epoch))

    def _buckets(self, *, guests: bool) -> list[tuple[PartRef, JoinBuffer, BucketSlice]]:
        buffers: list[tuple[PartRef, JoinBuffer, BucketSlice]] = []
        for ref in self._refs(self.job.buckets, guests=guests):
            buffered = self.job.bucket(ref)
            if self.share is None:
                buffers.append((ref, *self._bucket_slice(ref.stream, ref.epoch, ref.store, buffered)))
            elif (filtered := self.share.bucket(self._plan(ref.stream, ref.epoch).plan.buckets[ref.store], buffered)).rows:
                new_ref = replace(ref, file="", partition=self.number)
                buffers.append((new_ref, *self._bucket_slice(ref.stream, ref.epoch, ref.store, filtered)))
        for block in self.arrived.guests if guests else self.parcels:
            for index, (stream, epoch, operator, rows) in enumerate(block.buckets):
                new_ref = PartRef(block.file, index, self.number, stream, epoch, operator, rows.slice_start, rows.bytes)
                buffers.append((new_ref, *self._bucket_slice(stream, epoch, operator, rows)))
        return [entry for entry in buffers if not guests or self._is_wanted(entry[1])]

    def _bucket_slice(self, stream: str, epoch: int, operator: int, buffered: Bucket) -> tuple[JoinBuffer, BucketSlice]:
        buffer = self._plan(stream, epoch).plan.buckets[operator]
        return buffer, BucketSlice(stream, buffer.keys, buffer.slot, buffer.columns, buffered)

    def _is_wanted(self, operator: SharedAggregation | JoinBuffer) -> bool:
        return any(self._is_due(subscriber.query_id) for subscriber in operator.subscribers)

    def _joins(self) -> None:
        """Join the windows that close, and continue joins of earlier levels."""
        joiners = self.job.joiners()
        closing_ends = closing_joins(self.job, joiners, self.seen)
        outputs = Outputs(self.number, self.job.partitions, self.results, self.failures, self.outlet.relieve)
        levels = {joiner.live.id: self.levels.get(joiner.live.id, 0) for joiner in joiners}
        for first_level in sorted(set(levels.values())):
            join_level = JoinLevel([joiner for joiner in joiners if levels[joiner.live.id] == first_level], closing_ends, outputs)
            if first_level == self.level and closing_ends:
                buffers = [*self.buckets, *(self._buckets(guests=True) if first_level else ())]
                self.onward = join_level.first([buffer_slice for *_, buffer_slice in buffers])
            elif first_level < self.level:
                self.onward = join_level.later(self.level - first_level, self.arrived.onward)
        self.joined = outputs.rows

    def _multiway(self) -> list[StoreRef]:
        """Run the sliding joins; return the segments that stay in their state."""
        if not self.job.probing:
            return []
        messages = [message.multiway for message in self.arrived.onward if message.multiway is not None]
        inputs = [*messages, *map(traffic, self.parcels)] if self.level == 0 else messages
        forwarded = [ref for message in messages for ref in message.stores]
        join_level = MultiwayLevel(
            self.job, self.number, self.level, self._mark_after, self.results, self.failures, self.outlet.relieve, forwarded
        )
        segment_refs = join_level.run(inputs)
        for place, message in join_level.onward.items():
            self.onward.setdefault(place, Onward(self.number)).multiway = message
        self.probed = join_level.probed
        return segment_refs

    def _mark_after(self, query: NormalizedJoin) -> int:
        return self._marks(self.queries[query.id])[1]

    def _go_on(self) -> None:
        """Send results that are rows of a stream, deferred inputs, and the greatest event times to the next level."""
        if self.level == self.job.levels:
            return
        for place in range(self.job.partitions):
            self.onward.setdefault(place, Onward(self.number)).seen = self.seen
        if self.outlet.fed:  # a join may emit results before its last level: those are deferred, too
            for place, block in results_as_rows(self.job, self.number, self.outlet.fed):
                self.onward[place].results = block
        deferred = self._guests()
        if deferred.weight():
            self.onward[self.number].guests = deferred

    def _guests(self) -> Parcel:
        """Return the inputs received here that queries of later levels need."""
        deferred = Parcel(self.number, Header())
        for block in (*self.parcels, *self.arrived.guests) if self.levels else ():
            for stream, epoch, operator, partial in block.partials:
                if any(
                    self._waits(subscriber.query_id) for subscriber in self._plan(stream, epoch).plan.stores[operator].subscribers
                ):
                    deferred.partials.append((stream, epoch, operator, partial))
            for stream, epoch, operator, rows in block.buckets:
                if any(
                    self._waits(subscriber.query_id)
                    for subscriber in self._plan(stream, epoch).plan.buckets[operator].subscribers
                ):
                    deferred.buckets.append((stream, epoch, operator, rows))
            deferred.runs += [(query, runs) for query, runs in block.runs if self._waits(query)]
        return deferred

    def _windows(self) -> None:
        """Find the windows that close, shape by shape, and evaluate them."""
        slices = [*self.slices, *(self._slices(guests=True) if self.level else ())]
        starts = sorted({slice_key[3] for slice_key, _, _ in slices})
        if not starts:
            return
        by_shape: dict[int, list[tuple[LoadedQuery, list[int]]]] = defaultdict(list)
        closing_starts: dict[tuple[HopWindow, int, int, int], list[int]] = {}
        for query in self.queries.values():
            plan = query.plan
            if isinstance(plan, AggregateQuery) and isinstance(plan.window, HopWindow) and self._is_due(query.live.id):
                since = query.live.since if query.live.since > starts[0] - plan.window.size else MIN_TIME
                window_key = (plan.window, since, *self._marks(query))
                if window_key not in closing_starts:
                    closing_starts[window_key] = find_closing_windows(plan.window, since, starts, window_key[2], window_key[3])
                if closing_starts[window_key]:
                    by_shape[id(query.shape)].append((query, closing_starts[window_key]))
        for queries_of_shape in by_shape.values():
            due = due_windows((query.live.id, begins, query.aggregate.window.size) for query, begins in queries_of_shape)  # type: ignore[union-attr]
            first = queries_of_shape[0][0]
            evaluate(
                first.aggregate, first.needs, due, [slice_partial for _, _, slice_partial in slices], self.results, self.failures
            )

    def _sessions(self) -> tuple[dict[int, sessions.Runs], list[SessionRef]]:
        """Merge runs into open sessions and emit the closed ones; return the open sessions and untouched references."""
        arrived_runs: dict[int, list[sessions.Runs]] = defaultdict(list)
        for block in (*self.parcels, *self.arrived.guests):
            for number, runs in block.runs:
                arrived_runs[number].append(runs)
        stored_refs: dict[int, list[SessionRef]] = defaultdict(list)
        for ref in self.job.sessions:
            if ref.partition == self.number or self.share is not None:
                stored_refs[ref.query].append(ref)
        still_open, untouched = {}, []
        for number, query in self.queries.items():
            if not isinstance(query.plan, AggregateQuery) or not isinstance(query.plan.window, SessionWindow):
                continue
            if not self._is_due(number):
                continue
            before, after = self._marks(query)
            refs = stored_refs[number]
            if number not in arrived_runs and (not refs or (before == after and self.share is None)):
                untouched += refs
                continue
            stored_runs = [self.job.state(ref.file)["sessions"][number] for ref in refs]
            stored_runs = stored_runs if self.share is None else [self.share.runs(runs) for runs in stored_runs]
            gap = query.plan.window.gap
            merged = sessions.merge(query.needs, gap, [*stored_runs, *arrived_runs[number]])
            closed, open_runs = sessions.split(merged, gap, after)
            sessions.emit(number, query.plan, gap, closed, self.results, self.failures)
            if len(open_runs.firsts):
                still_open[number] = open_runs
        return still_open, untouched

    def _stateless(self) -> None:
        rows_by_query: dict[int, list[tuple[int, int, list[pa.Array]]]] = defaultdict(list)
        for block in self.parcels:
            for number, branch, columns in block.rows:
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

    def _keep(
        self, open_runs: dict[int, sessions.Runs], untouched: list[SessionRef]
    ) -> tuple[list[PartRef], list[SessionRef], list[PartRef]]:
        """Write the partials and join buffers that open windows still need, and the open sessions, to one file."""
        level = f"-{self.level}" if self.level else ""
        file = f"state/{self.job.batch:010d}-{self.number:05d}{level}.part"
        refs: list[PartRef] = []
        partials: list[PartialAggregate] = []
        by_slice: dict[tuple[str, int, int, int], list[tuple[PartRef | None, Slice]]] = defaultdict(list)
        for slice_key, ref, slice_partial in self.slices:
            by_slice[slice_key].append((ref, slice_partial))
        for slice_key, slice_partials in by_slice.items():
            if not self._needed(slice_partials[0][1].store, slice_key[3]):
                continue
            for ref, slice_partial in few_slices(slice_partials):
                if ref is None:
                    partials.append(slice_partial.load())
                refs.append(ref or PartRef(file, len(partials) - 1, self.number, *slice_key, partials[-1].bytes))
        retained = [
            (buffer_ref, buffer_slice.bucket)
            for buffer_ref, operator, buffer_slice in self.buckets
            if self._needed(operator, buffer_slice.bucket.slice_start)
        ]
        buffers: list[Bucket] = []
        buffer_refs: list[PartRef] = []
        promote = Adoption(Path(self.job.directory))
        for buffer_ref, rows in few_buckets(retained):
            buffer_refs.append(
                promote(buffer_ref) if buffer_ref.file else replace(buffer_ref, file=file, index=len(buffers), bytes=rows.bytes)
            )
            buffers += [] if buffer_ref.file else [rows]
        if partials or open_runs or buffers:
            content = {"partials": partials, "sessions": open_runs, "buckets": buffers}
            pack.write(Path(self.job.directory) / file, content)
        return (
            refs,
            [*untouched, *(SessionRef(file, self.number, query, runs.bytes) for query, runs in open_runs.items())],
            buffer_refs,
        )

    def _needed(self, operator: SharedAggregation | JoinBuffer, slice_start: int) -> bool:
        """Return whether a window of a live query over this slice is still open after this batch."""
        if id(operator) not in self.holders:
            live_subscribers = [
                (subscriber, self.queries[subscriber.query_id])
                for subscriber in operator.subscribers
                if subscriber.query_id in self.queries
            ]
            self.holders[id(operator)] = {
                (subscriber.window, subscriber.since, self._marks(query)[1])
                for subscriber, query in live_subscribers
                if isinstance(subscriber.window, HopWindow)
            }
        ends = (
            (find_last_window_end(window, since, slice_start), watermark)
            for window, since, watermark in self.holders[id(operator)]
        )
        return any(end is not None and end > watermark for end, watermark in ends)


def closing_joins(job: Job, joiners: Sequence[Joiner], max_event_times: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """Return (watermark before the batch, end of the last window) for each join with windows that may close."""
    closing_ends = {}
    for joiner in joiners:
        streams = joiner.plan.streams
        before = job.watermark(streams, job.before())
        after = MAX_TIME if job.final else job.watermark(streams, max_event_times)
        newest_time = max(max_event_times[name] for name in (*streams, *job.declared(streams)))
        last_end = None if MIN_TIME in (newest_time, after) else joiner.last_end(before, after, newest_time)
        if last_end is not None:
            closing_ends[joiner.live.id] = (before, last_end)
    return closing_ends


def results_as_rows(job: Job, sender: int, results: Mapping[str, Sequence[pa.RecordBatch]]) -> list[tuple[int, Parcel]]:
    """Process results with the shared operators of the streams they belong to; return a shuffle block for every partition."""
    report = Header()
    blocks = [Parcel(sender, report) for _ in range(job.partitions)]
    for name in sorted(results):
        table = pa.Table.from_batches(results[name]).combine_chunks()
        last_times = from_numbers(to_numbers(combine_chunks(table[HIDDEN_TIME])) - 1, TIMESTAMP)
        Pass(job, job.streams[name], report, blocks).run(
            table.set_column(table.schema.get_field_index(HIDDEN_TIME), HIDDEN_TIME, last_times)
        )
    return list(enumerate(blocks))


def _loader(job: Job, ref: PartRef) -> Callable[[], PartialAggregate]:
    def load() -> PartialAggregate:
        partial: PartialAggregate = job.state(ref.file)["partials"][ref.index]
        return partial

    return load
