"""Functions of users over whole columns.

What a function raises is an error of rows like any other: where a call fails, its rows are halved until those are found that it
fails for. So many calls are made only after an error, and no more than `_MOST` rows are searched for: a function that fails for
more is taken to fail for all that are left, and one that returns no column, or one of another length, for all.
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
    """What a function returned is no column of as many values as there are rows."""


def kernel(call: Call, args: Sequence[Value]) -> Outcome:
    """Return what the function of a call returns, with the rows on which it has no value."""
    code, columns = code_of(call.function), spread(args)
    rows = len(columns[0])
    if rows == 0:
        return Outcome(pa.array([], type=call.type))
    try:
        return Outcome(_called(code, columns, call.type))
    except _UnfitError as error:
        return Outcome(pa.nulls(rows, call.type), pa.repeat(True, rows), f"function '{named(call.function)}' failed: {error}")
    except Exception as error:  # noqa: BLE001  whatever a user's function does, it is that query's failure
        message = f"function '{named(call.function)}' failed: {type(error).__name__}: {error}"
    search = _Search(code, columns, call.type, np.zeros(rows, np.bool_))
    search.within(0, rows)
    return Outcome(pa.concat_arrays(search.found), pa.array(search.wrong), message)


def _called(code: Code, columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Call once; what comes back must be a value of the type for each row."""
    found = code(*columns)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if isinstance(found, pa.Scalar | str | bytes) or not hasattr(found, "__len__"):
        raise _UnfitError(f"it must return a column, not {type(found).__name__}")
    if len(found) != len(columns[0]):
        raise _UnfitError(f"it returned {len(found)} values for {len(columns[0])} rows")
    if not isinstance(found, pa.Array):
        found = pa.array(found, type=kind)
    return found if found.type == kind else found.cast(kind)


@dataclass(slots=True)
class _Search:
    """Looks for the rows that a function fails for; `found` are the values, in order, NULL for those."""

    code: Code
    columns: Sequence[pa.Array]
    kind: pa.DataType
    wrong: Mask
    found: list[pa.Array] = field(default_factory=list)

    def within(self, low: int, high: int) -> None:
        """Search rows that a call failed for."""
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
