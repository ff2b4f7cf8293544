"""A probe of sliding joins: arriving rows find the stored rows with which they satisfy windows and conditions.

Matches in stored segments are found a bounded number of pairs at a time: by a hash index of the keys of equalities, or by the
search of `joins/pair_search.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from headrace.engine.batch_job import SegmentRef
from headrace.engine.budgets import BudgetMeter
from headrace.engine.compute.columns import combine_chunks
from headrace.engine.joins import index
from headrace.engine.joins.index import PairLimits, RowPairs, concat_pairs, search_hashes
from headrace.engine.joins.joined_rows import Bitmasks, JoinedRows
from headrace.engine.joins.pair_search import PairSearch
from headrace.engine.joins.probe_plan import LoadedProbe
from headrace.engine.joins.segment import get_event_times
from headrace.engine.joins.state_store import LoadedSegment, StateView
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.planner.join.sliding_join_plan import ProbeStep


class Prober:
    """The probe rows of one probe, prepared once for all segments of its store."""

    def __init__(self, loaded: LoadedProbe, rows: JoinedRows, meter: BudgetMeter) -> None:
        """Take the rows that probe; `meter` counts the pairs that each query compares."""
        self._loaded, self._rows, self._meter = loaded, rows, meter
        self._search = None if loaded.search is None else PairSearch(loaded.search, rows, meter)
        times = [(get_event_times(rows, name), loaded.max_ranges[name]) for name in loaded.probe_relations]
        self._max_times = np.maximum.reduce([event_times for event_times, _ in times])
        self._time_limits = np.minimum.reduce([event_times + max_range for event_times, max_range in times])
        self._keys = [combine_chunks(rows.evaluate(left)) for left, _ in loaded.probe.keys]
        self._looked_up_pairs = 0

    @property
    def pair_count(self) -> int:
        """The pairs of probe and stored rows that were compared so far."""
        return self._looked_up_pairs + (0 if self._search is None else self._search.pair_count)

    @property
    def time_span(self) -> tuple[int, int]:
        """The least and the greatest event time of possible matches."""
        return int(self._max_times.min()) - self._loaded.max_ranges[self._loaded.build_relations[0]], int(self._time_limits.max())

    def find_pairs(self, segment: LoadedSegment, sets: QueryBitmaps) -> Iterator[RowPairs]:
        """Yield pairs of probe and stored rows whose query-sets and times intersect; `sets` are those of the stored rows."""
        relation, before = self._loaded.build_relations[0], self._loaded.probe.before_batch
        limits = PairLimits(
            self._max_times - self._loaded.max_ranges[relation], self._time_limits, get_event_times(segment.rows, relation)
        )
        if before is not None and segment.ref.newest_batch >= before:
            limits = replace(limits, insert_batches=segment.rows.insert_batch, before_batch=before)
        if self._search is not None:
            return self._search.find_pairs(segment.indexes, sets, limits)
        candidates = search_hashes(segment.indexes.get_hash_index(self._loaded.build_keys), self._keys, self._rows.row_count)
        self._meter.add_pairs(self._loaded.probe.query_ids, candidates.pair_count)
        self._looked_up_pairs += candidates.pair_count
        return index.find_pairs(candidates, self._rows.sets, sets, limits)

    def join_pairs(self, pairs: RowPairs, stored: JoinedRows, delta_masks: Bitmasks) -> JoinedRows:
        """Return the joined rows of pairs that satisfy windows and conditions.

        Pairs refer to the `stored` rows; `delta_masks` are those of the stored row of each pair.
        """
        assert self._rows.delta_mask is not None
        deltas = self._rows.delta_mask[pairs.probe_ids] | delta_masks
        rows, loaded = self._rows.pair_with(pairs.probe_ids, stored, pairs.build_ids, pairs.sets, deltas), self._loaded
        for ranges, bits in loaded.window_groups:
            for probe_relation in loaded.probe_relations:
                for build_relation in loaded.build_relations:
                    join_kernels.clear_outside_windows(
                        get_event_times(rows, probe_relation),
                        get_event_times(rows, build_relation),
                        ranges[probe_relation],
                        ranges[build_relation],
                        bits,
                        rows.sets,
                    )
        any_fails = rows.clear_failing(loaded.conditions if self._search is None else self._search.checks)
        return rows.restrict_sets(rows.sets) if loaded.window_groups or any_fails else rows


def find_matches(
    probe: ProbeStep, prober: Prober, relation: str, view: StateView, batch: int, visible: np.uint64
) -> Iterator[JoinedRows]:
    """Yield the matches of a probe over all segments of a store, in as few blocks as memory allows.

    `relation` is one of those stored; of the new rows of this batch, those of the relations in `visible`, a delta mask, count.
    """
    first_time, last_time = prober.time_span
    pending: list[tuple[RowPairs, Bitmasks]] = []
    for number, segment in enumerate(view.segments):
        sets, is_new = segment.rows.sets, segment.ref.newest_batch == batch
        if is_new:
            hidden = (segment.rows.get_delta_masks() & ~visible) != 0
            if probe.before_batch is not None or hidden.all():
                continue
            sets = np.where(hidden[:, None], np.uint64(0), sets)
        elif (probe.before_batch is not None and segment.ref.oldest_batch >= probe.before_batch) or _is_disjoint(
            segment.ref, relation, first_time, last_time
        ):
            continue
        for pairs in prober.find_pairs(segment, sets):
            deltas = segment.rows.get_delta_masks()[pairs.build_ids] if is_new else np.zeros(pairs.pair_count, np.uint64)
            pending.append((RowPairs(pairs.probe_ids, pairs.build_ids + view.offsets[number], pairs.sets), deltas))
            if sum(found.pair_count for found, _ in pending) >= index.MAX_PAIRS:
                yield _join_pairs(prober, pending, view.rows)
                pending = []
    if pending:
        yield _join_pairs(prober, pending, view.rows)


def _join_pairs(prober: Prober, pending: Sequence[tuple[RowPairs, Bitmasks]], stored: JoinedRows) -> JoinedRows:
    pairs = concat_pairs([pairs for pairs, _ in pending])
    return prober.join_pairs(pairs, stored, np.concatenate([deltas for _, deltas in pending]))


def _is_disjoint(ref: SegmentRef, relation: str, first_time: int, last_time: int) -> bool:
    """Return whether no row of a segment lies in a span of event times."""
    earliest, latest = next(
        (first_row_time, last_row_time) for name, first_row_time, last_row_time in ref.spans if name == relation
    )
    return latest < first_time or earliest > last_time
