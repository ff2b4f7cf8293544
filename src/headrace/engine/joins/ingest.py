"""New rows of a stream for sliding joins: assigned query-sets, and routed to state stores and to probes.

Rows are routed by the value of a key, to all partitions, or to the local one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.compute.keys import assign_partitions
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.sampling import RelationSample, sample_relation
from headrace.engine.joins.segment import PackedRows
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.engine.row_batch import RowBatch
from headrace.model.expression import Expression
from headrace.model.time import MIN_TIME
from headrace.planner.join.normalized_join import NormalizedJoin, qualify_column, time_column_of
from headrace.planner.join.sliding_join_plan import ProbeRouting, RoutingKind


def route_to_probe(
    edge: ProbeRouting, rows: PackedRows, partition: int, partition_count: int
) -> Iterator[tuple[int, PackedRows]]:
    """Yield (partition, rows) along an edge to a probe; rows with a NULL key match nothing and are dropped."""
    if edge.kind is RoutingKind.BROADCAST:
        yield from ((target, rows) for target in range(partition_count))
    elif edge.kind is RoutingKind.LOCAL:
        yield partition, rows
    else:
        assert edge.key is not None
        values = _evaluate_key(edge.key, rows)
        if values.null_count:
            rows = rows.take(np.flatnonzero(np.asarray(values.is_valid())))
            values = values.drop_null()
        yield from _split_by_partition(rows, assign_partitions([values], rows.row_count, partition_count))


def route_to_store(
    key: Expression | None, rows: PackedRows, partition: int, partition_count: int
) -> Iterator[tuple[int, PackedRows]]:
    """Yield (partition, rows) for a state store: by its key, or evenly if it has none."""
    if partition_count == 1:
        yield 0, rows
    elif key is None:
        yield from _split_by_partition(rows, (np.arange(rows.row_count) + partition) % partition_count)
    else:
        yield from _split_by_partition(rows, assign_partitions([_evaluate_key(key, rows)], rows.row_count, partition_count))


def _evaluate_key(key: Expression, rows: PackedRows) -> pa.Array:
    return combine_chunks(Evaluator(rows.columns, rows.row_count)(key))


def _split_by_partition(
    rows: PackedRows, targets: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[tuple[int, PackedRows]]:
    for target in np.unique(targets).tolist():
        yield target, rows.take(np.flatnonzero(targets == target))


@dataclass(frozen=True, slots=True)
class RowDelivery:
    """Rows for a partition: to insert into a state store, or to start a probe with."""

    partition: int
    store: int | None
    probe: int | None
    rows: PackedRows


class StreamIngest:
    """The rows of one stream in one task; `watermarks` are those of the queries before this batch, by id."""

    def __init__(self, loaded_plan: LoadedSlidingJoinPlan, stream: str, batch: RowBatch, watermarks: Mapping[int, int]) -> None:
        """Take rows whose event time is not NULL."""
        self._loaded_plan, self._batch, self._watermarks = loaded_plan, batch, watermarks
        self.samples: dict[str, RelationSample] = {}
        self._relations = [name for name, source in loaded_plan.plan.streams.items() if source == stream]

    def route_rows(self, task: int, partition_count: int) -> Iterator[RowDelivery]:
        """Yield the rows for each store and probe of each partition, and collect `samples`."""
        plan = self._loaded_plan.plan
        for relation in self._relations:
            rows = self._select_rows(relation)
            if not rows.row_count:
                continue
            self.samples[relation] = sample_relation(self._loaded_plan, relation, rows, self._batch.row_count)
            for store in plan.find_filled_stores(relation):
                for target, target_rows in route_to_store(store.partition_key, rows, task, partition_count):
                    yield RowDelivery(target, store.number, None, target_rows)
            for root in plan.root_probes[relation]:
                if root.routing.kind is not RoutingKind.STORED:
                    for target, target_rows in route_to_probe(root.routing, rows, task, partition_count):
                        yield RowDelivery(target, None, root.number, target_rows)

    def count_late_rows(self) -> Iterator[tuple[int, int]]:
        """Yield (query, late rows) for queries with late rows."""
        times = self._batch.times
        for relation in self._relations:
            queries, set_assigner = self._loaded_plan.get_readers(relation)
            limits = [(query, self._find_late_limit(query, relation)) for query in queries]
            limits = [(query, limit) for query, limit in limits if self._batch.min_time < limit]
            if limits:
                sets = set_assigner.assign_sets(self._batch)
                for query, limit in limits:
                    selected = (sets[:, query.bit // 64] >> np.uint64(query.bit % 64) & np.uint64(1)).astype(np.bool_)
                    count = int((selected & (times >= query.since) & (times < limit)).sum())
                    if count:
                        yield query.id, count

    def list_readers(self) -> Iterator[tuple[NormalizedJoin, str]]:
        """Yield the queries that read the stream, each with the relation that the stream is in it."""
        for relation in self._relations:
            for query in self._loaded_plan.get_readers(relation)[0]:
                yield query, relation

    def _find_late_limit(self, query: NormalizedJoin, relation: str) -> int:
        watermark = self._watermarks[query.id]
        return MIN_TIME if watermark == MIN_TIME else watermark - query.inputs[relation].lateness

    def _select_rows(self, relation: str) -> PackedRows:
        """Return the rows that matter to at least one query, with the columns that queries need."""
        queries, set_assigner = self._loaded_plan.get_readers(relation)
        sets = set_assigner.assign_sets(self._batch)
        limits: dict[int, list[NormalizedJoin]] = defaultdict(list)
        for query in queries:
            limits[max(query.since, self._find_late_limit(query, relation))].append(query)
        for limit, limited_queries in limits.items():
            if self._batch.min_time < limit:
                bits = self._loaded_plan.make_query_bitmap([query.id for query in limited_queries])[: sets.shape[1]]
                join_kernels.clear_early_rows(self._batch.times, limit, bits, sets)
        row_ids = join_kernels.find_live_rows(sets)
        return self._pack_rows(relation, row_ids, sets)

    def _pack_rows(self, relation: str, row_ids: np.ndarray[tuple[int], np.dtype[np.int64]], sets: QueryBitmaps) -> PackedRows:
        plan, table = self._loaded_plan.plan, self._batch.table
        is_full = len(row_ids) == self._batch.row_count
        arrow_ids = None if is_full else pa.array(row_ids)
        names = [
            name
            for name in table.schema.names
            if qualify_column(relation, name) in plan.find_needed_columns(frozenset({relation}))
        ]
        columns = {qualify_column(relation, name): _take_rows(combine_chunks(table[name]), arrow_ids) for name in names}
        columns[time_column_of(relation)] = pa.array(self._batch.times if is_full else self._batch.times[row_ids])
        return PackedRows(
            columns, sets if is_full else sets[row_ids], np.full(len(row_ids), plan.get_delta_bit(relation), np.uint64)
        )


def _take_rows(column: pa.Array, row_ids: pa.Array | None) -> pa.Array:
    return column if row_ids is None else column.take(row_ids)
