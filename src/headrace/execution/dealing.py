"""State dealt anew: when the number of partitions has changed, each takes its share of what all of them had before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.bucketing import Bucket
from headrace.execution.sessions import Runs, subset
from headrace.kernels.columns import flat, narrow, take, wide
from headrace.kernels.expression import Evaluator
from headrace.kernels.keys import partitions
from headrace.kernels.partial import Entries, Partial
from headrace.sharing.shared_plan import Buckets


@dataclass(frozen=True, slots=True)
class Share:
    """What belongs to one of so many partitions."""

    partition: int
    parts: int

    def partial(self, whole: Partial) -> Partial:
        """Return the keys of this partition, with all that is kept of them."""
        mine = partitions(whole.keys, whole.key_count, self.parts) == self.partition
        sizes = np.diff(wide(whole.starts))
        entries = np.repeat(mine, sizes)
        return Partial(
            whole.slice_start,
            [take(column, np.flatnonzero(mine)) for column in whole.keys],
            narrow(np.concatenate([[0], np.cumsum(sizes[mine])])),
            whole.cells[entries],
            [[array[entries] for array in arrays] for arrays in whole.dense],
            {component: _listed(found, mine) for component, found in whole.listed.items()},
        )

    def bucket(self, operator: Buckets, whole: Bucket) -> Bucket:
        """Return the rows whose keys are of this partition."""
        evaluate = Evaluator(dict(zip(operator.columns, whole.columns, strict=True)), whole.rows)
        rows = self._rows([flat(evaluate(key)) for key in operator.keys], whole.rows)
        picked = pa.array(rows)
        return Bucket(whole.slice_start, [column.take(picked) for column in whole.columns], whole.sets[rows])

    def runs(self, whole: Runs) -> Runs:
        """Return the sessions whose keys are of this partition."""
        return subset(whole, self._rows(whole.keys, len(whole.firsts)))

    def _rows(self, keys: list[pa.Array], count: int) -> npt.NDArray[np.int64]:
        return np.flatnonzero(partitions(keys, count, self.parts) == self.partition)


def _listed(found: Entries, mine: npt.NDArray[np.bool_]) -> Entries:
    kept = np.flatnonzero(mine[wide(found.keys)])
    places = np.cumsum(mine) - 1
    values = [take(column, kept) for column in found.values]
    return Entries(narrow(places[wide(found.keys)[kept]]), found.cells[kept], values, found.counts[kept])
