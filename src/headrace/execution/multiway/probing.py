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
from headrace.execution.multiway.stored import StateSegment, mask_valid_keys
from headrace.execution.multiway.tuples import Bitmasks, Integers, ProbeTuples
from headrace.execution.searching import search_ranges
from headrace.kernels import compiled_join, compiled_probe
from headrace.kernels.columns import combine_chunks
from headrace.kernels.keys import hash_keys
from headrace.kernels.sets import QueryBitmaps

MAX_PAIRS = 1 << 18  # limit of pairs in memory at once
_MIN_PAIRS = 1 << 12
_NO_ORDER = np.zeros(0, np.int32)
_NO_INSERT_BATCHES = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class ProbePairs:
    """Pairs of probe rows (`own`) and stored rows (`theirs`), with their query-sets."""

    own: Integers
    theirs: Integers
    sets: QueryBitmaps


class Prober:
    """The probe rows of one probe, prepared once for all segments of its store."""

    def __init__(self, loaded: LoadedProbe, tuples: ProbeTuples) -> None:
        """Take the rows that probe."""
        self._loaded, self._tuples = loaded, tuples
        times = [(tuples.get_times(name), loaded.max_ranges[name]) for name in loaded.probe_relations]
        self._max_times = np.maximum.reduce([event_times for event_times, _ in times])
        self._time_limits = np.minimum.reduce([event_times + max_range for event_times, max_range in times])
        self._keys = [combine_chunks(tuples.evaluate(left)) for left, _ in loaded.probe.keys]
        self._hashes = hash_keys(self._keys, tuples.row_count) if self._keys else None
        self._valid_keys = mask_valid_keys(self._keys)

    @property
    def time_span(self) -> tuple[int, int]:
        """The least and the greatest event time of possible matches."""
        return int(self._max_times.min()) - self._loaded.max_ranges[self._loaded.build_relations[0]], int(self._time_limits.max())

    def find_pairs(self, segment: StateSegment, sets: QueryBitmaps) -> Iterator[ProbePairs]:
        """Yield pairs of probe and stored rows whose query-sets and times intersect; `sets` are the segment's current ones."""
        loaded, relation = self._loaded, self._loaded.build_relations[0]
        begins, ends, order = self._find_ranges(segment)
        low, times = self._max_times - loaded.max_ranges[relation], segment.get_times(relation)
        insert_limit = loaded.probe.before_batch
        insert_batches = (
            _NO_INSERT_BATCHES if insert_limit is None or int(segment.insert_batch.max()) < insert_limit else segment.insert_batch
        )
        row = offset = 0
        probe_sets = self._tuples.sets
        size = min(MAX_PAIRS, max(_MIN_PAIRS, self._tuples.row_count))
        while row < self._tuples.row_count:
            probe_ids, build_ids = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size, sets.shape[1]), np.uint64)
            count, row, offset = compiled_probe.find_matches(
                begins,
                ends,
                order,
                probe_sets,
                sets,
                low,
                self._time_limits,
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
                yield ProbePairs(probe_ids[:count], build_ids[:count], common[:count])
            size = MAX_PAIRS

    def join_pairs(self, pairs: ProbePairs, rows: JoinedRows, delta_mask: Bitmasks) -> ProbeTuples:
        """Return the joined rows of pairs that satisfy windows and conditions.

        `rows` are the stored rows that the pairs refer to, `delta_mask` holds their new relations.
        """
        deltas = self._tuples.delta_mask[pairs.own] | delta_mask
        return self._filter_rows(ProbeTuples(self._tuples.rows.pair_with(pairs.own, rows, pairs.theirs, pairs.sets), deltas))

    def _filter_rows(self, rows: ProbeTuples) -> ProbeTuples:
        """Filter pairs by windows and conditions; an overflow counts as unknown, like NULL."""
        loaded, sets = self._loaded, rows.sets
        for ranges, bits in loaded.window_groups:
            for probe_relation in loaded.probe_relations:
                for build_relation in loaded.build_relations:
                    compiled_probe.clear_outside_windows(
                        rows.get_times(probe_relation),
                        rows.get_times(build_relation),
                        ranges[probe_relation],
                        ranges[build_relation],
                        bits,
                        sets,
                    )
        for condition, bits in loaded.conditions.items():
            holds = np.asarray(combine_chunks(rows.evaluate(condition)).fill_null(False))
            sets[~holds] &= ~bits
        if loaded.window_groups or loaded.conditions:
            alive = compiled_join.find_live_rows(sets)
            if alive.size < len(sets):
                return rows.take(alive, sets[alive])
        return rows

    def _find_ranges(self, segment: StateSegment) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
        """Return for each probe row the range of its candidates, in an order of the segment's rows."""
        count = self._tuples.row_count
        if self._hashes is not None:
            index = segment.get_hash_index(self._loaded.build_keys)
            begins, ends = compiled_probe.look_up_hashes(
                self._hashes, self._valid_keys, index.directory, index.hashes, index.bits
            )
            return begins, ends, index.order
        if not self._loaded.bounds:
            return np.zeros(count, np.int64), np.full(count, segment.row_count, np.int64), _NO_ORDER
        sorted_values = segment.get_sorted_index(self._loaded.bounds[0].build_value)
        bounds = [(bound.operator, combine_chunks(self._tuples.evaluate(bound.probe_value))) for bound in self._loaded.bounds]
        return *search_ranges(sorted_values, bounds), sorted_values.order
