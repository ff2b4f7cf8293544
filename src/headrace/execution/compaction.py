"""Several partials of one slice into one, so that a slice that takes rows for many batches stays quick to read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels.columns import narrow, take, wide
from headrace.kernels.component import combine, empty, listed
from headrace.kernels.keys import unify
from headrace.kernels.partial import Entries, Partial, group_starts
from headrace.sharing.aggregation import Component

Integers = npt.NDArray[np.int64]


def compact(components: Sequence[Component], parts: Sequence[Partial]) -> Partial:
    """Return one partial that holds what all of them hold; they are of one slice and store."""
    columns, _, maps = unify([(p.keys, p.key_count) for p in parts])
    keys = np.concatenate([np.repeat(m, np.diff(wide(p.starts))) for p, m in zip(parts, maps, strict=True)])
    cells = np.concatenate([wide(p.cells) for p in parts])
    order = np.lexsort((cells, keys))
    new = np.concatenate([[True], (np.diff(keys[order]) != 0) | (np.diff(cells[order]) != 0)])
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(new) - 1
    heads = order[np.flatnonzero(new)]
    distinct, starts = group_starts(keys[heads])
    offsets = np.cumsum([0, *(len(p.cells) for p in parts)])
    dense, values = [], {}
    for index, component in enumerate(components):
        into = empty(*component.signature, len(heads)) if component.is_dense else []
        for part, offset in zip(parts, offsets, strict=False):
            if component.is_dense:
                combine(component.kind, part.dense[index], places[offset : offset + len(part.cells)], into)
        if not component.is_dense:
            values[index] = _compact_listed(component, [p.listed[index] for p in parts], maps, distinct)
        dense.append([narrow(a) for a in into])
    return Partial(
        parts[0].slice_start, [take(c, distinct) for c in columns], narrow(starts), narrow(cells[heads]), dense, values
    )


def _compact_listed(component: Component, parts: Sequence[Entries], maps: Sequence[Integers], distinct: Integers) -> Entries:
    keys = np.concatenate([m[wide(p.keys)] for p, m in zip(parts, maps, strict=True)])
    cells = np.concatenate([wide(p.cells) for p in parts])
    labels, codes = np.unique(cells, return_inverse=True)
    columns = [pa.concat_arrays([p.values[i] for p in parts]) for i in range(len(component.args))]
    at = keys * max(len(labels), 1) + codes.reshape(-1)
    places, values, counts = listed(component.kind, columns, at, np.concatenate([wide(p.counts) for p in parts]))
    new_keys = np.searchsorted(distinct, places // max(len(labels), 1))
    return Entries(narrow(new_keys), narrow(labels[places % max(len(labels), 1)]), values, narrow(counts))
