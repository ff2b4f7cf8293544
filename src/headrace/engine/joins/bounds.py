"""Conditions of joins as bounds: a comparison solved for an attribute of the build side, whose sorted values are then searched.

    abs(a.x − b.x) <= 2      with b as the build side:    a.x − b.x <= 2,  −(a.x − b.x) <= 2
    a.x >= b.x − 1           with b as the build side:    b.x − 1 <= a.x;   with a:  a.x >= b.x − 1

A bound compares an increasing or decreasing function of an attribute with a value of the probe side. The function is a chain of
steps, each of which adds a value of the probe side, or multiplies by a constant, in the type of the condition. The search
evaluates the chain itself, at the values that it compares: so one index of the plain attribute serves all bands, and the result
is that of the condition, with its rounding and its overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.engine.compute.time import FIRST_DAY, FIRST_MICRO, LAST_DAY, LAST_MICRO
from headrace.model.expression import Call, Expression, Literal, column_names

StoredNames = frozenset[str]
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq"}
_NEGATED = {"lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}
_ZERO = Literal(0, pa.int64())
_MAX_DIGITS = 18  # of decimals that the kernels represent as integers
_TIME_LIMITS = {"date_add": (FIRST_DAY, LAST_DAY), "time_add": (FIRST_MICRO, LAST_MICRO)}


@dataclass(frozen=True, slots=True)
class BoundStep:
    """A step from a value v: factor · v + operand · operand_factor; beyond the limits the condition is NULL.

    The factor is −1 or a power of ten; the operand, a value of the probe side, is missing where it is a larger power.
    """

    factor: int
    operand: Expression
    operand_factor: int
    limits: tuple[float, float]


@dataclass(frozen=True, slots=True)
class RangeBound:
    """The chain of `steps` from `attribute`, a value of the build side, compares by `operator` with `threshold`.

    `is_float`: the chain is computed in doubles.
    """

    attribute: Expression
    steps: tuple[BoundStep, ...]
    operator: str
    threshold: Expression
    is_float: bool

    @property
    def falls(self) -> bool:
        """Whether the chain decreases where the attribute increases."""
        return sum(step.factor < 0 for step in self.steps) % 2 == 1

    @property
    def is_upper(self) -> bool:
        """Whether it bounds the attribute from above."""
        return (self.operator in ("lt", "le")) != self.falls


def is_integral_type(kind: pa.DataType) -> bool:
    """Return whether the kernels represent values of a type as integers."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= _MAX_DIGITS)
    )


@lru_cache(maxsize=1 << 12)
def find_bounds(condition: Expression, stored: StoredNames) -> tuple[RangeBound, ...]:
    """Return the bounds that together say the same as a condition; none if it cannot be solved for the build side.

    `stored` are the columns of the build side.
    """
    if not isinstance(condition, Call):
        return ()
    if condition.function == "not":
        inner = condition.args[0]
        if isinstance(inner, Call) and inner.function in _NEGATED:
            return find_bounds(Call(_NEGATED[inner.function], inner.args, inner.type), stored)
        return ()
    if condition.function not in _MIRRORED:
        return ()
    left, right = condition.args
    if not (is_integral_type(left.type) or pa.types.is_floating(left.type)):
        return ()
    operator = condition.function
    if _reads_stored(right, stored):
        left, right, operator = right, left, _MIRRORED[operator]
    if _reads_stored(right, stored) or not _reads_stored(left, stored):
        return ()
    if isinstance(left, Call) and left.function == "abs" and operator in ("lt", "le"):
        inner = left.args[0]
        negative = Call("neg", (inner,), left.type)
        bounds = [_solve(side, operator, right, stored) for side in (inner, negative)]
    else:
        bounds = [_solve(left, one, right, stored) for one in (("le", "ge") if operator == "eq" else (operator,))]
    return tuple(bound for bound in bounds if bound is not None) if None not in bounds else ()


def _reads_stored(expression: Expression, stored: StoredNames) -> bool:
    return not stored.isdisjoint(column_names(expression))


def _solve(value: Expression, operator: str, threshold: Expression, stored: StoredNames) -> RangeBound | None:
    """Return the bound on the attribute inside a value; None if the value is not a chain of steps from it."""
    is_float = pa.types.is_floating(value.type)
    steps: list[BoundStep] = []
    inner = value
    while isinstance(inner, Call):
        found = _take_step(inner, stored)
        if found is None:
            break
        inner, step = found
        steps += [] if step is None else [step]
    if not column_names(inner) <= stored or not (is_integral_type(inner.type) or pa.types.is_floating(inner.type)):
        return None
    return RangeBound(inner, tuple(reversed(steps)), operator, threshold, is_float)


def _take_step(call: Call, stored: StoredNames) -> tuple[Expression, BoundStep | None] | None:
    """Return the argument that reads the build side, and the step from it to the call (None: no step); None if there is none."""
    limits = _find_limits(call)
    if limits is None:
        return None
    if call.function == "neg":
        return call.args[0], BoundStep(-1, _ZERO, 1, limits)
    if call.function == "cast":
        return _take_cast(call, limits)
    if call.function in ("add", "sub", "date_add", "time_add", "date_diff"):
        return _take_sum(call, limits, stored)
    return None


def _take_cast(call: Call, limits: tuple[float, float]) -> tuple[Expression, BoundStep | None] | None:
    (value,) = call.args
    if pa.types.is_integer(value.type) and (
        (pa.types.is_integer(call.type) and call.type.bit_width >= value.type.bit_width)
        or (pa.types.is_float64(call.type) and value.type.bit_width <= 32)
    ):
        return value, None
    if pa.types.is_decimal(call.type) and (pa.types.is_integer(value.type) or pa.types.is_decimal(value.type)):
        added = call.type.scale - _find_scale(value.type)
        if added >= 0 and is_integral_type(value.type):
            return value, BoundStep(10**added, _ZERO, 0, limits)
    return None


def _take_sum(call: Call, limits: tuple[float, float], stored: StoredNames) -> tuple[Expression, BoundStep | None] | None:
    left, right = call.args
    left_stored, right_stored = _reads_stored(left, stored), _reads_stored(right, stored)
    if left_stored == right_stored:
        return None
    if call.function == "date_diff" and not (pa.types.is_date(left.type) and pa.types.is_date(right.type)):
        return None
    if call.function in _TIME_LIMITS and not (left_stored and left.type == call.type):
        return None
    inner, operand = (left, right) if left_stored else (right, left)
    if not pa.types.is_floating(call.type) and not (is_integral_type(inner.type) and is_integral_type(operand.type)):
        return None
    subtracts = call.function in ("sub", "date_diff")
    scale, inner_scale, operand_scale = map(_find_scale, (call.type, inner.type, operand.type))
    if scale != max(inner_scale, operand_scale):
        return None
    if scale > inner_scale:  # in two steps, the first to the scale of the sum
        inner = Call("cast", (inner,), pa.decimal128(_MAX_DIGITS, scale))
    operand_factor = 10 ** (scale - operand_scale) * (-1 if subtracts and left_stored else 1)
    return inner, BoundStep(-1 if subtracts and right_stored else 1, operand, operand_factor, limits)


def _find_scale(kind: pa.DataType) -> int:
    return int(kind.scale) if pa.types.is_decimal(kind) else 0


def _find_limits(call: Call) -> tuple[float, float] | None:
    """Return the least and the greatest value of a call that are no overflow; None if its type is computed in another way."""
    if call.function in _TIME_LIMITS:
        return _TIME_LIMITS[call.function]
    if pa.types.is_integer(call.type):
        limits = np.iinfo(call.type.to_pandas_dtype())
        return int(limits.min), int(limits.max)
    if pa.types.is_decimal(call.type) and call.type.precision <= _MAX_DIGITS:
        return 1 - 10**call.type.precision, 10**call.type.precision - 1
    return (-np.inf, np.inf) if pa.types.is_float64(call.type) else None
