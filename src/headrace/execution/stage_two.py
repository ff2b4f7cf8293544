"""Stage two: a worker takes the parcels of its key partition and evaluates the windows that close.

It gives results to their sinks and keeps what open windows still need. Everything it writes is named after the batch and
the partition, so a replay writes the same files again. Joins by changing keys, and aggregations over joins, go on in later
levels (`stage_later`): one more exchange each, in the same job.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.execution import sessions
from headrace.execution.bucketing import Bucket
from headrace.execution.compaction import compact
from headrace.execution.job import Job, LoadedQuery, Outcome, Parcel, PartRef, SessionRef
from headrace.execution.join_leaves import BucketSlice
from headrace.execution.join_outputs import Outputs
from headrace.execution.joiner import Joiner
from headrace.execution.joins import JoinLevel
from headrace.execution.onward import Onward
from headrace.execution.outlet import Outlet
from headrace.execution.result import Failures, Results
from headrace.execution.windows import Slice, due_windows, evaluate
from headrace.kernels import pack
from headrace.kernels.partial import Partial
from headrace.model.window import SessionGap, Sliding
from headrace.plan.logical import AggregateQuery, StatelessQuery
from headrace.sharing.shared_plan import Buckets, Store
from headrace.sharing.slicing import FOREVER, NEVER, closing, last_end

_MANY_PARTS = 8


def stage_two(job: Job, partition: int, parcels: Iterable[Parcel]) -> tuple[Outcome, dict[int, Onward]]:
    """Process one partition; there is a parcel of every task of stage one, in any order.

    Returns the account of it, and what goes on to partitions of the next level.
    """
    begun = time.perf_counter()
    work = _Partition(job, partition, sorted(parcels, key=lambda parcel: parcel.task))
    outcome = work.run()
    outcome.seconds = time.perf_counter() - begun
    return outcome, work.onward


class _Partition:
    """One key partition in one micro-batch."""

    def __init__(self, job: Job, partition: int, parcels: Sequence[Parcel]) -> None:
        self.job, self.number, self.parcels = job, partition, parcels
        self.failures, self.results = Failures(), Results()
        self.outlet = Outlet(job, partition, 0, self.results, self.failures)
        for parcel in parcels:
            for query, message in parcel.header.failures.items():
                self.failures.add(query, message)
        self.seen = job.before()
        for parcel in parcels:
            for name, latest in parcel.header.seen.items():
                self.seen[name] = max(self.seen[name], latest)
        self.queries = {q: job.query(q) for q in job.queries}
        self.marks: dict[tuple[str, ...], tuple[int, int]] = {}
        self.holders: dict[int, set[tuple[Sliding, int, int]]] = {}
        self.slices = self._slices()
        self.buckets = self._buckets()
        self.onward: dict[int, Onward] = {}

    def run(self) -> Outcome:
        """Evaluate, give out, keep."""
        self._windows()
        self._joins()
        open_runs, kept_sessions = self._sessions()
        self._stateless()
        self.outlet.give_out()
        refs = self._keep(open_runs, kept_sessions)
        headers = [parcel.header for parcel in self.parcels] if self.number == 0 else []
        return Outcome(self.number, *refs, self.outlet.emitted, self.failures.messages, headers, self.outlet.files)

    def _marks(self, query: LoadedQuery) -> tuple[int, int]:
        """Return the query's watermark before this batch and after it."""
        streams = query.streams
        if streams not in self.marks:
            after = FOREVER if self.job.final else self.job.watermark(streams, self.seen)
            self.marks[streams] = self.job.watermark(streams, self.job.before()), after
        return self.marks[streams]

    def _slices(self) -> list[tuple[tuple[str, int, int, int], PartRef | None, Slice]]:
        found: list[tuple[tuple[str, int, int, int], PartRef | None, Slice]] = [
            (ref.slice, ref, self._slice(*ref.slice, _loader(self.job, ref)))
            for ref in self.job.parts
            if ref.partition == self.number
        ]
        for parcel in self.parcels:
            for stream, epoch, store, partial in parcel.partials:
                at = (stream, epoch, store, partial.slice_start)
                found.append((at, None, self._slice(*at, _constant(partial))))
        return found

    def _slice(self, stream: str, epoch: int, store: int, start: int, load: Callable[[], Partial]) -> Slice:
        path = next(e.plan for e in self.job.streams[stream].epochs if e.number == epoch)
        loaded = self.job.plan(path)
        operator = loaded.plan.stores[store]
        return Slice(operator, loaded.selection(operator), start, load)

    def _buckets(self) -> list[tuple[PartRef, Buckets, BucketSlice]]:
        found: list[tuple[PartRef, Buckets, BucketSlice]] = []
        for ref in self.job.buckets:
            if ref.partition == self.number:
                stored: Bucket = self.job.state(ref.file)["buckets"][ref.index]
                found.append((ref, *self._bucket_slice(ref.stream, ref.epoch, ref.store, stored)))
        for parcel in self.parcels:
            for stream, epoch, store, one in parcel.buckets:
                at = PartRef("", 0, self.number, stream, epoch, store, one.slice_start)
                found.append((at, *self._bucket_slice(stream, epoch, store, one)))
        return found

    def _bucket_slice(self, stream: str, epoch: int, store: int, found: Bucket) -> tuple[Buckets, BucketSlice]:
        path = next(e.plan for e in self.job.streams[stream].epochs if e.number == epoch)
        operator = self.job.plan(path).plan.buckets[store]
        return operator, BucketSlice(stream, operator.keys, operator.slot, operator.columns, found)

    def _joins(self) -> None:
        """Join the windows that close."""
        joiners = self.job.joiners()
        closing = closing_joins(self.job, joiners, self.seen)
        if closing:
            outputs = Outputs(self.number, self.job.partitions, self.results, self.failures, self.outlet.relieve)
            self.onward = JoinLevel(joiners, closing, outputs).first([found for *_, found in self.buckets])
        if self.job.levels:
            _tell_seen(self.job, self.number, self.onward, self.seen)

    def _windows(self) -> None:
        """Find the windows that close, shape by shape, and evaluate them."""
        starts = sorted({at[3] for at, _, _ in self.slices})
        if not starts:
            return
        by_shape: dict[int, list[tuple[LoadedQuery, list[int]]]] = defaultdict(list)
        known: dict[tuple[Sliding, int, int, int], list[int]] = {}
        for query in self.queries.values():
            plan = query.plan
            if isinstance(plan, AggregateQuery) and isinstance(plan.window, Sliding):
                since = query.live.since if query.live.since > starts[0] - plan.window.size else NEVER
                at = (plan.window, since, *self._marks(query))
                if at not in known:
                    known[at] = closing(plan.window, since, starts, at[2], at[3])
                if known[at]:
                    by_shape[id(query.shape)].append((query, known[at]))
        for found in by_shape.values():
            due = due_windows((q.live.id, begins, q.aggregate.window.size) for q, begins in found)  # type: ignore[union-attr]
            first = found[0][0]
            evaluate(first.aggregate, first.needs, due, [s for _, _, s in self.slices], self.results, self.failures)

    def _sessions(self) -> tuple[dict[int, sessions.Runs], list[SessionRef]]:
        """Merge runs into open sessions, emit those that end; return what stays open and what was not touched."""
        arrived: dict[int, list[sessions.Runs]] = defaultdict(list)
        for parcel in self.parcels:
            for number, found in parcel.runs:
                arrived[number].append(found)
        stored = {ref.query: ref for ref in self.job.sessions if ref.partition == self.number}
        still_open, untouched = {}, []
        for number, query in self.queries.items():
            if not isinstance(query.plan, AggregateQuery) or not isinstance(query.plan.window, SessionGap):
                continue
            before, after = self._marks(query)
            ref = stored.get(number)
            if number not in arrived and (ref is None or before == after):
                untouched += [ref] if ref else []
                continue
            old = [self.job.state(ref.file)["sessions"][number]] if ref else []
            gap = query.plan.window.gap
            merged = sessions.merge(query.needs, gap, [*old, *arrived[number]])
            closed, rest = sessions.split(merged, gap, after)
            sessions.emit(number, query.plan, gap, closed, self.results, self.failures)
            if len(rest.firsts):
                still_open[number] = rest
        return still_open, untouched

    def _stateless(self) -> None:
        rows: dict[int, list[tuple[int, int, list[pa.Array]]]] = defaultdict(list)
        for parcel in self.parcels:
            for number, branch, columns in parcel.rows:
                rows[number].append((branch, parcel.task, columns))
        for number in sorted(rows):
            query = self.queries.get(number)
            if query is None or number in self.failures.messages:
                continue
            assert isinstance(query.plan, StatelessQuery)
            schema = query.plan.schema.to_arrow()
            pieces = [
                pa.RecordBatch.from_arrays(columns, schema=schema) for _, _, columns in sorted(rows[number], key=lambda r: r[:2])
            ]
            for piece in pieces:
                self.results.tables.append(piece)
                self.results.index.setdefault(number, []).append((len(self.results.tables) - 1, 0, piece.num_rows))

    def _keep(
        self, open_runs: dict[int, sessions.Runs], kept: list[SessionRef]
    ) -> tuple[list[PartRef], list[SessionRef], list[PartRef]]:
        """Write the partials and buckets that open windows still need, and the open sessions, into one file."""
        file = f"state/{self.job.batch:010d}-{self.number:05d}.part"
        refs: list[PartRef] = []
        partials: list[Partial] = []
        groups: dict[tuple[str, int, int, int], list[tuple[PartRef | None, Slice]]] = defaultdict(list)
        for at, ref, part in self.slices:
            groups[at].append((ref, part))
        for at, parts in groups.items():
            if not self._needed(parts[0][1].store, at[3]):
                continue
            for ref, part in _few(at[3], parts):
                refs.append(ref or PartRef(file, len(partials), self.number, *at))
                if ref is None:
                    partials.append(part.load())
        buckets: list[Bucket] = []
        bucket_refs: list[PartRef] = []
        for bucket_ref, operator, found in self.buckets:
            if self._needed(operator, found.bucket.slice_start):
                bucket_refs.append(bucket_ref if bucket_ref.file else replace(bucket_ref, file=file, index=len(buckets)))
                if not bucket_ref.file:
                    buckets.append(found.bucket)
        if partials or open_runs or buckets:
            content = {"partials": partials, "sessions": open_runs, "buckets": buckets}
            pack.write(Path(self.job.directory) / file, content)
        return refs, [*kept, *(SessionRef(file, self.number, query) for query in open_runs)], bucket_refs

    def _needed(self, store: Store | Buckets, start: int) -> bool:
        """Whether a window of a live query over this slice is still open after this batch."""
        if id(store) not in self.holders:
            live = [(m, self.queries[m.query]) for m in store.members if m.query in self.queries]
            self.holders[id(store)] = {(m.window, m.since, self._marks(q)[1]) for m, q in live if isinstance(m.window, Sliding)}
        ends = ((last_end(window, since, start), mark) for window, since, mark in self.holders[id(store)])
        return any(end is not None and end > mark for end, mark in ends)


def stage_later(job: Job, level: int, partition: int, arrived: Iterable[Onward]) -> tuple[Outcome, dict[int, Onward]]:
    """Process one partition of a later level: joins that go on by other keys, and groups of joined rows."""
    begun = time.perf_counter()
    received = sorted(arrived, key=lambda one: one.sender)
    results, failures = Results(), Failures()
    joiners = job.joiners()
    seen: dict[str, int] = received[0].seen if received else {}
    outlet = Outlet(job, partition, level, results, failures)
    outputs = Outputs(partition, job.partitions, results, failures, outlet.relieve)
    onward = JoinLevel(joiners, closing_joins(job, joiners, seen), outputs).later(level, received)
    if level < job.levels:
        _tell_seen(job, partition, onward, seen)
    outlet.give_out()
    outcome = Outcome(partition, [], [], [], outlet.emitted, failures.messages, [], outlet.files)
    outcome.seconds = time.perf_counter() - begun
    return outcome, onward


def _tell_seen(job: Job, sender: int, onward: dict[int, Onward], seen: dict[str, int]) -> None:
    """Let every partition of the next level hear how far streams have come."""
    for place in range(job.partitions):
        onward.setdefault(place, Onward(sender)).seen = seen


def closing_joins(job: Job, joiners: Sequence[Joiner], seen: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """Return for each join with windows that may close (its watermark before, the last end of those)."""
    found = {}
    for joiner in joiners:
        streams = joiner.plan.streams
        before = job.watermark(streams, job.before())
        after = FOREVER if job.final else job.watermark(streams, seen)
        newest = max(seen.get(name, NEVER) for name in streams)
        last = None if NEVER in (newest, after) else joiner.last_end(before, after, newest)
        if last is not None:
            found[joiner.live.id] = (before, last)
    return found


def _few(start: int, parts: list[tuple[PartRef | None, Slice]]) -> list[tuple[PartRef | None, Slice]]:
    """Return the parts of a slice, made one where they are many."""
    if len(parts) <= _MANY_PARTS:
        return parts
    store, selection = parts[0][1].store, parts[0][1].selection
    merged = compact(store.components, [part.load() for _, part in parts])
    return [(None, Slice(store, selection, start, _constant(merged)))]


def _constant(partial: Partial) -> Callable[[], Partial]:
    return lambda: partial


def _loader(job: Job, ref: PartRef) -> Callable[[], Partial]:
    def load() -> Partial:
        found: Partial = job.state(ref.file)["partials"][ref.index]
        return found

    return load
