"""Scalar SQL functions, and the contract of the calls that evaluators receive.

The binder lowers every function to a `Call` of `headrace.model.expression.FUNCTIONS` with exactly these arguments
(“same” = the arguments have one type, which is the type of the result):

=============================  ====================================================================================
and, or (a, b); not (a)        BOOLEANs, three-valued; `is_null(a)` is never NULL
eq ne lt le gt ge (a, b)       same type on both sides; NULL if either is NULL; NaN equals NaN and is the greatest
eq_null_safe (a, b)            same type; never NULL
in (x, literal …)              constants of x's type; with a NULL among them, no match is NULL
like (x, p [, literal])        `%`, `_`; escaped by a backslash, or by the character given, which is a constant
rlike (x, literal)             TRUE if the regular expression matches anywhere in x
case (c1, v1, …, else)         odd number; first c that is TRUE; all v and else have the type of the result
coalesce (a …)                 same
cast (a)                       to `Call.type`; rules in `headrace.sql.casts`
add, sub, mul (a, b)           integers and floats: same; decimals: own types, the result rounded half up to `Call.type`
div (a, b)                     DOUBLE, DOUBLE → DOUBLE, or decimals as above; by zero → NULL
int_div (a, b)                 BIGINTs, towards zero; by zero → NULL
mod (a, b)                     same, sign of a; by zero → NULL
neg (a), abs (a)               same
ceil, floor (a)                DOUBLE → BIGINT, DECIMAL(p,s) → DECIMAL(p-s+1,0)
round (a, literal INT)         half away from zero; same, or the narrower decimal in `Call.type`; digits may be negative
sqrt exp sign (a), pow (a, b)  DOUBLE → DOUBLE
ln log10 log2 (a)              DOUBLE → DOUBLE; NULL for a ≤ 0
greatest, least (a …)          same; NULLs are skipped
upper lower reverse (s)        STRING → STRING; trim ltrim rtrim (s): blanks (U+0020) only
length (s)                     characters, INT
substring (s, pos, len)        INTs; 1-based, 0 is as 1, negative counts from the end; no len is 2147483647
concat (s …)                   NULL if any is NULL
replace (s, from, to)          an empty `from` changes nothing
starts_with ends_with contains (s, t) → BOOLEAN
year quarter month day         of a DATE or TIMESTAMP (UTC) → INT; also dayofweek (1 = Sunday), dayofyear
hour minute second             of a TIMESTAMP → INT
date_trunc (literal, ts)       unit: year quarter month week day hour minute second millisecond microsecond
date_add (date, INT)           → DATE; `date_diff(end, start)` of DATEs → INT
time_add (ts, literal BIGINT)  microseconds → TIMESTAMP
unix_seconds (ts)              floor of the seconds since 1970 → BIGINT
=============================  ====================================================================================

Any other function returns NULL for a NULL argument. Division by zero, and a cast of a string that does not parse, return NULL.
Overflow of integers and decimals in add, sub, mul, div, neg, abs, round, ceil, floor and cast raises `EvaluationError` at run
time, and fails that query only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, Literal
from headrace.model.schema import TIMESTAMP, parse_type, type_name
from headrace.sql.casts import cast, implicit
from headrace.sql.coerce import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    bounded_decimal,
    common_of,
    is_decimal,
    is_integer,
    is_numeric,
    is_string_literal,
)
from headrace.sql.operators import arithmetic, case, compare, condition, is_null, negated, negative
from headrace.sql.patterns import constant_text, rlike

Args = list[Expression]
Builder = Callable[[Args], Expression]
END = Literal(2_147_483_647, INT)
_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month", "mm": "month",
    "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "millisecond", "microsecond": "microsecond",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function: the builder of its call, and how many arguments it takes (a maximum of None: any number)."""

    build: Builder
    least: int
    most: int | None


def call(name: str, args: Args) -> Expression:
    """Return the call of a scalar function by its SQL name (any case); SqlError without a location if it is invalid."""
    function = FUNCTIONS.get(name.lower())
    if function is None:
        raise KeyError(name)
    if len(args) < function.least or (function.most is not None and len(args) > function.most):
        raise SqlError(f"function '{name}' takes {_count(function)}, not {len(args)}")
    try:
        return function.build(args)
    except SqlError as problem:
        raise SqlError(f"function '{name}': {problem.message}", detail=problem.detail, hint=problem.hint) from None


def _count(function: Function) -> str:
    if function.most is None:
        return f"at least {function.least} argument{'s' * (function.least != 1)}"
    if function.least == function.most:
        return f"{function.least} argument{'s' * (function.least != 1)}"
    return f"{function.least} to {function.most} arguments"


def number(value: Expression) -> Expression:
    """Return a numeric value unchanged, and NULL as a DOUBLE; reject other types."""
    if value.type == NULL:
        return cast(value, DOUBLE)
    if not is_numeric(value.type):
        raise SqlError(f"a number is needed, not {type_name(value.type)}", hint="cast it: CAST(… AS DOUBLE)")
    return value


def text(value: Expression) -> Expression:
    """Cast the value to STRING; Spark casts arguments to STRING implicitly."""
    return cast(value, STRING)


def whole(value: Expression) -> Expression:
    """Cast the value to INT; reject all but integers and NULL."""
    if not is_integer(value.type) and value.type != NULL:
        raise SqlError(f"an integer is needed, not {type_name(value.type)}")
    return cast(value, INT)


def moment(value: Expression) -> Expression:
    """Cast a DATE or a string literal to TIMESTAMP."""
    return _temporal(value, TIMESTAMP)


def day(value: Expression) -> Expression:
    """Cast a TIMESTAMP or a string literal to DATE."""
    return _temporal(value, DATE)


def _temporal(value: Expression, kind: pa.DataType) -> Expression:
    if value.type not in (DATE, TIMESTAMP, NULL) and not is_string_literal(value):
        raise SqlError(f"a {type_name(kind)} is needed, not {type_name(value.type)}", hint=f"CAST(… AS {type_name(kind)})")
    return implicit(value, kind)


def _fixed(function: str, result: pa.DataType, *kinds: Callable[[Expression], Expression]) -> Function:
    """Return a function that casts each argument by `kinds` and has a fixed result type."""

    def build(args: Args) -> Expression:
        return Call(function, tuple(kind(arg) for kind, arg in zip(kinds, args, strict=True)), result)

    return Function(build, len(kinds), len(kinds))


def _double(value: Expression) -> Expression:
    return cast(number(value), DOUBLE)


def _same(function: str) -> Function:
    """Return a function of any number of arguments, all cast to their common type."""

    def build(args: Args) -> Expression:
        kind = common_of(args, "combine")
        if len(args) == 1 or kind == NULL:
            return args[0]
        return Call(function, tuple(implicit(arg, kind) for arg in args), kind)

    return Function(build, 1, None)


def _cast_to(kind: pa.DataType) -> Function:
    return Function(lambda args: cast(args[0], kind), 1, 1)


def _absolute(args: Args) -> Expression:
    value = number(args[0])
    return Call("abs", (value,), value.type)


def _integral(function: str) -> Function:
    def build(args: Args) -> Expression:
        value = number(args[0])
        if is_integer(value.type) or (is_decimal(value.type) and value.type.scale == 0):
            return value
        if is_decimal(value.type):
            return Call(function, (value,), bounded_decimal(value.type.precision - value.type.scale + 1, 0))
        return Call(function, (cast(value, DOUBLE),), BIGINT)

    return Function(build, 1, 1)


def _round(args: Args) -> Expression:
    value, digits = number(args[0]), args[1] if len(args) > 1 else Literal(0, INT)
    if not isinstance(digits, Literal) or not isinstance(digits.value, int) or abs(digits.value) > 100:
        raise SqlError("the number of digits must be a small integer literal")
    count = digits.value
    if is_integer(value.type) and count >= 0:
        return value
    return Call("round", (value, Literal(count, INT)), _rounded_type(value.type, count))


def _rounded_type(kind: pa.DataType, digits: int) -> pa.DataType:
    if not is_decimal(kind):
        return kind
    whole_digits = kind.precision - kind.scale + 1
    if digits < 0:
        return bounded_decimal(max(whole_digits, -digits + 1), 0)
    scale = min(kind.scale, digits)
    return bounded_decimal(whole_digits + scale, scale)


def _log(args: Args) -> Expression:
    """Build LOG(x), the natural logarithm, or LOG(base, x)."""
    logs = [Call("ln", (_double(arg),), DOUBLE) for arg in args]
    return logs[0] if len(logs) == 1 else Call("div", (logs[1], logs[0]), DOUBLE)


def _substring(args: Args) -> Expression:
    length = whole(args[2]) if len(args) > 2 else END
    return Call("substring", (text(args[0]), whole(args[1]), length), STRING)


def _left(args: Args) -> Expression:
    return _substring([args[0], Literal(1, INT), args[1]])


def _right(args: Args) -> Expression:
    count = whole(args[1])
    if isinstance(count, Literal) and isinstance(count.value, int):
        return _substring([args[0], negative(count)]) if count.value > 0 else _left([args[0], Literal(0, INT)])
    empty = compare("le", count, Literal(0, INT))
    return case([(empty, _left([args[0], Literal(0, INT)]))], _substring([args[0], negative(count)]))


def _concat(args: Args) -> Expression:
    return Call("concat", tuple(text(arg) for arg in args), STRING)


def _nullif(args: Args) -> Expression:
    value = args[0]
    return case([(compare("eq", value, args[1]), Literal(None, value.type))], value)


def _nvl2(args: Args) -> Expression:
    return case([(negated(is_null(args[0])), args[1])], args[2])


def _if(args: Args) -> Expression:
    return case([(condition(args[0], "IF"), args[1])], args[2])


def _part(function: str) -> Function:
    """Return a function of a DATE or a TIMESTAMP; a string literal is cast to DATE."""

    def build(args: Args) -> Expression:
        value = args[0] if args[0].type == TIMESTAMP else day(args[0])
        return Call(function, (value,), INT)

    return Function(build, 1, 1)


def _weekday(args: Args) -> Expression:
    """Build WEEKDAY, where 0 is Monday."""
    return arithmetic("mod", arithmetic("add", call("dayofweek", args), Literal(5, INT)), Literal(7, INT))


def _date_part(args: Args) -> Expression:
    return part(constant_text(args[0], "the part"), args[1])


def part(name: str, value: Expression) -> Expression:
    """Return EXTRACT(name FROM value)."""
    function = _PARTS.get(name.lower())
    if function is None:
        raise SqlError(f"unknown part '{name}' of a time", detail=f"parts: {', '.join(sorted(set(_PARTS.values())))}")
    return FUNCTIONS[function].build([value])


def _unit(value: Expression) -> Literal:
    name = constant_text(value, "the unit").lower()
    if name not in _UNITS:
        raise SqlError(f"unknown unit '{name}'", detail=f"units: {', '.join(dict.fromkeys(_UNITS.values()))}")
    return Literal(_UNITS[name], STRING)


def _date_trunc(args: Args) -> Expression:
    return Call("date_trunc", (_unit(args[0]), moment(args[1])), TIMESTAMP)


def _trunc(args: Args) -> Expression:
    return cast(_date_trunc([args[1], args[0]]), DATE)


def _date_sub(args: Args) -> Expression:
    return Call("date_add", (day(args[0]), negative(whole(args[1]))), DATE)


def _scalars(function: str, names: str, result: pa.DataType, *kinds: Callable[[Expression], Expression]) -> dict[str, Function]:
    return dict.fromkeys(names.split(), _fixed(function, result, *kinds))


_PARTS = {
    "year": "year", "years": "year", "yr": "year", "y": "year", "quarter": "quarter", "qtr": "quarter", "month": "month",
    "months": "month", "mon": "month", "day": "day", "days": "day", "d": "day", "dayofweek": "dayofweek",
    "dow": "dayofweek", "doy": "dayofyear", "hour": "hour", "hours": "hour", "h": "hour", "minute": "minute",
    "minutes": "minute", "min": "minute", "m": "minute", "second": "second", "seconds": "second", "sec": "second",
    "s": "second",
}  # fmt: skip

_TYPES = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "date", "timestamp", "decimal")

FUNCTIONS: dict[str, Function] = {
    "abs": Function(_absolute, 1, 1), "ceil": _integral("ceil"), "ceiling": _integral("ceil"), "floor": _integral("floor"),
    "round": Function(_round, 1, 2), "log": Function(_log, 1, 2),
    **{name: _fixed(name, DOUBLE, _double) for name in ("sqrt", "exp", "ln", "log10", "log2", "sign")},
    **_scalars("sign", "signum", DOUBLE, _double), **_scalars("pow", "pow power", DOUBLE, _double, _double),
    "mod": Function(lambda args: arithmetic("mod", *args), 2, 2), "negative": Function(lambda args: negative(args[0]), 1, 1),
    "positive": Function(lambda args: number(args[0]), 1, 1),
    "greatest": _same("greatest"), "least": _same("least"), "coalesce": _same("coalesce"),
    "nvl": Function(_same("coalesce").build, 2, 2), "ifnull": Function(_same("coalesce").build, 2, 2),
    "nvl2": Function(_nvl2, 3, 3), "nullif": Function(_nullif, 2, 2), "if": Function(_if, 3, 3), "iff": Function(_if, 3, 3),
    "isnull": Function(lambda args: is_null(args[0]), 1, 1),
    "isnotnull": Function(lambda args: negated(is_null(args[0])), 1, 1),
    **_scalars("upper", "upper ucase", STRING, text), **_scalars("lower", "lower lcase", STRING, text),
    **{name: _fixed(name, STRING, text) for name in ("trim", "ltrim", "rtrim", "reverse")},
    **_scalars("trim", "btrim", STRING, text), **_scalars("length", "length len char_length character_length", INT, text),
    "substring": Function(_substring, 2, 3), "substr": Function(_substring, 2, 3), "left": Function(_left, 2, 2),
    "right": Function(_right, 2, 2), "concat": Function(_concat, 1, None), "replace": _fixed("replace", STRING, text, text, text),
    **_scalars("starts_with", "startswith starts_with", BOOLEAN, text, text),
    **_scalars("ends_with", "endswith ends_with", BOOLEAN, text, text), **_scalars("contains", "contains", BOOLEAN, text, text),
    **dict.fromkeys(("rlike", "regexp", "regexp_like"), Function(lambda args: rlike(*args), 2, 2)),
    **{name: _part(name) for name in ("year", "quarter", "month", "day", "dayofweek", "dayofyear")}, "dayofmonth": _part("day"),
    **{name: _fixed(name, INT, moment) for name in ("hour", "minute", "second")},
    "weekday": Function(_weekday, 1, 1), "date_part": Function(_date_part, 2, 2), "datepart": Function(_date_part, 2, 2),
    "date_trunc": Function(_date_trunc, 2, 2), "trunc": Function(_trunc, 2, 2),
    **_scalars("date_add", "date_add dateadd", DATE, day, whole), "date_sub": Function(_date_sub, 2, 2),
    **_scalars("date_diff", "datediff date_diff", INT, day, day),
    **_scalars("unix_seconds", "unix_seconds unix_timestamp", BIGINT, moment),
    "to_date": _cast_to(DATE), "to_timestamp": _cast_to(TIMESTAMP),
    **{name: _cast_to(parse_type(name)) for name in _TYPES},
}  # fmt: skip
