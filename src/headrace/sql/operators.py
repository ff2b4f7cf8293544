"""Builds operators over bound operands: arithmetic, comparisons, logic, CASE, and the patterns LIKE, ILIKE and RLIKE.

The builders insert casts and fold constants. A comparison with a constant casts the constant, not the other side, wherever that
is lossless (`tiny > 10`, `price >= 5` over a decimal), so that a predicate compares a plain column with a constant.

The pattern of LIKE is any STRING: a constant, a column (also of the other side of a join) or a computed value. The escape
character (a backslash unless ESCAPE names another) makes the next character literal, wildcard or not; at the end of the pattern
it stands for itself. So every pattern is valid, and none fails at run time. The pattern of RLIKE must be a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal
from math import ceil, floor
from typing import Any

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Expression, Literal
from headrace.model.types import TIMESTAMP, type_name
from headrace.sql.casts import cast_exactly, cast_implicitly, cast_to
from headrace.sql.regex import translate_regex
from headrace.sql.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    boolean_call,
    decimal_result_type,
    find_common_type,
    fits_integer_type,
    is_decimal,
    is_float,
    is_integer,
    is_numeric,
    is_string_literal,
    literal_decimal_type,
    to_decimal_type,
    type_mismatch_error,
    unify_choices,
    unify_types,
)

FALSE = Literal(False, BOOLEAN)
_MAX_ROUNDED_BOUND = 2**31
_FLIPPED_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq_null_safe": "eq_null_safe"}
_COMPARISON_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "gt": operator.gt, "le": operator.le, "ge": operator.ge,
}  # fmt: skip
_FOLDABLE_ARITHMETIC: dict[str, Callable[..., object]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_OPERATOR_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "int_div": "DIV", "mod": "%"}


def require_boolean(value: Expression, construct: str) -> Expression:
    """Return the value if it is a BOOLEAN (or NULL); `construct` is named in the error message."""
    if value.type not in (BOOLEAN, NULL):
        raise SqlError(f"{construct} needs a BOOLEAN, not {type_name(value.type)}")
    return cast_to(value, BOOLEAN)


def make_and(left: Expression, right: Expression) -> Expression:
    """Return `left AND right`."""
    left, right = require_boolean(left, "AND"), require_boolean(right, "AND")
    if TRUE in (left, right):
        return right if left == TRUE else left
    return boolean_call("and", left, right)


def make_or(left: Expression, right: Expression) -> Expression:
    """Return `left OR right`."""
    left, right = require_boolean(left, "OR"), require_boolean(right, "OR")
    if FALSE in (left, right):
        return right if left == FALSE else left
    return boolean_call("or", left, right)


def make_not(value: Expression) -> Expression:
    """Return `NOT value`."""
    value = require_boolean(value, "NOT")
    if isinstance(value, Literal) and isinstance(value.value, bool):
        return Literal(not value.value, BOOLEAN)
    return boolean_call("not", value)


def make_is_null(value: Expression) -> Expression:
    """Return `value IS NULL`."""
    if isinstance(value, Literal):
        return Literal(value.value is None, BOOLEAN)
    return boolean_call("is_null", value)


def make_comparison(function: str, left: Expression, right: Expression) -> Expression:
    """Return a comparison of two operands cast to their common type, with a constant on the right."""
    if isinstance(left, Literal) and not isinstance(right, Literal):
        return make_comparison(_FLIPPED_COMPARISONS[function], right, left)
    if is_integer(left.type) and isinstance(right, Literal) and (rounded := _round_bound(function, right)):
        return make_comparison(rounded[0], left, rounded[1])
    left, right = unify_operands(left, right, "compare")
    if isinstance(left, Literal) and isinstance(right, Literal) and function in _COMPARISON_FUNCTIONS:
        return _fold_comparison(function, left, right)
    return boolean_call(function, left, right)


def _round_bound(function: str, bound: Literal) -> tuple[str, Literal] | None:
    """Rewrite the comparison of an integer with a fraction as one with an integer: x >= 1.5 is x > 1."""
    if not isinstance(bound.value, float | Decimal) or function not in ("lt", "le", "gt", "ge"):
        return None
    value = Decimal(bound.value)
    if not value.is_finite() or abs(value) > _MAX_ROUNDED_BOUND or value == int(value):
        return None
    return ("gt", Literal(floor(value), BIGINT)) if function in ("gt", "ge") else ("lt", Literal(ceil(value), BIGINT))


def _fold_comparison(function: str, left: Literal, right: Literal) -> Expression:
    if left.value is None or right.value is None:
        return Literal(None, BOOLEAN)
    if is_float(left.type):  # the evaluator defines the order of NaN
        return boolean_call(function, left, right)
    return Literal(_COMPARISON_FUNCTIONS[function](left.value, right.value), BOOLEAN)


def unify_operands(left: Expression, right: Expression, verb: str) -> tuple[Expression, Expression]:
    """Cast both operands to their common type."""
    if is_string_literal(right) or is_string_literal(left):
        kind = unify_types([left, right], verb)
    else:
        common = find_common_type(left.type, right.type)
        if common is None:
            raise type_mismatch_error(verb, left.type, right.type)
        kind = BOOLEAN if common == NULL else common
        if isinstance(right, Literal) and (constant := cast_exactly(right, left.type)) and left.type != NULL:
            return left, constant
    return cast_implicitly(left, kind), cast_implicitly(right, kind)


def make_in(value: Expression, choices: list[Expression]) -> Expression:
    """Return `value IN (choices)`: an `in` call if all are constants of the value's type, else comparisons ORed."""
    _check_string_choices(value, choices)
    pairs = [unify_operands(value, choice, "compare") for choice in choices]
    kinds = {left.type for left, _ in pairs} | {right.type for _, right in pairs}
    if all(isinstance(right, Literal) for _, right in pairs) and len(kinds) == 1:
        return boolean_call("in", pairs[0][0], *(right for _, right in pairs))
    result = make_comparison("eq", value, choices[0])
    for choice in choices[1:]:
        result = make_or(result, make_comparison("eq", value, choice))
    return result


def _check_string_choices(value: Expression, choices: list[Expression]) -> None:
    """Reject string literals that IN would not find: unlike `=`, it compares them with the value as a string."""
    strings = [choice for choice in choices if is_string_literal(choice)]
    if value.type in (STRING, NULL) or not strings:
        return
    if value.type == BOOLEAN or any(choice.type not in (value.type, STRING, NULL) for choice in choices):
        raise type_mismatch_error("compare", value.type, STRING)
    for choice in strings:
        constant = cast_implicitly(choice, value.type)
        if cast_to(constant, STRING) != choice:
            raise SqlError(
                f"IN compares {type_name(value.type)} with the string {choice} as text", hint=f"write {constant} or use ="
            )


def make_arithmetic(function: str, left: Expression, right: Expression) -> Expression:
    """Return add, sub, mul, div, int_div or mod of two numbers, with Spark's result type."""
    if function == "div" and left.type == NULL and is_decimal(right.type):
        return Literal(None, DOUBLE)
    left, right = _require_numbers(function, left, right)
    if function == "int_div":
        return _make_int_div(left, right)
    left, right = _narrow_literal_beside_decimal(left, right)
    if (is_decimal(left.type) or is_decimal(right.type)) and not (is_float(left.type) or is_float(right.type)):
        return _make_decimal_arithmetic(
            function, cast_to(left, to_decimal_type(left.type)), cast_to(right, to_decimal_type(right.type))
        )
    kind = DOUBLE if function == "div" else find_common_type(left.type, right.type)
    assert kind is not None  # any two numeric types have a common type
    left, right = cast_to(left, kind), cast_to(right, kind)
    return _fold_arithmetic(function, left, right) or Call(function, (left, right), kind)


def _require_numbers(function: str, left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Cast an untyped NULL to the type of the other side; reject operands that are not numbers."""
    if not all(is_numeric(side.type) or side.type == NULL for side in (left, right)):
        raise SqlError(
            f"operator '{_OPERATOR_SYMBOLS[function]}' needs numbers, not {type_name(left.type)} and {type_name(right.type)}",
            hint=_arithmetic_hint(left, right),
        )
    if left.type == NULL:
        left = cast_to(left, INT if right.type == NULL else right.type)
    return left, cast_to(right, left.type) if right.type == NULL else right


def _arithmetic_hint(left: Expression, right: Expression) -> str:
    if left.type == right.type == TIMESTAMP:
        return "unix_seconds(a) - unix_seconds(b) is the difference in seconds"
    if left.type == right.type == DATE:
        return "date_diff(a, b) is the difference in days"
    return "a || b puts strings together" if STRING in (left.type, right.type) else "cast with CAST(… AS type)"


def _narrow_literal_beside_decimal(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Cast an integer constant beside a decimal to the narrowest decimal that holds it."""
    if is_decimal(right.type) and isinstance(left, Literal) and isinstance(left.value, int):
        return cast_to(left, literal_decimal_type(left.value)), right
    if is_decimal(left.type) and isinstance(right, Literal) and isinstance(right.value, int):
        return left, cast_to(right, literal_decimal_type(right.value))
    return left, right


def _make_decimal_arithmetic(function: str, left: Expression, right: Expression) -> Expression:
    return Call(function, (left, right), decimal_result_type(function, left.type, right.type))


def _make_int_div(left: Expression, right: Expression) -> Expression:
    if not (is_integer(left.type) and is_integer(right.type)):
        raise SqlError("operator 'DIV' needs integers", hint="floor(a / b) works on other numbers")
    return Call("int_div", (cast_to(left, BIGINT), cast_to(right, BIGINT)), BIGINT)


def _fold_arithmetic(function: str, left: Expression, right: Expression) -> Literal | None:
    """Fold add, sub and mul of integer and DOUBLE constants; return None for other operands and on overflow."""
    is_constant = isinstance(left, Literal) and isinstance(right, Literal) and function in _FOLDABLE_ARITHMETIC
    if not is_constant or not (is_integer(left.type) or left.type == DOUBLE):
        return None
    assert isinstance(left, Literal)
    assert isinstance(right, Literal)
    if left.value is None or right.value is None:
        return Literal(None, left.type)
    value = _FOLDABLE_ARITHMETIC[function](left.value, right.value)
    return Literal(value, left.type) if not isinstance(value, int) or fits_integer_type(value, left.type) else None


def make_negative(value: Expression) -> Expression:
    """Return `-value`."""
    if not is_numeric(value.type) and value.type != NULL:
        raise SqlError(f"operator '-' needs a number, not {type_name(value.type)}")
    if isinstance(value, Literal) and (value.value is None or _is_negatable(value)):
        return Literal(None if value.value is None else -value.value, value.type)  # type: ignore[operator]
    return Call("neg", (value,), value.type)


def _is_negatable(literal: Literal) -> bool:
    return not isinstance(literal.value, int) or fits_integer_type(-literal.value, literal.type)


def make_case(pairs: list[tuple[Expression, Expression]], default: Expression) -> Expression:
    """Return `CASE WHEN c THEN v … ELSE default END` with all values cast to their common type."""
    kind = unify_choices([value for _, value in pairs] + [default], "choose between")
    if kind == NULL:
        return default
    args: list[Expression] = []
    for test, value in pairs:
        args += [require_boolean(test, "WHEN"), cast_implicitly(value, kind)]
    return Call("case", (*args, cast_implicitly(default, kind)), kind)


_BACKSLASH = "\\"


def make_like(value: Expression, pattern: Expression, escape: str = _BACKSLASH) -> Expression:
    """Return `value LIKE pattern`; rewrite a constant pattern to backslash escapes, else pass the escape character on."""
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        pattern, escape = Literal(_rewrite_escapes(pattern.value, escape), STRING), _BACKSLASH
    escape_args = () if escape == _BACKSLASH else (Literal(escape, STRING),)
    return boolean_call("like", _require_string(value, "LIKE"), _require_string(pattern, "LIKE"), *escape_args)


def make_ilike(value: Expression, pattern: Expression) -> Expression:
    """Return `value ILIKE pattern`: LIKE with both sides in lower case."""
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        return make_like(_make_lower(value), Literal(pattern.value.lower(), STRING))
    return make_like(_make_lower(value), _make_lower(_require_string(pattern, "ILIKE")))


def make_rlike(value: Expression, pattern: Expression) -> Expression:
    """Return `value RLIKE pattern`."""
    constant = Literal(translate_regex(require_string_literal(pattern, "the pattern")), STRING)
    return boolean_call("rlike", _require_string(value, "RLIKE"), constant)


def require_string_literal(value: Expression, subject: str) -> str:
    """Return the value of a string literal; `subject` is named in the error message."""
    if isinstance(value, Literal) and isinstance(value.value, str):
        return value.value
    raise SqlError(f"{subject} must be a string literal")


def _require_string(value: Expression, construct: str) -> Expression:
    if value.type not in (STRING, NULL):
        raise SqlError(f"{construct} needs a STRING, not {type_name(value.type)}", hint="CAST(… AS STRING)")
    return cast_to(value, STRING)


def _make_lower(value: Expression) -> Expression:
    return Call("lower", (cast_to(value, STRING),), STRING)


def _rewrite_escapes(pattern: str, char: str) -> str:
    """Rewrite a pattern with escape character `char` as one with backslash escapes; double its own backslashes."""
    if char == _BACKSLASH:
        return pattern
    rewritten, letters = "", iter(pattern)
    for letter in letters:
        if letter == char:
            rewritten += f"\\{next(letters, char)}"
        else:
            rewritten += "\\\\" if letter == "\\" else letter
    return rewritten
