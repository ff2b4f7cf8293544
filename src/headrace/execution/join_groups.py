"""An aggregation over joined rows: groups by query, window and key, made where rows were joined, merged by key partition.

Windows are final when their rows are joined, so a group lives for one micro-batch only. Groups are kept as runs are
(`sessions.Runs`): the first two key columns are query and end of the window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.finish import Combined, Listed, finish
from headrace.execution.result import Failures, Results
from headrace.execution.sessions import Runs, merge_components, subset
from headrace.kernels.columns import numbers, take, wide
from headrace.kernels.component import Accumulator, listed
from headrace.kernels.keys import encode, partitions
from headrace.plan.logical import AggregateQuery
from headrace.sharing.aggregation import Component

Integers = npt.NDArray[np.int64]


def group(
    needs: Sequence[Component], queries: Integers, ends: Integers, keys: Sequence[pa.Array], arguments: Sequence[list[pa.Array]]
) -> Runs:
    """Aggregate rows, each of a query and a window; `arguments[c]` are those of component c."""
    columns = [pa.array(queries), pa.array(ends), *keys]
    found = encode(columns, len(queries))
    accumulator = Accumulator([n.signature if n.is_dense else None for n in needs], found.count)
    accumulator.add(found.codes, arguments, None)
    values = {i: Listed(*listed(n.kind, arguments[i], found.codes)) for i, n in enumerate(needs) if not n.is_dense}
    dense, ended = accumulator.arrays(np.arange(found.count)), numbers(found.columns[1])
    whole = Runs(found.columns, ended, ended, dense, values)
    return subset(whole, np.unique(found.codes))


def merge(needs: Sequence[Component], parts: Sequence[Runs]) -> Runs:
    """Join groups of equal query, window and key."""
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays([p.keys[i] for p in parts]) for i in range(len(parts[0].keys))]
    found = encode(columns, len(columns[0]))
    used, places = np.unique(found.codes, return_inverse=True)
    dense, values = merge_components(needs, parts, places.astype(np.int64), len(used))
    kept = [take(column, used) for column in found.columns]
    return Runs(kept, numbers(kept[1]), numbers(kept[1]), dense, values)


def split(found: Runs, parts: int) -> list[tuple[int, Runs]]:
    """Cut groups by the partition of their key; groups without key by query."""
    count = len(found.firsts)
    places = partitions(found.keys[2:] or found.keys[:1], count, parts)
    return [(int(p), subset(found, np.flatnonzero(places == p))) for p in np.unique(places)]


def emit(plan: AggregateQuery, size: int, found: Runs, results: Results, failures: Failures) -> None:
    """Turn groups into result rows, in the order of query and window; `size` is the length of windows."""
    queries, ends = wide(numbers(found.keys[0])), wide(numbers(found.keys[1]))
    order = np.lexsort((ends, queries))
    ordered = subset(found, order)
    dense = [[wide(a) for a in d] for d in ordered.dense]
    finish(
        plan,
        Combined(queries[order], ends[order] - size, ends[order], ordered.keys[2:], dense, ordered.listed),
        results,
        failures,
    )
