"""Repartitioning of state: when the number of partitions changes, each new partition selects its share of all stored state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.engine.compute.accumulators import PartialAggregate, ValueEntries
from headrace.engine.compute.columns import narrow_integers, take, widen_integers
from headrace.engine.compute.keys import assign_partitions
from headrace.engine.operators.sessions import SessionRuns, take_runs


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

    def filter_runs(self, runs: SessionRuns) -> SessionRuns:
        """Return the sessions whose keys belong to this partition."""
        partitions = assign_partitions(runs.keys, len(runs.firsts), self.partition_count)
        return take_runs(runs, np.flatnonzero(partitions == self.partition))


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
