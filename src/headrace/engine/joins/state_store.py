"""The sliding-join state of one partition: segments in state files, evicted when past retention for every query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.engine.batch_job import BatchJob, SegmentRef
from headrace.engine.joins.index import IndexCache, RowIndexes
from headrace.engine.joins.joined_rows import JoinedRows, TableSelection
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.routing import take_share
from headrace.engine.joins.segment import RowSegment, build_indexes, concat_segments, get_event_times, view_columns
from headrace.engine.joins.segment_groups import SegmentExtent, group_segments
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps, mask_bit, resize_bitmaps, translate_sets
from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.planner.join.normalized_join import NormalizedJoin
from headrace.planner.query_bits import BitTranslation, find_bit_at, translate_bits
from headrace.planner.shared_plan import Backfill

_COMBINE_ROWS = 1 << 20  # rows per segment: copying so many costs less than many reads of each segment
_MAX_SEGMENTS = 8  # segments of a store before small adjacent ones are merged
_SPAN_FRACTION = 4  # a merged segment spans at most 1/4 of a store's batches, so that expired rows are evicted in time


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSegment:
    """A segment in memory: its rows with query-sets translated to the current bits, and its indexes."""

    ref: SegmentRef
    rows: RowSegment
    indexes: RowIndexes


@dataclass(frozen=True, slots=True, eq=False)
class StateView:
    """All segments of a store in this partition, concatenated; `offsets` holds the position of the first row of each.

    The concatenated rows have no query-sets: those of the segments are used.
    """

    segments: Sequence[LoadedSegment]
    offsets: Sequence[int]
    rows: JoinedRows


class JoinStateStore:
    """The state stores of one partition at one level."""

    def __init__(
        self,
        job: BatchJob,
        partition: int,
        level: int,
        get_watermark: Callable[[NormalizedJoin], int],
        forwarded: Sequence[SegmentRef],
        state_file: str,
    ) -> None:
        """`get_watermark` returns a query's watermark after this batch; `forwarded` are segments that earlier levels wrote.

        The caller writes the `new_segments` to `state_file`.
        """
        self._job, self._partition, self._level, self._get_watermark = job, partition, level, get_watermark
        self.loaded_plan: LoadedSlidingJoinPlan = job.load_sliding_join_plan()
        self._new_segments: list[tuple[SegmentRef, RowSegment]] = []
        self._state_file = state_file
        self._origin = job.find_state_origin(partition)
        own_refs = [ref for ref in job.segment_refs if self._origin.has(ref) and ref.store in self.loaded_plan.store_specs]
        stored = [] if self._origin.is_moved else list(map(self._origin.adopt, own_refs))
        self._repartitioned_refs = [ref for ref in forwarded if ref.newest_batch < job.batch]
        self.old_refs = [*stored, *self._repartitioned_refs]
        self.new_refs = [ref for ref in forwarded if ref.newest_batch == job.batch]
        self._loaded_segments: dict[tuple[str, int], LoadedSegment] = {}
        self._translations: dict[int, BitTranslation] = {}
        self._views: dict[int, StateView] = {}
        if self._origin.is_moved and level == 0:
            self._repartition_segments(own_refs)

    # --- reading ------------------------------------------------------------------------------------------------------

    def get_view(self, store: int) -> StateView:
        """Return the rows of a store: those of earlier batches, and those that this batch has inserted so far."""
        if store not in self._views:
            segments = [self.load_segment(ref) for ref in self.list_refs(store)]
            offsets = np.cumsum([0, *(segment.rows.row_count for segment in segments)]).tolist()
            table = view_columns([segment.rows for segment in segments], combine_limit=_COMBINE_ROWS)
            no_sets = np.zeros((offsets[-1], 0), np.uint64)
            self._views[store] = StateView(segments, offsets, JoinedRows([TableSelection(table)], no_sets))
        return self._views[store]

    def list_refs(self, store: int) -> list[SegmentRef]:
        """Return the segments of a store, of earlier batches and of this one."""
        return [ref for ref in (*self.old_refs, *self.new_refs) if ref.store == store]

    def load_segment(self, ref: SegmentRef) -> LoadedSegment:
        """Return a segment."""
        segment_key = (ref.file, ref.index)
        if segment_key not in self._loaded_segments:
            rows, index_cache = self._read_segment(ref)
            indexes = RowIndexes(rows.evaluate, rows.row_count, index_cache)
            self._loaded_segments[segment_key] = LoadedSegment(ref, replace(rows, sets=self._translate_sets(rows, ref)), indexes)
        return self._loaded_segments[segment_key]

    def _read_segment(self, ref: SegmentRef) -> tuple[RowSegment, IndexCache]:
        """Return the rows of a segment with all columns that queries need, and its indexes."""
        new_segment = next((segment for new_ref, segment in self._new_segments if new_ref == ref), None)
        rows, index_cache = self._job.load_segment(ref) if new_segment is None else (new_segment, dict(new_segment.indexes))
        names = self.loaded_plan.plan.find_needed_columns(self.loaded_plan.store_specs[ref.store].relation.relations)
        return rows.with_columns({name: self.loaded_plan.column_types[name] for name in names}), index_cache

    def _translate_sets(self, segment: RowSegment, ref: SegmentRef) -> QueryBitmaps:
        """Translate query-sets to the current bits: a bit may have stood for another query when the row was inserted."""
        queries, width, version = self.loaded_plan.plan.queries, self.loaded_plan.set_width, segment.bitmap_version
        newer_queries = [query for query in queries if self._job.first_batches[query.id] > version]
        first_batches = self.loaded_plan.plan.used_since.get(ref.store, {})
        rejoined = [(query_id, first_batch) for query_id, first_batch in first_batches.items() if first_batch > ref.oldest_batch]
        translation = self._get_translation(version)
        if translation.keeps(query.bit for query in queries) and not rejoined:
            return resize_bitmaps(segment.sets, width)
        translated = translate_sets(segment.sets, translation, width)
        for query in newer_queries:
            for backfill in query.backfills if not first_batches else ():
                if ref.spans[0][0] == backfill.relation:
                    bits = self.loaded_plan.make_query_bitmap([query.id])
                    translated[self._mask_backfilled_rows(segment, backfill, query)] |= bits
        for query_id, first_batch in rejoined:
            translated[segment.get_insert_batches() < first_batch] &= ~self.loaded_plan.make_query_bitmap([query_id])
        return translated

    def _get_translation(self, version: int) -> BitTranslation:
        """Return the translation of query-sets that a batch defined: of the queries that were live in it."""
        if version not in self._translations:
            queries = self.loaded_plan.plan.queries
            then = {
                query.id: find_bit_at(query.bit, query.former_bits, version)
                for query in queries
                if self._job.first_batches[query.id] <= version
            }
            self._translations[version] = translate_bits(then, {query.id: query.bit for query in queries})
        return self._translations[version]

    def _mask_backfilled_rows(self, segment: RowSegment, backfill: Backfill, borrower: NormalizedJoin) -> npt.NDArray[np.bool_]:
        """Return the mask of rows inserted for the lender since it was added, at or after the borrower's `since`."""
        is_seen = segment.get_insert_batches() >= backfill.first_batch
        bit = find_bit_at(backfill.bit, backfill.former_bits, segment.bitmap_version)
        return mask_bit(segment.sets, bit) & is_seen & (get_event_times(segment, backfill.relation) >= borrower.since)

    # --- writing ------------------------------------------------------------------------------------------------------

    def insert_rows(self, store: int, segments: Sequence[RowSegment]) -> None:
        """Insert rows of this batch as one segment, with the indexes that probes will use."""
        rows = concat_segments(segments, self.loaded_plan.set_width)
        insert_batch = np.full(rows.row_count, self._job.batch, np.int32)
        self.new_refs.append(self._add_segment(store, replace(rows, insert_batch=insert_batch, bitmap_version=self._job.batch)))
        self._views.pop(store, None)

    def _add_segment(self, store: int, segment: RowSegment) -> SegmentRef:
        spec = self.loaded_plan.store_specs[store]
        spans = tuple((name, *_find_span(get_event_times(segment, name))) for name in sorted(spec.relation.relations))
        batches = _find_span(segment.get_insert_batches())
        ref = SegmentRef(
            self._state_file, len(self._new_segments), self._partition, store, *batches, segment.row_count, spans, segment.bytes
        )
        self._new_segments.append((ref, build_indexes(segment, *self.loaded_plan.index_expressions[store])))
        return ref

    @property
    def new_segments(self) -> list[RowSegment]:
        """The segments of the state file of this task."""
        return [segment for _, segment in self._new_segments]

    def retain_segments(self) -> list[SegmentRef]:
        """Compact the store; return the segments retained after the batch: old ones at level 0, and those inserted here."""
        retained = [ref for ref in self.old_refs if self._is_retained(ref)] if self._level == 0 else []
        if self._level == 0:
            retained = self._compact_segments(retained)
        return [
            *retained,
            *(ref for ref, _ in self._new_segments if ref.newest_batch == self._job.batch and self._is_retained(ref)),
        ]

    def list_forwarded_refs(self) -> list[SegmentRef]:
        """Return the segments that later levels need and that are not in the job."""
        return [*self.new_refs, *self._repartitioned_refs]

    def _is_retained(self, ref: SegmentRef) -> bool:
        """Return whether a row that is not late could still match a row of a segment."""
        relations = {name for name, *_ in ref.spans}
        for query in self.loaded_plan.plan.queries:
            if relations <= set(query.inputs) and self._get_first_batch(query, relations) <= ref.newest_batch:
                watermark = self._get_watermark(query)
                if watermark == MIN_TIME or (watermark != MAX_TIME and self._is_within_retention(ref, query, watermark)):
                    return True
        return False

    def _get_first_batch(self, query: NormalizedJoin, relations: Iterable[str]) -> int:
        """Return the first batch of which a query sees stored rows of some relations."""
        first_batches = {backfill.relation: backfill.first_batch for backfill in query.backfills}
        own = self._job.first_batches[query.id]
        return max(first_batches.get(relation, own) for relation in relations)

    def _is_within_retention(self, ref: SegmentRef, query: NormalizedJoin, watermark: int) -> bool:
        return all(last + query.get_retention(name) >= watermark - query.lateness for name, _, last in ref.spans)

    def _compact_segments(self, refs: Sequence[SegmentRef]) -> list[SegmentRef]:
        """Return the segments after compaction: small adjacent ones are merged where a store has many."""
        by_store: dict[int, list[SegmentRef]] = defaultdict(list)
        for ref in refs:
            by_store[ref.store].append(ref)
        compacted: list[SegmentRef] = []
        for store, store_refs in by_store.items():
            store_refs.sort(key=lambda ref: (ref.oldest_batch, ref.newest_batch))
            for group in group_segments(store_refs, _measure_segment, _MAX_SEGMENTS, _SPAN_FRACTION):
                compacted += group if len(group) == 1 else self._merge_segments(store, group)
        return compacted

    def _merge_segments(self, store: int, refs: Sequence[SegmentRef]) -> list[SegmentRef]:
        live_set = self.loaded_plan.make_query_bitmap([query.id for query in self.loaded_plan.plan.queries])
        live_rows = []
        for rows in (self.load_segment(ref).rows for ref in refs):
            sets = rows.sets & live_set
            live_rows.append(replace(rows, sets=sets, delta_mask=None).take(join_kernels.find_live_rows(sets)))
        merged = replace(concat_segments(live_rows, self.loaded_plan.set_width), bitmap_version=self._job.batch)
        return [self._add_segment(store, merged)] if merged.row_count else []

    # --- repartitioning -----------------------------------------------------------------------------------------------

    def _repartition_segments(self, refs: Sequence[SegmentRef]) -> None:
        """Take this partition's share of the segments of partitions whose ranges overlap its own."""
        for ref in refs:
            key = self.loaded_plan.store_specs[ref.store].partition_key
            rows, _ = self._read_segment(ref)
            share = take_share(None if key is None else (key,), rows, ref.partition, self._origin)
            if share.row_count:
                self._repartitioned_refs.append(self._add_segment(ref.store, share))
        self.old_refs += self._repartitioned_refs


def _find_span(values: npt.NDArray[np.integer[Any]]) -> tuple[int, int]:
    return int(values.min()), int(values.max())


def _measure_segment(ref: SegmentRef) -> SegmentExtent:
    return SegmentExtent(ref.row_count, ref.oldest_batch, ref.newest_batch)
