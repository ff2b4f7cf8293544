"""Repartitioning of state: when the number of partitions changes, each new partition selects its share of all stored state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.accumulators import PartialAggregate, ValueEntries
from headrace.engine.compute.columns import combine_chunks, narrow_integers, take, widen_integers
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.compute.keys import assign_partitions
from headrace.engine.joins.join_buffer import BufferedRows
from headrace.engine.operators.sessions import SessionRuns, take_runs
from headrace.planner.shared_plan import JoinBuffer


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    """Selects the state that belongs to `partition` out of `partition_count`."""

    partition: int
    partition_count: int

    def filter_partial(self, partial: PartialAggregate) -> PartialAggregate:
        """Return the keys of this partition, with their entries."""
        selected_keys = assign_partitions(partial.keys, partial.key_count, self.partition_count) == self.partition
        sizes = np.diff(widen_integers(partial.starts))
        selected_entries = np.repeat(selected_keys, sizes)
        return PartialAggregate(
            partial.slice_start,
            [take(column, np.flatnonzero(selected_keys)) for column in partial.keys],
            narrow_integers(np.concatenate([[0], np.cumsum(sizes[selected_keys])])),
            partial.cells[selected_entries],
            [[array[selected_entries] for array in arrays] for arrays in partial.dense],
            {component: _filter_entries(values, selected_keys) for component, values in partial.listed.items()},
        )

    def filter_buffered_rows(self, operator: JoinBuffer, buffered: BufferedRows) -> BufferedRows:
        """Return the rows whose keys belong to this partition."""
        evaluate = Evaluator(dict(zip(operator.columns, buffered.columns, strict=True)), buffered.row_count)
        rows = self._select_rows([combine_chunks(evaluate(key)) for key in operator.keys], buffered.row_count)
        row_ids = pa.array(rows)
        return BufferedRows(buffered.slice_start, [column.take(row_ids) for column in buffered.columns], buffered.sets[rows])

    def filter_runs(self, runs: SessionRuns) -> SessionRuns:
        """Return the sessions whose keys belong to this partition."""
        return take_runs(runs, self._select_rows(runs.keys, len(runs.firsts)))

    def _select_rows(self, keys: list[pa.Array], count: int) -> npt.NDArray[np.int64]:
        return np.flatnonzero(assign_partitions(keys, count, self.partition_count) == self.partition)


def _filter_entries(entries: ValueEntries, selected_keys: npt.NDArray[np.bool_]) -> ValueEntries:
    entry_ids = np.flatnonzero(selected_keys[widen_integers(entries.keys)])
    new_ids = np.cumsum(selected_keys) - 1
    values = [take(column, entry_ids) for column in entries.values]
    return ValueEntries(
        narrow_integers(new_ids[widen_integers(entries.keys)[entry_ids]]),
        entries.cells[entry_ids],
        values,
        entries.counts[entry_ids],
    )
