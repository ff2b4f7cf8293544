"""Pairs of overlapping windows, found once: the first step of window joins with the pairs that earlier windows found.

Where windows overlap, a pair of rows is in several of them. The pairs of the first step of a path, between two join buffers, are
kept in the memory of the worker, with an index of the rows of each side (`kept_pairs`). In a round, only rows that are new since
the last one are indexed, and their hashes are matched with those of the other side:

              older right rows   new right rows
    older     pairs kept         new rows are looked up
    new       new rows are       both are matched
              looked up

Pairs depend neither on queries nor on windows, so all queries and kinds of joins whose first step has these buffers and keys
share them: a row that is in no window of a round has no place there, and query-sets are intersected in every round.

Pairs are kept while that costs less than to find them again, in bytes and in time (`RoundWork`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.joins.index import (
    MAX_PAIRS,
    RowIds,
    RowPairs,
    build_hash_index,
    is_exact_key,
    keep_equal_keys,
    view_read_only,
)
from headrace.engine.joins.joined_rows import JoinedRows, TableSelection
from headrace.engine.joins.kept_pairs import (
    BufferName,
    KeptPairStore,
    PairCounts,
    PairsOfBlocks,
    RowBlock,
    SegmentName,
    StepBuffers,
)
from headrace.engine.joins.segment import RowSegment, view_columns
from headrace.engine.kernels import kept_pairs as pair_kernels
from headrace.engine.operators.query_sets import QueryBitmaps, count_words
from headrace.model.join_slices import JoinSliceOptions, JoinSlices

_PlaceRange = tuple[int, RowIds]
"""The place of row r of a block among the rows of a round is base + r or, if there are places, places[r]; −1 without one."""

_MAX_CANDIDATES = 4  # candidate pairs that are compared for each pair that may be kept
_PAIR_BYTES = 8
_SPARSE_FRACTION = 16  # where fewer rows than one in so many have a partner, not all are visited
_ORDERING_QUERIES = 4  # ordering pairs takes 15 ns each, and saves as much where some queries read their columns
_NO_PLACES = np.empty(0, np.int32)

# Nanoseconds, measured: see docs/decisions/0029.
_INDEX_ROW, _LOOK_UP_ROW, _MATCH_ROW, _READ_PAIR = 15, 17, 3, 8
_FIND_PAIR, _FIND_CACHED_PAIR = 45, 3  # the second where the rows of the build side fit the cache
_CACHED_ROWS = 1 << 17


class BufferedRows(Protocol):
    """Rows of a join buffer in this partition (`window_join.BufferSlice`)."""

    @property
    def name(self) -> SegmentName:
        """The name of their segment."""

    @property
    def rows(self) -> RowSegment:
        """The rows, with the columns of the stream."""

    def get_sets(self, width: int) -> QueryBitmaps:
        """Return the query-sets of the rows in the bits of now."""


@dataclass(frozen=True, slots=True, eq=False)
class LeafPart:
    """A segment of which a round has rows: all of them, or those of `row_ids`; `first` is the place of the first one."""

    stored: BufferedRows
    row_ids: npt.NDArray[np.int64] | None
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class JoinSide:
    """One side of a step in a round: its buffer, all its stored rows, and those that are in a window.

    `selected` are the rows of the round that take part in the step, by their place in the leaf; None stands for all of them.
    """

    buffer: BufferName
    stored: Sequence[BufferedRows]
    parts: Sequence[LeafPart]
    row_count: int
    sets: QueryBitmaps
    selected: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class RoundWork:
    """The work of a step in a round, in rows and pairs: to find its pairs again, or to read those kept and find the new ones."""

    probe_rows: int
    build_rows: int
    window_pairs: float
    new_rows: int
    matched_rows: int
    read_pairs: int

    @property
    def saves_time(self) -> bool:
        """Whether to keep pairs takes less time; new pairs are found in either case."""
        find_pair = _FIND_CACHED_PAIR if self.build_rows <= _CACHED_ROWS else _FIND_PAIR
        found = self.probe_rows * _LOOK_UP_ROW + self.build_rows * _INDEX_ROW + self.window_pairs * find_pair
        kept = self.new_rows * _INDEX_ROW + self.matched_rows * _MATCH_ROW + self.read_pairs * _READ_PAIR
        return kept <= found


class _SideView:
    """One side of a step in a round: its blocks, its new rows, and the places of rows among those that take part."""

    def __init__(self, side: JoinSide, blocks: Sequence[RowBlock], width: int) -> None:
        """`width` is that of the query-sets of all queries, in words."""
        self.keys, self.row_count, self.blocks, self._width = side.buffer[1], len(side.sets), list(blocks), width
        self._stored = {stored.name: stored for stored in side.stored}
        self._places = {part.stored.name: (part.first, part.row_ids) for part in side.parts}
        known = {name for block in blocks for name in block.names}
        self._new = [part.stored for part in side.parts if part.stored.name not in known]
        self.new_rows = sum(stored.rows.row_count for stored in self._new)
        self._sets: dict[RowBlock, QueryBitmaps] = {}
        self._selected_places: npt.NDArray[np.int32] | None = None
        if side.selected is not None:
            self._selected_places = np.full(side.row_count, -1, np.int32)
            self._selected_places[side.selected] = np.arange(len(side.selected), dtype=np.int32)

    def is_in_round(self, block: RowBlock) -> bool:
        """Return whether the round has rows of a block."""
        return not self._places.keys().isdisjoint(block.names)

    def index_new_rows(self) -> RowBlock | None:
        """Return a block of the new rows."""
        if not self._new:
            return None
        segments = [stored.rows for stored in self._new]
        rows = _view_columns(segments)
        index = build_hash_index([combine_chunks(rows.evaluate(key)) for key in self.keys], rows.row_count)
        return RowBlock.create([stored.name for stored in self._new], [rows.row_count for rows in segments], index)

    def place_rows(self, block: RowBlock) -> _PlaceRange:
        """Return the places of the rows of a block among those that take part in the step."""
        if self._selected_places is None:
            base = expected = self._places.get(block.names[0], (0, None))[0]
            for name, count in zip(block.names, block.row_counts, strict=True):
                first, row_ids = self._places.get(name, (-1, None))
                if first != expected or row_ids is not None:
                    break
                expected += count
            else:
                return base, _NO_PLACES
        places = np.full(block.row_count, -1, np.int32)
        row = 0
        for name, count in zip(block.names, block.row_counts, strict=True):
            if name in self._places:
                first, row_ids = self._places[name]
                if row_ids is None:
                    places[row : row + count] = np.arange(first, first + count, dtype=np.int32)
                else:
                    places[row + row_ids] = np.arange(first, first + len(row_ids), dtype=np.int32)
            row += count
        if self._selected_places is not None:
            places = np.where(places < 0, np.int32(-1), self._selected_places[places])
        return 0, places

    def get_keys(self, block: RowBlock, ids: RowIds) -> list[pa.Array]:
        """Return the key of some rows of a block."""
        rows = _view_columns([self._stored[name].rows for name in block.names]).take_columns(ids.astype(np.int64))
        return [combine_chunks(rows.evaluate(key)) for key in self.keys]

    def get_sets(self, block: RowBlock) -> QueryBitmaps:
        """Return the query-set of each row of a block, whether a window contains it or not."""
        if block not in self._sets:
            sets = [self._stored[name].get_sets(self._width) for name in block.names]
            self._sets[block] = sets[0] if len(sets) == 1 else np.concatenate(sets)
        return self._sets[block]

    def gather_sets(self, block: RowBlock, ids: RowIds) -> QueryBitmaps:
        """Return the query-sets of some rows of a block."""
        if block in self._sets or len(ids) > block.row_count // _SPARSE_FRACTION:
            return self.get_sets(block)[ids]
        sets = np.empty((len(ids), self._width), np.uint64)
        first = 0
        for name, count in zip(block.names, block.row_counts, strict=True):
            chosen = np.flatnonzero((ids >= first) & (ids < first + count))
            if chosen.size:
                sets[chosen] = self._stored[name].get_sets(self._width)[ids[chosen] - first]
            first += count
        return sets


class PairKeeper:
    """Finds the pairs of steps of one partition at a level, and keeps them."""

    def __init__(self, store: KeptPairStore, options: JoinSliceOptions, partition: int, level: int, batch: int) -> None:
        """Keep pairs in a store of this worker."""
        self._store, self._options, self._place, self._batch = store, options, (partition, level), batch
        self._width = 1
        self.counts = PairCounts()

    def begin_batch(self, steps: Collection[StepBuffers], bits: Iterable[int], partitions: int) -> None:
        """Take the first steps and the bits of all joins of this level; forget the pairs of other steps and partitions."""
        self._width = count_words(bits)
        self._store.retain(lambda partition, level, step: partition < partitions and (level != self._place[1] or step in steps))

    def count_search(self, look_ups: int, candidates: int) -> None:
        """Count pairs that are found without keeping them."""
        self.counts.look_ups += look_ups
        self.counts.found += candidates

    def rename_segments(self, parts: Sequence[SegmentName], name: SegmentName) -> None:
        """Give a segment the name of its file; several in a row may have become one."""
        if list(parts) != [name]:
            self._store.rename(parts, name)

    def find_pairs(
        self, probe: JoinSide, build: JoinSide, overlap: float, query_count: int, count_pairs: Callable[[int], None]
    ) -> Iterator[RowPairs] | None:
        """Return the pairs of a step in a round for some queries; None if they are better found without keeping them.

        A pair is in up to `overlap` windows. `count_pairs` counts pairs to be compared, and raises OperatorError for too many.
        """
        mode = self._options.mode
        if mode is JoinSlices.FOUND or (mode is JoinSlices.AUTO and overlap <= 1):
            return None
        kept = self._store.get(self._place, (probe.buffer, build.buffer), self._batch)
        if kept.paused_rounds:
            kept.paused_rounds -= 1
            return None
        for number, side in enumerate((probe, build)):
            kept.forget_absent(number, {stored.name for stored in side.stored})
        views = (_SideView(probe, kept.sides[0], self._width), _SideView(build, kept.sides[1], self._width))
        known = {
            blocks: pairs
            for blocks, pairs in kept.pairs.items()
            if len(pairs[0]) and all(view.is_in_round(block) for view, block in zip(views, blocks, strict=True))
        }
        read = sum(len(ids) for ids, _ in known.values())
        if mode is JoinSlices.AUTO and any(kept.sides) and not _estimate_work(views, read).saves_time:
            return None
        new_blocks = [view.index_new_rows() for view in views]
        room = self._options.max_bytes - sum(block.bytes for block in new_blocks if block is not None)
        found = self._find_new_pairs(views, new_blocks, room - self._store.make_room(self._batch))
        if found is None:
            kept.clear()
            return None
        candidates, new_pairs = found
        count_pairs(read + candidates)
        self.counts.kept += read
        self.counts.found += sum(len(ids) for ids, _ in new_pairs.values())
        current = [
            (pairs, views[0].place_rows(blocks[0]), views[1].place_rows(blocks[1]))
            for blocks, pairs in (*known.items(), *new_pairs.items())
            if all(view.is_in_round(block) for view, block in zip(views, blocks, strict=True))
        ]
        kept.add_blocks(new_blocks, new_pairs)
        is_ordered = query_count >= _ORDERING_QUERIES
        return _select_pairs(current, view_read_only(probe.sets), view_read_only(build.sets), is_ordered=is_ordered)

    def _find_new_pairs(
        self, views: tuple[_SideView, _SideView], new_blocks: Sequence[RowBlock | None], room: int
    ) -> tuple[int, PairsOfBlocks] | None:
        """Return (pairs compared, pairs by blocks) of new rows, with each other and with older ones; None without room."""
        new_probe, new_build = new_blocks
        combinations = [(new_probe, block) for block in (*views[1].blocks, new_build)]
        combinations += [(block, new_build) for block in views[0].blocks]
        candidates, pairs = 0, {}
        for probe, build in combinations:
            if probe is None or build is None:
                continue
            max_pairs = room // _PAIR_BYTES
            if max_pairs <= 0:
                return None
            codes, build_codes, count = self._match_blocks(probe, build)
            candidates += count
            if count == 0:
                continue
            if count > max_pairs * _MAX_CANDIDATES:
                return None
            found = _pair_rows(views, (probe, build), (codes, build_codes), min(count, max_pairs))
            if found is None:
                return None
            pairs[probe, build] = found
            room -= len(found[0]) * _PAIR_BYTES
        return candidates, pairs

    def _match_blocks(self, probe: RowBlock, build: RowBlock) -> tuple[RowIds, RowIds, int]:
        """Return the numbers of equal hashes of two blocks, and the number of pairs; those of the smaller one are looked up."""
        smaller, larger = sorted((probe, build), key=lambda block: len(block.index.hashes))
        self.counts.look_ups += len(smaller.index.hashes)
        codes, other_codes, count = pair_kernels.match_hashes(
            smaller.index.hashes,
            smaller.index.starts,
            larger.filter,
            larger.index.directory,
            larger.index.hashes,
            larger.index.starts,
        )
        return (codes, other_codes, count) if smaller is probe else (other_codes, codes, count)


def _estimate_work(views: tuple[_SideView, _SideView], read: int) -> RoundWork:
    probe, build = views
    in_round = [sum(block.row_count for block in view.blocks if view.is_in_round(block)) + view.new_rows for view in views]
    share = probe.row_count * build.row_count / max(1, in_round[0] * in_round[1])
    matched = sum(min(probe.new_rows, block.row_count) for block in build.blocks)
    matched += sum(min(build.new_rows, block.row_count) for block in probe.blocks) + min(probe.new_rows, build.new_rows)
    return RoundWork(probe.row_count, build.row_count, read * min(1.0, share), probe.new_rows + build.new_rows, matched, read)


def _view_columns(segments: Sequence[RowSegment]) -> JoinedRows:
    """Return rows without query-sets."""
    table = view_columns(segments)
    return JoinedRows([TableSelection(table)], np.empty((table.row_count, 0), np.uint64))


def _pair_rows(
    views: tuple[_SideView, _SideView], blocks: tuple[RowBlock, RowBlock], codes: tuple[RowIds, RowIds], max_pairs: int
) -> tuple[RowIds, RowIds] | None:
    """Return the pairs of rows of equal keys that a query may need; None if there are more than `max_pairs`.

    A query-set of a stored row never grows: where those of two rows do not intersect, they will not.
    """
    probe, build = blocks
    is_sparse = max_pairs < min(probe.row_count, build.row_count) // _SPARSE_FRACTION
    empty = np.empty((0, 0), np.uint64)
    sets = [empty if is_sparse else view_read_only(view.get_sets(block)) for view, block in zip(views, blocks, strict=True)]
    ids, build_ids = np.empty(max_pairs, np.int32), np.empty(max_pairs, np.int32)
    count = pair_kernels.pair_matches(
        codes[0],
        probe.index.starts,
        probe.index.order,
        sets[0],
        codes[1],
        build.index.starts,
        build.index.order,
        sets[1],
        ids,
        build_ids,
    )
    if count < 0:
        return None
    ids, build_ids = ids[:count], build_ids[:count]
    if is_sparse:
        common = views[0].gather_sets(probe, ids) & views[1].gather_sets(build, build_ids)
        intersects = common.any(axis=1)
        ids, build_ids = ids[intersects], build_ids[intersects]
    if not is_exact_key(views[0].keys):
        positions = np.arange(len(ids))
        equal = keep_equal_keys(
            RowPairs(positions, positions, np.empty((len(ids), 0), np.uint64)),
            views[0].get_keys(probe, ids),
            views[1].get_keys(build, build_ids),
        )
        ids, build_ids = ids[equal.probe_ids], build_ids[equal.build_ids]
    return (ids.copy(), build_ids.copy()) if count < max_pairs else (ids, build_ids)


def _select_pairs(
    parts: Sequence[tuple[tuple[RowIds, RowIds], _PlaceRange, _PlaceRange]],
    sets: QueryBitmaps,
    build_sets: QueryBitmaps,
    *,
    is_ordered: bool,
) -> Iterator[RowPairs]:
    """Yield the pairs whose rows have places and query-sets that intersect there, a bounded number at a time.

    With `is_ordered` they are in the order of probe rows, whose columns are then read in order, for each query again.
    """

    def arrange(*pairs: npt.NDArray[Any]) -> RowPairs:
        return RowPairs(*(pair_kernels.order_pairs(*pairs) if is_ordered else pairs))

    size = min(MAX_PAIRS, sum(len(ids) for (ids, _), _, _ in parts))
    count = 0
    for (ids, build_ids), (base, places), (build_base, build_places) in parts:
        at = 0
        while at < len(ids):
            if count == 0:
                rows, build_rows = np.empty(size, np.int64), np.empty(size, np.int64)
                pair_sets = np.empty((size, sets.shape[1]), np.uint64)
            count, at = pair_kernels.select_pairs(
                ids,
                build_ids,
                at,
                base,
                places,
                build_base,
                build_places,
                sets,
                build_sets,
                count,
                rows,
                build_rows,
                pair_sets,
            )
            if count == size:
                yield arrange(rows, build_rows, pair_sets)
                count = 0
    if count:
        yield arrange(rows[:count], build_rows[:count], pair_sets[:count])
