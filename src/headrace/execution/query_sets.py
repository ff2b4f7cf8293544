"""Each row to the set of queries it still matters to, for rows that travel themselves: those of joins.

Every condition is looked at once for each segment of what it compares, not for each row: a row's set is the AND of what the
tables have for its segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headrace.execution.batch import Batch
from headrace.execution.selection import segments
from headrace.kernels import compiled_join
from headrace.kernels.sets import Sets, set_of, words
from headrace.model.expression import TRUE, Expression, conjuncts
from headrace.sharing.selection import TRUE_CODE, Dimension, dimensions, truth


class QuerySets:
    """Predicates with their bits, made ready for batches."""

    def __init__(self, predicates: Sequence[Expression], bits: Sequence[int]) -> None:
        """Predicate i is that of bit i."""
        self.width = words(bits)
        self._everybody = set_of(bits, self.width)
        self._conditions: dict[Expression, list[int]] = {}
        for predicate, bit in zip(predicates, bits, strict=True):
            for condition in conjuncts(predicate):
                if condition == TRUE:
                    continue
                self._conditions.setdefault(condition, []).append(bit)
        self.dimensions = dimensions(self._conditions)

    @cached_property
    def _tables(self) -> list[tuple[Dimension, Sets]]:
        """For each dimension, the set of every segment."""
        found = []
        for dimension in self.dimensions:
            table = np.tile(self._everybody, (dimension.size, 1))
            for condition, bits in self._conditions.items():
                if _only(condition, dimension):
                    holds = truth(condition, (dimension,), [np.arange(dimension.size)]) == TRUE_CODE
                    table[~np.broadcast_to(holds, dimension.size)] &= ~set_of(bits, self.width)
            found.append((dimension, table))
        return found

    @cached_property
    def _mixed(self) -> list[tuple[Expression, tuple[Dimension, ...], Sets]]:
        """Conditions over several dimensions at once."""
        every = [(condition, dimensions((condition,)), bits) for condition, bits in self._conditions.items()]
        return [(condition, dims, set_of(bits, self.width)) for condition, dims, bits in every if len(dims) > 1]

    def of(self, batch: Batch) -> Sets:
        """Return the set of every row."""
        sets = np.tile(self._everybody, (batch.rows, 1))
        codes: dict[tuple[Expression, bool], npt.NDArray[np.int64]] = {}
        for dimension, table in self._tables:
            found = segments(dimension, batch)
            codes[dimension.expression, dimension.boundaries is None] = found
            compiled_join.restrict(found, table, sets)
        whole = {(d.expression, d.boundaries is None): d for d in self.dimensions}
        for condition, dims, bits in self._mixed:
            places = [(d.expression, d.boundaries is None) for d in dims]
            holds = truth(condition, [whole[at] for at in places], [codes[at] for at in places]) == TRUE_CODE
            sets[~np.broadcast_to(holds, batch.rows)] &= ~bits
        return sets


def _only(condition: Expression, dimension: Dimension) -> bool:
    found = dimensions((condition,))
    return (
        len(found) == 1
        and found[0].expression == dimension.expression
        and (found[0].boundaries is None) == (dimension.boundaries is None)
    )
