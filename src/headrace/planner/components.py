"""Components of aggregates (lift / combine / lower): the partial aggregates kept so that partial results can be combined.

A `Component` is one value kept for each slice, key and cell. Queries share equal components: AVG needs a SUM and a COUNT, and
every other query that sums the same expression uses the same SUM. The kind of a component names its algebra:

- `add`     exact integer sums, kept as 32-bit limbs so that they cannot overflow; combine is +, invertible
- `float`   floating-point sums as pairs (sum, rest) with error-free additions; combine is +, not invertible (∞ − ∞, cancellation)
- `square`  like `float`, of exact squares
- `min`, `max`   combine is min/max, not invertible
- `lowest`, `highest`, `values`   of types without a 64-bit form, and multisets of values (distinct, percentiles)

`lift_aggregate` is the complete mapping from SQL aggregates to components; the kernels compute them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import Expression
from headrace.model.record import record
from headrace.planner.predicate_index import is_ordered


@record("component")
@dataclass(frozen=True, slots=True)
class Component:
    """A partial aggregate kept for each slice, key and cell; equal components are kept once.

    `kind` is one of the algebras above, or "rows" (number of rows) or "count" (number of non-NULL values); both of these add.
    """

    kind: str
    args: tuple[Expression, ...] = ()

    @property
    def is_dense(self) -> bool:
        """Whether the component is a fixed number of 64-bit arrays; otherwise it is a list of values."""
        return self.kind not in {"lowest", "highest", "values"}

    @property
    def signature(self) -> tuple[str, tuple[pa.DataType, ...]]:
        """The algebra and the argument types: all that evaluation needs, without the expressions."""
        return self.kind, tuple(arg.type for arg in self.args)

    def __str__(self) -> str:
        """Return the kind with its arguments, as EXPLAIN shows it."""
        return f"{self.kind}({', '.join(map(str, self.args)) or '*'})"


ROW_COUNT = Component("rows")


def lift_aggregate(call: AggregateCall) -> tuple[Component, ...]:
    """Return the components that an aggregate is computed from, in the order that lowering expects."""
    if not call.args:
        return (ROW_COUNT,)
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


def derive_components(calls: Sequence[AggregateCall]) -> tuple[Component, ...]:
    """Return the distinct components of several aggregates, the row count first."""
    return tuple(component for (component,) in derive_branch_components([calls]))


def derive_branch_components(branches: Sequence[Sequence[AggregateCall]]) -> tuple[tuple[Component, ...], ...]:
    """Return the components of the aggregates of a union, the row count first: each as a tuple with its form in every branch.

    Two aggregates share a component only if they share it in all branches.
    """
    lifted = ([ROW_COUNT, *(component for call in calls for component in lift_aggregate(call))] for calls in branches)
    return tuple(dict.fromkeys(zip(*lifted, strict=True)))


def locate_components(branches: Sequence[Sequence[AggregateCall]]) -> tuple[tuple[int, ...], ...]:
    """Return, for each aggregate of a union, the positions of its components in `derive_branch_components`."""
    positions = {component: position for position, component in enumerate(derive_branch_components(branches))}
    return tuple(
        tuple(positions[component] for component in zip(*map(lift_aggregate, calls), strict=True))
        for calls in zip(*branches, strict=True)
    )
