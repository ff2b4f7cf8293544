"""Scalar SQL functions and UDFs, and the contract of the calls that evaluators receive.

The binder lowers every function to a `Call` of `headrace.model.expression.BUILTIN_FUNCTIONS` with exactly these arguments
(“same” = the arguments have one type, which is the type of the result):

=============================  ====================================================================================
and, or (a, b); not (a)        BOOLEANs, three-valued; `is_null(a)` is never NULL
eq ne lt le gt ge (a, b)       same type on both sides; NULL if either is NULL; NaN equals NaN and is the greatest
eq_null_safe (a, b)            same type; never NULL
in (x, literal …)              constants of x's type; with a NULL among them, no match is NULL
like (x, p [, literal])        `%`, `_`; escaped by a backslash, or by the character given, which is a constant
rlike (x, literal)             TRUE if the regular expression (in the syntax of `headrace.sql.regex`) matches anywhere in x
case (c1, v1, …, else)         odd number; first c that is TRUE; all v and else have the type of the result
coalesce (a …)                 same
cast, try_cast (a)             to `Call.type`; rules in `headrace.sql.casts`
add, sub, mul (a, b)           integers and floats: same; decimals: own types, the result rounded half up to `Call.type`
div (a, b)                     DOUBLE, DOUBLE → DOUBLE, or decimals as above; by zero → NULL
int_div (a, b)                 BIGINTs, towards zero; by zero → NULL
mod (a, b)                     same, or decimals as in add; sign of a; by zero → NULL
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
hour minute second             of a TIMESTAMP → INT; second_with_fraction → DECIMAL(8,6)
date_trunc (literal, ts)       unit: year quarter month week day hour minute second millisecond microsecond
date_add (date, INT)           → DATE; `date_diff(end, start)` of DATEs → INT
time_add (ts, literal BIGINT)  microseconds → TIMESTAMP
unix_seconds (ts)              floor of the seconds since 1970 → BIGINT
=============================  ====================================================================================

Any other function returns NULL for a NULL argument. Division by zero, and a cast of a string that does not parse, return NULL.
Overflow of integers and decimals in add, sub, mul, div, neg, abs, round, ceil, floor and cast raises `EvaluationError` at run
time, and fails that query only.

The binder marks calls of user-defined functions (UDFs) in the syntax tree right after parsing, and binds them like SQL functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, Literal, column_names
from headrace.model.function import UserFunction
from headrace.model.names import check_name
from headrace.model.types import TIMESTAMP, parse_type, type_name
from headrace.sql.aggregate_functions import AGGREGATES, UNSUPPORTED_AGGREGATES
from headrace.sql.casts import cast_implicitly, cast_to
from headrace.sql.operators import (
    make_arithmetic,
    make_case,
    make_comparison,
    make_is_null,
    make_negative,
    make_not,
    make_rlike,
    require_boolean,
    require_string_literal,
)
from headrace.sql.parser import SqlSource, parse_statement, quote_identifier
from headrace.sql.scope import Catalog
from headrace.sql.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    find_common_type,
    is_decimal,
    is_integer,
    is_numeric,
    is_string_literal,
    make_bounded_decimal,
    type_mismatch_error,
    unify_choices,
    unify_types,
)
from headrace.sql.windows import GROUP_WINDOW_FUNCTIONS, TABLE_WINDOW_FUNCTIONS

Args = list[Expression]
FunctionBuilder = Callable[[Args], Expression]
_SECOND_TYPE = pa.decimal128(8, 6)
_DATE_UNITS = frozenset({"year", "quarter", "month", "week"})
UNTIL_END = Literal(2_147_483_647, INT)
_TRUNC_UNITS = {
    "year": "year",
    "yyyy": "year",
    "yy": "year",
    "quarter": "quarter",
    "month": "month",
    "mon": "month",
    "mm": "month",
    "week": "week",
    "day": "day",
    "dd": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A scalar function: the builder of its call, and how many arguments it takes (a maximum of None: any number)."""

    build: FunctionBuilder
    min_args: int
    max_args: int | None


def build_call(name: str, args: Args) -> Expression:
    """Return the call of a scalar function by its SQL name (any case); SqlError without a location if it is invalid."""
    function = FUNCTIONS.get(name.lower())
    if function is None:
        raise KeyError(name)
    if len(args) < function.min_args or (function.max_args is not None and len(args) > function.max_args):
        raise SqlError(f"function '{name}' takes {_describe_arity(function)}, not {len(args)}")
    try:
        return function.build(args)
    except SqlError as problem:
        raise SqlError(f"function '{name}': {problem.message}", detail=problem.detail, hint=problem.hint) from None


def _describe_arity(function: ScalarFunction) -> str:
    if function.max_args is None:
        return f"at least {function.min_args} argument{'s' * (function.min_args != 1)}"
    if function.min_args == function.max_args:
        return f"{function.min_args} argument{'s' * (function.min_args != 1)}"
    return f"{function.min_args} to {function.max_args} arguments"


def to_number(value: Expression) -> Expression:
    """Return a numeric value unchanged, and NULL as a DOUBLE; reject other types."""
    if value.type == NULL:
        return cast_to(value, DOUBLE)
    if not is_numeric(value.type):
        raise SqlError(f"a number is needed, not {type_name(value.type)}", hint="cast it: CAST(… AS DOUBLE)")
    return value


def to_text(value: Expression) -> Expression:
    """Cast the value to STRING; Spark casts arguments to STRING implicitly."""
    return cast_to(value, STRING)


def to_int(value: Expression) -> Expression:
    """Cast the value to INT; reject all but integers and NULL."""
    if not is_integer(value.type) and value.type != NULL:
        raise SqlError(f"an integer is needed, not {type_name(value.type)}")
    return cast_to(value, INT)


def to_timestamp(value: Expression) -> Expression:
    """Cast a DATE or a string literal to TIMESTAMP."""
    return _to_temporal(value, TIMESTAMP)


def to_date(value: Expression) -> Expression:
    """Cast a TIMESTAMP or a string literal to DATE."""
    return _to_temporal(value, DATE)


def _to_temporal(value: Expression, kind: pa.DataType) -> Expression:
    if value.type not in (DATE, TIMESTAMP, NULL) and not is_string_literal(value):
        raise SqlError(f"a {type_name(kind)} is needed, not {type_name(value.type)}", hint=f"CAST(… AS {type_name(kind)})")
    return cast_implicitly(value, kind)


def _typed_function(function: str, result: pa.DataType, *kinds: Callable[[Expression], Expression]) -> ScalarFunction:
    """Return a function that casts each argument by `kinds` and has a fixed result type."""

    def build(args: Args) -> Expression:
        return Call(function, tuple(kind(arg) for kind, arg in zip(kinds, args, strict=True)), result)

    return ScalarFunction(build, len(kinds), len(kinds))


def _to_double(value: Expression) -> Expression:
    return cast_to(to_number(value), DOUBLE)


def _unify_strictly(args: Args, verb: str) -> pa.DataType:
    """Return the common type of all arguments; a string literal has none with a number or a time."""
    kind = unify_types([arg for arg in args if not is_string_literal(arg)], verb)
    if kind not in (STRING, NULL) and any(map(is_string_literal, args)):
        raise type_mismatch_error(verb, kind, STRING)
    return STRING if any(map(is_string_literal, args)) else kind


def _common_type_function(function: str, unify: Callable[[Args, str], pa.DataType]) -> ScalarFunction:
    """Return a function of any number of arguments, all cast to their common type."""

    def build(args: Args) -> Expression:
        kind = unify(args, "combine")
        if len(args) == 1 or kind == NULL:
            return args[0]
        return Call(function, tuple(cast_implicitly(arg, kind) for arg in args), kind)

    return ScalarFunction(build, 1, None)


def _cast_function(kind: pa.DataType) -> ScalarFunction:
    return ScalarFunction(lambda args: cast_to(args[0], kind), 1, 1)


def _build_abs(args: Args) -> Expression:
    value = to_number(args[0])
    return Call("abs", (value,), value.type)


def _integral_function(function: str) -> ScalarFunction:
    def build(args: Args) -> Expression:
        value = to_number(args[0])
        if is_integer(value.type):
            return cast_to(value, BIGINT)
        if is_decimal(value.type) and value.type.scale == 0:
            return value
        if is_decimal(value.type):
            return Call(function, (value,), make_bounded_decimal(value.type.precision - value.type.scale + 1, 0))
        return Call(function, (cast_to(value, DOUBLE),), BIGINT)

    return ScalarFunction(build, 1, 1)


def _build_round(args: Args) -> Expression:
    value, digits = to_number(args[0]), args[1] if len(args) > 1 else Literal(0, INT)
    if not isinstance(digits, Literal) or not isinstance(digits.value, int) or abs(digits.value) > 100:
        raise SqlError("the number of digits must be a small integer literal")
    count = digits.value
    if is_integer(value.type) and count >= 0:
        return value
    return Call("round", (value, Literal(count, INT)), _round_result_type(value.type, count))


def _round_result_type(kind: pa.DataType, digits: int) -> pa.DataType:
    if not is_decimal(kind):
        return kind
    whole_digits = kind.precision - kind.scale + 1
    if digits < 0:
        return make_bounded_decimal(max(whole_digits, -digits + 1), 0)
    scale = min(kind.scale, digits)
    return make_bounded_decimal(whole_digits + scale, scale)


def _build_log(args: Args) -> Expression:
    """Build LOG(x), the natural logarithm, or LOG(base, x), which to the base 1 is infinite or NaN, not NULL."""
    logs = [Call("ln", (_to_double(arg),), DOUBLE) for arg in args]
    if len(logs) == 1:
        return logs[0]
    if isinstance(args[0], Literal) and args[0].value != 1:
        return Call("div", (logs[1], logs[0]), DOUBLE)
    infinite = Call("mul", (logs[1], Literal(math.inf, DOUBLE)), DOUBLE)
    is_one = make_comparison("eq", logs[0], Literal(0.0, DOUBLE))
    return make_case([(is_one, infinite)], Call("div", (logs[1], logs[0]), DOUBLE))


def _build_substring(args: Args) -> Expression:
    length = to_int(args[2]) if len(args) > 2 else UNTIL_END
    return Call("substring", (to_text(args[0]), to_int(args[1]), length), STRING)


def _build_left(args: Args) -> Expression:
    return _build_substring([args[0], Literal(1, INT), args[1]])


def _build_right(args: Args) -> Expression:
    count = to_int(args[1])
    if isinstance(count, Literal) and isinstance(count.value, int):
        return _build_substring([args[0], make_negative(count)]) if count.value > 0 else _build_left([args[0], Literal(0, INT)])
    empty = make_comparison("le", count, Literal(0, INT))
    return make_case([(empty, _build_left([args[0], Literal(0, INT)]))], _build_substring([args[0], make_negative(count)]))


def _build_concat(args: Args) -> Expression:
    return Call("concat", tuple(to_text(arg) for arg in args), STRING)


def _build_nullif(args: Args) -> Expression:
    value = args[0]
    return make_case([(make_comparison("eq", value, args[1]), Literal(None, value.type))], value)


def _build_nvl2(args: Args) -> Expression:
    return make_case([(make_not(make_is_null(args[0])), args[1])], args[2])


def _build_if(args: Args) -> Expression:
    return make_case([(require_boolean(args[0], "IF"), args[1])], args[2])


def _date_part_function(function: str) -> ScalarFunction:
    """Return a function of a DATE or a TIMESTAMP; a string literal is cast to DATE."""

    def build(args: Args) -> Expression:
        value = args[0] if args[0].type == TIMESTAMP else to_date(args[0])
        return Call(function, (value,), INT)

    return ScalarFunction(build, 1, 1)


def _build_weekday(args: Args) -> Expression:
    """Build WEEKDAY, where 0 is Monday."""
    return make_arithmetic("mod", make_arithmetic("add", build_call("dayofweek", args), Literal(5, INT)), Literal(7, INT))


def _build_date_part(args: Args) -> Expression:
    return build_extract(require_string_literal(args[0], "the part"), args[1])


def build_extract(name: str, value: Expression) -> Expression:
    """Return EXTRACT(name FROM value); unlike the function `second`, the part SECOND has a fraction."""
    function = _DATE_PARTS.get(name.lower())
    if function is None:
        raise SqlError(f"unknown part '{name}' of a time", detail=f"parts: {', '.join(sorted(set(_DATE_PARTS.values())))}")
    if function == "second":
        return Call("second_with_fraction", (to_timestamp(value),), _SECOND_TYPE)
    return FUNCTIONS[function].build([value])


def _read_trunc_unit(value: Expression) -> str:
    name = require_string_literal(value, "the unit").lower()
    if name not in _TRUNC_UNITS:
        raise SqlError(f"unknown unit '{name}'", detail=f"units: {', '.join(dict.fromkeys(_TRUNC_UNITS.values()))}")
    return _TRUNC_UNITS[name]


def _build_date_trunc(args: Args) -> Expression:
    return Call("date_trunc", (Literal(_read_trunc_unit(args[0]), STRING), to_timestamp(args[1])), TIMESTAMP)


def _build_trunc(args: Args) -> Expression:
    """Build TRUNC(date, unit), whose units are longer than a day."""
    unit = _read_trunc_unit(args[1])
    if unit not in _DATE_UNITS:
        raise SqlError(f"unit '{unit}' does not shorten a DATE", hint=f"date_trunc('{unit}', …) gives a TIMESTAMP")
    return cast_to(_build_date_trunc([args[1], args[0]]), DATE)


def _build_unix_timestamp(args: Args) -> Expression:
    """Build UNIX_TIMESTAMP: seconds rounded towards zero, where UNIX_SECONDS rounds down."""
    time = to_timestamp(args[0])
    before = make_comparison("lt", time, Literal(datetime(1970, 1, 1, tzinfo=UTC), TIMESTAMP))
    rounded_up = Call("time_add", (time, Literal(999_999, BIGINT)), TIMESTAMP)
    return make_case([(before, Call("unix_seconds", (rounded_up,), BIGINT))], Call("unix_seconds", (time,), BIGINT))


def _build_date_sub(args: Args) -> Expression:
    return Call("date_add", (to_date(args[0]), make_negative(to_int(args[1]))), DATE)


def _typed_functions(
    function: str, names: str, result: pa.DataType, *kinds: Callable[[Expression], Expression]
) -> dict[str, ScalarFunction]:
    return dict.fromkeys(names.split(), _typed_function(function, result, *kinds))


_DATE_PARTS = {
    "year": "year",
    "years": "year",
    "yr": "year",
    "y": "year",
    "quarter": "quarter",
    "qtr": "quarter",
    "month": "month",
    "months": "month",
    "mon": "month",
    "day": "day",
    "days": "day",
    "d": "day",
    "dayofweek": "dayofweek",
    "dow": "dayofweek",
    "doy": "dayofyear",
    "hour": "hour",
    "hours": "hour",
    "h": "hour",
    "minute": "minute",
    "minutes": "minute",
    "min": "minute",
    "m": "minute",
    "second": "second",
    "seconds": "second",
    "sec": "second",
    "s": "second",
}

_CAST_FUNCTIONS = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "date", "timestamp", "decimal")

FUNCTIONS: dict[str, ScalarFunction] = {
    "abs": ScalarFunction(_build_abs, 1, 1),
    "ceil": _integral_function("ceil"),
    "ceiling": _integral_function("ceil"),
    "floor": _integral_function("floor"),
    "round": ScalarFunction(_build_round, 1, 2),
    "log": ScalarFunction(_build_log, 1, 2),
    **{name: _typed_function(name, DOUBLE, _to_double) for name in ("sqrt", "exp", "ln", "log10", "log2", "sign")},
    **_typed_functions("sign", "signum", DOUBLE, _to_double),
    **_typed_functions("pow", "pow power", DOUBLE, _to_double, _to_double),
    "mod": ScalarFunction(lambda args: make_arithmetic("mod", *args), 2, 2),
    "negative": ScalarFunction(lambda args: make_negative(args[0]), 1, 1),
    "positive": ScalarFunction(lambda args: to_number(args[0]), 1, 1),
    "greatest": _common_type_function("greatest", _unify_strictly),
    "least": _common_type_function("least", _unify_strictly),
    "coalesce": _common_type_function("coalesce", unify_choices),
    "nvl": ScalarFunction(_common_type_function("coalesce", unify_choices).build, 2, 2),
    "ifnull": ScalarFunction(_common_type_function("coalesce", unify_choices).build, 2, 2),
    "nvl2": ScalarFunction(_build_nvl2, 3, 3),
    "nullif": ScalarFunction(_build_nullif, 2, 2),
    "if": ScalarFunction(_build_if, 3, 3),
    "iff": ScalarFunction(_build_if, 3, 3),
    "isnull": ScalarFunction(lambda args: make_is_null(args[0]), 1, 1),
    "isnotnull": ScalarFunction(lambda args: make_not(make_is_null(args[0])), 1, 1),
    **_typed_functions("upper", "upper ucase", STRING, to_text),
    **_typed_functions("lower", "lower lcase", STRING, to_text),
    **{name: _typed_function(name, STRING, to_text) for name in ("trim", "ltrim", "rtrim", "reverse")},
    **_typed_functions("trim", "btrim", STRING, to_text),
    **_typed_functions("length", "length len char_length character_length", INT, to_text),
    "substring": ScalarFunction(_build_substring, 2, 3),
    "substr": ScalarFunction(_build_substring, 2, 3),
    "left": ScalarFunction(_build_left, 2, 2),
    "right": ScalarFunction(_build_right, 2, 2),
    "concat": ScalarFunction(_build_concat, 1, None),
    "replace": _typed_function("replace", STRING, to_text, to_text, to_text),
    **_typed_functions("starts_with", "startswith starts_with", BOOLEAN, to_text, to_text),
    **_typed_functions("ends_with", "endswith ends_with", BOOLEAN, to_text, to_text),
    **_typed_functions("contains", "contains", BOOLEAN, to_text, to_text),
    **dict.fromkeys(("rlike", "regexp", "regexp_like"), ScalarFunction(lambda args: make_rlike(*args), 2, 2)),
    **{name: _date_part_function(name) for name in ("year", "quarter", "month", "day", "dayofweek", "dayofyear")},
    "dayofmonth": _date_part_function("day"),
    **{name: _typed_function(name, INT, to_timestamp) for name in ("hour", "minute", "second")},
    "weekday": ScalarFunction(_build_weekday, 1, 1),
    "date_part": ScalarFunction(_build_date_part, 2, 2),
    "datepart": ScalarFunction(_build_date_part, 2, 2),
    "date_trunc": ScalarFunction(_build_date_trunc, 2, 2),
    "trunc": ScalarFunction(_build_trunc, 2, 2),
    **_typed_functions("date_add", "date_add dateadd", DATE, to_date, to_int),
    "date_sub": ScalarFunction(_build_date_sub, 2, 2),
    **_typed_functions("date_diff", "datediff date_diff", INT, to_date, to_date),
    **_typed_functions("unix_seconds", "unix_seconds", BIGINT, to_timestamp),
    "unix_timestamp": ScalarFunction(_build_unix_timestamp, 1, 1),
    "to_date": _cast_function(DATE),
    "to_timestamp": _cast_function(TIMESTAMP),
    **{name: _cast_function(parse_type(name)) for name in _CAST_FUNCTIONS},
}


_META_KEY = "user function"
_OTHER_RESERVED_NAMES = ("sliding", "cast", "extract", "explode")
_RESERVED_NAMES = frozenset(
    {*FUNCTIONS, *AGGREGATES, *UNSUPPORTED_AGGREGATES, *TABLE_WINDOW_FUNCTIONS, *GROUP_WINDOW_FUNCTIONS, *_OTHER_RESERVED_NAMES}
)


def mark_user_functions(tree: exp.Expr, catalog: Catalog) -> None:
    """Store the UDF in the metadata of each node that calls it."""
    if catalog.functions:
        for node in tree.find_all(exp.Anonymous):
            function = catalog.find_function(node.name)
            if function is not None:
                node.meta[_META_KEY] = function


def get_user_function(node: exp.Expr) -> UserFunction | None:
    """Return the UDF that a node calls, or None."""
    function: UserFunction | None = node.meta.get(_META_KEY)
    return function


def call_user_function(function: UserFunction, args: list[Expression], *, lists: bool = False) -> Expression:
    """Return the call with arguments cast to the parameter types; SqlError without a location if it is invalid.

    A function that returns lists is rejected unless `lists` is set.
    """
    if pa.types.is_list(function.result_type) and not lists:
        raise SqlError(
            f"function '{function.name}' returns lists", hint=f"write FROM … LATERAL VIEW explode({function.name}(…)) AS element"
        )
    if len(args) != len(function.argument_types):
        raise SqlError(f"function '{function.name}' takes {len(function.argument_types)} arguments, not {len(args)}")
    if not any(map(column_names, args)):
        raise SqlError(f"function '{function.name}' needs a column among its arguments", hint="write the value itself")
    arguments = (
        _coerce_argument(function, n, arg, kind) for n, (arg, kind) in enumerate(zip(args, function.argument_types, strict=True))
    )
    return Call(function.tag, tuple(arguments), function.result_type)


def _coerce_argument(function: UserFunction, index: int, value: Expression, kind: pa.DataType | None) -> Expression:
    if kind is None and value.type != NULL:
        return value
    if kind is not None and is_string_literal(value):
        return cast_implicitly(value, kind)
    if kind is None or find_common_type(value.type, kind) != kind:
        expected, actual = "a type" if kind is None else type_name(kind), type_name(value.type)
        raise SqlError(
            f"argument {index + 1} of function '{function.name}' must have {expected}, not {actual}",
            hint="cast it: CAST(… AS type)",
        )
    return cast_to(value, kind)


def list_called_functions(text: str) -> frozenset[str]:
    """Return the lower-case names of all functions that a query calls."""
    return frozenset(node.name.lower() for node in parse_statement(SqlSource(text)).find_all(exp.Anonymous))


def check_function_name(name: str) -> None:
    """Reject an invalid name, one that SQL has built in, and one that does not parse as a plain identifier."""
    check_name("function", name)
    if quote_identifier(name) != name:
        raise SqlError(f"{name!r} cannot be the name of a function", hint="use letters, digits and '_', and no word of SQL")
    if name.lower() in _RESERVED_NAMES:
        raise SqlError(f"function '{name.lower()}' is built in", hint="choose another name")
