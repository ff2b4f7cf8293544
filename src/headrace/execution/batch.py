"""Rows of one stream and one epoch, on their way through the shared operators of a worker."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels.columns import flat, numbers
from headrace.kernels.expression import Evaluator
from headrace.model.expression import Expression


class Batch:
    """`times` are event times (µs, never NULL); expressions are evaluated at most once each."""

    def __init__(self, table: pa.Table, time_column: str) -> None:
        """Take rows whose event time is not NULL."""
        self.table = table
        self.rows = table.num_rows
        self.times: npt.NDArray[np.int64] = numbers(flat(table[time_column]))
        self._evaluator = Evaluator(table, table.num_rows)

    @property
    def evaluate(self) -> Callable[[Expression], pa.Array]:
        """Evaluate an expression over all rows; erroneous rows are NULL (see `errors`)."""
        return self._evaluator

    def errors(self, expression: Expression) -> npt.NDArray[np.bool_] | None:
        """Return on which rows the expression has no value because of an error; None when there are none."""
        found = self._evaluator.errors(expression)
        return None if found is None else np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    def message(self, expression: Expression) -> str:
        """Say what went wrong in an expression with errors."""
        return self._evaluator.message(expression)
