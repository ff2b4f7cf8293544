"""Matches of probe rows in stored segments, a bounded number of pairs at a time.

Equalities use a hash index, comparisons a range search over sorted values; without either, a probe tries all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.execution.joined_rows import JoinedRows
from headrace.execution.multiway.loaded import LoadedProbe
from headrace.execution.multiway.stored import Stored, valid_keys
from headrace.execution.multiway.tuples import Bits, Integers, Tuples
from headrace.execution.searching import searched
from headrace.kernels import compiled_join, compiled_probe
from headrace.kernels.columns import combine_chunks
from headrace.kernels.keys import hash_keys
from headrace.kernels.sets import QueryBitmaps

PAIRS = 1 << 18  # limit of pairs in memory at once
_FEW_PAIRS = 1 << 12
_EVERYTHING = np.zeros(0, np.int32)
_NO_BIRTHS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of probe rows (`own`) and stored rows (`theirs`), with their query-sets."""

    own: Integers
    theirs: Integers
    sets: QueryBitmaps


class Prober:
    """The probe rows of one probe, prepared once for all segments of its store."""

    def __init__(self, loaded: LoadedProbe, tuples: Tuples) -> None:
        """Take the rows that probe."""
        self._loaded, self._tuples = loaded, tuples
        times = [(tuples.times(name), loaded.longest[name]) for name in loaded.before]
        self._newest = np.maximum.reduce([event_times for event_times, _ in times])
        self._until = np.minimum.reduce([event_times + max_range for event_times, max_range in times])
        self._keys = [combine_chunks(tuples.evaluate(left)) for left, _ in loaded.probe.keys]
        self._hashes = hash_keys(self._keys, tuples.count) if self._keys else None
        self._valid = valid_keys(self._keys)

    @property
    def span(self) -> tuple[int, int]:
        """The least and the greatest event time of possible matches."""
        return int(self._newest.min()) - self._loaded.longest[self._loaded.stored[0]], int(self._until.max())

    def pairs(self, segment: Stored, sets: QueryBitmaps) -> Iterator[Pairs]:
        """Yield pairs of probe and stored rows whose query-sets and times intersect; `sets` are the segment's current ones."""
        loaded, relation = self._loaded, self._loaded.stored[0]
        begins, ends, order = self._ranges(segment)
        low, times = self._newest - loaded.longest[relation], segment.times(relation)
        insert_limit = loaded.probe.before_batch
        insert_batches = _NO_BIRTHS if insert_limit is None or int(segment.births.max()) < insert_limit else segment.births
        row = offset = 0
        probe_sets = self._tuples.sets
        size = min(PAIRS, max(_FEW_PAIRS, self._tuples.count))
        while row < self._tuples.count:
            probe_ids, build_ids = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size, sets.shape[1]), np.uint64)
            count, row, offset = compiled_probe.find_matches(
                begins,
                ends,
                order,
                probe_sets,
                sets,
                low,
                self._until,
                times,
                insert_batches,
                insert_limit or 0,
                row,
                offset,
                probe_ids,
                build_ids,
                common,
            )
            if count:
                yield Pairs(probe_ids[:count], build_ids[:count], common[:count])
            size = PAIRS

    def joined(self, pairs: Pairs, rows: JoinedRows, delta_mask: Bits) -> Tuples:
        """Return the joined rows of pairs that satisfy windows and conditions.

        `rows` are the stored rows that the pairs refer to, `delta_mask` holds their new relations.
        """
        deltas = self._tuples.fresh[pairs.own] | delta_mask
        return self._checked(Tuples(self._tuples.rows.beside(pairs.own, rows, pairs.theirs, pairs.sets), deltas))

    def _checked(self, rows: Tuples) -> Tuples:
        """Filter pairs by windows and conditions; an overflow counts as unknown, like NULL."""
        loaded, sets = self._loaded, rows.sets
        for ranges, bits in loaded.windows:
            for probe_relation in loaded.before:
                for build_relation in loaded.stored:
                    compiled_probe.clear_outside_windows(
                        rows.times(probe_relation),
                        rows.times(build_relation),
                        ranges[probe_relation],
                        ranges[build_relation],
                        bits,
                        sets,
                    )
        for condition, bits in loaded.conditions.items():
            holds = np.asarray(combine_chunks(rows.evaluate(condition)).fill_null(False))
            sets[~holds] &= ~bits
        if loaded.windows or loaded.conditions:
            alive = compiled_join.find_live_rows(sets)
            if alive.size < len(sets):
                return rows.take(alive, sets[alive])
        return rows

    def _ranges(self, segment: Stored) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
        """Return for each probe row the range of its candidates, in an order of the segment's rows."""
        count = self._tuples.count
        if self._hashes is not None:
            index = segment.hash_index(self._loaded.keys)
            begins, ends = compiled_probe.look_up_hashes(self._hashes, self._valid, index.directory, index.hashes, index.bits)
            return begins, ends, index.order
        if not self._loaded.bounds:
            return np.zeros(count, np.int64), np.full(count, segment.rows, np.int64), _EVERYTHING
        sorted_values = segment.sorted_index(self._loaded.bounds[0].stored)
        bounds = [(bound.operator, combine_chunks(self._tuples.evaluate(bound.arriving))) for bound in self._loaded.bounds]
        return *searched(sorted_values, bounds), sorted_values.order
