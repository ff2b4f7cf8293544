"""Query-sets of rows as bitmaps: the queries that each row of a join still matters to.

A bitmap is a row of 64-bit words. Every condition is evaluated once for each segment of the expression it compares, not for
each row: the query-set of a row is the AND of the table entries of its segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.selection import find_segments
from headrace.engine.row_batch import RowBatch
from headrace.model.expression import TRUE, Expression, split_conjuncts
from headrace.planner.predicate_index import TRUE_CODE, Dimension, derive_dimensions, evaluate_truth
from headrace.planner.query_bits import BitTranslation

QueryBitmaps = npt.NDArray[np.uint64]


def count_words(bits: Iterable[int]) -> int:
    """Return the number of words that sets of these bits need."""
    return max(bits, default=0) // 64 + 1


def make_bitmap(bits: Iterable[int], width: int) -> QueryBitmaps:
    """Return one set, as an array of `width` words."""
    bitmap = np.zeros(width, np.uint64)
    for bit in bits:
        bitmap[bit // 64] |= np.uint64(1) << np.uint64(bit % 64)
    return bitmap


def mask_bit(sets: QueryBitmaps, bit: int) -> npt.NDArray[np.bool_]:
    """Return the mask of sets that contain a bit."""
    if bit // 64 >= sets.shape[1]:
        return np.zeros(len(sets), np.bool_)
    return (sets[:, bit // 64] >> np.uint64(bit % 64) & np.uint64(1)).astype(np.bool_)


def resize_bitmaps(sets: QueryBitmaps, width: int) -> QueryBitmaps:
    """Return the same sets with more words, or with fewer where no query needs the dropped words."""
    if sets.shape[1] == width:
        return sets
    if sets.shape[1] > width:
        return np.ascontiguousarray(sets[:, :width])
    return np.concatenate([sets, np.zeros((len(sets), width - sets.shape[1]), np.uint64)], axis=1)


def translate_sets(sets: QueryBitmaps, translation: BitTranslation, width: int) -> QueryBitmaps:
    """Return query-sets of another time in the bits of now; `width` is that of the result, in words."""
    unchanged = make_bitmap((bit for bit in translation.changelog_set if bit < width * 64), width)
    translated = resize_bitmaps(sets, width) & unchanged
    if translation.moved:
        sources, targets = (np.array(bits, np.int64) for bits in zip(*translation.moved, strict=True))
        join_kernels.move_bits(sets, sources, targets, translated)
    return translated


def list_rows_by_bit(samples: Iterable[QueryBitmaps], bits: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return, for each bit, the sampled rows whose set has it, and the rows of samples that cover it: bit i stands for row i.

    The first set of a sample contains all bits that the sample covers.
    """
    selected, covered, rows = dict.fromkeys(bits, 0), dict.fromkeys(bits, 0), 0
    for sample in samples:
        sets = resize_bitmaps(sample, count_words(bits))
        by_bit = np.packbits(np.unpackbits(sets.view(np.uint8), axis=1, bitorder="little"), axis=0, bitorder="little").T
        count, numbers = len(sets) - 1, np.ascontiguousarray(by_bit)
        for bit in bits:
            column = int.from_bytes(numbers[bit].tobytes(), "little")
            if column & 1:
                covered[bit] |= ((1 << count) - 1) << rows
                selected[bit] |= (column >> 1) << rows
        rows += count
    return selected, covered


class QuerySetAssigner:
    """Assigns query-sets to the rows of batches, from the predicates of queries and their bits."""

    def __init__(self, predicates: Sequence[Expression], bits: Sequence[int]) -> None:
        """Predicate i belongs to bit i."""
        self.width = count_words(bits)
        self._all_queries = make_bitmap(bits, self.width)
        self._bits_by_condition: dict[Expression, list[int]] = {}
        for predicate, bit in zip(predicates, bits, strict=True):
            for condition in split_conjuncts(predicate):
                if condition == TRUE:
                    continue
                self._bits_by_condition.setdefault(condition, []).append(bit)
        self.dimensions = derive_dimensions(self._bits_by_condition)

    @cached_property
    def _segment_tables(self) -> list[tuple[Dimension, QueryBitmaps]]:
        """For each dimension, the query-set of every segment."""
        tables = []
        for dimension in self.dimensions:
            table = np.tile(self._all_queries, (dimension.segment_count, 1))
            for condition, bits in self._bits_by_condition.items():
                if _is_only_over(condition, dimension):
                    holds = evaluate_truth(condition, (dimension,), [np.arange(dimension.segment_count)]) == TRUE_CODE
                    table[~np.broadcast_to(holds, dimension.segment_count)] &= ~make_bitmap(bits, self.width)
            tables.append((dimension, table))
        return tables

    @cached_property
    def _mixed_conditions(self) -> list[tuple[Expression, tuple[Dimension, ...], QueryBitmaps]]:
        """Conditions over several dimensions at once."""
        conditions = [(condition, derive_dimensions((condition,)), bits) for condition, bits in self._bits_by_condition.items()]
        return [(condition, dims, make_bitmap(bits, self.width)) for condition, dims, bits in conditions if len(dims) > 1]

    def assign_sets(self, batch: RowBatch) -> QueryBitmaps:
        """Return the query-set of every row."""
        sets = np.tile(self._all_queries, (batch.row_count, 1))
        codes: dict[tuple[Expression, bool], npt.NDArray[np.int64]] = {}
        for dimension, table in self._segment_tables:
            segment_ids = find_segments(dimension, batch)
            codes[dimension.expression, dimension.boundaries is None] = segment_ids
            join_kernels.restrict_sets(segment_ids, table, sets)
        dimension_of = {(dimension.expression, dimension.boundaries is None): dimension for dimension in self.dimensions}
        for condition, dims, bits in self._mixed_conditions:
            dimension_keys = [(dimension.expression, dimension.boundaries is None) for dimension in dims]
            holds = (
                evaluate_truth(
                    condition,
                    [dimension_of[dimension_key] for dimension_key in dimension_keys],
                    [codes[dimension_key] for dimension_key in dimension_keys],
                )
                == TRUE_CODE
            )
            sets[~np.broadcast_to(holds, batch.row_count)] &= ~bits
        return sets


def _is_only_over(condition: Expression, dimension: Dimension) -> bool:
    condition_dimensions = derive_dimensions((condition,))
    return (
        len(condition_dimensions) == 1
        and condition_dimensions[0].expression == dimension.expression
        and (condition_dimensions[0].boundaries is None) == (dimension.boundaries is None)
    )
