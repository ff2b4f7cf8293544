"""Stage two: a worker takes the parcels of its key partition and evaluates the windows that close.

It gives results to their sinks and keeps what open windows still need. Everything it writes is named after the batch and
the partition, so a replay writes the same files again. Joins by changing keys, aggregations over joins, and windows over
the results of other windows go on in later levels (`stage_later`): one more exchange each, in the same job.
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
from headrace.kernels.columns import flat, from_numbers, numbers
from headrace.kernels.partial import Partial
from headrace.model.schema import TIMESTAMP
from headrace.model.window import SessionGap, Sliding
from headrace.plan.logical import AggregateQuery, StatelessQuery
from headrace.plan.stacked import TIME
from headrace.sharing.multiway.asked import Asked
from headrace.sharing.shared_plan import Buckets, Store
from headrace.sharing.slicing import FOREVER, NEVER, closing, last_end


def stage_two(job: Job, partition: int, parcels: Iterable[Parcel]) -> tuple[Outcome, dict[int, Onward]]:
    """Process one partition; there is a parcel of every task of stage one, in any order.

    Returns the account of it, and what goes on to partitions of the next level.
    """
    job.release()
    job.load_functions()
    received = sorted(parcels, key=lambda parcel: parcel.task)
    return _Partition(job, partition, Arrived(0, received, [], [], job.before())).run()


def stage_later(job: Job, level: int, partition: int, arrived: Iterable[Onward]) -> tuple[Outcome, dict[int, Onward]]:
    """Process one partition of a later level: joins that go on by other keys, groups of joined rows, windows over results."""
    job.load_functions()
    received = sorted(arrived, key=lambda one: one.sender)
    parcels = [one.results for one in received if one.results is not None]
    guests = [one.guests for one in received if one.guests is not None]
    return _Partition(job, partition, Arrived(level, parcels, guests, received, received[0].seen)).run()


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a partition got at a level: parcels of streams, guests, rows of joins; `seen`: how far streams were before."""

    level: int
    parcels: Sequence[Parcel]
    guests: Sequence[Parcel]
    onward: Sequence[Onward]
    seen: dict[str, int]


class _Partition:
    """One key partition in one micro-batch, at one level.

    What streams of this level left here is kept here. Queries are evaluated at the level of the last of their streams; what
    they need of streams that were there before are guests.
    """

    def __init__(self, job: Job, partition: int, arrived: Arrived) -> None:
        self.begun = time.perf_counter()
        self.job, self.number, self.level, self.arrived = job, partition, arrived.level, arrived
        self.parcels, self.seen = arrived.parcels, dict(arrived.seen)
        self.failures, self.results = Failures(), Results()
        self.outlet = Outlet(job, partition, self.level, self.results, self.failures)
        for parcel in self.parcels:
            for query, message in parcel.header.failures.items():
                self.failures.add(query, message)
            for name, latest in parcel.header.seen.items():
                self.seen[name] = max(self.seen[name], latest)
        self.share = Share(partition, job.partitions) if job.dealt != job.partitions else None
        self.queries = {q: job.query(q) for q in job.queries}
        self.levels = {number: job.level(query.plan) for number, query in self.queries.items()} if job.depths else {}
        self.marks: dict[tuple[str, ...], tuple[int, int]] = {}
        self.holders: dict[int, set[tuple[Sliding, int, int]]] = {}
        self.slices, self.buckets = self._slices(guests=False), self._buckets(guests=False)
        self.onward: dict[int, Onward] = {}
        self.joined: dict[tuple[int, int], tuple[int, int]] = {}
        self.probed: dict[int, tuple[int, int]] = {}

    def run(self) -> tuple[Outcome, dict[int, Onward]]:
        """Evaluate, give out, keep."""
        self._windows()
        self._joins()
        stores = self._multiway()
        open_runs, kept_sessions = self._sessions()
        self._stateless()
        self.outlet.give_out()
        self._go_on()
        refs = self._keep(open_runs, kept_sessions)
        headers = [parcel.header for parcel in self.parcels] if self.number == 0 else []
        outcome = Outcome(self.number, *refs, self.outlet.emitted, self.failures.messages, headers, self.outlet.files)
        outcome.joined, outcome.stores, outcome.probed = self.joined, stores, self.probed
        outcome.seconds = time.perf_counter() - self.begun
        return outcome, self.onward

    def _is_due(self, query: int) -> bool:
        """Whether the windows of a query are evaluated at this level."""
        return self.levels.get(query, 0) == self.level

    def _waits(self, query: int) -> bool:
        """Whether they are at a later one."""
        return self.levels.get(query, 0) > self.level

    def _refs(self, found: Sequence[PartRef], *, guests: bool) -> Iterator[PartRef]:
        """Yield what was kept before: of streams of this level, or of earlier ones."""
        for ref in found:
            depth = self.job.depths.get(ref.stream, 0)
            mine = ref.partition == self.number or self.share is not None
            if mine and (depth < self.level if guests else depth == self.level):
                yield ref

    def _marks(self, query: LoadedQuery) -> tuple[int, int]:
        """Return the query's watermark before this batch and after it."""
        streams = query.streams
        if streams not in self.marks:
            after = FOREVER if self.job.final else self.job.watermark(streams, self.seen)
            self.marks[streams] = self.job.watermark(streams, self.job.before()), after
        return self.marks[streams]

    def _slices(self, *, guests: bool) -> list[tuple[tuple[str, int, int, int], PartRef | None, Slice]]:
        found: list[tuple[tuple[str, int, int, int], PartRef | None, Slice]] = []
        for ref in self._refs(self.job.parts, guests=guests):
            load = _loader(self.job, ref)
            if self.share is None:
                found.append((ref.slice, ref, self._slice(*ref.slice, load)))
            elif (mine := self.share.partial(load())).key_count:
                found.append((ref.slice, None, self._slice(*ref.slice, constant(mine))))
        for parcel in self.arrived.guests if guests else self.parcels:
            for stream, epoch, store, partial in parcel.partials:
                at = (stream, epoch, store, partial.slice_start)
                found.append((at, None, self._slice(*at, constant(partial))))
        return [one for one in found if not guests or self._is_wanted(one[2].store)]

    def _slice(self, stream: str, epoch: int, store: int, start: int, load: Callable[[], Partial]) -> Slice:
        loaded = self._plan(stream, epoch)
        operator = loaded.plan.stores[store]
        return Slice(operator, loaded.selection(operator), start, load)

    def _plan(self, stream: str, epoch: int) -> LoadedPlan:
        return self.job.plan(next(e.plan for e in self.job.streams[stream].epochs if e.number == epoch))

    def _buckets(self, *, guests: bool) -> list[tuple[PartRef, Buckets, BucketSlice]]:
        found: list[tuple[PartRef, Buckets, BucketSlice]] = []
        for ref in self._refs(self.job.buckets, guests=guests):
            stored = self.job.bucket(ref)
            if self.share is None:
                found.append((ref, *self._bucket_slice(ref.stream, ref.epoch, ref.store, stored)))
            elif (mine := self.share.bucket(self._plan(ref.stream, ref.epoch).plan.buckets[ref.store], stored)).rows:
                at = replace(ref, file="", partition=self.number)
                found.append((at, *self._bucket_slice(ref.stream, ref.epoch, ref.store, mine)))
        for parcel in self.arrived.guests if guests else self.parcels:
            for index, (stream, epoch, store, one) in enumerate(parcel.buckets):
                at = PartRef(parcel.file, index, self.number, stream, epoch, store, one.slice_start, one.bytes)
                found.append((at, *self._bucket_slice(stream, epoch, store, one)))
        return [one for one in found if not guests or self._is_wanted(one[1])]

    def _bucket_slice(self, stream: str, epoch: int, store: int, found: Bucket) -> tuple[Buckets, BucketSlice]:
        operator = self._plan(stream, epoch).plan.buckets[store]
        return operator, BucketSlice(stream, operator.keys, operator.slot, operator.columns, found)

    def _is_wanted(self, operator: Store | Buckets) -> bool:
        return any(self._is_due(member.query) for member in operator.members)

    def _joins(self) -> None:
        """Join the windows that close; go on with joins of levels before."""
        joiners = self.job.joiners()
        closing = closing_joins(self.job, joiners, self.seen)
        outputs = Outputs(self.number, self.job.partitions, self.results, self.failures, self.outlet.relieve)
        levels = {joiner.live.id: self.levels.get(joiner.live.id, 0) for joiner in joiners}
        for begun in sorted(set(levels.values())):
            mine = JoinLevel([joiner for joiner in joiners if levels[joiner.live.id] == begun], closing, outputs)
            if begun == self.level and closing:
                buckets = [*self.buckets, *(self._buckets(guests=True) if begun else ())]
                self.onward = mine.first([found for *_, found in buckets])
            elif begun < self.level:
                self.onward = mine.later(self.level - begun, self.arrived.onward)
        self.joined = outputs.rows

    def _multiway(self) -> list[StoreRef]:
        """Work off multi-way joins; return what is kept of their rows."""
        if not self.job.probing:
            return []
        before = [one.multiway for one in self.arrived.onward if one.multiway is not None]
        arrived = [*before, *map(traffic, self.parcels)] if self.level == 0 else before
        handed = [ref for one in before for ref in one.stores]
        work = MultiwayLevel(
            self.job, self.number, self.level, self._mark_after, self.results, self.failures, self.outlet.relieve, handed
        )
        kept = work.run(arrived)
        for place, one in work.onward.items():
            self.onward.setdefault(place, Onward(self.number)).multiway = one
        self.probed = work.probed
        return kept

    def _mark_after(self, query: Asked) -> int:
        return self._marks(self.queries[query.id])[1]

    def _go_on(self) -> None:
        """Send results that are rows of a stream, and guests; let every partition of the next level hear how far streams are."""
        if self.level == self.job.levels:
            return
        for place in range(self.job.partitions):
            self.onward.setdefault(place, Onward(self.number)).seen = self.seen
        if self.outlet.fed:  # a join may have results earlier than it can have at the latest: then they are guests, too
            for place, parcel in results_as_rows(self.job, self.number, self.outlet.fed):
                self.onward[place].results = parcel
        guests = self._guests()
        if guests.weight():
            self.onward[self.number].guests = guests

    def _guests(self) -> Parcel:
        """Return what came here and is waited for by queries of later levels."""
        found = Parcel(self.number, Header())
        for parcel in (*self.parcels, *self.arrived.guests) if self.levels else ():
            for stream, epoch, store, partial in parcel.partials:
                if any(self._waits(m.query) for m in self._plan(stream, epoch).plan.stores[store].members):
                    found.partials.append((stream, epoch, store, partial))
            for stream, epoch, store, one in parcel.buckets:
                if any(self._waits(m.query) for m in self._plan(stream, epoch).plan.buckets[store].members):
                    found.buckets.append((stream, epoch, store, one))
            found.runs += [(query, runs) for query, runs in parcel.runs if self._waits(query)]
        return found

    def _windows(self) -> None:
        """Find the windows that close, shape by shape, and evaluate them."""
        slices = [*self.slices, *(self._slices(guests=True) if self.level else ())]
        starts = sorted({at[3] for at, _, _ in slices})
        if not starts:
            return
        by_shape: dict[int, list[tuple[LoadedQuery, list[int]]]] = defaultdict(list)
        known: dict[tuple[Sliding, int, int, int], list[int]] = {}
        for query in self.queries.values():
            plan = query.plan
            if isinstance(plan, AggregateQuery) and isinstance(plan.window, Sliding) and self._is_due(query.live.id):
                since = query.live.since if query.live.since > starts[0] - plan.window.size else NEVER
                at = (plan.window, since, *self._marks(query))
                if at not in known:
                    known[at] = closing(plan.window, since, starts, at[2], at[3])
                if known[at]:
                    by_shape[id(query.shape)].append((query, known[at]))
        for found in by_shape.values():
            due = due_windows((q.live.id, begins, q.aggregate.window.size) for q, begins in found)  # type: ignore[union-attr]
            first = found[0][0]
            evaluate(first.aggregate, first.needs, due, [s for _, _, s in slices], self.results, self.failures)

    def _sessions(self) -> tuple[dict[int, sessions.Runs], list[SessionRef]]:
        """Merge runs into open sessions, emit those that end; return what stays open and what was not touched."""
        arrived: dict[int, list[sessions.Runs]] = defaultdict(list)
        for parcel in (*self.parcels, *self.arrived.guests):
            for number, found in parcel.runs:
                arrived[number].append(found)
        stored: dict[int, list[SessionRef]] = defaultdict(list)
        for ref in self.job.sessions:
            if ref.partition == self.number or self.share is not None:
                stored[ref.query].append(ref)
        still_open, untouched = {}, []
        for number, query in self.queries.items():
            if not isinstance(query.plan, AggregateQuery) or not isinstance(query.plan.window, SessionGap):
                continue
            if not self._is_due(number):
                continue
            before, after = self._marks(query)
            refs = stored[number]
            if number not in arrived and (not refs or (before == after and self.share is None)):
                untouched += refs
                continue
            old = [self.job.state(ref.file)["sessions"][number] for ref in refs]
            old = old if self.share is None else [self.share.runs(found) for found in old]
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
        level = f"-{self.level}" if self.level else ""
        file = f"state/{self.job.batch:010d}-{self.number:05d}{level}.part"
        refs: list[PartRef] = []
        partials: list[Partial] = []
        groups: dict[tuple[str, int, int, int], list[tuple[PartRef | None, Slice]]] = defaultdict(list)
        for at, ref, part in self.slices:
            groups[at].append((ref, part))
        for at, parts in groups.items():
            if not self._needed(parts[0][1].store, at[3]):
                continue
            for ref, part in few_slices(parts):
                if ref is None:
                    partials.append(part.load())
                refs.append(ref or PartRef(file, len(partials) - 1, self.number, *at, partials[-1].bytes))
        needed = [(where, one.bucket) for where, owner, one in self.buckets if self._needed(owner, one.bucket.slice_start)]
        buckets: list[Bucket] = []
        bucket_refs: list[PartRef] = []
        adopt = Adoption(Path(self.job.directory))
        for where, bucket in few_buckets(needed):
            bucket_refs.append(adopt(where) if where.file else replace(where, file=file, index=len(buckets), bytes=bucket.bytes))
            buckets += [] if where.file else [bucket]
        if partials or open_runs or buckets:
            content = {"partials": partials, "sessions": open_runs, "buckets": buckets}
            pack.write(Path(self.job.directory) / file, content)
        return (
            refs,
            [*kept, *(SessionRef(file, self.number, query, runs.bytes) for query, runs in open_runs.items())],
            bucket_refs,
        )

    def _needed(self, store: Store | Buckets, start: int) -> bool:
        """Whether a window of a live query over this slice is still open after this batch."""
        if id(store) not in self.holders:
            live = [(m, self.queries[m.query]) for m in store.members if m.query in self.queries]
            self.holders[id(store)] = {(m.window, m.since, self._marks(q)[1]) for m, q in live if isinstance(m.window, Sliding)}
        ends = ((last_end(window, since, start), mark) for window, since, mark in self.holders[id(store)])
        return any(end is not None and end > mark for end, mark in ends)


def closing_joins(job: Job, joiners: Sequence[Joiner], seen: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """Return for each join with windows that may close (its watermark before, the last end of those)."""
    found = {}
    for joiner in joiners:
        streams = joiner.plan.streams
        before = job.watermark(streams, job.before())
        after = FOREVER if job.final else job.watermark(streams, seen)
        newest = max(seen[name] for name in (*streams, *job.declared(streams)))
        last = None if NEVER in (newest, after) else joiner.last_end(before, after, newest)
        if last is not None:
            found[joiner.live.id] = (before, last)
    return found


def results_as_rows(job: Job, sender: int, fed: Mapping[str, Sequence[pa.RecordBatch]]) -> list[tuple[int, Parcel]]:
    """Put results through the shared operators of the streams they are rows of; return for every partition what it gets."""
    header = Header()
    parcels = [Parcel(sender, header) for _ in range(job.partitions)]
    for name in sorted(fed):
        table = pa.Table.from_batches(fed[name]).combine_chunks()
        last = from_numbers(numbers(flat(table[TIME])) - 1, TIMESTAMP)
        Pass(job, job.streams[name], header, parcels).run(table.set_column(table.schema.get_field_index(TIME), TIME, last))
    return list(enumerate(parcels))


def _loader(job: Job, ref: PartRef) -> Callable[[], Partial]:
    def load() -> Partial:
        found: Partial = job.state(ref.file)["partials"][ref.index]
        return found

    return load
