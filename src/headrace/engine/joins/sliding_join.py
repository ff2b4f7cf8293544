"""The sliding joins of one partition at one level of a micro-batch: insert rows, probe, send rows on, emit results.

The index keys, bounds and conditions of every probe are computed once for a plan. Rows of outer joins without a partner are
found by `joins/unmatched_rows.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from headrace.engine.batch_job import BatchJob, SegmentRef, StoreCounts
from headrace.engine.joins.join_output import JoinOutput
from headrace.engine.joins.joined_rows import JoinedRows
from headrace.engine.joins.prober import Prober, find_matches
from headrace.engine.joins.routing import (
    ProbeAddress,
    RoutedRows,
    StoreAddress,
    route_to_probe,
    route_to_store,
    select_routed,
)
from headrace.engine.joins.segment import RowSegment, pack_rows, view_segments
from headrace.engine.joins.state_store import JoinStateStore
from headrace.engine.joins.unmatched_rows import UnmatchedRows, WatermarkGetter
from headrace.planner.join.sliding_join_plan import ProbeStep, RoutingKind, StoreFeed


class SlidingJoinLevel:
    """The sliding joins of one partition at one level."""

    def __init__(
        self, job: BatchJob, level: int, state_store: JoinStateStore, output: JoinOutput, get_watermarks: WatermarkGetter
    ) -> None:
        """Take the state stores of the partition at the level; `get_watermarks` returns those of a query before and after."""
        self._job, self._level, self._state_store = job, level, state_store
        self._output, self._outbox, self._partition = output, output.outbox, output.outbox.sender
        self._loaded_plan, self._plan = state_store.loaded_plan, state_store.loaded_plan.plan
        self.probe_counts: dict[int, tuple[int, int]] = {}
        """Input rows and output rows of each probe, by its number."""
        self.store_counts: defaultdict[int, StoreCounts] = defaultdict(StoreCounts)
        self._unmatched_rows = UnmatchedRows(job, level, state_store, output, get_watermarks, self.store_counts)

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
            self._unmatched_rows.start()
        for number in sorted(probing):
            view = view_segments(probing[number], self._loaded_plan.set_width)
            if number in self._loaded_plan.unmatched_steps:
                self._unmatched_rows.run_remote_probe(number, view)
            else:
                self._run_probe(self._loaded_plan.probe_specs[number], view)
        self._unmatched_rows.collect(routed_rows)
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
        visible = np.uint64(self._loaded_plan.get_visible_mask(probe.number))
        view = self._state_store.get_view(probe.store_number)
        for matches in find_matches(probe, prober, loaded.build_relations[0], view, self._job.batch, visible):
            output_rows += matches.row_count
            counts.matches += matches.row_count
            self._forward_matches(probe, matches)
        counts.probes += rows.row_count
        counts.pairs += prober.pair_count
        self.probe_counts[probe.number] = (input_rows + rows.row_count, output_rows)

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
