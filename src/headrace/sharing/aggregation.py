"""Aggregates as lift / combine / lower: what is kept of rows, so that partial results can be added up.

A `Component` is one thing kept for each slice, key and cell. Queries share it whenever they ask for the same one: AVG
needs a SUM and a COUNT, and whoever else sums the same expression uses the same SUM. The kind says which algebra holds:

- `add`     exact integer sums, kept as 32-bit limbs so that nothing can wrap; combine is +, and it can be inverted
- `float`   floating sums as pairs (sum, rest) with error-free additions; combine is +, not inverted (∞ − ∞, cancellation)
- `square`  like `float`, of exact squares
- `min`, `max`   combine is min/max, not inverted
- `lowest`, `highest`, `values`   of types without a 64-bit form, and multisets of values (distinct, percentiles)

How a component is computed is the kernels' business; `lift` below is the whole mapping from SQL's aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import Expression
from headrace.sharing.selection import is_ordered


@dataclass(frozen=True, slots=True)
class Component:
    """One thing kept for each slice, key and cell; equal components are kept once.

    `kind` is one of the algebras above, or "rows" (how many rows) or "count" (how many are not NULL), which add.
    """

    kind: str
    args: tuple[Expression, ...] = ()

    @property
    def is_dense(self) -> bool:
        """Whether it is a fixed number of 64-bit arrays (otherwise a list of values)."""
        return self.kind not in {"lowest", "highest", "values"}

    @property
    def signature(self) -> tuple[str, tuple[pa.DataType, ...]]:
        """What evaluation needs to know: the algebra and the types, not the expressions."""
        return self.kind, tuple(arg.type for arg in self.args)

    def __str__(self) -> str:
        """Return a readable form."""
        return f"{self.kind}({', '.join(map(str, self.args)) or '*'})"


ROWS = Component("rows")


def lift(call: AggregateCall) -> tuple[Component, ...]:
    """Return the components an aggregate is lowered from, in the order `kernels.lower` expects."""
    if not call.args:
        return (ROWS,)
    count = Component("count", call.args)
    if call.function == "count":
        return (count,)
    if call.function in {"count_distinct", "percentile", "percentile_disc"}:
        return (Component("values", call.args),)
    floating = pa.types.is_floating(call.args[0].type)
    total = Component("float" if floating else "add", call.args)
    if call.function in {"sum", "avg"}:
        return (total, count)
    if call.function in {"min", "max"}:
        if is_ordered(call.args[0].type) and not pa.types.is_string(call.args[0].type):
            return (Component(call.function, call.args), count)
        return (Component("lowest" if call.function == "min" else "highest", call.args),)
    return (total, Component("square", call.args), count)


def components(calls: Sequence[AggregateCall]) -> tuple[Component, ...]:
    """Return all components of several aggregates, each once, the row count first."""
    return tuple(one for (one,) in components_of([calls]))


def components_of(branches: Sequence[Sequence[AggregateCall]]) -> tuple[tuple[Component, ...], ...]:
    """Return the components of the aggregates of a union, the row count first: each with what it is in every branch.

    Two aggregates have a component in common only if they have it in all branches.
    """
    lifted = ([ROWS, *(part for call in calls for part in lift(call))] for calls in branches)
    return tuple(dict.fromkeys(zip(*lifted, strict=True)))


def pattern(branches: Sequence[Sequence[AggregateCall]]) -> tuple[tuple[int, ...], ...]:
    """Return for each aggregate of a union where its components are among `components_of`."""
    at = {one: place for place, one in enumerate(components_of(branches))}
    return tuple(tuple(at[parts] for parts in zip(*map(lift, calls), strict=True)) for calls in zip(*branches, strict=True))
