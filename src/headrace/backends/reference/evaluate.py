"""Evaluates an expression over one row, in SQL's three-valued logic; a Python None is NULL.

AND, OR, CASE and COALESCE evaluate from left to right and stop as soon as the result is known, so that errors in the remaining
parts do not occur. All other functions evaluate every argument; most are strict (NULL if any argument is NULL).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.backends.reference import numbers, text, time
from headrace.errors import EvaluationError
from headrace.model.expression import Call, Column, Expression, Literal
from headrace.model.function import get_udf_code, is_udf_tag, udf_name

Row = Mapping[str, object]


def evaluate(expression: Expression, row: Row) -> Any:
    """Return the value of an expression; a missing column is NULL. Raises EvaluationError, for example on overflow."""
    if isinstance(expression, Literal):
        return expression.value
    if isinstance(expression, Column):
        return row.get(expression.name)
    if expression.function in _LAZY:
        return _LAZY[expression.function](expression.args, row)
    values = [evaluate(arg, row) for arg in expression.args]
    if is_udf_tag(expression.function):
        return _call_user_function(expression, values)
    if expression.function in _NULL_AWARE:
        return _NULL_AWARE[expression.function](values)
    if any(value is None for value in values):
        return None
    if expression.function in _CASTS:
        return _CASTS[expression.function](values[0], expression.args[0].type, expression.type)
    return _apply_strict(expression, values)


def is_true(predicate: Expression, row: Row) -> bool:
    """Tell whether the predicate is TRUE, neither FALSE nor NULL."""
    return evaluate(predicate, row) is True


def _apply_strict(call: Call, values: list[Any]) -> Any:
    """Apply a function to non-NULL values."""
    if call.function in _NUMERIC:
        return _NUMERIC[call.function](call.type, *values)
    return _PLAIN[call.function](*values)


def _call_user_function(call: Call, values: list[Any]) -> Any:
    """Call a UDF with columns of one row."""
    columns = [pa.array([value], type=arg.type) for value, arg in zip(values, call.args, strict=True)]
    try:
        result = get_udf_code(call.function)(*columns)
        column = result if isinstance(result, pa.Array | pa.ChunkedArray) else pa.array(result, type=call.type)
        (value,) = column.cast(call.type).to_pylist()
    except Exception as error:
        raise EvaluationError(f"function '{udf_name(call.function)}' failed: {type(error).__name__}: {error}") from error
    return value


def _evaluate_and(args: tuple[Expression, ...], row: Row) -> bool | None:
    result: bool | None = True
    for arg in args:
        value = evaluate(arg, row)
        if value is False:
            return False
        result = None if value is None else result
    return result


def _evaluate_or(args: tuple[Expression, ...], row: Row) -> bool | None:
    result: bool | None = False
    for arg in args:
        value = evaluate(arg, row)
        if value is True:
            return True
        result = None if value is None else result
    return result


def _evaluate_case(args: tuple[Expression, ...], row: Row) -> Any:
    """Evaluate CASE; `args` are pairs of condition and value, then the optional ELSE value (default NULL)."""
    for condition, value in zip(args[0::2], args[1::2], strict=False):
        if is_true(condition, row):
            return evaluate(value, row)
    return evaluate(args[-1], row) if len(args) % 2 else None


def _evaluate_coalesce(args: tuple[Expression, ...], row: Row) -> Any:
    for arg in args:
        value = evaluate(arg, row)
        if value is not None:
            return value
    return None


_LAZY: dict[str, Callable[[tuple[Expression, ...], Row], Any]] = {
    "and": _evaluate_and,
    "or": _evaluate_or,
    "case": _evaluate_case,
    "coalesce": _evaluate_coalesce,
}


def _evaluate_in(values: list[Any]) -> bool | None:
    """Evaluate IN; a NULL on the left gives NULL, and so does no match if a choice is NULL."""
    value, choices = values[0], values[1:]
    if value is None:
        return None
    if any(choice is not None and numbers.sort_key(choice) == numbers.sort_key(value) for choice in choices):
        return True
    return None if None in choices else False


def _evaluate_eq_null_safe(values: list[Any]) -> bool:
    return bool(numbers.group_key(values[0]) == numbers.group_key(values[1]))


def _find_greatest(values: list[Any]) -> Any:
    return max((value for value in values if value is not None), key=numbers.sort_key, default=None)


def _find_least(values: list[Any]) -> Any:
    return min((value for value in values if value is not None), key=numbers.sort_key, default=None)


_NULL_AWARE: dict[str, Callable[[list[Any]], Any]] = {
    "is_null": lambda values: values[0] is None,
    "in": _evaluate_in,
    "eq_null_safe": _evaluate_eq_null_safe,
    "greatest": _find_greatest,
    "least": _find_least,
}

_NUMERIC: dict[str, Callable[..., Any]] = {
    "add": numbers.add,
    "sub": numbers.sub,
    "mul": numbers.mul,
    "div": numbers.div,
    "int_div": numbers.int_div,
    "mod": numbers.mod,
    "neg": numbers.neg,
    "abs": numbers.abs_value,
    "ceil": numbers.ceil,
    "floor": numbers.floor,
    "round": numbers.round_value,
    "sqrt": numbers.sqrt,
    "exp": numbers.exp,
    "ln": numbers.make_logarithm(math.log),
    "log10": numbers.make_logarithm(math.log10),
    "log2": numbers.make_logarithm(math.log2),
    "pow": numbers.power,
    "sign": numbers.sign,
}

_PLAIN: dict[str, Callable[..., Any]] = {
    "not": lambda a: not a,
    "eq": lambda a, b: numbers.sort_key(a) == numbers.sort_key(b),
    "ne": lambda a, b: numbers.sort_key(a) != numbers.sort_key(b),
    "lt": lambda a, b: numbers.sort_key(a) < numbers.sort_key(b),
    "le": lambda a, b: numbers.sort_key(a) <= numbers.sort_key(b),
    "gt": lambda a, b: numbers.sort_key(a) > numbers.sort_key(b),
    "ge": lambda a, b: numbers.sort_key(a) >= numbers.sort_key(b),
    "like": text.match_like,
    "rlike": text.match_regex,
    "upper": str.upper,
    "lower": str.lower,
    "length": len,
    "trim": lambda a: a.strip(" "),
    "ltrim": lambda a: a.lstrip(" "),
    "rtrim": lambda a: a.rstrip(" "),
    "substring": text.take_substring,
    "concat": lambda *parts: "".join(parts),
    "replace": text.replace_text,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "contains": lambda a, b: b in a,
    "reverse": lambda a: a[::-1],
    "year": lambda a: time.to_day(a).year,
    "quarter": time.quarter_of,
    "month": lambda a: time.to_day(a).month,
    "day": lambda a: time.to_day(a).day,
    "dayofweek": time.day_of_week,
    "dayofyear": time.day_of_year,
    "hour": lambda a: time.to_micros(a) // 3_600_000_000 % 24,
    "minute": lambda a: time.to_micros(a) // 60_000_000 % 60,
    "second": lambda a: time.to_micros(a) // 1_000_000 % 60,
    "second_with_fraction": time.second_with_fraction,
    "date_trunc": time.truncate_time,
    "date_add": time.add_days,
    "date_diff": time.days_between,
    "time_add": time.add_time,
    "unix_seconds": time.to_unix_seconds,
}

_CASTS: dict[str, Callable[[Any, pa.DataType, pa.DataType], Any]] = {"cast": text.cast_value, "try_cast": text.try_cast_value}

KNOWN_FUNCTIONS = frozenset({*_LAZY, *_NULL_AWARE, *_NUMERIC, *_PLAIN, *_CASTS})
"""Every function of this evaluator; a test checks that it equals `FUNCTIONS`."""
