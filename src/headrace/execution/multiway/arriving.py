"""New rows of a stream on their way to multi-way joins: tagged, and sent to where they are stored and to where they probe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.execution.batch import Batch
from headrace.execution.multiway.loaded import LoadedProbes
from headrace.execution.multiway.sampling import Sample, sampled
from headrace.execution.multiway.sending import dealt, sent
from headrace.execution.multiway.tuples import Packed
from headrace.kernels import compiled_join, compiled_probe
from headrace.kernels.columns import flat
from headrace.kernels.sets import Sets
from headrace.sharing.multiway.asked import Asked, column_of, time_of
from headrace.sharing.multiway.probes import EdgeKind
from headrace.sharing.slicing import NEVER


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows for a partition: to be stored in a store, or to begin with a probe."""

    partition: int
    store: int | None
    probe: int | None
    rows: Packed


class Arriving:
    """The rows of one stream in one task; `watermarks` are those of the queries, by id, before this batch."""

    def __init__(self, probes: LoadedProbes, stream: str, batch: Batch, watermarks: Mapping[int, int]) -> None:
        """Take rows whose event time is not NULL."""
        self._probes, self._batch, self._watermarks = probes, batch, watermarks
        self.samples: dict[str, Sample] = {}
        self._relations = [name for name, found in probes.plan.streams.items() if found == stream]

    def deliveries(self, task: int, parts: int) -> Iterator[Delivery]:
        """Yield what goes where; `samples` are made on the way."""
        plan = self._probes.plan
        for relation in self._relations:
            rows = self._tagged(relation)
            if not rows.rows:
                continue
            self.samples[relation] = sampled(self._probes, relation, rows, self._batch.rows)
            for store in plan.fed(relation):
                for place, mine in dealt(store.key, rows, task, parts):
                    yield Delivery(place, store.number, None, mine)
            for root in plan.roots[relation]:
                if root.edge.kind is not EdgeKind.STORED:
                    for place, mine in sent(root.edge, rows, task, parts):
                        yield Delivery(place, None, root.number, mine)

    def late(self) -> Iterator[tuple[int, int]]:
        """Yield (query, late rows) for queries that have any."""
        times = self._batch.times
        for relation in self._relations:
            mine, tagger = self._probes.tags(relation)
            behind = [(one, self._late_before(one, relation)) for one in mine]
            behind = [(one, limit) for one, limit in behind if self._batch.first < limit]
            if behind:
                sets = tagger.of(self._batch)
                for one, limit in behind:
                    wanted = (sets[:, one.bit // 64] >> np.uint64(one.bit % 64) & np.uint64(1)).astype(np.bool_)
                    count = int((wanted & (times >= one.since) & (times < limit)).sum())
                    if count:
                        yield one.id, count

    def readers(self) -> Iterator[tuple[Asked, str]]:
        """Yield the queries that read the stream, with the relations it is to them."""
        for relation in self._relations:
            for one in self._probes.tags(relation)[0]:
                yield one, relation

    def _late_before(self, query: Asked, relation: str) -> int:
        watermark = self._watermarks[query.id]
        return NEVER if watermark == NEVER else watermark - query.inputs[relation].lateness

    def _tagged(self, relation: str) -> Packed:
        """Return the rows that matter to some query, with the columns that are needed of them."""
        mine, tagger = self._probes.tags(relation)
        sets = tagger.of(self._batch)
        limits: dict[int, list[Asked]] = defaultdict(list)
        for one in mine:
            limits[max(one.since, self._late_before(one, relation))].append(one)
        for limit, found in limits.items():
            if self._batch.first < limit:
                bits = self._probes.bits([one.id for one in found])[: sets.shape[1]]
                compiled_probe.too_early(self._batch.times, limit, bits, sets)
        rows = compiled_join.alive(sets)
        return self._packed(relation, rows, sets)

    def _packed(self, relation: str, rows: np.ndarray[tuple[int], np.dtype[np.int64]], sets: Sets) -> Packed:
        plan, table = self._probes.plan, self._batch.table
        everything = len(rows) == self._batch.rows
        picked = None if everything else pa.array(rows)
        names = [name for name in table.schema.names if column_of(relation, name) in plan.columns(frozenset({relation}))]
        columns = {column_of(relation, name): _taken(flat(table[name]), picked) for name in names}
        columns[time_of(relation)] = pa.array(self._batch.times if everything else self._batch.times[rows])
        return Packed(columns, sets if everything else sets[rows], np.full(len(rows), plan.fresh(relation), np.uint64))


def _taken(column: pa.Array, picked: pa.Array | None) -> pa.Array:
    return column if picked is None else column.take(picked)
