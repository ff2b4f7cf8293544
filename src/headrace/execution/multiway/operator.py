"""The sliding joins of one partition at one level of a micro-batch: insert rows, probe, send rows on, emit results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.execution.job import Job, Parcel, StoreRef
from headrace.execution.joined_rows import JoinedRows
from headrace.execution.multiway.loaded import LoadedProbe
from headrace.execution.multiway.probing import PAIRS, Pairs, Prober
from headrace.execution.multiway.sending import dealt, sent
from headrace.execution.multiway.shelf import Shelf
from headrace.execution.multiway.stored import stored
from headrace.execution.multiway.tuples import Bits, Packed, Tuples, unpacked
from headrace.execution.result import Failures, Results
from headrace.kernels import compiled_join
from headrace.kernels.columns import combine_chunks
from headrace.sharing.multiway.asked import NormalizedJoin
from headrace.sharing.multiway.probes import ProbeRouting, ProbeStep, RoutingKind, StoreFeed


@dataclass(slots=True)
class Traffic:
    """Rows between levels: (probe, rows), (store, level of insertion, rows), and references to written segments."""

    probing: list[tuple[int, Packed]] = field(default_factory=list)
    storing: list[tuple[int, int, Packed]] = field(default_factory=list)
    stores: list[StoreRef] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The approximate size of its arrays in bytes."""
        return sum(rows.bytes for _, rows in self.probing) + sum(rows.bytes for _, _, rows in self.storing)


def traffic(block: Parcel) -> Traffic:
    """Return the rows of sliding joins in a shuffle block of the map stage."""
    return Traffic(block.probing, [(store, 0, rows) for store, rows in block.storing])


class MultiwayLevel:
    """The sliding joins of one partition at one level."""

    def __init__(
        self,
        job: Job,
        partition: int,
        level: int,
        get_watermark: Callable[[NormalizedJoin], int],
        results: Results,
        failures: Failures,
        flush_if_full: Callable[[], None],
        forwarded: Sequence[StoreRef],
    ) -> None:
        """`get_watermark` returns a query's watermark after this batch; `flush_if_full` is called after results were added."""
        self._job, self._partition, self._level = job, partition, level
        self._results, self._failures, self._relieve = results, failures, flush_if_full
        self._shelf = Shelf(job, partition, level, get_watermark, forwarded)
        self._probes = self._shelf.probes
        self._plan = self._probes.plan
        self.onward: dict[int, Traffic] = {}
        self.probed: dict[int, tuple[int, int]] = {}
        """Input rows and output rows of each probe, by its number."""

    def run(self, messages: Sequence[Traffic]) -> list[StoreRef]:
        """Insert and probe the rows that arrived; return the segments that are retained."""
        storing: dict[int, list[Packed]] = defaultdict(list)
        probing: dict[int, list[Packed]] = defaultdict(list)
        for message in messages:
            for store, insert_level, rows in message.storing:
                if insert_level == self._level:
                    storing[store].append(rows)
                else:
                    self._to(self._partition).storing.append((store, insert_level, rows))
            for probe, rows in message.probing:
                self._begin(probe, rows, probing)
        for store, packed_rows in storing.items():
            self._shelf.put(store, stored(packed_rows, self._job.batch, *self._probes.indexes[store], self._probes.width))
        if self._level == 0:
            self._start(storing, probing)
        for number in sorted(probing):
            self._probe(self._probes.specs[number], unpacked(probing[number], self._probes.width))
        segment_refs = self._shelf.keep()
        self._to(self._partition).stores += self._shelf.handed_on()
        return segment_refs

    def _begin(self, probe: int, rows: Packed, probing: dict[int, list[Packed]]) -> None:
        """Queue rows for a probe of this level; forward those for a later level."""
        if self._probes.specs[probe].level == self._level:
            probing[probe].append(rows)
        else:
            self._to(self._partition).probing.append((probe, rows))

    def _start(self, storing: dict[int, list[Packed]], probing: dict[int, list[Packed]]) -> None:
        """Queue inserted rows for the probes that start in the partition of their store."""
        for roots in self._plan.root_probes.values():
            for root in roots:
                if root.routing.kind is RoutingKind.STORED:
                    for rows in storing.get(root.routing.colocated_store, ()):
                        self._begin(root.number, rows, probing)

    def _to(self, partition: int) -> Traffic:
        return self.onward.setdefault(partition, Traffic())

    def _probe(self, probe: ProbeStep, tuples: Tuples) -> None:
        loaded = self._probes.probe(probe.number)
        tuples = _restricted(tuples, loaded)
        if not tuples.count:
            return
        input_rows, output_rows = self.probed.get(probe.number, (0, 0))
        for matches in self._found(probe, Prober(loaded, tuples), loaded.stored[0]):
            output_rows += matches.count
            self._go_on(probe, matches)
        self.probed[probe.number] = (input_rows + tuples.count, output_rows)

    def _found(self, probe: ProbeStep, prober: Prober, relation: str) -> Iterator[Tuples]:
        """Yield the matches of a probe over all segments, in as few blocks as memory allows."""
        first_time, last_time = prober.span
        visible = np.uint64(self._plan.get_visible_mask(self._probes.starts[probe.number]))
        view = self._shelf.view(probe.store_number)
        pending: list[tuple[Pairs, Bits | None]] = []
        pending_pairs = 0
        for index, loaded in enumerate(view.shelved):
            sets, deltas = loaded.sets, None
            if loaded.ref.newest == self._job.batch:
                hidden = (loaded.bucket.fresh & ~visible) != 0
                if probe.before_batch is not None or hidden.all():
                    continue
                sets, deltas = np.where(hidden[:, None], np.uint64(0), sets), loaded.bucket.fresh
            elif (probe.before_batch is not None and loaded.ref.oldest >= probe.before_batch) or _apart(
                loaded.ref, relation, first_time, last_time
            ):
                continue
            for pairs in prober.pairs(loaded.bucket, sets):
                pair_deltas = None if deltas is None else deltas[pairs.theirs]
                pending.append((Pairs(pairs.own, pairs.theirs + view.begins[index], pairs.sets), pair_deltas))
                pending_pairs += len(pairs.own)
                if pending_pairs >= PAIRS:
                    yield from _joined(prober, pending, view.rows)
                    pending, pending_pairs = [], 0
        yield from _joined(prober, pending, view.rows)

    def _go_on(self, probe: ProbeStep, matches: Tuples) -> None:
        """Pass the rows that a probe found to complete queries, to state stores, and to the following probes."""
        if probe.completed_queries:
            self._finish([self._probes.queries[number] for number in probe.completed_queries], matches)
        for feed in probe.feeds:
            self._feed(feed, matches)
        for child in probe.children:
            child_rows = _restricted(matches, self._probes.probe(child.number))
            if child_rows.count and child.level == self._level and child.routing.kind is RoutingKind.LOCAL:
                self._probe(child, child_rows)
            elif child_rows.count:
                self._send(child.routing, child, child_rows)

    def _send(self, edge: ProbeRouting, child: ProbeStep, rows: Tuples) -> None:
        relations = child.covered_relations - self._probes.stores[child.store_number].relation.relations
        packed = rows.packed(self._probes.columns(relations, child.query_ids))
        for target, target_rows in sent(edge, packed, self._partition, self._job.partitions):
            self._to(target).probing.append((child.number, target_rows))

    def _feed(self, feed: StoreFeed, matches: Tuples) -> None:
        """Send rows to the state store of an intermediate result, for the queries that use it."""
        bits = self._probes.bits(self._plan.used_since[feed.store_number])
        sets = matches.sets & bits
        alive = compiled_join.find_live_rows(sets)
        if not alive.size:
            return
        spec = self._probes.stores[feed.store_number]
        rows = matches.take(alive, sets[alive]).packed(
            self._probes.columns(spec.relation.relations, self._plan.used_since[feed.store_number])
        )
        key = None if feed.routing.kind is RoutingKind.LOCAL else spec.partition_key
        targets = [(self._partition, rows)] if key is None else dealt(key, rows, self._partition, self._job.partitions)
        for target, target_rows in targets:
            self._to(target).storing.append((feed.store_number, feed.level, target_rows))

    def _finish(self, queries: Sequence[NormalizedJoin], rows: Tuples) -> None:
        """Emit joined rows of complete queries."""
        by_output: dict[tuple[object, ...], list[NormalizedJoin]] = defaultdict(list)
        for query in queries:
            by_output[query.output_signature].append(query)
        for same_output in by_output.values():
            bits, row_ids = compiled_join.list_rows_by_bit(rows.sets, self._probes.bits([query.id for query in same_output]))
            if not bits.size:
                continue
            query_of_bit = np.full(self._probes.width * 64, -1, np.int64)
            query_of_bit[[query.bit for query in same_output]] = [query.id for query in same_output]
            query_ids, selected = query_of_bit[bits], rows.take(row_ids)
            for expression in same_output[0].output:
                errors = selected.evaluate.errors(expression)
                if errors is not None:
                    mask = np.asarray(errors.to_numpy(zero_copy_only=False), np.bool_)
                    self._failures.add_rows(query_ids[mask], selected.evaluate.message(expression))
            columns = [combine_chunks(selected.evaluate(expression)) for expression in same_output[0].output]
            self._results.add(query_ids, pa.RecordBatch.from_arrays(columns, schema=same_output[0].schema.to_arrow()))
            self._relieve()


def _joined(prober: Prober, pending: Sequence[tuple[Pairs, Bits | None]], rows: JoinedRows) -> Iterator[Tuples]:
    if pending:
        own, theirs, sets = (np.concatenate([getattr(pairs, name) for pairs, _ in pending]) for name in ("own", "theirs", "sets"))
        all_deltas = [np.zeros(len(pairs.own), np.uint64) if deltas is None else deltas for pairs, deltas in pending]
        matches = prober.joined(Pairs(own, theirs, sets), rows, np.concatenate(all_deltas))
        if matches.count:
            yield matches


def _restricted(rows: Tuples, loaded: LoadedProbe) -> Tuples:
    """Return the rows that matter to a user of a probe."""
    sets = rows.sets & loaded.users
    alive = compiled_join.find_live_rows(sets)
    return rows.take(alive, sets[alive])


def _apart(ref: StoreRef, relation: str, first_time: int, last_time: int) -> bool:
    """Return whether no row of a segment lies in a span of event times."""
    earliest, latest = next(
        (first_row_time, last_row_time) for name, first_row_time, last_row_time in ref.spans if name == relation
    )
    return latest < first_time or earliest > last_time
