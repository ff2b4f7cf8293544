"""Who gets which rows: to the partition of a value, to all of them, or to nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.execution.multiway.tuples import Packed
from headrace.kernels.columns import flat
from headrace.kernels.expression import Evaluator
from headrace.kernels.keys import partitions
from headrace.model.expression import Expression
from headrace.sharing.multiway.probes import Edge, EdgeKind


def sent(edge: Edge, rows: Packed, here: int, parts: int) -> Iterator[tuple[int, Packed]]:
    """Yield (partition, rows) along an edge to a probe; a NULL equals nothing, so that such rows go nowhere."""
    if edge.kind is EdgeKind.ALL:
        yield from ((place, rows) for place in range(parts))
    elif edge.kind is EdgeKind.LOCAL:
        yield here, rows
    else:
        assert edge.by is not None
        values = _values(edge.by, rows)
        if values.null_count:
            rows = rows.take(np.flatnonzero(np.asarray(values.is_valid())))
            values = values.drop_null()
        yield from _dealt(rows, partitions([values], rows.rows, parts))


def dealt(key: Expression | None, rows: Packed, here: int, parts: int) -> Iterator[tuple[int, Packed]]:
    """Yield (partition, rows) on the way to a store: by its key, or evenly if it has none."""
    if parts == 1:
        yield 0, rows
    elif key is None:
        yield from _dealt(rows, (np.arange(rows.rows) + here) % parts)
    else:
        yield from _dealt(rows, partitions([_values(key, rows)], rows.rows, parts))


def _values(key: Expression, rows: Packed) -> pa.Array:
    return flat(Evaluator(rows.columns, rows.rows)(key))


def _dealt(rows: Packed, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[tuple[int, Packed]]:
    for place in np.unique(places).tolist():
        yield place, rows.take(np.flatnonzero(places == place))
