"""Routing of rows to the partitions of a sliding join: by the value of a key, to all partitions, or to the local one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.execution.multiway.tuples import Packed
from headrace.kernels.columns import combine_chunks
from headrace.kernels.expression import Evaluator
from headrace.kernels.keys import assign_partitions
from headrace.model.expression import Expression
from headrace.sharing.multiway.probes import ProbeRouting, RoutingKind


def sent(edge: ProbeRouting, rows: Packed, partition: int, partition_count: int) -> Iterator[tuple[int, Packed]]:
    """Yield (partition, rows) along an edge to a probe; rows with a NULL key match nothing and are dropped."""
    if edge.kind is RoutingKind.BROADCAST:
        yield from ((target, rows) for target in range(partition_count))
    elif edge.kind is RoutingKind.LOCAL:
        yield partition, rows
    else:
        assert edge.key is not None
        values = _values(edge.key, rows)
        if values.null_count:
            rows = rows.take(np.flatnonzero(np.asarray(values.is_valid())))
            values = values.drop_null()
        yield from _dealt(rows, assign_partitions([values], rows.rows, partition_count))


def dealt(key: Expression | None, rows: Packed, partition: int, partition_count: int) -> Iterator[tuple[int, Packed]]:
    """Yield (partition, rows) for a state store: by its key, or evenly if it has none."""
    if partition_count == 1:
        yield 0, rows
    elif key is None:
        yield from _dealt(rows, (np.arange(rows.rows) + partition) % partition_count)
    else:
        yield from _dealt(rows, assign_partitions([_values(key, rows)], rows.rows, partition_count))


def _values(key: Expression, rows: Packed) -> pa.Array:
    return combine_chunks(Evaluator(rows.columns, rows.rows)(key))


def _dealt(rows: Packed, targets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[tuple[int, Packed]]:
    for target in np.unique(targets).tolist():
        yield target, rows.take(np.flatnonzero(targets == target))
