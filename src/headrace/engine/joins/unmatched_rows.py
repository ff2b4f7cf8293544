"""Rows of outer and anti joins in SLIDING windows that have no partner, found when the watermark has passed all possible ones.

A row waits in its store as other rows do. In the batch whose watermark passes the last event time that a partner could have, it
probes the store of its partners once more, which keeps them for so long. So nothing is remembered of the pairs that were found:
stored rows stay as they are, and whether a row is due depends on the watermarks before and after a batch alone.

    watermark before ──▶         ├──────────── after ──▶
    row at t, last partner at t + range, lateness later: ●      due in this batch, and in no other

A row that arrives so late that it is due already is due in the batch of its arrival. Where partners lie in other partitions, rows
wait in their own one until the probes have reported what they found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.engine.batch_job import BatchJob, SegmentRef, StoreCounts
from headrace.engine.compute.columns import combine_chunks, to_numbers
from headrace.engine.joins.join_output import JoinOutput
from headrace.engine.joins.joined_rows import ChunkedColumn, Integers, JoinedRows, JoinTable, TableSelection
from headrace.engine.joins.prober import Prober, find_matches
from headrace.engine.joins.routing import (
    MatchedAddress,
    ProbeAddress,
    RoutedRows,
    WaitingAddress,
    route_to_probe,
    select_routed,
    split_rows,
)
from headrace.engine.joins.segment import RowSegment, get_event_times, pack_rows, view_segments
from headrace.engine.joins.state_store import JoinStateStore, LoadedSegment
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.model.time import MIN_TIME
from headrace.planner.join.normalized_join import NormalizedJoin
from headrace.planner.join.sliding_join_plan import ProbeStep, RoutingKind, UnmatchedStep

WatermarkGetter = Callable[[NormalizedJoin], tuple[int, int]]

_ROW_ID = "\x1f"  # the column of waiting rows that tells them apart; no relation has an empty name
_ID_BITS = 40  # of a row id that number the rows of a partition; those above are the partition
_ID_MASK = (1 << _ID_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _DueSpan:
    """Stored rows from `first_time` to before `end_time` are due in this batch, new rows also if they are older.

    This holds for the queries of `bits`, whose rows were inserted in `first_batch` or later.
    """

    first_time: int
    end_time: int
    first_batch: int
    bits: QueryBitmaps

    def may_contain(self, ref: SegmentRef, *, is_new: bool) -> bool:
        """Return whether a segment of an input may have rows that are due."""
        ((_, earliest, latest),) = ref.spans
        return earliest < self.end_time and (is_new or latest >= self.first_time) and ref.newest_batch >= self.first_batch


class UnmatchedRows:
    """The rows without a partner of the outer joins of one partition at one level."""

    def __init__(
        self,
        job: BatchJob,
        level: int,
        state_store: JoinStateStore,
        output: JoinOutput,
        get_watermarks: WatermarkGetter,
        store_counts: Mapping[int, StoreCounts],
    ) -> None:
        """Take the state stores of the partition at the level, and the counters of probes by store."""
        self._job, self._level, self._state_store, self._output = job, level, state_store, output
        self._get_watermarks, self._store_counts = get_watermarks, store_counts
        self._loaded_plan, self._plan = state_store.loaded_plan, state_store.loaded_plan.plan
        self._outbox, self._partition = output.outbox, output.outbox.sender

    def start(self) -> None:
        """Look up the partners of the rows that are due: at once in this partition, by messages in others."""
        for step in self._plan.unmatched_steps:
            rows = self._select_due_rows(step)
            if rows is not None and rows.row_count:
                self._look_up(step, rows)

    def run_remote_probe(self, number: int, rows: JoinedRows) -> None:
        """Report to the partitions of rows which of them have a partner here."""
        for matches in self._find_matches(self._loaded_plan.probe_specs[number], rows):
            ids, positions = np.unique(_get_row_ids(matches), return_inverse=True)
            sets = np.zeros((len(ids), matches.sets.shape[1]), np.uint64)
            join_kernels.merge_sets(positions.astype(np.int64), matches.sets, sets)
            report = RowSegment({_ROW_ID: pa.array(ids)}, sets)
            address = MatchedAddress(self._loaded_plan.unmatched_steps[number].number)
            for target, target_rows in split_rows(report, ids >> _ID_BITS, self._job.partitions):
                self._outbox.send_rows(target, address, target_rows)

    def collect(self, routed_rows: Sequence[RoutedRows]) -> None:
        """Emit the rows that waited and of which no probe has found a partner."""
        waiting: dict[int, list[RowSegment]] = defaultdict(list)
        matched: dict[int, list[RowSegment]] = defaultdict(list)
        for address, rows in select_routed(routed_rows, WaitingAddress):
            if self._plan.unmatched_steps[address.step].collect_level == self._level:
                waiting[address.step].append(rows)
            else:
                self._outbox.send_rows(self._partition, address, rows)
        for matched_address, rows in select_routed(routed_rows, MatchedAddress):
            matched[matched_address.step].append(rows)
        for number, segments in waiting.items():
            view = view_segments(segments, self._loaded_plan.set_width)
            sets = view.sets.copy()
            for report in matched[number]:
                _clear_matched(sets, to_numbers(report.columns[_ROW_ID]) & _ID_MASK, report.sets)
            self._emit(self._plan.unmatched_steps[number], view.restrict_sets(sets))

    def _look_up(self, step: UnmatchedStep, rows: JoinedRows) -> None:
        remote_set = self._loaded_plan.make_query_bitmap(())
        for probe in step.probes:
            if probe.routing.kind is not RoutingKind.LOCAL:
                remote_set = remote_set | self._loaded_plan.get_probe(probe.number).user_set
                continue
            sets = rows.sets.copy()
            for matches in self._find_matches(probe, rows):
                _clear_matched(sets, _get_row_ids(matches) & _ID_MASK, matches.sets)
            rows = JoinedRows(rows.selections, sets, rows.delta_mask)
        self._emit(step, rows.restrict_sets(rows.sets & ~remote_set))
        self._send_rows(step, rows, remote_set)

    def _send_rows(self, step: UnmatchedStep, rows: JoinedRows, remote_set: QueryBitmaps) -> None:
        """Send rows to the probes in other partitions, and to the later level at which their findings are collected."""
        rows = rows.restrict_sets(rows.sets & remote_set)
        if not rows.row_count:
            return
        names = [*self._loaded_plan.find_needed_columns(frozenset({step.relation}), step.query_ids), _ROW_ID]
        waiting = _number_rows(pack_rows(rows, names), self._partition)
        self._outbox.send_rows(self._partition, WaitingAddress(step.number), waiting)
        for probe in step.probes:
            probing = view_segments([waiting], self._loaded_plan.set_width)
            probing = probing.restrict_sets(probing.sets & self._loaded_plan.get_probe(probe.number).user_set)
            if probe.routing.kind is not RoutingKind.LOCAL and probing.row_count:
                for target, target_rows in route_to_probe(probe.routing, probing, self._partition, self._job.partition_map):
                    self._outbox.send_rows(target, ProbeAddress(probe.number), pack_rows(target_rows, names))

    def _find_matches(self, probe: ProbeStep, rows: JoinedRows) -> Iterator[JoinedRows]:
        """Yield the pairs of rows and partners; count them."""
        loaded = self._loaded_plan.get_probe(probe.number)
        rows = rows.restrict_sets(rows.sets & loaded.user_set)
        if not rows.row_count:
            return
        prober, counts = Prober(loaded, rows, self._output.meter), self._store_counts[probe.store_number]
        view = self._state_store.get_view(probe.store_number)
        visible = np.uint64(self._loaded_plan.get_visible_mask(probe.number))
        for matches in find_matches(probe, prober, loaded.build_relations[0], view, self._job.batch, visible):
            counts.matches += matches.row_count
            yield matches
        counts.probes += rows.row_count
        counts.pairs += prober.pair_count

    def _select_due_rows(self, step: UnmatchedStep) -> JoinedRows | None:
        """Return the rows of a store of which no partner can come from now on, each for the queries for which that is new."""
        spans = self._find_due_spans(step)
        refs = [
            ref
            for ref in self._state_store.list_refs(step.store_number)
            if (step.before_batch is None or ref.oldest_batch < step.before_batch)
            and any(span.may_contain(ref, is_new=ref.newest_batch == self._job.batch) for span in spans)
        ]
        if not refs:
            return None
        view = self._state_store.get_view(step.store_number)
        parts, sets = [], []
        for offset, segment in zip(view.offsets, view.segments, strict=False):
            if segment.ref in refs:
                due = self._find_due_sets(step, spans, segment)
                row_ids = join_kernels.find_live_rows(due)
                parts.append(row_ids + offset)
                sets.append(due[row_ids])
        row_ids = np.concatenate(parts)
        numbers = JoinTable({_ROW_ID: ChunkedColumn([pa.array(np.arange(len(row_ids)))])}, len(row_ids))
        selections = [*(selection.take(row_ids) for selection in view.rows.selections), TableSelection(numbers)]
        return JoinedRows(selections, np.concatenate(sets), np.zeros(len(row_ids), np.uint64))

    def _find_due_spans(self, step: UnmatchedStep) -> list[_DueSpan]:
        """Return the event times of the rows that are due in this batch, for queries of equal ones."""
        groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for query in (self._loaded_plan.queries[number] for number in sorted(step.query_ids)):
            before, after = self._get_watermarks(query)
            if after != MIN_TIME:
                wait = query.get_wait(step.relation)
                first_time = MIN_TIME if before == MIN_TIME else before - wait
                groups[first_time, after - wait, self._job.first_batches[query.id]].append(query.id)
        return [_DueSpan(*key, self._loaded_plan.make_query_bitmap(query_ids)) for key, query_ids in groups.items()]

    def _find_due_sets(self, step: UnmatchedStep, spans: Sequence[_DueSpan], segment: LoadedSegment) -> QueryBitmaps:
        """Return, for each row of a segment, the queries for which it is due in this batch."""
        times, insert_batches = get_event_times(segment.rows, step.relation), segment.rows.get_insert_batches()
        is_new = segment.ref.newest_batch == self._job.batch
        due = np.zeros_like(segment.rows.sets)
        for span in spans:
            is_due = (times < span.end_time) & (insert_batches >= span.first_batch)
            if not is_new:
                is_due &= times >= span.first_time
            if step.before_batch is not None:
                is_due &= insert_batches < step.before_batch
            due[is_due] |= span.bits
        due &= segment.rows.sets
        return due

    def _emit(self, step: UnmatchedStep, rows: JoinedRows) -> None:
        """Emit rows with NULL for the columns of their partners."""
        if not rows.row_count:
            return
        partners = frozenset(self._loaded_plan.queries[number].get_partner(step.relation) for number in step.query_ids)
        types, names = self._loaded_plan.column_types, self._plan.find_needed_columns(partners)
        missing = JoinTable({name: ChunkedColumn([pa.nulls(0, types[name])]) for name in names}, 0)
        selections = [*rows.selections, TableSelection(missing, np.full(rows.row_count, -1, np.int64))]
        finished = [self._loaded_plan.finished[number] for number in sorted(step.query_ids)]
        self._output.finish_rows(finished, JoinedRows(selections, rows.sets))


def _get_row_ids(rows: JoinedRows) -> Integers:
    return to_numbers(combine_chunks(rows.get_column(_ROW_ID)))


def _number_rows(rows: RowSegment, partition: int) -> RowSegment:
    """Return waiting rows with ids that name their partition and their place among them."""
    ids = (partition << _ID_BITS) + np.arange(rows.row_count)
    return RowSegment({**rows.columns, _ROW_ID: pa.array(ids)}, rows.sets, rows.delta_mask)


def _clear_matched(sets: QueryBitmaps, row_ids: Integers, matched: QueryBitmaps) -> None:
    """Clear the bits of the queries for which rows have a partner."""
    found = np.zeros_like(sets)
    join_kernels.merge_sets(row_ids, matched, found)
    sets &= ~found
