"""Routing of rows to the partitions of a sliding join: by the value of a key, to all partitions, or to the local one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.execution.multiway.tuples import PackedRows
from headrace.kernels.columns import combine_chunks
from headrace.kernels.expression import Evaluator
from headrace.kernels.keys import assign_partitions
from headrace.model.expression import Expression
from headrace.sharing.multiway.probes import ProbeRouting, RoutingKind


def route_to_probe(
    edge: ProbeRouting, rows: PackedRows, partition: int, partition_count: int
) -> Iterator[tuple[int, PackedRows]]:
    """Yield (partition, rows) along an edge to a probe; rows with a NULL key match nothing and are dropped."""
    if edge.kind is RoutingKind.BROADCAST:
        yield from ((target, rows) for target in range(partition_count))
    elif edge.kind is RoutingKind.LOCAL:
        yield partition, rows
    else:
        assert edge.key is not None
        values = _evaluate_key(edge.key, rows)
        if values.null_count:
            rows = rows.take(np.flatnonzero(np.asarray(values.is_valid())))
            values = values.drop_null()
        yield from _split_by_partition(rows, assign_partitions([values], rows.row_count, partition_count))


def route_to_store(
    key: Expression | None, rows: PackedRows, partition: int, partition_count: int
) -> Iterator[tuple[int, PackedRows]]:
    """Yield (partition, rows) for a state store: by its key, or evenly if it has none."""
    if partition_count == 1:
        yield 0, rows
    elif key is None:
        yield from _split_by_partition(rows, (np.arange(rows.row_count) + partition) % partition_count)
    else:
        yield from _split_by_partition(rows, assign_partitions([_evaluate_key(key, rows)], rows.row_count, partition_count))


def _evaluate_key(key: Expression, rows: PackedRows) -> pa.Array:
    return combine_chunks(Evaluator(rows.columns, rows.row_count)(key))


def _split_by_partition(
    rows: PackedRows, targets: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[tuple[int, PackedRows]]:
    for target in np.unique(targets).tolist():
        yield target, rows.take(np.flatnonzero(targets == target))
