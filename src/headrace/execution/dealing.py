"""Repartitioning of state: when the number of partitions changes, each new partition selects its share of all stored state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.bucketing import Bucket
from headrace.execution.sessions import Runs, subset
from headrace.kernels.columns import combine_chunks, narrow_integers, take, widen_integers
from headrace.kernels.expression import Evaluator
from headrace.kernels.keys import assign_partitions
from headrace.kernels.partial import PartialAggregate, ValueEntries
from headrace.sharing.shared_plan import JoinBuffer


@dataclass(frozen=True, slots=True)
class Share:
    """Selects the state that belongs to `partition` out of `partition_count`."""

    partition: int
    parts: int

    def partial(self, partial: PartialAggregate) -> PartialAggregate:
        """Return the keys of this partition, with their entries."""
        selected_keys = assign_partitions(partial.keys, partial.key_count, self.parts) == self.partition
        sizes = np.diff(widen_integers(partial.starts))
        selected_entries = np.repeat(selected_keys, sizes)
        return PartialAggregate(
            partial.slice_start,
            [take(column, np.flatnonzero(selected_keys)) for column in partial.keys],
            narrow_integers(np.concatenate([[0], np.cumsum(sizes[selected_keys])])),
            partial.cells[selected_entries],
            [[array[selected_entries] for array in arrays] for arrays in partial.dense],
            {component: _listed(values, selected_keys) for component, values in partial.listed.items()},
        )

    def bucket(self, operator: JoinBuffer, buffered: Bucket) -> Bucket:
        """Return the rows whose keys belong to this partition."""
        evaluate = Evaluator(dict(zip(operator.columns, buffered.columns, strict=True)), buffered.rows)
        rows = self._rows([combine_chunks(evaluate(key)) for key in operator.keys], buffered.rows)
        row_ids = pa.array(rows)
        return Bucket(buffered.slice_start, [column.take(row_ids) for column in buffered.columns], buffered.sets[rows])

    def runs(self, runs: Runs) -> Runs:
        """Return the sessions whose keys belong to this partition."""
        return subset(runs, self._rows(runs.keys, len(runs.firsts)))

    def _rows(self, keys: list[pa.Array], count: int) -> npt.NDArray[np.int64]:
        return np.flatnonzero(assign_partitions(keys, count, self.parts) == self.partition)


def _listed(entries: ValueEntries, selected_keys: npt.NDArray[np.bool_]) -> ValueEntries:
    entry_ids = np.flatnonzero(selected_keys[widen_integers(entries.keys)])
    new_ids = np.cumsum(selected_keys) - 1
    values = [take(column, entry_ids) for column in entries.values]
    return ValueEntries(
        narrow_integers(new_ids[widen_integers(entries.keys)[entry_ids]]),
        entries.cells[entry_ids],
        values,
        entries.counts[entry_ids],
    )
