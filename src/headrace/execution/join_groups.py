"""Aggregation over joined rows: groups by query, window and key, built where rows are joined and merged by key partition.

A window is final when its rows are joined, so a group lives for one micro-batch only. Groups are stored as `SessionRuns`, whose
first two key columns are then the query and the end of the window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.finish import CombinedRows, ListedValues, finalize_rows
from headrace.execution.result import BatchResults, QueryFailures
from headrace.execution.sessions import SessionRuns, merge_components, take_runs
from headrace.kernels.columns import take, to_numbers, widen_integers
from headrace.kernels.component import Accumulator, reduce_listed
from headrace.kernels.keys import assign_partitions, encode_keys
from headrace.plan.logical import AggregateQuery
from headrace.sharing.aggregation import Component

Integers = npt.NDArray[np.int64]


def build_groups(
    components: Sequence[Component],
    queries: Integers,
    ends: Integers,
    keys: Sequence[pa.Array],
    arguments: Sequence[list[pa.Array]],
) -> SessionRuns:
    """Aggregate rows of queries and windows; `arguments[c]` holds the arguments of component c."""
    columns = [pa.array(queries), pa.array(ends), *keys]
    encoded = encode_keys(columns, len(queries))
    accumulator = Accumulator([component.signature if component.is_dense else None for component in components], encoded.count)
    accumulator.add(encoded.codes, arguments, None)
    entries = {
        index: ListedValues(*reduce_listed(component.kind, arguments[index], encoded.codes))
        for index, component in enumerate(components)
        if not component.is_dense
    }
    dense, group_ends = accumulator.export_arrays(np.arange(encoded.count)), to_numbers(encoded.columns[1])
    groups = SessionRuns(encoded.columns, group_ends, group_ends, dense, entries)
    return take_runs(groups, np.unique(encoded.codes))


def merge_groups(components: Sequence[Component], group_lists: Sequence[SessionRuns]) -> SessionRuns:
    """Merge groups of equal query, window and key."""
    if len(group_lists) == 1:
        return group_lists[0]
    columns = [pa.concat_arrays([groups.keys[i] for groups in group_lists]) for i in range(len(group_lists[0].keys))]
    encoded = encode_keys(columns, len(columns[0]))
    group_codes, group_ids = np.unique(encoded.codes, return_inverse=True)
    dense, entries = merge_components(components, group_lists, group_ids.astype(np.int64), len(group_codes))
    key_columns = [take(column, group_codes) for column in encoded.columns]
    return SessionRuns(key_columns, to_numbers(key_columns[1]), to_numbers(key_columns[1]), dense, entries)


def split_groups(groups: SessionRuns, partition_count: int) -> list[tuple[int, SessionRuns]]:
    """Split groups by the partition of their key; groups without a key by query."""
    count = len(groups.firsts)
    targets = assign_partitions(groups.keys[2:] or groups.keys[:1], count, partition_count)
    return [(int(target), take_runs(groups, np.flatnonzero(targets == target))) for target in np.unique(targets)]


def emit_groups(plan: AggregateQuery, size: int, groups: SessionRuns, results: BatchResults, failures: QueryFailures) -> None:
    """Emit groups as result rows, in the order of query and window; `size` is the length of windows."""
    queries, ends = widen_integers(to_numbers(groups.keys[0])), widen_integers(to_numbers(groups.keys[1]))
    order = np.lexsort((ends, queries))
    ordered = take_runs(groups, order)
    dense = [[widen_integers(array) for array in accumulators] for accumulators in ordered.dense]
    finalize_rows(
        plan,
        CombinedRows(queries[order], ends[order] - size, ends[order], ordered.keys[2:], dense, ordered.listed),
        results,
        failures,
    )
