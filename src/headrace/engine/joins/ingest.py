"""New rows of a stream for joins, in the map stage: assigned query-sets, and routed to join buffers, state stores and probes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.compute.keys import assign_partitions
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.routing import ProbeAddress, RoutedRows, StoreAddress, route_to_probe, route_to_store, split_rows
from headrace.engine.joins.row_references import ROW_ID, make_references
from headrace.engine.joins.sampling import RelationSample, sample_relation
from headrace.engine.joins.segment import RowSegment
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps, QuerySetAssigner, mask_bit, resize_bitmaps
from headrace.engine.row_batch import KeyEncoder, RowBatch
from headrace.model.partition_map import PartitionMap
from headrace.model.time import MIN_TIME
from headrace.planner.join.normalized_join import NormalizedJoin, qualify_column, time_column_of
from headrace.planner.join.sliding_join_plan import RoutingKind
from headrace.planner.shared_plan import JoinBuffer


def buffer_rows(
    buffer: JoinBuffer,
    columns: dict[str, pa.Array],
    query_sets: QueryBitmaps,
    batch: RowBatch,
    encoder: KeyEncoder,
    partitions: PartitionMap,
    oldest: int,
    sender: int,
) -> Iterator[tuple[int, int, RowSegment]]:
    """Yield (partition, start of slice, rows with `columns`) for a join buffer.

    Rows of no query, or older than `oldest`, are dropped.

    Rows of a buffer without keys are spread evenly.
    """
    if batch.min_time < oldest:
        query_sets[batch.times < oldest] = 0
    rows = join_kernels.find_live_rows(query_sets)
    if not rows.size:
        return
    is_full = rows.size == batch.row_count
    keys = [combine_chunks(batch.evaluate_unguarded(key)) for key in buffer.keys]
    keys = keys if is_full else [key.take(pa.array(rows)) for key in keys]
    edges = encoder.find_slice_edges(buffer.slice_progressions)
    slices = np.searchsorted(edges, batch.times if is_full else batch.times[rows], side="right") - 1
    owners = assign_partitions(keys, rows.size, partitions) if keys else (np.arange(rows.size) + sender) % partitions.count
    targets = owners * len(edges) + slices
    segment = RowSegment(columns, query_sets)
    for target, target_rows in split_rows(segment, targets, partitions.count * len(edges), None if is_full else rows):
        yield target // len(edges), int(edges[target % len(edges)]), target_rows


class BufferIngest:
    """The rows of one epoch for the join buffers of a plan: query-sets and references of rows, each computed once."""

    def __init__(
        self,
        buffers: Sequence[JoinBuffer],
        set_assigners: Sequence[QuerySetAssigner],
        batch: RowBatch,
        make_row_ids: Callable[[], pa.Array | None],
    ) -> None:
        """`make_row_ids` returns the ids of the rows; None if they have none, so that all buffers store them in full."""
        self.batch = batch
        self._buffers, self._set_assigners, self._make_row_ids = buffers, set_assigners, make_row_ids
        self._home_sets: dict[int, QueryBitmaps] = {}
        self._references: dict[int, dict[str, pa.Array]] = {}

    @cached_property
    def _row_ids(self) -> pa.Array | None:
        return self._make_row_ids()

    def assign_sets(self, number: int) -> QueryBitmaps:
        """Return the query-set of every row for a join buffer; it may contain queries of other buffers with the same home."""
        buffer, assigner = self._buffers[number], self._set_assigners[number]
        home = number if buffer.has_row_ids else buffer.home
        if home is None:
            return assigner.assign_sets(self.batch)
        if home not in self._home_sets:
            self._home_sets[home] = self._set_assigners[home].assign_sets(self.batch)
        return resize_bitmaps(self._home_sets[home], assigner.width)

    def collect_columns(self, number: int) -> dict[str, pa.Array]:
        """Return the columns that a join buffer stores: of rows with their ids, of references to rows, or of rows alone."""
        buffer = self._buffers[number]
        names, added = buffer.columns, dict[str, pa.Array]()
        if buffer.has_row_ids:
            added = {} if self._row_ids is None else {ROW_ID: self._row_ids}
        elif buffer.home is not None and self._row_ids is None:
            names = self._buffers[buffer.home].columns
        elif buffer.home is not None:
            added = self._get_references(buffer.home, self._row_ids)
        return {name: combine_chunks(self.batch.table[name]) for name in names} | added

    def _get_references(self, home: int, row_ids: pa.Array) -> dict[str, pa.Array]:
        if home not in self._references:
            home_keys = [combine_chunks(self.batch.evaluate_unguarded(key)) for key in self._buffers[home].keys]
            self._references[home] = make_references(row_ids, home_keys)
        return self._references[home]


class StreamIngest:
    """The rows of one stream in one task; `watermarks` are those of the queries before this batch, by id."""

    def __init__(self, loaded_plan: LoadedSlidingJoinPlan, stream: str, batch: RowBatch, watermarks: Mapping[int, int]) -> None:
        """Take rows whose event time is not NULL."""
        self._loaded_plan, self._batch, self._watermarks = loaded_plan, batch, watermarks
        self.samples: dict[str, RelationSample] = {}
        self._relations = [name for name, source in loaded_plan.plan.streams.items() if source == stream]

    def route_rows(self, task: int, partitions: PartitionMap) -> Iterator[tuple[int, RoutedRows]]:
        """Yield (partition, rows) for each store and probe, and collect `samples`."""
        plan = self._loaded_plan.plan
        for relation in self._relations:
            rows = self._select_rows(relation)
            if not rows.row_count:
                continue
            self.samples[relation] = sample_relation(self._loaded_plan, relation, rows, self._batch.row_count)
            for store in plan.find_filled_stores(relation):
                for target, target_rows in route_to_store(store.partition_key, rows, task, partitions):
                    yield target, RoutedRows(StoreAddress(store.number, 0), target_rows)
            for root in plan.root_probes[relation]:
                if root.routing.kind is not RoutingKind.STORED:
                    for target, target_rows in route_to_probe(root.routing, rows, task, partitions):
                        yield target, RoutedRows(ProbeAddress(root.number), target_rows)

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
                    count = int((mask_bit(sets, query.bit) & (times >= query.since) & (times < limit)).sum())
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

    def _select_rows(self, relation: str) -> RowSegment:
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

    def _pack_rows(self, relation: str, row_ids: np.ndarray[tuple[int], np.dtype[np.int64]], sets: QueryBitmaps) -> RowSegment:
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
        return RowSegment(
            columns,
            sets if is_full else sets[row_ids],
            np.full(len(row_ids), self._loaded_plan.get_delta_mask([relation]), np.uint64),
        )


def _take_rows(column: pa.Array, row_ids: pa.Array | None) -> pa.Array:
    return column if row_ids is None else column.take(row_ids)
