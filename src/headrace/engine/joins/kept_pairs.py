"""The pairs of a step that a worker keeps, and the indexes of the rows they were found with: blocks of rows, and pairs of blocks.

Nothing here is state. Rows are known by the names of their segments, which are immutable: a segment that is not known is new, and
one that is not stored any more is forgotten. So a worker that runs a partition for the first time, or not for some batches, adds
what it lacks: after a crash, a change of partitions, or where partitions move between workers. See `pair_keeper`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.engine.joins.index import HashIndex, RowIds
from headrace.engine.joins.segment_groups import SegmentExtent, group_segments
from headrace.engine.kernels import join as join_kernels
from headrace.engine.kernels import kept_pairs as pair_kernels
from headrace.model.expression import Expression

SegmentName = Hashable
"""(name of a file, index in the file) or, of rows that have no file yet, the `RowSegment` itself."""
BufferName = tuple[str, tuple[Expression, ...], int]
"""Stream, keys and slot of a join buffer."""
StepBuffers = tuple[BufferName, BufferName]

_MAX_BLOCKS = 8  # of a side; with more, blocks of similar size are merged
_MAX_PAUSE = 64  # rounds
_UNUSED_BATCHES = 256


def name_segment(file: str, index: int) -> SegmentName:
    """Return the name of a segment in a file: a shuffle file keeps its name when it becomes a state file."""
    return file.rpartition("/")[2], index


@dataclass(slots=True, eq=False)
class RowBlock:
    """Rows of several segments with an index of their keys; rows are numbered through, in the order of segments."""

    names: list[SegmentName]
    row_counts: list[int]
    index: HashIndex
    filter: npt.NDArray[np.uint64]

    @staticmethod
    def create(names: Sequence[SegmentName], row_counts: Sequence[int], index: HashIndex) -> RowBlock:
        """Return the rows of segments with their index."""
        return RowBlock(list(names), list(row_counts), index, pair_kernels.make_filter(index.hashes))

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return sum(self.row_counts)

    @property
    def bytes(self) -> int:
        """The size of the index."""
        index = self.index
        return sum(array.nbytes for array in (index.directory, index.hashes, index.starts, index.order, self.filter))

    def list_hashes(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """Return the hash of each row, and whether it has one."""
        hashes, is_valid = np.zeros(self.row_count, np.uint64), np.zeros(self.row_count, np.bool_)
        is_alive = self.index.order >= 0
        rows = self.index.order[is_alive]
        hashes[rows] = np.repeat(self.index.hashes, np.diff(self.index.starts))[is_alive]
        is_valid[rows] = True
        return hashes, is_valid


PairsOfBlocks = dict[tuple[RowBlock, RowBlock], tuple[RowIds, RowIds]]


class KeptPairs:
    """The kept pairs of a step in one partition: blocks of rows of both sides, and the pairs of each two blocks."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.sides: tuple[list[RowBlock], list[RowBlock]] = ([], [])
        self.pairs: PairsOfBlocks = {}
        self.bytes = 0
        self.last_batch = 0
        self.pause = self.paused_rounds = 0

    def clear(self) -> None:
        """Forget all pairs; they are not kept in some of the next rounds: in more of them each time."""
        self.sides, self.pairs, self.bytes = ([], []), {}, 0
        self.pause = min(2 * self.pause + 1, _MAX_PAUSE)
        self.paused_rounds = self.pause

    def forget_absent(self, side: int, stored: Collection[SegmentName]) -> None:
        """Forget rows of segments that are not stored any more."""
        for block in list(self.sides[side]):
            is_stored = [name in stored for name in block.names]
            if not any(is_stored):
                self.sides[side].remove(block)
                self.pairs = {blocks: pairs for blocks, pairs in self.pairs.items() if blocks[side] is not block}
            elif not all(is_stored):
                self._shrink(side, block, is_stored)
        self._measure()

    def _shrink(self, side: int, block: RowBlock, is_stored: list[bool]) -> None:
        """Forget rows of some segments of a block."""
        remains = np.repeat(is_stored, block.row_counts)
        new_ids = np.where(remains, np.cumsum(remains) - 1, -1).astype(np.int32)
        for blocks, pairs in self.pairs.items():
            if blocks[side] is block:
                ids = new_ids[pairs[side]]
                alive = ids >= 0
                self.pairs[blocks] = (ids[alive], pairs[1][alive]) if side == 0 else (pairs[0][alive], ids[alive])
        order = block.index.order
        order = np.where(order < 0, -1, new_ids[order]).astype(np.int32)
        block.index = HashIndex(block.index.directory, block.index.hashes, block.index.starts, order)
        block.names = [name for name, stays in zip(block.names, is_stored, strict=True) if stays]
        block.row_counts = [count for count, stays in zip(block.row_counts, is_stored, strict=True) if stays]
        if 2 * block.row_count < len(order):
            block.index = HashIndex(*join_kernels.index_hashes(*block.list_hashes()))
            block.filter = pair_kernels.make_filter(block.index.hashes)

    def add_blocks(self, blocks: Sequence[RowBlock | None], pairs: PairsOfBlocks) -> None:
        """Add a block to each side, with its pairs."""
        for side_blocks, block in zip(self.sides, blocks, strict=True):
            if block is not None:
                side_blocks.append(block)
        self.pairs |= pairs
        self.pause = 0
        for side in range(2):
            self._merge_blocks(side)
        self._measure()

    def _merge_blocks(self, side: int) -> None:
        """Merge blocks of similar size where there are many, so that each new row meets a logarithmic number of them."""
        groups = group_segments(self.sides[side], lambda block: SegmentExtent(block.row_count), _MAX_BLOCKS)
        self.sides[side][:] = [group[0] if len(group) == 1 else self._merge_group(side, group) for group in groups]

    def _merge_group(self, side: int, group: Sequence[RowBlock]) -> RowBlock:
        hashes, masks = zip(*(block.list_hashes() for block in group), strict=True)
        index = HashIndex(*join_kernels.index_hashes(np.concatenate(hashes), np.concatenate(masks)))
        names = [name for block in group for name in block.names]
        merged = RowBlock.create(names, [count for block in group for count in block.row_counts], index)
        firsts = dict(zip(group, np.cumsum([0, *(block.row_count for block in group)])[:-1].astype(np.int32), strict=True))
        parts: dict[RowBlock, list[tuple[RowIds, RowIds]]] = {}
        for blocks in [blocks for blocks in self.pairs if blocks[side] in firsts]:
            ids, other_ids = self.pairs[blocks][side] + firsts[blocks[side]], self.pairs.pop(blocks)[1 - side]
            parts.setdefault(blocks[1 - side], []).append((ids, other_ids) if side == 0 else (other_ids, ids))
        for other, lists in parts.items():
            key = (merged, other) if side == 0 else (other, merged)
            self.pairs[key] = (np.concatenate([left for left, _ in lists]), np.concatenate([right for _, right in lists]))
        return merged

    def rename(self, parts: Sequence[SegmentName], name: SegmentName) -> None:
        """Give a segment a new name; several in a row may become one."""
        for block in (block for side in self.sides for block in side):
            if parts[0] in block.names:
                first = block.names.index(parts[0])
                end = first + len(parts)
                if block.names[first:end] == list(parts):  # else they are new under this name
                    block.names[first:end] = [name]
                    block.row_counts[first:end] = [sum(block.row_counts[first:end])]

    def _measure(self) -> None:
        blocks = sum(block.bytes for side in self.sides for block in side)
        self.bytes = blocks + sum(left.nbytes + right.nbytes for left, right in self.pairs.values())


@dataclass(slots=True)
class PairCounts:
    """What joins of windows by keys did in a micro-batch: rows looked up, pairs found, and pairs read that were kept."""

    look_ups: int = 0
    found: int = 0
    kept: int = 0

    @property
    def has_work(self) -> bool:
        """Whether anything was looked up, found or read."""
        return bool(self.look_ups or self.found or self.kept)

    def add(self, other: PairCounts) -> None:
        """Add the counts of others."""
        self.look_ups += other.look_ups
        self.found += other.found
        self.kept += other.kept


class KeptPairStore:
    """The kept pairs of all steps and partitions in this worker."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._by_step: dict[tuple[int, int, StepBuffers], KeptPairs] = {}

    def get(self, place: tuple[int, int], step: StepBuffers, batch: int) -> KeptPairs:
        """Return the kept pairs of a step at a place: (partition, level)."""
        kept = self._by_step.setdefault((*place, step), KeptPairs())
        kept.last_batch = batch
        return kept

    def retain(self, is_live: Callable[[int, int, StepBuffers], bool]) -> None:
        """Forget the pairs and indexes of the other (partition, level, step)."""
        for key in [key for key in self._by_step if not is_live(*key)]:
            del self._by_step[key]

    def make_room(self, batch: int) -> int:
        """Forget what was not in use for a long time; return the bytes that remain."""
        self.retain(lambda *key: self._by_step[key].last_batch >= batch - _UNUSED_BATCHES)
        return sum(kept.bytes for kept in self._by_step.values())

    def rename(self, parts: Sequence[SegmentName], name: SegmentName) -> None:
        """Give a segment a new name; several in a row may become one."""
        for kept in self._by_step.values():
            kept.rename(parts, name)
