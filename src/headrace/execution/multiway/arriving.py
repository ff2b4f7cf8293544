"""New rows of a stream for sliding joins: assigned query-sets, and routed to state stores and to probes."""

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
from headrace.kernels.columns import combine_chunks
from headrace.kernels.sets import QueryBitmaps
from headrace.sharing.multiway.asked import NormalizedJoin, qualify_column, time_column_of
from headrace.sharing.multiway.probes import RoutingKind
from headrace.sharing.slicing import MIN_TIME


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows for a partition: to insert into a state store, or to start a probe with."""

    partition: int
    store: int | None
    probe: int | None
    rows: Packed


class Arriving:
    """The rows of one stream in one task; `watermarks` are those of the queries before this batch, by id."""

    def __init__(self, loaded_plan: LoadedProbes, stream: str, batch: Batch, watermarks: Mapping[int, int]) -> None:
        """Take rows whose event time is not NULL."""
        self._probes, self._batch, self._watermarks = loaded_plan, batch, watermarks
        self.samples: dict[str, Sample] = {}
        self._relations = [name for name, source in loaded_plan.plan.streams.items() if source == stream]

    def deliveries(self, task: int, partition_count: int) -> Iterator[Delivery]:
        """Yield the rows for each store and probe of each partition, and collect `samples`."""
        plan = self._probes.plan
        for relation in self._relations:
            rows = self._tagged(relation)
            if not rows.rows:
                continue
            self.samples[relation] = sampled(self._probes, relation, rows, self._batch.rows)
            for store in plan.find_filled_stores(relation):
                for target, target_rows in dealt(store.partition_key, rows, task, partition_count):
                    yield Delivery(target, store.number, None, target_rows)
            for root in plan.root_probes[relation]:
                if root.routing.kind is not RoutingKind.STORED:
                    for target, target_rows in sent(root.routing, rows, task, partition_count):
                        yield Delivery(target, None, root.number, target_rows)

    def late(self) -> Iterator[tuple[int, int]]:
        """Yield (query, late rows) for queries with late rows."""
        times = self._batch.times
        for relation in self._relations:
            queries, set_assigner = self._probes.tags(relation)
            limits = [(query, self._late_before(query, relation)) for query in queries]
            limits = [(query, limit) for query, limit in limits if self._batch.first < limit]
            if limits:
                sets = set_assigner.of(self._batch)
                for query, limit in limits:
                    selected = (sets[:, query.bit // 64] >> np.uint64(query.bit % 64) & np.uint64(1)).astype(np.bool_)
                    count = int((selected & (times >= query.since) & (times < limit)).sum())
                    if count:
                        yield query.id, count

    def readers(self) -> Iterator[tuple[NormalizedJoin, str]]:
        """Yield the queries that read the stream, each with the relation that the stream is in it."""
        for relation in self._relations:
            for query in self._probes.tags(relation)[0]:
                yield query, relation

    def _late_before(self, query: NormalizedJoin, relation: str) -> int:
        watermark = self._watermarks[query.id]
        return MIN_TIME if watermark == MIN_TIME else watermark - query.inputs[relation].lateness

    def _tagged(self, relation: str) -> Packed:
        """Return the rows that matter to at least one query, with the columns that queries need."""
        queries, set_assigner = self._probes.tags(relation)
        sets = set_assigner.of(self._batch)
        limits: dict[int, list[NormalizedJoin]] = defaultdict(list)
        for query in queries:
            limits[max(query.since, self._late_before(query, relation))].append(query)
        for limit, limited_queries in limits.items():
            if self._batch.first < limit:
                bits = self._probes.bits([query.id for query in limited_queries])[: sets.shape[1]]
                compiled_probe.clear_early_rows(self._batch.times, limit, bits, sets)
        row_ids = compiled_join.find_live_rows(sets)
        return self._packed(relation, row_ids, sets)

    def _packed(self, relation: str, row_ids: np.ndarray[tuple[int], np.dtype[np.int64]], sets: QueryBitmaps) -> Packed:
        plan, table = self._probes.plan, self._batch.table
        is_full = len(row_ids) == self._batch.rows
        arrow_ids = None if is_full else pa.array(row_ids)
        names = [
            name
            for name in table.schema.names
            if qualify_column(relation, name) in plan.find_needed_columns(frozenset({relation}))
        ]
        columns = {qualify_column(relation, name): _taken(combine_chunks(table[name]), arrow_ids) for name in names}
        columns[time_column_of(relation)] = pa.array(self._batch.times if is_full else self._batch.times[row_ids])
        return Packed(columns, sets if is_full else sets[row_ids], np.full(len(row_ids), plan.get_delta_bit(relation), np.uint64))


def _taken(column: pa.Array, row_ids: pa.Array | None) -> pa.Array:
    return column if row_ids is None else column.take(row_ids)
