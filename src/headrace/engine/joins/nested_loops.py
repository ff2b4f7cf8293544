"""All pairs of the rows of two sides, for conditions that no index supports: conditions are evaluated on blocks of pairs.

A block is a few probe rows, each beside all build rows, or beside some thousands of them. What a condition computes from one side
alone is computed once for each row. The values of the build side are laid out once for all blocks of the same build rows, so that
a block costs the values of its probe rows and the rest of the condition. Pairs are formed where a condition holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks, take
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.joins import index
from headrace.engine.joins.index import Integers, PairLimits, RowPairs, concat_pairs
from headrace.engine.joins.joined_rows import JoinedRows, mask_true
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.model.expression import Call, Column, Expression, column_names, walk_expression

BLOCK_PAIRS = 1 << 16  # pairs in memory at once
EvaluateColumn = Callable[[Expression], pa.Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The rows of a side that matter to queries, and the values of expressions over it, by the names of columns in a block."""

    row_ids: Integers
    sets: QueryBitmaps
    columns: dict[str, pa.Array]

    def lay_out(self, positions: Integers) -> dict[str, pa.Array]:
        return {name: take(column, positions) for name, column in self.columns.items()}


def loop_over_pairs(
    probe: JoinedRows,
    evaluate_build: EvaluateColumn,
    build_sets: QueryBitmaps,
    users: QueryBitmaps,
    conditions: Mapping[Expression, QueryBitmaps],
    limits: PairLimits,
) -> Iterator[RowPairs]:
    """Yield the pairs within limits whose query-sets have a user in common whose condition holds, if it has one here.

    Pairs of several blocks are yielded together, since what follows costs much more for a block than for a pair.
    """
    waiting: list[RowPairs] = []
    count = 0
    for pairs in _iter_blocks(probe, evaluate_build, build_sets, users, conditions, limits):
        waiting.append(pairs)
        count += pairs.pair_count
        if count > index.MAX_PAIRS - BLOCK_PAIRS:
            yield concat_pairs(waiting)
            waiting, count = [], 0
    if waiting:
        yield concat_pairs(waiting)


def _iter_blocks(
    probe: JoinedRows,
    evaluate_build: EvaluateColumn,
    build_sets: QueryBitmaps,
    users: QueryBitmaps,
    conditions: Mapping[Expression, QueryBitmaps],
    limits: PairLimits,
) -> Iterator[RowPairs]:
    prepared = _Conditions(probe, evaluate_build, len(build_sets))
    blocks = [prepared.split(condition) for condition in conditions]
    bits = np.array(list(conditions.values()), np.uint64).reshape(len(conditions), len(users))
    left = prepared.take_side(prepared.probe_values, probe.sets, users)
    right = prepared.take_side(prepared.build_values, build_sets, users)
    for start in range(0, len(right.row_ids), BLOCK_PAIRS):
        build_ids = right.row_ids[start : start + BLOCK_PAIRS]
        width, height = len(build_ids), max(1, BLOCK_PAIRS // len(build_ids))
        height = min(height, max(1, len(left.row_ids)))
        tiled = right.lay_out(np.tile(np.arange(start, start + width), height))
        times = None if limits.times is None else limits.times[build_ids]
        batches = None if limits.insert_batches is None else limits.insert_batches[build_ids]
        for first in range(0, len(left.row_ids), height):
            probe_ids = left.row_ids[first : first + height]
            size = len(probe_ids) * width
            repeated = left.lay_out(np.repeat(np.arange(first, first + len(probe_ids)), width))
            evaluate = Evaluator(repeated | {name: column.slice(0, size) for name, column in tiled.items()}, size)
            masks = np.empty((len(blocks), size), np.bool_)
            for number, condition in enumerate(blocks):
                masks[number] = mask_true(evaluate(condition))
            pairs = _pair_rows(
                masks,
                bits,
                left.sets[first : first + height],
                right.sets[start : start + width],
                None if limits.low is None else limits.low[probe_ids],
                None if limits.high is None else limits.high[probe_ids],
                times,
                batches,
                limits.before_batch,
            )
            if len(pairs.sets):
                yield RowPairs(probe_ids[pairs.probe_ids], build_ids[pairs.build_ids], pairs.sets)


def _pair_rows(
    masks: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    bits: QueryBitmaps,
    probe_sets: QueryBitmaps,
    build_sets: QueryBitmaps,
    low: Integers | None,
    high: Integers | None,
    times: Integers | None,
    batches: np.ndarray[tuple[int], np.dtype[np.int32]] | None,
    before: int,
) -> RowPairs:
    room = len(probe_sets) * len(build_sets)
    out_probe, out_build = np.empty(room, np.int64), np.empty(room, np.int64)
    out_sets = np.empty((room, probe_sets.shape[1]), np.uint64)
    count = join_kernels.pair_where_true(
        masks, bits, probe_sets, build_sets, low, high, times, batches, before, out_probe, out_build, out_sets
    )
    return RowPairs(out_probe[:count].copy(), out_build[:count].copy(), out_sets[:count].copy())


class _Conditions:
    """Divides conditions into what one side determines and the rest."""

    def __init__(self, probe: JoinedRows, evaluate_build: EvaluateColumn, build_rows: int) -> None:
        self._probe, self._evaluate_build, self._build_rows = probe, evaluate_build, build_rows
        self.probe_values: dict[str, pa.Array] = {}
        self.build_values: dict[str, pa.Array] = {}
        self._columns: dict[Expression, Column] = {}

    def split(self, condition: Expression) -> Expression:
        """Return a condition over the values of both sides, which are kept."""
        if condition in self._columns:
            return self._columns[condition]
        names = column_names(condition)
        on_probe = {self._probe.has_column(name) for name in names}
        if len(on_probe) == 1 and self._add_value(condition, is_probe=on_probe == {True}):
            return self._columns[condition]
        if not isinstance(condition, Call) or not names:
            return condition
        return Call(condition.function, tuple(map(self.split, condition.args)), condition.type)

    def take_side(self, values: dict[str, pa.Array], sets: QueryBitmaps, users: QueryBitmaps) -> _Side:
        """Return the rows of a side that have a user, with their values."""
        rows = join_kernels.find_users(sets, users)
        if len(rows) == len(sets):
            return _Side(rows, sets & users, values)
        return _Side(rows, sets[rows] & users, {name: take(column, rows) for name, column in values.items()})

    def _add_value(self, expression: Expression, *, is_probe: bool) -> bool:
        """Compute an expression for the rows of a side; return whether that is possible: a row with an error needs its pair."""
        evaluate = self._probe.evaluate if is_probe else self._make_build_evaluator(expression)
        values = combine_chunks(evaluate(expression))
        if not isinstance(expression, Column) and evaluate.errors(expression) is not None:
            return False
        name = f"{len(self._columns)}"
        self._columns[expression] = Column(name, expression.type)
        (self.probe_values if is_probe else self.build_values)[name] = values
        return True

    def _make_build_evaluator(self, expression: Expression) -> Evaluator:
        columns = {node for node in walk_expression(expression) if isinstance(node, Column)}
        return Evaluator({column.name: self._evaluate_build(column) for column in columns}, self._build_rows)
