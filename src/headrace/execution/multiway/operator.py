"""The sliding joins of one partition at one level of a micro-batch: insert rows, probe, send rows on, emit results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.execution.job import BatchJob, SegmentRef, ShuffleBlock
from headrace.execution.joined_rows import JoinedRows
from headrace.execution.multiway.loaded import LoadedProbe
from headrace.execution.multiway.probing import MAX_PAIRS, ProbePairs, Prober
from headrace.execution.multiway.sending import route_to_probe, route_to_store
from headrace.execution.multiway.shelf import JoinStateStore
from headrace.execution.multiway.stored import build_segment
from headrace.execution.multiway.tuples import Bitmasks, PackedRows, ProbeTuples, unpack_rows
from headrace.execution.result import BatchResults, QueryFailures
from headrace.kernels import compiled_join
from headrace.kernels.columns import combine_chunks
from headrace.sharing.multiway.asked import NormalizedJoin
from headrace.sharing.multiway.probes import ProbeRouting, ProbeStep, RoutingKind, StoreFeed


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
        pending: list[tuple[ProbePairs, Bitmasks | None]] = []
        pending_pairs = 0
        for index, loaded in enumerate(view.segments):
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
                pair_deltas = None if deltas is None else deltas[pairs.theirs]
                pending.append((ProbePairs(pairs.own, pairs.theirs + view.offsets[index], pairs.sets), pair_deltas))
                pending_pairs += len(pairs.own)
                if pending_pairs >= MAX_PAIRS:
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
        alive = compiled_join.find_live_rows(sets)
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
            bits, row_ids = compiled_join.list_rows_by_bit(
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


def _join_pairs(prober: Prober, pending: Sequence[tuple[ProbePairs, Bitmasks | None]], rows: JoinedRows) -> Iterator[ProbeTuples]:
    if pending:
        own, theirs, sets = (np.concatenate([getattr(pairs, name) for pairs, _ in pending]) for name in ("own", "theirs", "sets"))
        all_deltas = [np.zeros(len(pairs.own), np.uint64) if deltas is None else deltas for pairs, deltas in pending]
        matches = prober.join_pairs(ProbePairs(own, theirs, sets), rows, np.concatenate(all_deltas))
        if matches.row_count:
            yield matches


def _restrict_to_users(rows: ProbeTuples, loaded: LoadedProbe) -> ProbeTuples:
    """Return the rows that matter to a user of a probe."""
    sets = rows.sets & loaded.user_set
    alive = compiled_join.find_live_rows(sets)
    return rows.take(alive, sets[alive])


def _is_disjoint(ref: SegmentRef, relation: str, first_time: int, last_time: int) -> bool:
    """Return whether no row of a segment lies in a span of event times."""
    earliest, latest = next(
        (first_row_time, last_row_time) for name, first_row_time, last_row_time in ref.spans if name == relation
    )
    return latest < first_time or earliest > last_time
