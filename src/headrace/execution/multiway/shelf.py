"""The sliding-join state of one partition: segments in state files, evicted when past retention for every query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.execution.job import Job, StoreRef
from headrace.execution.joined_rows import JoinedRows, Pieces, Table, all_of
from headrace.execution.multiway.loaded import LoadedProbes
from headrace.execution.multiway.stored import Stored, indexed, united
from headrace.execution.multiway.tuples import Integers
from headrace.kernels import compiled_join, pack
from headrace.kernels.columns import combine_chunks
from headrace.kernels.keys import assign_partitions
from headrace.kernels.sets import QueryBitmaps, resize_bitmaps
from headrace.sharing.multiway.asked import NormalizedJoin
from headrace.sharing.multiway.loan import Backfill
from headrace.sharing.multiway.probes import StoreSpec
from headrace.sharing.slicing import MAX_TIME, MIN_TIME

_COPIED = 1 << 20  # rows per segment: copying so many costs less than many reads of each segment
_MANY = 8  # segments of a store before small adjacent ones are merged
_SPANS = 4  # a merged segment spans at most 1/4 of a store's batches, so that expired rows are evicted in time


@dataclass(slots=True, eq=False)
class Shelved:
    """A segment in memory: its rows, and their query-sets translated to the current bits."""

    ref: StoreRef
    bucket: Stored
    sets: QueryBitmaps


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """All segments of a store in this partition, concatenated; `offsets` holds the position of the first row of each."""

    shelved: Sequence[Shelved]
    begins: Sequence[int]
    rows: JoinedRows


class Shelf:
    """The state stores of one partition at one level."""

    def __init__(
        self, job: Job, partition: int, level: int, get_watermark: Callable[[NormalizedJoin], int], forwarded: Sequence[StoreRef]
    ) -> None:
        """`get_watermark` returns a query's watermark after this batch; `forwarded` are segments that earlier levels wrote."""
        self._job, self._partition, self._level, self._marks = job, partition, level, get_watermark
        self.probes: LoadedProbes = job.probes()
        self._directory = Path(job.directory)
        self._new: list[tuple[StoreRef, Stored]] = []
        self._file = f"state/{job.batch:010d}-{partition:05d}-{level}.stores"
        repartition = job.dealt != job.partitions
        stored = (
            [] if repartition else [ref for ref in job.stores if ref.partition == partition and ref.store in self.probes.stores]
        )
        self._dealt = [ref for ref in forwarded if ref.newest < job.batch]
        self.old = [*stored, *self._dealt]
        self.fresh = [ref for ref in forwarded if ref.newest == job.batch]
        self._at_hand: dict[tuple[str, int], Shelved] = {}
        self._views: dict[int, View] = {}
        if repartition and level == 0:
            self._deal()

    # --- reading ------------------------------------------------------------------------------------------------------

    def view(self, store: int) -> View:
        """Return the rows of a store: those of earlier batches, and those that this batch has inserted so far."""
        if store not in self._views:
            segments = [self.load(ref) for ref in (*self.old, *self.fresh) if ref.store == store]
            offsets = np.concatenate([[0], np.cumsum([segment.bucket.rows for segment in segments])]).astype(np.int64).tolist()
            first_columns = segments[0].bucket.columns if segments else ()
            names = [name for name in first_columns if all(name in segment.bucket.columns for segment in segments)]
            table = Table(
                {name: Pieces([segment.bucket.columns[name] for segment in segments], _COPIED) for name in names}, offsets[-1]
            )
            self._views[store] = View(segments, offsets, all_of(table, np.zeros((offsets[-1], 0), np.uint64)))
        return self._views[store]

    def load(self, ref: StoreRef) -> Shelved:
        """Return a segment."""
        segment_key = (ref.file, ref.index)
        if segment_key not in self._at_hand:
            segment = next((new_segment for new_ref, new_segment in self._new if new_ref == ref), None) or self._stored(ref)
            sets = self._meant(segment, ref)
            self._at_hand[segment_key] = Shelved(ref, segment, sets)
        return self._at_hand[segment_key]

    def _stored(self, ref: StoreRef) -> Stored:
        names = self.probes.plan.find_needed_columns(self.probes.stores[ref.store].relation.relations)
        return self._job.stored(ref).with_columns({name: self.probes.types[name] for name in names})

    def _meant(self, segment: Stored, ref: StoreRef) -> QueryBitmaps:
        """Translate query-sets to the current bits: a bit may have belonged to another query when the row was inserted."""
        sets = resize_bitmaps(segment.sets, self.probes.width)
        newer_queries = [query for query in self.probes.plan.queries if self._job.born[query.id] > segment.meant]
        first_batches = self.probes.plan.used_since.get(ref.store, {})
        rejoined = [(query_id, first_batch) for query_id, first_batch in first_batches.items() if first_batch > ref.oldest]
        if not newer_queries and not rejoined:
            return sets
        translated = sets.copy()
        for query in newer_queries:
            bits = self.probes.bits([query.id])
            translated &= ~bits
            for backfill in query.backfills if not first_batches else ():
                if ref.spans[0][0] == backfill.relation:
                    translated[self._lent(segment, sets, backfill, query)] |= bits
        for query_id, first_batch in rejoined:
            translated[segment.births < first_batch] &= ~self.probes.bits([query_id])
        return translated

    def _lent(self, segment: Stored, sets: QueryBitmaps, backfill: Backfill, borrower: NormalizedJoin) -> npt.NDArray[np.bool_]:
        """Return the mask of rows inserted for the lender since it was added, at or after the borrower's `since`."""
        word = sets[:, backfill.bit // 64] if backfill.bit // 64 < sets.shape[1] else np.zeros(segment.rows, np.uint64)
        has_bit = (word >> np.uint64(backfill.bit % 64) & np.uint64(1)).astype(np.bool_)
        return has_bit & (segment.births >= backfill.first_batch) & (segment.times(backfill.relation) >= borrower.since)

    # --- writing ------------------------------------------------------------------------------------------------------

    def put(self, store: int, segment: Stored) -> None:
        """Insert the rows of this batch."""
        self.fresh.append(self._add(store, segment))
        self._views.pop(store, None)

    def _add(self, store: int, segment: Stored) -> StoreRef:
        spec = self.probes.stores[store]
        spans = tuple((name, *_span(segment.times(name))) for name in sorted(spec.relation.relations))
        batches = (int(segment.births.min()), int(segment.births.max()))
        ref = StoreRef(self._file, len(self._new), self._partition, store, *batches, segment.rows, spans, segment.bytes)
        self._new.append((ref, segment))
        return ref

    def keep(self) -> list[StoreRef]:
        """Write new segments; return those retained after the batch: old ones at level 0, and those inserted here."""
        retained = [ref for ref in self.old if self._is_needed(ref)] if self._level == 0 else []
        if self._level == 0:
            retained = self._few(retained)
        retained += [ref for ref, _ in self._new if ref.newest == self._job.batch and self._is_needed(ref)]
        if self._new:
            pack.write(self._directory / self._file, [segment for _, segment in self._new])
        return retained

    def handed_on(self) -> list[StoreRef]:
        """Return the segments that later levels need and that are not in the job."""
        return [*self.fresh, *self._dealt]

    def _is_needed(self, ref: StoreRef) -> bool:
        """Return whether a row that is not late could still match a row of a segment."""
        relations = {name for name, *_ in ref.spans}
        for query in self.probes.plan.queries:
            if relations <= set(query.inputs) and self._born(query) <= ref.newest:
                watermark = self._marks(query)
                if watermark == MIN_TIME or (watermark != MAX_TIME and self._reaches(ref, query, watermark)):
                    return True
        return False

    def _born(self, query: NormalizedJoin) -> int:
        return max((backfill.first_batch for backfill in query.backfills), default=self._job.born[query.id])

    def _reaches(self, ref: StoreRef, query: NormalizedJoin, watermark: int) -> bool:
        return all(last + query.inputs[name].length >= watermark - query.lateness for name, _, last in ref.spans)

    def _few(self, refs: Sequence[StoreRef]) -> list[StoreRef]:
        """Return the segments after compaction: small adjacent ones are merged where a store has many."""
        by_store: dict[int, list[StoreRef]] = defaultdict(list)
        for ref in refs:
            by_store[ref.store].append(ref)
        compacted: list[StoreRef] = []
        for store, store_refs in by_store.items():
            store_refs.sort(key=lambda ref: (ref.oldest, ref.newest))
            if len(store_refs) <= _MANY:
                compacted += store_refs
                continue
            for group in _groups(store_refs, _spanned(store_refs) // _SPANS):
                compacted += group if len(group) == 1 else self._unite(store, group)
        return compacted

    def _unite(self, store: int, refs: Sequence[StoreRef]) -> list[StoreRef]:
        segments = [self.load(ref) for ref in refs]
        live_set = self.probes.bits([query.id for query in self.probes.plan.queries])
        live_segments = [replace(segment.bucket, sets=segment.sets & live_set) for segment in segments]
        row_ids = [compiled_join.find_live_rows(segment.sets) for segment in live_segments]
        merged = united(live_segments, row_ids, self.probes.width, self._job.batch)
        return [self._add(store, indexed(merged, *self.probes.indexes[store]))] if merged.rows else []

    # --- repartitioning -----------------------------------------------------------------------------------------------

    def _deal(self) -> None:
        """Take this partition's share of all segments."""
        for ref in self._job.stores:
            spec = self.probes.stores.get(ref.store)
            if spec is not None:
                segment = self._stored(ref)
                row_ids = self._share(spec, segment, ref)
                if row_ids.size:
                    share = united([segment], [row_ids], segment.sets.shape[1], segment.meant)
                    self._dealt.append(self._add(ref.store, indexed(share, *self.probes.indexes[ref.store])))
        self.old += self._dealt

    def _share(self, spec: StoreSpec, segment: Stored, ref: StoreRef) -> Integers:
        if spec.partition_key is None:
            targets = (np.arange(segment.rows) + ref.partition) % self._job.partitions
        else:
            targets = assign_partitions(
                [combine_chunks(segment.evaluate(spec.partition_key))], segment.rows, self._job.partitions
            )
        return np.flatnonzero(targets == self._partition)


def _span(times: Integers) -> tuple[int, int]:
    return int(times.min()), int(times.max())


def _groups(refs: Sequence[StoreRef], max_batches: int) -> list[list[StoreRef]]:
    """Group adjacent segments to merge: a group spans at most `max_batches` batches, and its first part is not much larger."""
    groups: list[list[StoreRef]] = []
    for ref in refs:
        groups.append([ref])
        while len(groups) > 1 and _rows(groups[-2]) <= 2 * _rows(groups[-1]) and _spanned(groups[-2] + groups[-1]) <= max_batches:
            groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def _rows(refs: Sequence[StoreRef]) -> int:
    return sum(ref.rows for ref in refs)


def _spanned(refs: Sequence[StoreRef]) -> int:
    """Return the number of batches that segments span; event times of joined rows would not tell their age."""
    return 1 + max(ref.newest for ref in refs) - min(ref.oldest for ref in refs)
