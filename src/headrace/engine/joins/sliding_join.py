"""The sliding joins of one partition at one level of a micro-batch: insert rows, probe, send rows on, emit results.

The index keys, bounds and conditions of every probe are computed once for a plan. Matches of probe rows in stored segments
are found a bounded number of pairs at a time: by a hash index of the keys of equalities, or by the search of
`joins/pair_search.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from headrace.engine.batch_job import BatchJob, SegmentRef, StoreCounts
from headrace.engine.budgets import BudgetMeter
from headrace.engine.compute.columns import combine_chunks
from headrace.engine.joins import index
from headrace.engine.joins.index import PairLimits, RowPairs, concat_pairs, search_hashes
from headrace.engine.joins.join_output import JoinOutput
from headrace.engine.joins.joined_rows import Bitmasks, JoinedRows
from headrace.engine.joins.pair_search import PairSearch
from headrace.engine.joins.probe_plan import LoadedProbe
from headrace.engine.joins.routing import (
    ProbeAddress,
    RoutedRows,
    StoreAddress,
    route_to_probe,
    route_to_store,
    select_routed,
)
from headrace.engine.joins.segment import RowSegment, get_event_times, pack_rows, view_segments
from headrace.engine.joins.state_store import JoinStateStore, LoadedSegment
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.planner.join.sliding_join_plan import ProbeStep, RoutingKind, StoreFeed


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


class SlidingJoinLevel:
    """The sliding joins of one partition at one level."""

    def __init__(self, job: BatchJob, level: int, state_store: JoinStateStore, output: JoinOutput) -> None:
        """Take the state stores of the partition at the level."""
        self._job, self._level, self._state_store = job, level, state_store
        self._output, self._outbox, self._partition = output, output.outbox, output.outbox.sender
        self._loaded_plan, self._plan = state_store.loaded_plan, state_store.loaded_plan.plan
        self.probe_counts: dict[int, tuple[int, int]] = {}
        """Input rows and output rows of each probe, by its number."""
        self.store_counts: defaultdict[int, StoreCounts] = defaultdict(StoreCounts)

    def run(self, routed_rows: Sequence[RoutedRows]) -> list[SegmentRef]:
        """Insert and probe the rows that arrived; return the segments that are retained."""
        storing: dict[int, list[RowSegment]] = defaultdict(list)
        probing: dict[int, list[RowSegment]] = defaultdict(list)
        for address, rows in select_routed(routed_rows, StoreAddress):
            if address.level == self._level:
                storing[address.store].append(rows)
            else:
                self.store_counts[address.store].delayed += rows.row_count
                self._outbox.send_rows(self._partition, address, rows)
        for probe_address, rows in select_routed(routed_rows, ProbeAddress):
            self._queue_probe(probe_address, rows, probing)
        for store, segments in storing.items():
            self.store_counts[store].rows_in += sum(rows.row_count for rows in segments)
            self._state_store.insert_rows(store, segments)
        if self._level == 0:
            self._queue_stored_rows(storing, probing)
        for number in sorted(probing):
            self._run_probe(self._loaded_plan.probe_specs[number], view_segments(probing[number], self._loaded_plan.set_width))
        segment_refs = self._state_store.retain_segments()
        self._outbox.get_message(self._partition).segment_refs += self._state_store.list_forwarded_refs()
        return segment_refs

    def _queue_probe(self, address: ProbeAddress, rows: RowSegment, probing: dict[int, list[RowSegment]]) -> None:
        """Queue rows for a probe of this level; forward those for a later level."""
        if self._loaded_plan.probe_specs[address.probe].level == self._level:
            probing[address.probe].append(rows)
        else:
            store = self._loaded_plan.probe_specs[address.probe].store_number
            self.store_counts[store].delayed += rows.row_count
            self._outbox.send_rows(self._partition, address, rows)

    def _queue_stored_rows(self, storing: dict[int, list[RowSegment]], probing: dict[int, list[RowSegment]]) -> None:
        """Queue inserted rows for the probes that start in the partition of their store."""
        for roots in self._plan.root_probes.values():
            for root in roots:
                if root.routing.kind is RoutingKind.STORED:
                    for rows in storing.get(root.routing.colocated_store, ()):
                        self._queue_probe(ProbeAddress(root.number), rows, probing)

    def _run_probe(self, probe: ProbeStep, rows: JoinedRows) -> None:
        loaded = self._loaded_plan.get_probe(probe.number)
        rows = rows.restrict_sets(rows.sets & loaded.user_set)
        if not rows.row_count:
            return
        input_rows, output_rows = self.probe_counts.get(probe.number, (0, 0))
        prober, counts = Prober(loaded, rows, self._output.meter), self.store_counts[probe.store_number]
        for matches in self._find_matches(probe, prober, loaded.build_relations[0]):
            output_rows += matches.row_count
            counts.matches += matches.row_count
            self._forward_matches(probe, matches)
        counts.probes += rows.row_count
        counts.pairs += prober.pair_count
        self.probe_counts[probe.number] = (input_rows + rows.row_count, output_rows)

    def _find_matches(self, probe: ProbeStep, prober: Prober, relation: str) -> Iterator[JoinedRows]:
        """Yield the matches of a probe over all segments, in as few blocks as memory allows."""
        first_time, last_time = prober.time_span
        visible = np.uint64(self._plan.get_visible_mask(self._loaded_plan.start_relations[probe.number]))
        view = self._state_store.get_view(probe.store_number)
        pending: list[tuple[RowPairs, Bitmasks]] = []
        for number, segment in enumerate(view.segments):
            sets, is_new = segment.rows.sets, segment.ref.newest_batch == self._job.batch
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

    def _forward_matches(self, probe: ProbeStep, matches: JoinedRows) -> None:
        """Pass the rows that a probe found to complete queries, to state stores, and to the following probes."""
        self._output.finish_rows([self._loaded_plan.finished[number] for number in probe.completed_queries], matches)
        for feed in probe.feeds:
            self._send_to_store(feed, matches)
        for child in probe.children:
            child_rows = matches.restrict_sets(matches.sets & self._loaded_plan.get_probe(child.number).user_set)
            if child_rows.row_count and child.level == self._level and child.routing.kind is RoutingKind.LOCAL:
                self._run_probe(child, child_rows)
            elif child_rows.row_count:
                self._send_to_probe(child, child_rows)

    def _send_to_probe(self, child: ProbeStep, rows: JoinedRows) -> None:
        relations = child.covered_relations - self._loaded_plan.store_specs[child.store_number].relation.relations
        names = self._loaded_plan.find_needed_columns(relations, child.query_ids)
        address = ProbeAddress(child.number)
        if child.routing.kind is RoutingKind.BROADCAST:
            self._outbox.broadcast_rows(address, pack_rows(rows, names))
        else:
            for target, target_rows in route_to_probe(child.routing, rows, self._partition, self._job.partition_map):
                self._outbox.send_rows(target, address, pack_rows(target_rows, names))

    def _send_to_store(self, feed: StoreFeed, matches: JoinedRows) -> None:
        """Send rows to the state store of an intermediate result, for the queries that use it."""
        users = self._plan.used_since[feed.store_number]
        rows = matches.restrict_sets(matches.sets & self._loaded_plan.make_query_bitmap(users))
        if not rows.row_count:
            return
        spec = self._loaded_plan.store_specs[feed.store_number]
        names = self._loaded_plan.find_needed_columns(spec.relation.relations, users)
        key = None if feed.routing.kind is RoutingKind.LOCAL else spec.partition_key
        targets = (
            [(self._partition, rows)] if key is None else route_to_store(key, rows, self._partition, self._job.partition_map)
        )
        for target, target_rows in targets:
            self._outbox.send_rows(target, StoreAddress(feed.store_number, feed.level), pack_rows(target_rows, names))


def _join_pairs(prober: Prober, pending: Sequence[tuple[RowPairs, Bitmasks]], stored: JoinedRows) -> JoinedRows:
    pairs = concat_pairs([pairs for pairs, _ in pending])
    return prober.join_pairs(pairs, stored, np.concatenate([deltas for _, deltas in pending]))


def _is_disjoint(ref: SegmentRef, relation: str, first_time: int, last_time: int) -> bool:
    """Return whether no row of a segment lies in a span of event times."""
    earliest, latest = next(
        (first_row_time, last_row_time) for name, first_row_time, last_row_time in ref.spans if name == relation
    )
    return latest < first_time or earliest > last_time
