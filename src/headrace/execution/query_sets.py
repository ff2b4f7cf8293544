"""Assigns each row the set of queries that it still matters to, for operators that ship rows: the joins.

A condition is evaluated once for each segment of the values it compares, not for each row: the query-set of a row is the AND of
the table entries of its segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headrace.execution.batch import Batch
from headrace.execution.selection import segments
from headrace.kernels import compiled_join
from headrace.kernels.sets import QueryBitmaps, count_words, make_bitmap
from headrace.model.expression import TRUE, Expression, split_conjuncts
from headrace.sharing.selection import TRUE_CODE, Dimension, derive_dimensions, evaluate_truth


class QuerySets:
    """Assigns query-sets to the rows of batches, from the predicates of queries and their bits."""

    def __init__(self, predicates: Sequence[Expression], bits: Sequence[int]) -> None:
        """Predicate i belongs to bit i."""
        self.width = count_words(bits)
        self._everybody = make_bitmap(bits, self.width)
        self._conditions: dict[Expression, list[int]] = {}
        for predicate, bit in zip(predicates, bits, strict=True):
            for condition in split_conjuncts(predicate):
                if condition == TRUE:
                    continue
                self._conditions.setdefault(condition, []).append(bit)
        self.dimensions = derive_dimensions(self._conditions)

    @cached_property
    def _tables(self) -> list[tuple[Dimension, QueryBitmaps]]:
        """For each dimension, the query-set of every segment."""
        tables = []
        for dimension in self.dimensions:
            table = np.tile(self._everybody, (dimension.segment_count, 1))
            for condition, bits in self._conditions.items():
                if _only(condition, dimension):
                    holds = evaluate_truth(condition, (dimension,), [np.arange(dimension.segment_count)]) == TRUE_CODE
                    table[~np.broadcast_to(holds, dimension.segment_count)] &= ~make_bitmap(bits, self.width)
            tables.append((dimension, table))
        return tables

    @cached_property
    def _mixed(self) -> list[tuple[Expression, tuple[Dimension, ...], QueryBitmaps]]:
        """Conditions over several dimensions at once."""
        conditions = [(condition, derive_dimensions((condition,)), bits) for condition, bits in self._conditions.items()]
        return [(condition, dims, make_bitmap(bits, self.width)) for condition, dims, bits in conditions if len(dims) > 1]

    def of(self, batch: Batch) -> QueryBitmaps:
        """Return the query-set of every row."""
        sets = np.tile(self._everybody, (batch.rows, 1))
        codes: dict[tuple[Expression, bool], npt.NDArray[np.int64]] = {}
        for dimension, table in self._tables:
            segment_ids = segments(dimension, batch)
            codes[dimension.expression, dimension.boundaries is None] = segment_ids
            compiled_join.restrict_sets(segment_ids, table, sets)
        dimension_of = {(dimension.expression, dimension.boundaries is None): dimension for dimension in self.dimensions}
        for condition, dims, bits in self._mixed:
            dimension_keys = [(dimension.expression, dimension.boundaries is None) for dimension in dims]
            holds = (
                evaluate_truth(
                    condition,
                    [dimension_of[dimension_key] for dimension_key in dimension_keys],
                    [codes[dimension_key] for dimension_key in dimension_keys],
                )
                == TRUE_CODE
            )
            sets[~np.broadcast_to(holds, batch.rows)] &= ~bits
        return sets


def _only(condition: Expression, dimension: Dimension) -> bool:
    condition_dimensions = derive_dimensions((condition,))
    return (
        len(condition_dimensions) == 1
        and condition_dimensions[0].expression == dimension.expression
        and (condition_dimensions[0].boundaries is None) == (dimension.boundaries is None)
    )
