"""Aggregate calls as a query states them; each back-end decides how to compute them.

`AGGREGATE_FUNCTIONS` lists all function names. `percentile` interpolates between the two nearest values, `percentile_disc`
returns a value that occurs: the smallest whose cumulative share is at least the parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.model.expression import Expression
from headrace.model.record import record

AGGREGATE_FUNCTIONS = frozenset({
    "count", "sum", "avg", "min", "max", "var_pop", "var_samp", "stddev_pop", "stddev_samp",
    "count_distinct", "percentile", "percentile_disc",
})  # fmt: skip


@record("aggregate-call")
@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate function applied to arguments in one query.

    `args` is empty for COUNT(*), has one element otherwise (several only for `count_distinct`); `parameter` is the
    percentile in [0, 1]. `type` is the type of the result.
    """

    function: str
    args: tuple[Expression, ...]
    type: pa.DataType
    parameter: float | None = None

    def __post_init__(self) -> None:
        """Reject unknown function names and missing arguments."""
        if self.function not in AGGREGATE_FUNCTIONS:
            raise ValueError(f"unknown aggregate '{self.function}'")
        if not self.args and self.function != "count":
            raise ValueError(f"aggregate '{self.function}' needs an argument")

    def __str__(self) -> str:
        """Return a readable form."""
        inner = ", ".join(map(str, self.args)) or "*"
        return f"{self.function}({inner}{'' if self.parameter is None else f', {self.parameter}'})"
