"""Session windows per key, for every session query.

The sessions of a query depend on its own predicate, so each query has state of its own; reading, keys and selection are shared.
The map stage turns the rows of a batch into runs (rows of a key at most `gap` apart). The shuffle sends runs to the partition
of their key, the reduce stage merges them into the open sessions there, and a session is emitted when the watermark has passed
its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.accumulators import Accumulator, allocate_neutral, combine_partials, reduce_listed
from headrace.engine.compute.columns import Numbers, take, widen_integers
from headrace.engine.compute.keys import encode_keys
from headrace.engine.failures import QueryFailures
from headrace.engine.kernels import window as window_kernels
from headrace.engine.operators.finalize import CombinedRows, ListedValues, finalize_rows
from headrace.engine.operators.selection import CellAssignment, group_rows_by_predicate
from headrace.engine.row_batch import KeyEncoder, RowBatch
from headrace.model.record import record
from headrace.model.window import SessionWindow
from headrace.plan.logical import AggregateQuery
from headrace.planner.components import Component
from headrace.planner.shared_plan import SessionAggregation, Subscriber
from headrace.storage.result_files import BatchResults

Integers = npt.NDArray[np.int64]


@record("session-runs")
@dataclass(frozen=True, slots=True)
class SessionRuns:
    """Runs of rows: key columns, first and last event time, and the components, one entry per run."""

    keys: list[pa.Array]
    firsts: Integers
    lasts: Integers
    dense: list[list[Numbers]]
    listed: dict[int, ListedValues]

    @property
    def bytes(self) -> int:
        """The approximate size in bytes, without value lists."""
        dense = {id(array): array.nbytes for arrays in self.dense for array in arrays}
        return int(2 * self.firsts.nbytes + sum(dense.values()) + sum(column.nbytes for column in self.keys))


def build_runs(
    operator: SessionAggregation, assignment: CellAssignment, batch: RowBatch, encoder: KeyEncoder, watermarks: Mapping[int, int]
) -> Iterator[tuple[int, int, SessionRuns, int]]:
    """Yield (partition, query, runs, late rows) for every subscriber with rows; late rows are reported with partition −1."""
    rows_of = group_rows_by_predicate(assignment, sorted(set(operator.predicate_numbers)))
    for subscriber, predicate in zip(operator.subscribers, operator.predicate_numbers, strict=True):
        gap = subscriber.window.gap if isinstance(subscriber.window, SessionWindow) else 0
        rows = rows_of[predicate]
        rows = rows[batch.times[rows] >= subscriber.since]
        is_late = batch.times[rows] + gap <= watermarks[subscriber.query_id]
        if is_late.any():
            yield -1, subscriber.query_id, SessionRuns([], rows[:0], rows[:0], [], {}), int(is_late.sum())
        if not is_late.all():
            for partition, query_runs in _build_query_runs(subscriber, gap, rows[~is_late], batch, encoder):
                yield partition, subscriber.query_id, query_runs, 0


def _build_query_runs(
    subscriber: Subscriber, gap: int, rows: Integers, batch: RowBatch, encoder: KeyEncoder
) -> Iterator[tuple[int, SessionRuns]]:
    table = encoder.get_key_table(subscriber.keys)
    codes, times = encoder.compute_key_ids(subscriber.keys)[rows], batch.times[rows]
    order = np.lexsort((times, codes))
    rows, codes, times = rows[order], codes[order], times[order]
    is_first = window_kernels.mark_session_heads(codes, times, times, gap)
    places = np.cumsum(is_first) - 1
    first_rows = np.flatnonzero(is_first)
    last_rows = np.append(first_rows[1:], len(rows)) - 1
    cuts = np.searchsorted(codes[first_rows], table.partition_bounds)
    count = len(first_rows)
    accumulator = Accumulator([component.signature if component.is_dense else None for component in subscriber.components], count)
    accumulator.add(
        places, [[batch.evaluate(argument) for argument in component.args] for component in subscriber.components], rows
    )
    dense = accumulator.export_arrays(np.arange(count))
    entries = {}
    for index, component in enumerate(subscriber.components):
        if not component.is_dense:
            entries[index] = reduce_listed(
                component.kind, [batch.evaluate(argument).take(pa.array(rows)) for argument in component.args], places
            )
    for partition in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
        first, last = int(cuts[partition]), int(cuts[partition + 1])
        partition_entries = {i: _slice_listed(value_lists, first, last) for i, value_lists in entries.items()}
        arrays = [[array[first:last] for array in accumulators] for accumulators in dense]
        keys = [take(column, codes[first_rows[first:last]]) for column in table.columns]
        yield partition, SessionRuns(keys, times[first_rows[first:last]], times[last_rows[first:last]], arrays, partition_entries)


def _slice_listed(value_lists: tuple[Integers, list[pa.Array], Numbers], first: int, last: int) -> ListedValues:
    places, values, counts = value_lists
    entry_ids = np.flatnonzero((places >= first) & (places < last))
    return ListedValues(places[entry_ids] - first, [take(column, entry_ids) for column in values], counts[entry_ids])


def merge_runs(components: Sequence[Component], gap: int, run_lists: Sequence[SessionRuns]) -> SessionRuns:
    """Merge the runs of one query that touch."""
    firsts, lasts = (np.concatenate([getattr(run_list, name) for run_list in run_lists]) for name in ("firsts", "lasts"))
    columns = [pa.concat_arrays([run_list.keys[i] for run_list in run_lists]) for i in range(len(run_lists[0].keys))]
    codes = encode_keys(columns, len(firsts)).codes
    order = np.lexsort((firsts, codes))
    is_first = window_kernels.mark_session_heads(codes[order], firsts[order], lasts[order], gap)
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(is_first) - 1
    count = int(is_first.sum())
    first_runs = order[np.flatnonzero(is_first)]
    ends = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(ends, places, lasts)
    dense, entries = merge_components(components, run_lists, places, count)
    return SessionRuns([take(column, first_runs) for column in columns], firsts[first_runs], ends, dense, entries)


def merge_components(
    components: Sequence[Component], run_lists: Sequence[SessionRuns], places: Integers, count: int
) -> tuple[list[list[Numbers]], dict[int, ListedValues]]:
    """Return the components of `count` groups; `places` gives the group of each entry of the parts."""
    dense: list[list[Numbers]] = []
    entries: dict[int, ListedValues] = {}
    offsets = np.cumsum([0, *(len(run_list.firsts) for run_list in run_lists)])
    for index, component in enumerate(components):
        totals = allocate_neutral(*component.signature, count) if component.is_dense else []
        if component.is_dense:
            for run_list, offset in zip(run_lists, offsets, strict=False):
                combine_partials(component.kind, run_list.dense[index], places[offset : offset + len(run_list.firsts)], totals)
        else:
            entries[index] = _merge_listed(component, index, run_lists, offsets, places)
        dense.append(totals)
    return dense, entries


def _merge_listed(
    component: Component, index: int, run_lists: Sequence[SessionRuns], offsets: Integers, places: Integers
) -> ListedValues:
    groups = np.concatenate(
        [places[run_list.listed[index].rows + offset] for run_list, offset in zip(run_lists, offsets, strict=False)]
    )
    columns = [pa.concat_arrays([run_list.listed[index].values[i] for run_list in run_lists]) for i in range(len(component.args))]
    counts = np.concatenate([widen_integers(run_list.listed[index].counts) for run_list in run_lists])
    return ListedValues(*reduce_listed(component.kind, columns, groups, counts))


def split_closed(sessions: SessionRuns, gap: int, watermark: int) -> tuple[SessionRuns, SessionRuns]:
    """Return (closed, open): a session is closed when its last row plus the gap is not after the watermark."""
    is_closed = sessions.lasts <= watermark - gap
    return take_runs(sessions, np.flatnonzero(is_closed)), take_runs(sessions, np.flatnonzero(~is_closed))


def take_runs(runs: SessionRuns, rows: Integers) -> SessionRuns:
    """Return the runs at the given rows."""
    new_ids = np.full(len(runs.firsts), -1, np.int64)
    new_ids[rows] = np.arange(len(rows))
    entries = {}
    for index, value_lists in runs.listed.items():
        entry_ids = np.flatnonzero(new_ids[value_lists.rows] >= 0)
        entries[index] = ListedValues(
            new_ids[value_lists.rows[entry_ids]],
            [take(column, entry_ids) for column in value_lists.values],
            value_lists.counts[entry_ids],
        )
    dense = [[array[rows] for array in accumulators] for accumulators in runs.dense]
    return SessionRuns([take(column, rows) for column in runs.keys], runs.firsts[rows], runs.lasts[rows], dense, entries)


def emit_closed(
    query: int, plan: AggregateQuery, gap: int, closed: SessionRuns, results: BatchResults, failures: QueryFailures
) -> None:
    """Emit closed sessions as result rows, in the order of their start."""
    ordered = take_runs(closed, np.argsort(closed.firsts, kind="stable"))
    queries = np.full(len(ordered.firsts), query, np.int64)
    dense = [[widen_integers(array) for array in accumulators] for accumulators in ordered.dense]
    finalize_rows(
        plan, CombinedRows(queries, ordered.firsts, ordered.lasts + gap, ordered.keys, dense, ordered.listed), results, failures
    )
