"""What one partition does for multi-way joins at one level of a micro-batch: store what arrived, probe, send on, give out."""

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
from headrace.kernels.columns import flat
from headrace.sharing.multiway.asked import Asked
from headrace.sharing.multiway.probes import Edge, EdgeKind, Feed, Probe


@dataclass(slots=True)
class Traffic:
    """Rows between levels: (probe, rows); (store, level from which they are there, rows); and buckets that were written."""

    probing: list[tuple[int, Packed]] = field(default_factory=list)
    storing: list[tuple[int, int, Packed]] = field(default_factory=list)
    stores: list[StoreRef] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """About how many bytes of arrays there are."""
        return sum(rows.bytes for _, rows in self.probing) + sum(rows.bytes for _, _, rows in self.storing)


def traffic(parcel: Parcel) -> Traffic:
    """Return what a task of stage one sent."""
    return Traffic(parcel.probing, [(store, 0, rows) for store, rows in parcel.storing])


class MultiwayLevel:
    """One partition at one level."""

    def __init__(
        self,
        job: Job,
        partition: int,
        level: int,
        marks: Callable[[Asked], int],
        results: Results,
        failures: Failures,
        relieve: Callable[[], None],
        handed: Sequence[StoreRef],
    ) -> None:
        """Take what is at hand; `marks` gives the watermark of a query after this batch, `relieve` is called after results."""
        self._job, self._partition, self._level = job, partition, level
        self._results, self._failures, self._relieve = results, failures, relieve
        self._shelf = Shelf(job, partition, level, marks, handed)
        self._probes = self._shelf.probes
        self._plan = self._probes.plan
        self.onward: dict[int, Traffic] = {}
        self.probed: dict[int, tuple[int, int]] = {}
        """Rows that came to a probe, and rows it made, by its number."""

    def run(self, arrived: Sequence[Traffic]) -> list[StoreRef]:
        """Work off what arrived; return the buckets that are kept."""
        storing: dict[int, list[Packed]] = defaultdict(list)
        probing: dict[int, list[Packed]] = defaultdict(list)
        for one in arrived:
            for store, due, rows in one.storing:
                if due == self._level:
                    storing[store].append(rows)
                else:
                    self._to(self._partition).storing.append((store, due, rows))
            for probe, rows in one.probing:
                self._begin(probe, rows, probing)
        for store, parts in storing.items():
            self._shelf.put(store, stored(parts, self._job.batch, *self._probes.indexes[store], self._probes.width))
        if self._level == 0:
            self._start(storing, probing)
        for number in sorted(probing):
            self._probe(self._probes.specs[number], unpacked(probing[number], self._probes.width))
        kept = self._shelf.keep()
        self._to(self._partition).stores += self._shelf.handed_on()
        return kept

    def _begin(self, probe: int, rows: Packed, probing: dict[int, list[Packed]]) -> None:
        """Take rows for a probe; if its time has not come, they wait."""
        if self._probes.specs[probe].level == self._level:
            probing[probe].append(rows)
        else:
            self._to(self._partition).probing.append((probe, rows))

    def _start(self, storing: dict[int, list[Packed]], probing: dict[int, list[Packed]]) -> None:
        """Begin with rows that were stored where they are to probe."""
        for roots in self._plan.roots.values():
            for root in roots:
                if root.edge.kind is EdgeKind.STORED:
                    for rows in storing.get(root.edge.store, ()):
                        self._begin(root.number, rows, probing)

    def _to(self, partition: int) -> Traffic:
        return self.onward.setdefault(partition, Traffic())

    def _probe(self, probe: Probe, tuples: Tuples) -> None:
        loaded = self._probes.probe(probe.number)
        tuples = _restricted(tuples, loaded)
        if not tuples.count:
            return
        came, made = self.probed.get(probe.number, (0, 0))
        for found in self._found(probe, Prober(loaded, tuples), loaded.stored[0]):
            made += found.count
            self._go_on(probe, found)
        self.probed[probe.number] = (came + tuples.count, made)

    def _found(self, probe: Probe, prober: Prober, relation: str) -> Iterator[Tuples]:
        """Yield what a probe makes: of all buckets together, in as few pieces as can be held."""
        first, last = prober.span
        visible = np.uint64(self._plan.visible(self._probes.starts[probe.number]))
        view = self._shelf.view(probe.store)
        waiting: list[tuple[Pairs, Bits | None]] = []
        held = 0
        for number, one in enumerate(view.shelved):
            sets, fresh = one.sets, None
            if one.ref.newest == self._job.batch:
                hidden = (one.bucket.fresh & ~visible) != 0
                if probe.before is not None or hidden.all():
                    continue
                sets, fresh = np.where(hidden[:, None], np.uint64(0), sets), one.bucket.fresh
            elif (probe.before is not None and one.ref.oldest >= probe.before) or _apart(one.ref, relation, first, last):
                continue
            for pairs in prober.pairs(one.bucket, sets):
                new = None if fresh is None else fresh[pairs.theirs]
                waiting.append((Pairs(pairs.own, pairs.theirs + view.begins[number], pairs.sets), new))
                held += len(pairs.own)
                if held >= PAIRS:
                    yield from _joined(prober, waiting, view.rows)
                    waiting, held = [], 0
        yield from _joined(prober, waiting, view.rows)

    def _go_on(self, probe: Probe, found: Tuples) -> None:
        """Give rows that a probe made to complete queries, to stores, and to the probes below."""
        if probe.ends:
            self._finish([self._probes.queries[number] for number in probe.ends], found)
        for feed in probe.feeds:
            self._feed(feed, found)
        for child in probe.children:
            mine = _restricted(found, self._probes.probe(child.number))
            if mine.count and child.level == self._level and child.edge.kind is EdgeKind.LOCAL:
                self._probe(child, mine)
            elif mine.count:
                self._send(child.edge, child, mine)

    def _send(self, edge: Edge, child: Probe, rows: Tuples) -> None:
        have = child.covered - self._probes.stores[child.store].relation.relations
        packed = rows.packed(self._probes.columns(have, child.users))
        for place, mine in sent(edge, packed, self._partition, self._job.partitions):
            self._to(place).probing.append((child.number, mine))

    def _feed(self, feed: Feed, found: Tuples) -> None:
        """Send rows to the store of a join that is kept, for the queries that use it."""
        bits = self._probes.bits(self._plan.uses[feed.store])
        sets = found.sets & bits
        alive = compiled_join.alive(sets)
        if not alive.size:
            return
        spec = self._probes.stores[feed.store]
        rows = found.take(alive, sets[alive]).packed(self._probes.columns(spec.relation.relations, self._plan.uses[feed.store]))
        key = None if feed.edge.kind is EdgeKind.LOCAL else spec.key
        places = [(self._partition, rows)] if key is None else dealt(key, rows, self._partition, self._job.partitions)
        for place, mine in places:
            self._to(place).storing.append((feed.store, feed.level, mine))

    def _finish(self, queries: Sequence[Asked], rows: Tuples) -> None:
        """Give joined rows to queries that are complete."""
        by_tail: dict[tuple[object, ...], list[Asked]] = defaultdict(list)
        for one in queries:
            by_tail[one.tail].append(one)
        for alike in by_tail.values():
            bits, places = compiled_join.members(rows.sets, self._probes.bits([one.id for one in alike]))
            if not bits.size:
                continue
            ids = np.full(self._probes.width * 64, -1, np.int64)
            ids[[one.bit for one in alike]] = [one.id for one in alike]
            owners, found = ids[bits], rows.take(places)
            for expression in alike[0].output:
                bad = found.evaluate.errors(expression)
                if bad is not None:
                    mask = np.asarray(bad.to_numpy(zero_copy_only=False), np.bool_)
                    self._failures.add_rows(owners[mask], found.evaluate.message(expression))
            columns = [flat(found.evaluate(expression)) for expression in alike[0].output]
            self._results.add(owners, pa.RecordBatch.from_arrays(columns, schema=alike[0].schema.to_arrow()))
            self._relieve()


def _joined(prober: Prober, found: Sequence[tuple[Pairs, Bits | None]], rows: JoinedRows) -> Iterator[Tuples]:
    if found:
        own, theirs, sets = (np.concatenate([getattr(one, name) for one, _ in found]) for name in ("own", "theirs", "sets"))
        new = [np.zeros(len(one.own), np.uint64) if fresh is None else fresh for one, fresh in found]
        joined = prober.joined(Pairs(own, theirs, sets), rows, np.concatenate(new))
        if joined.count:
            yield joined


def _restricted(rows: Tuples, loaded: LoadedProbe) -> Tuples:
    """Return the rows that matter to a user of a probe."""
    sets = rows.sets & loaded.users
    alive = compiled_join.alive(sets)
    return rows.take(alive, sets[alive])


def _apart(ref: StoreRef, relation: str, first: int, last: int) -> bool:
    """Tell whether no row of a bucket lies in a span of event times."""
    earliest, latest = next((early, late) for name, early, late in ref.spans if name == relation)
    return latest < first or earliest > last
