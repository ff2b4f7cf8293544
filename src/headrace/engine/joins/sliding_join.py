"""The sliding joins of one partition at one level of a micro-batch: insert rows, probe, send rows on, emit results.

The index keys, bounds and conditions of every probe are computed once for a plan. Matches of probe rows in stored segments
are found a bounded number of pairs at a time: equalities use a hash index, comparisons a range search over sorted values;
without either, a probe tries all pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from headrace.engine.batch_job import BatchJob, SegmentRef, ShuffleBlock
from headrace.engine.compute.columns import combine_chunks
from headrace.engine.failures import QueryFailures
from headrace.engine.joins import index
from headrace.engine.joins.index import Candidates, PairLimits, RowPairs, pair_all_rows, search_hashes, search_ranges
from headrace.engine.joins.ingest import route_to_probe, route_to_store
from headrace.engine.joins.joined_rows import JoinedRows
from headrace.engine.joins.probe_plan import LoadedProbe
from headrace.engine.joins.segment import (
    Bitmasks,
    PackedRows,
    ProbeTuples,
    StateSegment,
    build_segment,
    unpack_rows,
)
from headrace.engine.joins.state_store import JoinStateStore
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.planner.join.normalized_join import NormalizedJoin
from headrace.planner.join.sliding_join_plan import ProbeRouting, ProbeStep, RoutingKind, StoreFeed
from headrace.storage.result_files import BatchResults


class Prober:
    """The probe rows of one probe, prepared once for all segments of its store."""

    def __init__(self, loaded: LoadedProbe, tuples: ProbeTuples) -> None:
        """Take the rows that probe."""
        self._loaded, self._tuples = loaded, tuples
        times = [(tuples.get_times(name), loaded.max_ranges[name]) for name in loaded.probe_relations]
        self._max_times = np.maximum.reduce([event_times for event_times, _ in times])
        self._time_limits = np.minimum.reduce([event_times + max_range for event_times, max_range in times])
        self._keys = [combine_chunks(tuples.evaluate(left)) for left, _ in loaded.probe.keys]

    @property
    def time_span(self) -> tuple[int, int]:
        """The least and the greatest event time of possible matches."""
        return int(self._max_times.min()) - self._loaded.max_ranges[self._loaded.build_relations[0]], int(self._time_limits.max())

    def find_pairs(self, segment: StateSegment, sets: QueryBitmaps) -> Iterator[RowPairs]:
        """Yield pairs of probe and stored rows whose query-sets and times intersect; `sets` are the segment's current ones."""
        relation, before = self._loaded.build_relations[0], self._loaded.probe.before_batch
        limits = PairLimits(self._max_times - self._loaded.max_ranges[relation], self._time_limits, segment.get_times(relation))
        if before is not None and int(segment.insert_batch.max()) >= before:
            limits = replace(limits, insert_batches=segment.insert_batch, before_batch=before)
        return index.find_pairs(self._find_candidates(segment), self._tuples.sets, sets, limits)

    def join_pairs(self, pairs: RowPairs, rows: JoinedRows, delta_mask: Bitmasks) -> ProbeTuples:
        """Return the joined rows of pairs that satisfy windows and conditions.

        `rows` are the stored rows that the pairs refer to, `delta_mask` holds their new relations.
        """
        deltas = self._tuples.delta_mask[pairs.probe_ids] | delta_mask
        return self._filter_rows(
            ProbeTuples(self._tuples.rows.pair_with(pairs.probe_ids, rows, pairs.build_ids, pairs.sets), deltas)
        )

    def _filter_rows(self, rows: ProbeTuples) -> ProbeTuples:
        """Filter pairs by windows and conditions; an overflow counts as unknown, like NULL."""
        loaded, sets = self._loaded, rows.sets
        for ranges, bits in loaded.window_groups:
            for probe_relation in loaded.probe_relations:
                for build_relation in loaded.build_relations:
                    join_kernels.clear_outside_windows(
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
            alive = join_kernels.find_live_rows(sets)
            if alive.size < len(sets):
                return rows.take(alive, sets[alive])
        return rows

    def _find_candidates(self, segment: StateSegment) -> Candidates:
        """Return for each probe row the stored rows that a look-up yields."""
        if self._keys:
            return search_hashes(segment.get_hash_index(self._loaded.build_keys), self._keys, self._tuples.row_count)
        if not self._loaded.bounds:
            return pair_all_rows(self._tuples.row_count, segment.row_count)
        bounds = [(bound.operator, combine_chunks(self._tuples.evaluate(bound.probe_value))) for bound in self._loaded.bounds]
        return search_ranges(segment.get_sorted_index(self._loaded.bounds[0].build_value), bounds)


@dataclass(slots=True)
class SlidingJoinMessage:
    """Rows between levels: (probe, rows), (store, level of insertion, rows), and references to written segments."""

    probe_inputs: list[tuple[int, PackedRows]] = field(default_factory=list)
    store_inputs: list[tuple[int, int, PackedRows]] = field(default_factory=list)
    segment_refs: list[SegmentRef] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The approximate size of its arrays in bytes."""
        return sum(rows.bytes for _, rows in self.probe_inputs) + sum(rows.bytes for _, _, rows in self.store_inputs)


def message_from_block(block: ShuffleBlock) -> SlidingJoinMessage:
    """Return the rows of sliding joins in a shuffle block of the map stage."""
    return SlidingJoinMessage(block.probe_inputs, [(store, 0, rows) for store, rows in block.store_inputs])


class SlidingJoinLevel:
    """The sliding joins of one partition at one level."""

    def __init__(
        self,
        job: BatchJob,
        partition: int,
        level: int,
        get_watermark: Callable[[NormalizedJoin], int],
        results: BatchResults,
        failures: QueryFailures,
        flush_if_full: Callable[[], None],
        forwarded: Sequence[SegmentRef],
    ) -> None:
        """`get_watermark` returns a query's watermark after this batch; `flush_if_full` is called after results were added."""
        self._job, self._partition, self._level = job, partition, level
        self._results, self._failures, self._flush_if_full = results, failures, flush_if_full
        self._state_store = JoinStateStore(job, partition, level, get_watermark, forwarded)
        self._loaded_plan = self._state_store.loaded_plan
        self._plan = self._loaded_plan.plan
        self.messages: dict[int, SlidingJoinMessage] = {}
        self.probe_counts: dict[int, tuple[int, int]] = {}
        """Input rows and output rows of each probe, by its number."""

    def run(self, messages: Sequence[SlidingJoinMessage]) -> list[SegmentRef]:
        """Insert and probe the rows that arrived; return the segments that are retained."""
        storing: dict[int, list[PackedRows]] = defaultdict(list)
        probing: dict[int, list[PackedRows]] = defaultdict(list)
        for message in messages:
            for store, insert_level, rows in message.store_inputs:
                if insert_level == self._level:
                    storing[store].append(rows)
                else:
                    self._get_message(self._partition).store_inputs.append((store, insert_level, rows))
            for probe, rows in message.probe_inputs:
                self._queue_probe(probe, rows, probing)
        for store, packed_rows in storing.items():
            self._state_store.insert_segment(
                store,
                build_segment(
                    packed_rows, self._job.batch, *self._loaded_plan.index_expressions[store], self._loaded_plan.set_width
                ),
            )
        if self._level == 0:
            self._queue_stored_rows(storing, probing)
        for number in sorted(probing):
            self._run_probe(self._loaded_plan.probe_specs[number], unpack_rows(probing[number], self._loaded_plan.set_width))
        segment_refs = self._state_store.write_segments()
        self._get_message(self._partition).segment_refs += self._state_store.list_forwarded_refs()
        return segment_refs

    def _queue_probe(self, probe: int, rows: PackedRows, probing: dict[int, list[PackedRows]]) -> None:
        """Queue rows for a probe of this level; forward those for a later level."""
        if self._loaded_plan.probe_specs[probe].level == self._level:
            probing[probe].append(rows)
        else:
            self._get_message(self._partition).probe_inputs.append((probe, rows))

    def _queue_stored_rows(self, storing: dict[int, list[PackedRows]], probing: dict[int, list[PackedRows]]) -> None:
        """Queue inserted rows for the probes that start in the partition of their store."""
        for roots in self._plan.root_probes.values():
            for root in roots:
                if root.routing.kind is RoutingKind.STORED:
                    for rows in storing.get(root.routing.colocated_store, ()):
                        self._queue_probe(root.number, rows, probing)

    def _get_message(self, partition: int) -> SlidingJoinMessage:
        return self.messages.setdefault(partition, SlidingJoinMessage())

    def _run_probe(self, probe: ProbeStep, tuples: ProbeTuples) -> None:
        loaded = self._loaded_plan.get_probe(probe.number)
        tuples = _restrict_to_users(tuples, loaded)
        if not tuples.row_count:
            return
        input_rows, output_rows = self.probe_counts.get(probe.number, (0, 0))
        for matches in self._find_matches(probe, Prober(loaded, tuples), loaded.build_relations[0]):
            output_rows += matches.row_count
            self._forward_matches(probe, matches)
        self.probe_counts[probe.number] = (input_rows + tuples.row_count, output_rows)

    def _find_matches(self, probe: ProbeStep, prober: Prober, relation: str) -> Iterator[ProbeTuples]:
        """Yield the matches of a probe over all segments, in as few blocks as memory allows."""
        first_time, last_time = prober.time_span
        visible = np.uint64(self._plan.get_visible_mask(self._loaded_plan.start_relations[probe.number]))
        view = self._state_store.get_view(probe.store_number)
        pending: list[tuple[RowPairs, Bitmasks | None]] = []
        pending_pairs = 0
        for number, loaded in enumerate(view.segments):
            sets, deltas = loaded.sets, None
            if loaded.ref.newest_batch == self._job.batch:
                hidden = (loaded.segment.delta_mask & ~visible) != 0
                if probe.before_batch is not None or hidden.all():
                    continue
                sets, deltas = np.where(hidden[:, None], np.uint64(0), sets), loaded.segment.delta_mask
            elif (probe.before_batch is not None and loaded.ref.oldest_batch >= probe.before_batch) or _is_disjoint(
                loaded.ref, relation, first_time, last_time
            ):
                continue
            for pairs in prober.find_pairs(loaded.segment, sets):
                pair_deltas = None if deltas is None else deltas[pairs.build_ids]
                pending.append((RowPairs(pairs.probe_ids, pairs.build_ids + view.offsets[number], pairs.sets), pair_deltas))
                pending_pairs += len(pairs.probe_ids)
                if pending_pairs >= index.MAX_PAIRS:
                    yield from _join_pairs(prober, pending, view.rows)
                    pending, pending_pairs = [], 0
        yield from _join_pairs(prober, pending, view.rows)

    def _forward_matches(self, probe: ProbeStep, matches: ProbeTuples) -> None:
        """Pass the rows that a probe found to complete queries, to state stores, and to the following probes."""
        if probe.completed_queries:
            self._emit_results([self._loaded_plan.queries[number] for number in probe.completed_queries], matches)
        for feed in probe.feeds:
            self._send_to_store(feed, matches)
        for child in probe.children:
            child_rows = _restrict_to_users(matches, self._loaded_plan.get_probe(child.number))
            if child_rows.row_count and child.level == self._level and child.routing.kind is RoutingKind.LOCAL:
                self._run_probe(child, child_rows)
            elif child_rows.row_count:
                self._send_to_probe(child.routing, child, child_rows)

    def _send_to_probe(self, edge: ProbeRouting, child: ProbeStep, rows: ProbeTuples) -> None:
        relations = child.covered_relations - self._loaded_plan.store_specs[child.store_number].relation.relations
        packed = rows.pack_columns(self._loaded_plan.find_needed_columns(relations, child.query_ids))
        for target, target_rows in route_to_probe(edge, packed, self._partition, self._job.partitions):
            self._get_message(target).probe_inputs.append((child.number, target_rows))

    def _send_to_store(self, feed: StoreFeed, matches: ProbeTuples) -> None:
        """Send rows to the state store of an intermediate result, for the queries that use it."""
        bits = self._loaded_plan.make_query_bitmap(self._plan.used_since[feed.store_number])
        sets = matches.sets & bits
        alive = join_kernels.find_live_rows(sets)
        if not alive.size:
            return
        spec = self._loaded_plan.store_specs[feed.store_number]
        rows = matches.take(alive, sets[alive]).pack_columns(
            self._loaded_plan.find_needed_columns(spec.relation.relations, self._plan.used_since[feed.store_number])
        )
        key = None if feed.routing.kind is RoutingKind.LOCAL else spec.partition_key
        targets = [(self._partition, rows)] if key is None else route_to_store(key, rows, self._partition, self._job.partitions)
        for target, target_rows in targets:
            self._get_message(target).store_inputs.append((feed.store_number, feed.level, target_rows))

    def _emit_results(self, queries: Sequence[NormalizedJoin], rows: ProbeTuples) -> None:
        """Emit joined rows of complete queries."""
        by_output: dict[tuple[object, ...], list[NormalizedJoin]] = defaultdict(list)
        for query in queries:
            by_output[query.output_signature].append(query)
        for same_output in by_output.values():
            bits, row_ids = join_kernels.list_rows_by_bit(
                rows.sets, self._loaded_plan.make_query_bitmap([query.id for query in same_output])
            )
            if not bits.size:
                continue
            query_of_bit = np.full(self._loaded_plan.set_width * 64, -1, np.int64)
            query_of_bit[[query.bit for query in same_output]] = [query.id for query in same_output]
            query_ids, selected = query_of_bit[bits], rows.take(row_ids)
            for expression in same_output[0].output:
                errors = selected.evaluate.errors(expression)
                if errors is not None:
                    mask = np.asarray(errors.to_numpy(zero_copy_only=False), np.bool_)
                    self._failures.add_rows(query_ids[mask], selected.evaluate.message(expression))
            columns = [combine_chunks(selected.evaluate(expression)) for expression in same_output[0].output]
            self._results.add(query_ids, pa.RecordBatch.from_arrays(columns, schema=same_output[0].schema.to_arrow()))
            self._flush_if_full()


def _join_pairs(prober: Prober, pending: Sequence[tuple[RowPairs, Bitmasks | None]], rows: JoinedRows) -> Iterator[ProbeTuples]:
    if pending:
        probe_ids, build_ids, sets = (
            np.concatenate([getattr(pairs, name) for pairs, _ in pending]) for name in ("probe_ids", "build_ids", "sets")
        )
        all_deltas = [np.zeros(len(pairs.probe_ids), np.uint64) if deltas is None else deltas for pairs, deltas in pending]
        matches = prober.join_pairs(RowPairs(probe_ids, build_ids, sets), rows, np.concatenate(all_deltas))
        if matches.row_count:
            yield matches


def _restrict_to_users(rows: ProbeTuples, loaded: LoadedProbe) -> ProbeTuples:
    """Return the rows that matter to a user of a probe."""
    sets = rows.sets & loaded.user_set
    alive = join_kernels.find_live_rows(sets)
    return rows.take(alive, sets[alive])


def _is_disjoint(ref: SegmentRef, relation: str, first_time: int, last_time: int) -> bool:
    """Return whether no row of a segment lies in a span of event times."""
    earliest, latest = next(
        (first_row_time, last_row_time) for name, first_row_time, last_row_time in ref.spans if name == relation
    )
    return latest < first_time or earliest > last_time
