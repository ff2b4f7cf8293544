"""Stage one: a worker reads its ranges and, in one pass, selects, slices and aggregates for all live queries.

What leaves are partial aggregates, runs of sessions and rows of stateless queries, each addressed to a partition; never
raw rows that nobody asked for.
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
from headrace.kernels.sets import Sets, set_of
from headrace.sharing.selection import Dimension
from headrace.sharing.shared_plan import Buckets, Member, Operator, Store
from headrace.sharing.slicing import NEVER
from headrace.sharing.statistics import key_text


def stage_one(job: Job, task: int, ranges: Sequence[Range]) -> list[tuple[int, Parcel]]:
    """Process one task; return for every partition the parcel it gets."""
    begun = time.perf_counter()
    job.release()
    job.load_functions()
    header = Header()
    parcels = [Parcel(task, header) for _ in range(job.partitions)]
    by_stream: dict[str, list[Range]] = defaultdict(list)
    for one in ranges:
        by_stream[one.stream].append(one)
    for name, found in by_stream.items():
        rows = Pass(job, job.streams[name], header, parcels)
        rows.run_all(rows.read(found))
    header.seconds = time.perf_counter() - begun
    return list(enumerate(parcels))


class Pass:
    """The rows of one stream in one task, on their way through the shared operators."""

    def __init__(self, job: Job, stream: StreamJob, header: Header, parcels: list[Parcel]) -> None:
        """Note what is seen in `header`, and lay what is found into `parcels`, one for each partition."""
        self.job, self.stream, self.header, self.parcels = job, stream, header, parcels
        self.name, self.task = stream.stream.name, parcels[0].task
        self.current = job.plan(stream.plan)
        self.failures = Failures(header.failures)
        members = self.current.plan.members
        by_streams = {streams: job.watermark(streams, job.before()) for streams in {m.streams for m in members}}
        self.watermarks = {m.query: by_streams[m.streams] for m in members}

    def run_all(self, table: pa.Table) -> None:
        """Put rows through the operators of their stream, and what is made of them through those of streams made of it."""
        self.run(table)
        for one in made_of(self.job, self.name):
            rows, wrong = unfold(one, table.filter(pc.is_valid(table[self.stream.stream.time])))
            for query in self.job.queries if wrong else ():
                if one in self.job.query(query).live.unfolded:
                    self.failures.add(query, wrong)
            Pass(self.job, self.job.streams[one.name], self.header, self.parcels).run_all(rows)

    def run(self, table: pa.Table) -> None:
        """Select → slice → aggregate, sessions, and routing, in this order."""
        self.header.rows[self.name] = self.header.rows.get(self.name, 0) + table.num_rows
        table = self._timed(table)
        if table.num_rows == 0:
            return
        everything = Batch(table, self.stream.stream.time)
        self.header.seen[self.name] = max(self.header.seen.get(self.name, NEVER), everything.last)
        for number, start, loaded, batch in self._epochs(everything):
            keying = Keying(batch, self.job.partitions, start)
            self._aggregate(number, keying, loaded, batch)
            self._bucket(number, keying, loaded, batch)
        self._count_late(everything)
        self._multiway(everything)
        self._sessions(everything)
        self._route(everything)

    def read(self, ranges: Iterable[Range]) -> pa.Table:
        """Return the rows of ranges, with the columns that some query looks at."""
        needed = looked_at(self.job, self.stream)
        schema, time = self.stream.stream.schema, self.stream.stream.time
        columns = [f.name for f in schema if f.name in needed or f.name == time]
        tables = []
        for one in ranges:
            try:
                tables.append(read_range(one, schema, columns))
            except SourceError as error:
                if one.options.get("on_error") != "skip":
                    raise
                self.header.skipped.setdefault(self.name, {})[one.path] = str(error)
        return pa.concat_tables(tables) if tables else pa.table({c: pa.array([], schema.find(c).type) for c in columns})  # type: ignore[union-attr]

    def _timed(self, table: pa.Table) -> pa.Table:
        """Return the rows that have an event time."""
        time = self.stream.stream.time
        missing = table[time].null_count
        if missing:
            self.header.untimed[self.name] = self.header.untimed.get(self.name, 0) + missing
            table = table.filter(pc.is_valid(table[time]))
        return table

    def _epochs(self, batch: Batch) -> Iterable[tuple[int, int, LoadedPlan, Batch]]:
        """Yield (epoch, its start, its plan, its rows); rows before the first epoch kept are late for every window."""
        epochs = self.stream.epochs
        if batch.first >= epochs[-1].start:
            yield epochs[-1].number, epochs[-1].start, self.job.plan(epochs[-1].plan), batch
            return
        which = np.searchsorted(np.array([e.start for e in epochs]), batch.times, side="right") - 1
        for index, epoch in enumerate(epochs):
            rows = np.flatnonzero(which == index)
            if rows.size:
                yield (
                    epoch.number,
                    epoch.start,
                    self.job.plan(epoch.plan),
                    Batch(batch.table.take(pa.array(rows)), self.stream.stream.time),
                )

    def _bucket(self, epoch: int, keying: Keying, loaded: LoadedPlan, batch: Batch) -> None:
        """Put rows that joins want into buckets."""
        for number, operator in enumerate(loaded.plan.buckets):
            sets = loaded.sets[number]
            bits = [bit for m, bit in zip(operator.members, operator.bits, strict=True) if m.query in self.watermarks]
            if not bits:
                continue
            self._note_predicates(operator, sets, batch)
            oldest = self._oldest(operator)
            live = set_of(bits, sets.width)
            sampled: list[Sets] = [live[None, :]]
            for partition, found in bucket(operator, sets, live, batch, keying, self.job.partitions, oldest, sampled):
                self.parcels[partition].buckets.append((self.name, epoch, number, found))
            self.header.samples.setdefault((self.name, operator.slot), []).append(np.concatenate(sampled))
            for keys in {operator.keys, *((key,) for key in operator.keys)}:
                self._count_keys(key_text(keys), keys_sampled(keys, batch))

    def _note_predicates(self, operator: Buckets, sets: QuerySets, batch: Batch) -> None:
        if any(_has_errors(dimension, batch) for dimension in sets.dimensions):
            note_predicates(operator.members, batch, self.failures)

    def _aggregate(self, epoch: int, keying: Keying, loaded: LoadedPlan, batch: Batch) -> None:
        numbered = [(i, s) for i, s in enumerate(loaded.plan.stores) if any(m.query in self.watermarks for m in s.members)]
        if not numbered:
            return
        stores = [store for _, store in numbered]
        selections = [loaded.selection(store) for store in stores]
        oldest = [self._oldest(store) for store in stores]
        found = aggregate(stores, selections, lambda s, b: self._tag(s, loaded.selection(s), b), batch, keying, oldest)
        for index, partition, partial in found:
            self.parcels[partition].partials.append((self.name, epoch, numbered[index][0], partial))
        for store in stores:
            self._count_keys(key_text(store.keys), keying.table(store.keys).count)

    def _count_keys(self, name: str, count: int) -> None:
        counts = self.header.keys.setdefault(self.name, {})
        counts[name] = max(counts.get(name, 0), count)

    def _oldest(self, store: Store | Buckets) -> int:
        """Return the least event time that can lie in an open window of a live query."""
        floor = min(self.watermarks[m.query] for m in store.members if m.query in self.watermarks)
        return NEVER if floor == NEVER else floor - store.reach + 1

    def _tag(self, operator: Operator, selection: SharedSelection, batch: Batch) -> Tagged:
        tagged = selection.tag(batch)
        _note_failures(operator, tagged, batch, self.watermarks, self.failures)
        return tagged

    def _count_late(self, batch: Batch) -> None:
        """Look again at the rows behind the watermark, and count for whom they are too late."""
        late_before = self.job.watermark([self.name], self.job.before())
        rows = np.flatnonzero(batch.times < late_before) if batch.first < late_before else np.zeros(0, np.int64)
        if rows.size:
            old = Batch(batch.table.take(pa.array(rows)), self.stream.stream.time)
            for store in self.current.plan.stores:
                tagged = self.current.selection(store).tag(old)
                for query, count in count_late(store, tagged, old, self.watermarks):
                    self._add_late(query, count)
            for operator, sets in zip(self.current.plan.buckets, self.current.sets, strict=True):
                for query, count in count_late_in_joins(operator, sets, old, self.watermarks):
                    self._add_late(query, count)

    def _add_late(self, query: int, count: int) -> None:
        at = (query, self.stream.base[0] if self.stream.base else self.name)
        self.header.late[at] = self.header.late.get(at, 0) + count

    def _multiway(self, batch: Batch) -> None:
        """Send rows to the stores of multi-way joins, and to where they look for partners."""
        if not self.job.probing:
            return
        probes = self.job.probes()
        marks = {one.id: self.job.watermark(one.streams, self.job.before()) for one in probes.plan.queries}
        arriving = Arriving(probes, self.name, batch, marks)
        readers = [Member(q.id, 0, q.inputs[name].predicate, (), None, q.since, q.streams) for q, name in arriving.readers()]
        note_predicates(readers, batch, self.failures)
        for query, count in arriving.late():
            self._add_late(query, count)
        for one in arriving.deliveries(self.task, self.job.partitions):
            parcel = self.parcels[one.partition]
            if one.store is not None:
                parcel.storing.append((one.store, one.rows))
            elif one.probe is not None:
                parcel.probing.append((one.probe, one.rows))
        for relation, sample in arriving.samples.items():
            self.header.shown.setdefault(relation, []).append(sample)

    def _sessions(self, batch: Batch) -> None:
        keying = Keying(batch, self.job.partitions, NEVER)
        for operator in self.current.plan.sessions if batch.rows else ():
            tagged = self._tag(operator, self.current.selection(operator), batch)
            for partition, query, found, late in runs(operator, tagged, batch, keying, self.watermarks):
                if partition < 0:
                    self._add_late(query, late)
                else:
                    self.parcels[partition].runs.append((query, found))

    def _route(self, batch: Batch) -> None:
        for operator in self.current.plan.routers:
            tagged = self._tag(operator, self.current.selection(operator), batch)
            for query, branch, columns in route(operator, tagged, batch, self.failures):
                self.parcels[query % self.job.partitions].rows.append((query, branch, columns))


def _note_failures(operator: Operator, tagged: Tagged, batch: Batch, watermarks: Mapping[int, int], failures: Failures) -> None:
    """Fail the queries for which an expression has no value on a row they want; errors are rare, so this may be slow."""
    if any(_has_errors(d, batch) for d in operator.selection.dimensions):
        note_predicates(operator.members, batch, failures)
    if all(batch.errors(e) is None for e in operator.arguments):
        return
    for member, predicate in zip(operator.members, operator.predicate_of, strict=True):
        if member.query not in watermarks:
            continue
        used = _wanted(tagged, predicate, batch) & counted(member, batch.times, watermarks[member.query])
        for expression in (*member.keys, *(a for need in member.needs for a in need.args)):
            bad = batch.errors(expression)
            if bad is not None and (bad & used).any():
                failures.add(member.query, batch.message(expression))


def note_predicates(members: Iterable[Member], batch: Batch, failures: Failures) -> None:
    """Fail the queries whose predicate has no value on a row they see."""
    for member in members:
        bad = batch.errors(member.predicate)
        if bad is not None and bad[batch.times >= member.since].any():
            failures.add(member.query, batch.message(member.predicate))


def _has_errors(dimension: Dimension, batch: Batch) -> bool:
    return batch.errors(dimension.expression) is not None


def _wanted(tagged: Tagged, predicate: int, batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    holds = np.zeros(tagged.size + 1, np.bool_)
    for low, high in tagged.spans.of(predicate):
        holds[low:high] = True
    rows = np.zeros(batch.rows, np.bool_)
    hit = holds[tagged.cells]
    rows[np.flatnonzero(hit) if tagged.rows is None else tagged.rows[hit]] = True
    return rows
