"""Builds operators over bound operands: inserts casts and folds constants.

A comparison with a constant casts the constant, not the other side, wherever that is lossless (`tiny > 10`, `price >= 5` over
a decimal), so that a predicate compares a plain column with a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal
from math import ceil, floor
from typing import Any

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Expression, Literal
from headrace.model.schema import TIMESTAMP, type_name
from headrace.sql.casts import cast, exact, implicit
from headrace.sql.coerce import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    as_decimal,
    boolean,
    common_of,
    common_type,
    decimal_result,
    fits,
    is_decimal,
    is_float,
    is_integer,
    is_numeric,
    is_string_literal,
    literal_decimal,
    mismatch,
)

FALSE = Literal(False, BOOLEAN)
_NEAR = 2**31
_FLIPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq_null_safe": "eq_null_safe"}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "gt": operator.gt, "le": operator.le, "ge": operator.ge,
}  # fmt: skip
_FOLD: dict[str, Callable[..., object]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_SYMBOL = {"add": "+", "sub": "-", "mul": "*", "div": "/", "int_div": "DIV", "mod": "%"}


def condition(value: Expression, construct: str) -> Expression:
    """Return the value if it is a BOOLEAN (or NULL); `construct` is named in the error message."""
    if value.type not in (BOOLEAN, NULL):
        raise SqlError(f"{construct} needs a BOOLEAN, not {type_name(value.type)}")
    return cast(value, BOOLEAN)


def both(left: Expression, right: Expression) -> Expression:
    """Return `left AND right`."""
    left, right = condition(left, "AND"), condition(right, "AND")
    if TRUE in (left, right):
        return right if left == TRUE else left
    return boolean("and", left, right)


def either(left: Expression, right: Expression) -> Expression:
    """Return `left OR right`."""
    left, right = condition(left, "OR"), condition(right, "OR")
    if FALSE in (left, right):
        return right if left == FALSE else left
    return boolean("or", left, right)


def negated(value: Expression) -> Expression:
    """Return `NOT value`."""
    value = condition(value, "NOT")
    if isinstance(value, Literal) and isinstance(value.value, bool):
        return Literal(not value.value, BOOLEAN)
    return boolean("not", value)


def is_null(value: Expression) -> Expression:
    """Return `value IS NULL`."""
    if isinstance(value, Literal):
        return Literal(value.value is None, BOOLEAN)
    return boolean("is_null", value)


def compare(function: str, left: Expression, right: Expression) -> Expression:
    """Return a comparison of two operands cast to their common type, with a constant on the right."""
    if isinstance(left, Literal) and not isinstance(right, Literal):
        return compare(_FLIPPED[function], right, left)
    if is_integer(left.type) and isinstance(right, Literal) and (rounded := _rounded(function, right)):
        return compare(rounded[0], left, rounded[1])
    left, right = same_type(left, right, "compare")
    if isinstance(left, Literal) and isinstance(right, Literal) and function in _COMPARE:
        return _compare_literals(function, left, right)
    return boolean(function, left, right)


def _rounded(function: str, bound: Literal) -> tuple[str, Literal] | None:
    """Rewrite the comparison of an integer with a fraction as one with an integer: x >= 1.5 is x > 1."""
    if not isinstance(bound.value, float | Decimal) or function not in ("lt", "le", "gt", "ge"):
        return None
    value = Decimal(bound.value)
    if not value.is_finite() or abs(value) > _NEAR or value == int(value):
        return None
    return ("gt", Literal(floor(value), BIGINT)) if function in ("gt", "ge") else ("lt", Literal(ceil(value), BIGINT))


def _compare_literals(function: str, left: Literal, right: Literal) -> Expression:
    if left.value is None or right.value is None:
        return Literal(None, BOOLEAN)
    if is_float(left.type):  # the evaluator defines the order of NaN
        return boolean(function, left, right)
    return Literal(_COMPARE[function](left.value, right.value), BOOLEAN)


def same_type(left: Expression, right: Expression, verb: str) -> tuple[Expression, Expression]:
    """Cast both operands to their common type."""
    if is_string_literal(right) or is_string_literal(left):
        kind = common_of([left, right], verb)
    else:
        common = common_type(left.type, right.type)
        if common is None:
            raise mismatch(verb, left.type, right.type)
        kind = BOOLEAN if common == NULL else common
        if isinstance(right, Literal) and (constant := exact(right, left.type)) and left.type != NULL:
            return left, constant
    return implicit(left, kind), implicit(right, kind)


def contained(value: Expression, choices: list[Expression]) -> Expression:
    """Return `value IN (choices)`: an `in` call if all are constants of the value's type, else comparisons ORed."""
    pairs = [same_type(value, choice, "compare") for choice in choices]
    kinds = {left.type for left, _ in pairs} | {right.type for _, right in pairs}
    if all(isinstance(right, Literal) for _, right in pairs) and len(kinds) == 1:
        return boolean("in", pairs[0][0], *(right for _, right in pairs))
    result = compare("eq", value, choices[0])
    for choice in choices[1:]:
        result = either(result, compare("eq", value, choice))
    return result


def arithmetic(function: str, left: Expression, right: Expression) -> Expression:
    """Return add, sub, mul, div, int_div or mod of two numbers, with Spark's result type."""
    left, right = _numbers(function, left, right)
    if function == "int_div":
        return _int_div(left, right)
    left, right = _literal_beside_decimal(left, right)
    if (is_decimal(left.type) or is_decimal(right.type)) and not (is_float(left.type) or is_float(right.type)):
        return _decimal_arithmetic(function, cast(left, as_decimal(left.type)), cast(right, as_decimal(right.type)))
    kind = DOUBLE if function == "div" else common_type(left.type, right.type)
    assert kind is not None  # any two numeric types have a common type
    left, right = cast(left, kind), cast(right, kind)
    return _folded(function, left, right) or Call(function, (left, right), kind)


def _numbers(function: str, left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Cast an untyped NULL to the type of the other side; reject operands that are not numbers."""
    if not all(is_numeric(side.type) or side.type == NULL for side in (left, right)):
        raise SqlError(
            f"operator '{_SYMBOL[function]}' needs numbers, not {type_name(left.type)} and {type_name(right.type)}",
            hint=_arithmetic_hint(left, right),
        )
    if left.type == NULL:
        left = cast(left, INT if right.type == NULL else right.type)
    return left, cast(right, left.type) if right.type == NULL else right


def _arithmetic_hint(left: Expression, right: Expression) -> str:
    if left.type == right.type == TIMESTAMP:
        return "unix_seconds(a) - unix_seconds(b) is the difference in seconds"
    if left.type == right.type == DATE:
        return "date_diff(a, b) is the difference in days"
    return "a || b puts strings together" if STRING in (left.type, right.type) else "cast with CAST(… AS type)"


def _literal_beside_decimal(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Cast an integer constant beside a decimal to the narrowest decimal that holds it."""
    if is_decimal(right.type) and isinstance(left, Literal) and isinstance(left.value, int):
        return cast(left, literal_decimal(left.value)), right
    if is_decimal(left.type) and isinstance(right, Literal) and isinstance(right.value, int):
        return left, cast(right, literal_decimal(right.value))
    return left, right


def _decimal_arithmetic(function: str, left: Expression, right: Expression) -> Expression:
    kind = decimal_result(function, left.type, right.type)
    if function != "mod":
        return Call(function, (left, right), kind)
    left, right = same_type(left, right, "divide")
    return cast(Call("mod", (left, right), left.type), kind)


def _int_div(left: Expression, right: Expression) -> Expression:
    if not (is_integer(left.type) and is_integer(right.type)):
        raise SqlError("operator 'DIV' needs integers", hint="floor(a / b) works on other numbers")
    return Call("int_div", (cast(left, BIGINT), cast(right, BIGINT)), BIGINT)


def _folded(function: str, left: Expression, right: Expression) -> Literal | None:
    """Fold add, sub and mul of integer and DOUBLE constants; return None for other operands and on overflow."""
    is_constant = isinstance(left, Literal) and isinstance(right, Literal) and function in _FOLD
    if not is_constant or not (is_integer(left.type) or left.type == DOUBLE):
        return None
    assert isinstance(left, Literal)
    assert isinstance(right, Literal)
    if left.value is None or right.value is None:
        return Literal(None, left.type)
    value = _FOLD[function](left.value, right.value)
    return Literal(value, left.type) if not isinstance(value, int) or fits(value, left.type) else None


def negative(value: Expression) -> Expression:
    """Return `-value`."""
    if not is_numeric(value.type) and value.type != NULL:
        raise SqlError(f"operator '-' needs a number, not {type_name(value.type)}")
    if isinstance(value, Literal) and (value.value is None or _negates(value)):
        return Literal(None if value.value is None else -value.value, value.type)  # type: ignore[operator]
    return Call("neg", (value,), value.type)


def _negates(literal: Literal) -> bool:
    return not isinstance(literal.value, int) or fits(-literal.value, literal.type)


def case(pairs: list[tuple[Expression, Expression]], default: Expression) -> Expression:
    """Return `CASE WHEN c THEN v … ELSE default END` with all values cast to their common type."""
    kind = common_of([value for _, value in pairs] + [default], "choose between")
    if kind == NULL:
        return default
    args: list[Expression] = []
    for test, value in pairs:
        args += [condition(test, "WHEN"), implicit(value, kind)]
    return Call("case", (*args, implicit(default, kind)), kind)
