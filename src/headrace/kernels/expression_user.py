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

from headrace.kernels.expression_values import Mask, Outcome, Value, spread
from headrace.model.expression import Call
from headrace.model.function import Code, code_of, named

_MOST = 64


class _UnfitError(Exception):
    """The UDF did not return a column with one value per row."""


def kernel(call: Call, args: Sequence[Value]) -> Outcome:
    """Return the values of a UDF call, with the rows on which it failed."""
    code, columns = code_of(call.function), spread(args)
    rows = len(columns[0])
    if rows == 0:
        return Outcome(pa.array([], type=call.type))
    try:
        return Outcome(_called(code, columns, call.type))
    except _UnfitError as error:
        return Outcome(pa.nulls(rows, call.type), pa.repeat(True, rows), f"function '{named(call.function)}' failed: {error}")
    except Exception as error:  # noqa: BLE001  any exception of a UDF fails only its own query
        message = f"function '{named(call.function)}' failed: {type(error).__name__}: {error}"
    search = _Search(code, columns, call.type, np.zeros(rows, np.bool_))
    search.within(0, rows)
    return Outcome(pa.concat_arrays(search.found), pa.array(search.wrong), message)


def _called(code: Code, columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Call the UDF once and check that it returns one value of the type per row."""
    values = code(*columns)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Scalar | str | bytes) or not hasattr(values, "__len__"):
        raise _UnfitError(f"it must return a column, not {type(values).__name__}")
    if len(values) != len(columns[0]):
        raise _UnfitError(f"it returned {len(values)} values for {len(columns[0])} rows")
    if not isinstance(values, pa.Array):
        values = pa.array(values, type=kind)
    return values if values.type == kind else values.cast(kind)


@dataclass(slots=True)
class _Search:
    """Finds the rows that a UDF fails for; `values` are the results, in order, NULL for failed rows."""

    code: Code
    columns: Sequence[pa.Array]
    kind: pa.DataType
    wrong: Mask
    found: list[pa.Array] = field(default_factory=list)

    def within(self, low: int, high: int) -> None:
        """Bisect a range of rows that a call failed for."""
        if high - low == 1 or np.count_nonzero(self.wrong) >= _MOST:
            self.wrong[low:high] = True
            self.found.append(pa.nulls(high - low, self.kind))
            return
        middle = (low + high) // 2
        for first, last in ((low, middle), (middle, high)):
            try:
                self.found.append(_called(self.code, [column.slice(first, last - first) for column in self.columns], self.kind))
            except Exception:  # noqa: BLE001
                self.within(first, last)
