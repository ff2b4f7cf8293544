"""Rows of one stream and one epoch, as the shared operators of a worker process them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels.columns import combine_chunks, to_numbers
from headrace.kernels.expression import Evaluator
from headrace.model.expression import Expression

CHUNK_ROWS = 1 << 16  # the working set of the operators for so many rows fits a core's cache


class RowBatch:
    """Rows with event times (`times`, µs, never NULL); each expression is evaluated at most once."""

    def __init__(self, table: pa.Table | pa.RecordBatch, time_column: str) -> None:
        """Take rows whose event time is not NULL."""
        self.table, self._time_column = table, time_column
        self.row_count = table.num_rows
        self._max_magnitudes: dict[Expression, int] = {}
        self._evaluator = Evaluator({name: table[name] for name in table.schema.names}, table.num_rows)

    @cached_property
    def times(self) -> npt.NDArray[np.int64]:
        """The event time of every row."""
        return to_numbers(combine_chunks(self.table[self._time_column]))

    @cached_property
    def chunks(self) -> list[RowBatch]:
        """The rows in chunks that fit a core's cache, in order and without copying."""
        if self.row_count <= CHUNK_ROWS:
            return [self]
        assert isinstance(self.table, pa.Table)
        return [RowBatch(chunk, self._time_column) for chunk in self.table.to_batches(max_chunksize=CHUNK_ROWS)]

    @cached_property
    def min_time(self) -> int:
        """The least event time."""
        return min(int(chunk.times.min()) for chunk in self.chunks)

    @cached_property
    def max_time(self) -> int:
        """The greatest event time."""
        return max(int(chunk.times.max()) for chunk in self.chunks)

    @property
    def evaluate(self) -> Callable[[Expression], pa.Array]:
        """Evaluate an expression over all rows; rows with an error are NULL (see `mask_errors`)."""
        return self._evaluator

    def find_max_magnitude(self, expression: Expression) -> int:
        """Return the greatest magnitude of an integer expression without NULLs."""
        if expression not in self._max_magnitudes:
            values = to_numbers(combine_chunks(self.evaluate(expression)))
            self._max_magnitudes[expression] = max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0
        return self._max_magnitudes[expression]

    def mask_errors(self, expression: Expression) -> npt.NDArray[np.bool_] | None:
        """Return the mask of rows on which the expression fails; None if it fails on none."""
        mask = self._evaluator.errors(expression)
        return None if mask is None else np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)

    def get_error_message(self, expression: Expression) -> str:
        """Return the error message of an expression that fails."""
        return self._evaluator.message(expression)
