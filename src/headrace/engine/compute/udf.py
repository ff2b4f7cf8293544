"""UDFs over whole columns, with isolation of the rows on which a UDF fails.

An exception of a UDF is an error of rows like any other: if a call fails, its rows are bisected to find those that fail. So
the extra calls happen only after an error, and the search stops at `_MAX_FAILED_ROWS` rows: a UDF that fails for more counts
as failed for all remaining rows. A UDF that returns no column, or a column of another length, fails for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import EvaluationResult, Mask, Value, broadcast_args
from headrace.model.expression import Call
from headrace.model.function import UdfCode, get_udf_code, udf_name

_MAX_FAILED_ROWS = 64


class _InvalidResultError(Exception):
    """The UDF did not return a column with one value per row."""


def call_udf(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Return the values of a UDF call, with the rows on which it failed."""
    code, columns = get_udf_code(call.function), broadcast_args(args)
    rows = len(columns[0])
    if rows == 0:
        return EvaluationResult(pa.array([], type=call.type))
    try:
        return EvaluationResult(_call_checked(code, columns, call.type))
    except _InvalidResultError as error:
        return EvaluationResult(
            pa.nulls(rows, call.type), pa.repeat(True, rows), f"function '{udf_name(call.function)}' failed: {error}"
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001  any exception of a UDF fails only its own query
        message = f"function '{udf_name(call.function)}' failed: {type(error).__name__}: {error}"
    search = _FailureSearch(code, columns, call.type, np.zeros(rows, np.bool_))
    search.search_range(0, rows)
    return EvaluationResult(pa.concat_arrays(search.values), pa.array(search.failed), message)


def _call_checked(code: UdfCode, columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Call the UDF once and check that it returns one value of the type per row."""
    values = code(*columns)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Scalar | str | bytes) or not hasattr(values, "__len__"):
        raise _InvalidResultError(f"it must return a column, not {type(values).__name__}")
    if len(values) != len(columns[0]):
        raise _InvalidResultError(f"it returned {len(values)} values for {len(columns[0])} rows")
    if not isinstance(values, pa.Array):
        values = pa.array(values, type=kind)
    return values if values.type == kind else values.cast(kind)


@dataclass(slots=True)
class _FailureSearch:
    """Finds the rows that a UDF fails for; `values` are the results, in order, NULL for failed rows."""

    code: UdfCode
    columns: Sequence[pa.Array]
    kind: pa.DataType
    failed: Mask
    values: list[pa.Array] = field(default_factory=list)

    def search_range(self, low: int, high: int) -> None:
        """Bisect a range of rows that a call failed for."""
        if high - low == 1 or np.count_nonzero(self.failed) >= _MAX_FAILED_ROWS:
            self.failed[low:high] = True
            self.values.append(pa.nulls(high - low, self.kind))
            return
        middle = (low + high) // 2
        for first, last in ((low, middle), (middle, high)):
            try:
                self.values.append(
                    _call_checked(self.code, [column.slice(first, last - first) for column in self.columns], self.kind)
                )
            except (Exception, SystemExit):  # noqa: BLE001
                self.search_range(first, last)
