"""Rows of one stream and one epoch, on their way through the shared operators of a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels.columns import flat, numbers
from headrace.kernels.expression import Evaluator
from headrace.model.expression import Expression

PIECE_ROWS = 1 << 16  # what operators keep of so many rows stays in a core's cache


class Batch:
    """`times` are event times (µs, never NULL); expressions are evaluated at most once each."""

    def __init__(self, table: pa.Table | pa.RecordBatch, time_column: str) -> None:
        """Take rows whose event time is not NULL."""
        self.table, self._time_column = table, time_column
        self.rows = table.num_rows
        self._largest: dict[Expression, int] = {}
        self._evaluator = Evaluator({name: table[name] for name in table.schema.names}, table.num_rows)

    @cached_property
    def times(self) -> npt.NDArray[np.int64]:
        """The event time of every row."""
        return numbers(flat(self.table[self._time_column]))

    @cached_property
    def pieces(self) -> list[Batch]:
        """The same rows in pieces that fit a core's cache, in order and without a copy."""
        if self.rows <= PIECE_ROWS:
            return [self]
        assert isinstance(self.table, pa.Table)
        return [Batch(piece, self._time_column) for piece in self.table.to_batches(max_chunksize=PIECE_ROWS)]

    @cached_property
    def first(self) -> int:
        """The least event time."""
        return min(int(piece.times.min()) for piece in self.pieces)

    @cached_property
    def last(self) -> int:
        """The greatest event time."""
        return max(int(piece.times.max()) for piece in self.pieces)

    @property
    def evaluate(self) -> Callable[[Expression], pa.Array]:
        """Evaluate an expression over all rows; erroneous rows are NULL (see `errors`)."""
        return self._evaluator

    def largest(self, expression: Expression) -> int:
        """Return the greatest magnitude of an integer expression without NULLs."""
        if expression not in self._largest:
            values = numbers(flat(self.evaluate(expression)))
            self._largest[expression] = max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0
        return self._largest[expression]

    def errors(self, expression: Expression) -> npt.NDArray[np.bool_] | None:
        """Return on which rows the expression has no value because of an error; None when there are none."""
        found = self._evaluator.errors(expression)
        return None if found is None else np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    def message(self, expression: Expression) -> str:
        """Say what went wrong in an expression with errors."""
        return self._evaluator.message(expression)
