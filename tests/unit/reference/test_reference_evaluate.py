"""Values of all functions in the reference evaluator, as tables of expression and value."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.backends.reference.evaluate import KNOWN_FUNCTIONS, evaluate
from headrace.errors import EvaluationError
from headrace.model.expression import BUILTIN_FUNCTIONS, Call, Column, Expression, Literal
from headrace.model.types import TIMESTAMP, parse_type

INT, BIGINT, TINYINT, DOUBLE, FLOAT = pa.int32(), pa.int64(), pa.int8(), pa.float64(), pa.float32()
BOOL, STRING, DATE = pa.bool_(), pa.string(), pa.date32()
NAN, INF = math.nan, math.inf
MOMENT = datetime(2024, 2, 29, 13, 14, 15, 678901, tzinfo=UTC)
LEAP_DAY = date(2024, 2, 29)


def literal(value: object, kind: pa.DataType | None = None) -> Literal:
    natural = {bool: BOOL, int: INT, float: DOUBLE, str: STRING, date: DATE, datetime: TIMESTAMP, type(None): INT}
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        return Literal(value, kind or pa.decimal128(10, -exponent))
    return Literal(value, kind or natural[type(value)])


def call(function: str, *values: object, to: pa.DataType = INT, of: pa.DataType | None = None) -> Call:
    args: list[Expression] = [v if isinstance(v, Call | Column | Literal) else literal(v, of) for v in values]
    return Call(function, tuple(args), to)


def value(function: str, *values: object, to: pa.DataType = INT, of: pa.DataType | None = None) -> object:
    return evaluate(call(function, *values, to=to, of=of), {})


def is_same(left: object, right: object) -> bool:
    return type(left) is type(right) and (left == right or repr(left) == repr(right))


def test_every_builtin_function_is_implemented():
    assert KNOWN_FUNCTIONS == BUILTIN_FUNCTIONS


def test_a_missing_column_is_null():
    assert evaluate(Column("x", INT), {"x": 7}) == 7
    assert evaluate(Column("x", INT), {}) is None


@pytest.mark.parametrize(
    ("a", "b", "both", "either"),
    [
        (True, True, True, True), (True, False, False, True), (False, False, False, False),
        (True, None, None, True), (False, None, False, None), (None, None, None, None),
        (None, True, None, True), (None, False, False, None),
    ],
)  # fmt: skip
def test_three_valued_logic(a, b, both, either):
    assert value("and", a, b, to=BOOL) is both
    assert value("or", a, b, to=BOOL) is either


def test_logic_short_circuits():
    broken = call("neg", -(2**31))
    greater = call("gt", broken, 0, to=BOOL)
    assert value("and", False, greater, to=BOOL) is False
    assert value("or", True, greater, to=BOOL) is True
    assert value("case", True, 1, broken) == 1
    assert value("coalesce", 1, broken) == 1
    with pytest.raises(EvaluationError):
        value("and", greater, False, to=BOOL)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        ("not", (True,), False), ("not", (None,), None), ("is_null", (None,), True), ("is_null", (0,), False),
        ("eq", (1, 1), True), ("eq", (1, None), None), ("ne", (1, 2), True), ("lt", (1, 2), True), ("ge", (1, 2), False),
        ("eq", (NAN, NAN), True), ("gt", (NAN, INF), True), ("le", (NAN, NAN), True), ("lt", (1.0, NAN), True),
        ("eq", (-0.0, 0.0), True), ("lt", (-0.0, 0.0), False),
        ("lt", ("a", "é"), True), ("lt", (False, True), True), ("gt", (LEAP_DAY, date(2024, 2, 28)), True),
        ("eq_null_safe", (None, None), True), ("eq_null_safe", (1, None), False), ("eq_null_safe", (NAN, NAN), True),
        ("in", (1, 2, 1), True), ("in", (1, 2, 3), False), ("in", (1, 2, None), None), ("in", (None, 1), None),
        ("in", (NAN, 1.0, NAN), True),
        ("like", ("abc", "a%"), True), ("like", ("abc", "a_"), False), ("like", ("a\nc", "a_c"), True),
        ("like", ("a\n", "a"), False),
        ("like", ("50%", r"50\%"), True), ("like", ("500", r"50\%"), False), ("like", ("a.c", "a.c"), True),
        ("like", ("abc", "a.c"), False),
        ("like", ("a", None), None), ("like", ("a_", "a/_", "/"), True), ("like", ("ab", "a/_", "/"), False),
        ("like", ("a\\/", "a\\/", "/"), True),
        ("like", (None, "%"), None), ("rlike", ("abc", "b."), True), ("rlike", ("abc", "^b"), False),
        ("starts_with", ("abc", "ab"), True), ("ends_with", ("abc", "bc"), True), ("contains", ("abc", "d"), False),
    ],
)  # fmt: skip
def test_predicates(function, args, expected):
    assert value(function, *args, to=BOOL) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("case", False, 1, None, 2, 3), 3), (call("case", False, 1, True, 2, 3), 2), (call("case", False, 1), None),
        (call("coalesce", None, 2, 3), 2), (call("coalesce", None, None), None),
        (call("greatest", 1, None, 3), 3), (call("least", 1, None, 3), 1), (call("greatest", None, None), None),
        (call("greatest", 1.0, NAN, to=DOUBLE), NAN), (call("least", 1.0, NAN, to=DOUBLE), 1.0),
    ],
)  # fmt: skip
def test_conditional_functions(expression, expected):
    assert is_same(evaluate(expression, {}), expected)


D2 = parse_type("DECIMAL(5,2)")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("add", 1, 2), 3), (call("sub", 1, 2), -1), (call("mul", 3, -2), -6), (call("add", 1, None), None),
        (call("add", 0.1, 0.2, to=DOUBLE), 0.1 + 0.2), (call("mul", 1e308, 10.0, to=DOUBLE), INF),
        (call("add", 0.1, 0.2, to=FLOAT), 0.30000001192092896),
        (call("add", Decimal("1.25"), Decimal("0.5"), to=D2), Decimal("1.75")),
        (call("mul", Decimal("1.25"), Decimal("0.5"), to=D2), Decimal("0.63")),
        (call("mul", Decimal("-1.25"), Decimal("0.5"), to=D2), Decimal("-0.63")),
        (call("div", 1.0, 4.0, to=DOUBLE), 0.25), (call("div", 1.0, 0.0, to=DOUBLE), None),
        (call("div", NAN, -0.0, to=DOUBLE), None),
        (call("div", Decimal(1), Decimal(3), to=D2), Decimal("0.33")), (call("div", Decimal(1), Decimal(0), to=D2), None),
        (call("int_div", 7, 2, to=BIGINT), 3), (call("int_div", -7, 2, to=BIGINT), -3), (call("int_div", 7, 0, to=BIGINT), None),
        (call("mod", 7, 3), 1), (call("mod", -7, 3), -1), (call("mod", 7, -3), 1), (call("mod", 7, 0), None),
        (call("mod", -7.5, 2.0, to=DOUBLE), -1.5), (call("mod", 1.0, 0.0, to=DOUBLE), None),
        (call("mod", INF, 2.0, to=DOUBLE), NAN),
        (call("mod", Decimal("-7.50"), Decimal("2.00"), to=D2), Decimal("-1.50")),
        (call("neg", 5), -5), (call("neg", 0.0, to=DOUBLE), -0.0), (call("neg", Decimal("1.50"), to=D2), Decimal("-1.50")),
        (call("abs", -5), 5), (call("abs", Decimal("-1.50"), to=D2), Decimal("1.50")),
    ],
)  # fmt: skip
def test_arithmetic(expression, expected):
    assert is_same(evaluate(expression, {}), expected)


@pytest.mark.parametrize(
    "expression",
    [
        call("add", 2**31 - 1, 1), call("sub", -(2**31), 1), call("mul", 2**40, 2**40, to=BIGINT), call("neg", -(2**31)),
        call("abs", -(2**31)),
        call("add", 127, 1, to=TINYINT), call("int_div", -(2**63), -1, to=BIGINT),
        call("add", Decimal("999.99"), Decimal("0.01"), to=D2),
        call("cast", 128, to=TINYINT), call("cast", NAN, to=INT), call("cast", 1e10, to=INT),
        call("cast", Decimal(3000000000), to=INT),
        call("cast", 1000, to=D2), call("cast", INF, to=D2), call("ceil", NAN, to=BIGINT), call("floor", 1e300, to=BIGINT),
        call("date_add", date(9999, 12, 31), 1, to=DATE), call("rlike", "a", "(", to=BOOL),
    ],
)  # fmt: skip
def test_undefined_values_raise(expression):
    with pytest.raises(EvaluationError):
        evaluate(expression, {})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("ceil", 1.2, to=BIGINT), 2), (call("ceil", -1.2, to=BIGINT), -1), (call("floor", -1.2, to=BIGINT), -2),
        (call("ceil", Decimal("1.20"), to=pa.decimal128(9, 0)), Decimal(2)),
        (call("round", 2.5, 0, to=DOUBLE), 3.0), (call("round", -2.5, 0, to=DOUBLE), -3.0),
        (call("round", 1.005, 2, to=DOUBLE), 1.01),
        (call("round", 1234.5, -2, to=DOUBLE), 1200.0), (call("round", NAN, 2, to=DOUBLE), NAN), (call("round", 250, -2), 300),
        (call("round", Decimal("1.25"), 1, to=pa.decimal128(10, 1)), Decimal("1.3")),
        (call("sqrt", 9.0, to=DOUBLE), 3.0), (call("sqrt", -1.0, to=DOUBLE), NAN), (call("exp", 0.0, to=DOUBLE), 1.0),
        (call("exp", 1e4, to=DOUBLE), INF),
        (call("ln", 0.0, to=DOUBLE), None), (call("ln", math.e, to=DOUBLE), 1.0), (call("log10", 1000.0, to=DOUBLE), 3.0),
        (call("log2", 8.0, to=DOUBLE), 3.0),
        (call("ln", NAN, to=DOUBLE), NAN), (call("log10", -1.0, to=DOUBLE), None),
        (call("pow", 2.0, 10.0, to=DOUBLE), 1024.0), (call("pow", -8.0, 0.5, to=DOUBLE), NAN),
        (call("pow", 0.0, -1.0, to=DOUBLE), INF),
        (call("pow", -10.0, 1001.0, to=DOUBLE), -INF), (call("pow", 1.0, NAN, to=DOUBLE), NAN),
        (call("pow", NAN, 0.0, to=DOUBLE), 1.0),
        (call("sign", -2.5, to=DOUBLE), -1.0), (call("sign", 0.0, to=DOUBLE), 0.0), (call("sign", NAN, to=DOUBLE), NAN),
    ],
)  # fmt: skip
def test_numeric_functions(expression, expected):
    assert is_same(evaluate(expression, {}), expected)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        ("upper", ("aß",), "ASS"), ("lower", ("AÉ",), "aé"), ("length", ("é😀",), 2), ("reverse", ("abc",), "cba"),
        ("trim", (" \ta ",), "\ta"), ("ltrim", ("  a ",), "a "), ("rtrim", (" a  ",), " a"),
        ("substring", ("hello", 2, 3), "ell"), ("substring", ("hello", 0, 2), "he"), ("substring", ("hello", -3, 2), "ll"),
        ("substring", ("abc", -5, 3), "a"), ("substring", ("abc", 9, 1), ""), ("substring", ("abc", 1, -1), ""),
        ("substring", ("abc", 2), "bc"),
        ("concat", ("a", "b", "c"), "abc"), ("concat", ("a", literal(None, STRING)), None),
        ("replace", ("banana", "an", "AN"), "bANANa"), ("replace", ("abc", "", "x"), "abc"), ("replace", ("abc", "b"), "ac"),
    ],
)  # fmt: skip
def test_string_functions(function, args, expected):
    assert is_same(value(function, *args), expected)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        ("year", (MOMENT,), 2024), ("quarter", (MOMENT,), 1), ("quarter", (date(2024, 10, 1),), 4), ("month", (LEAP_DAY,), 2),
        ("day", (MOMENT,), 29),
        ("dayofweek", (LEAP_DAY,), 5), ("dayofweek", (date(2024, 3, 3),), 1), ("dayofyear", (MOMENT,), 60),
        ("hour", (MOMENT,), 13), ("minute", (MOMENT,), 14), ("second", (MOMENT,), 15),
        ("hour", (datetime(1969, 12, 31, 23, tzinfo=UTC),), 23),
        ("date_add", (LEAP_DAY, 1), date(2024, 3, 1)), ("date_diff", (date(2024, 3, 1), LEAP_DAY), 1),
        ("time_add", (MOMENT, literal(-1, BIGINT)), MOMENT.replace(microsecond=678900)),
        ("unix_seconds", (MOMENT,), 1709212455), ("unix_seconds", (datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),), -1),
    ],
)  # fmt: skip
def test_time_functions(function, args, expected):
    assert is_same(value(function, *args), expected)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("microsecond", MOMENT), ("millisecond", MOMENT.replace(microsecond=678000)), ("second", MOMENT.replace(microsecond=0)),
        ("minute", datetime(2024, 2, 29, 13, 14, tzinfo=UTC)), ("hour", datetime(2024, 2, 29, 13, tzinfo=UTC)),
        ("day", datetime(2024, 2, 29, tzinfo=UTC)), ("week", datetime(2024, 2, 26, tzinfo=UTC)),
        ("month", datetime(2024, 2, 1, tzinfo=UTC)),
        ("quarter", datetime(2024, 1, 1, tzinfo=UTC)), ("year", datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_date_trunc(unit, expected):
    assert value("date_trunc", unit, MOMENT, to=TIMESTAMP) == expected


@pytest.mark.parametrize(
    ("given", "target", "expected"),
    [
        (" 12 ", "INT", 12), ("1.9", "INT", 1), ("x", "INT", None), ("3000000000", "INT", None), ("", "INT", None),
        ("1e3", "INT", None), ("１", "INT", None),
        ("1e3", "DOUBLE", 1000.0), ("-Infinity", "DOUBLE", -INF), ("nan", "DOUBLE", NAN), ("1_0", "DOUBLE", None),
        ("1.005", "DECIMAL(5,2)", Decimal("1.01")), ("1000", "DECIMAL(5,2)", None),
        (" True", "BOOLEAN", True), ("n", "BOOLEAN", False), ("2", "BOOLEAN", None),
        ("2024-2-9", "DATE", date(2024, 2, 9)), ("2024", "DATE", date(2024, 1, 1)), ("2024-02-30", "DATE", None),
        ("2024-02-29T13:14:15.678901", "TIMESTAMP", MOMENT), ("2024-02-29 15:14:15.678901+02:00", "TIMESTAMP", MOMENT),
        ("2024-02-29", "TIMESTAMP", datetime(2024, 2, 29, tzinfo=UTC)), ("2024-02-29 25:00:00", "TIMESTAMP", None),
        (-1.9, "INT", -1), (1.9, "BIGINT", 1), (True, "INT", 1), (0, "BOOLEAN", False), (0.5, "BOOLEAN", True),
        (1, "DOUBLE", 1.0), (0.1, "FLOAT", 0.10000000149011612),
        (1, "DECIMAL(5,2)", Decimal("1.00")), (1.005, "DECIMAL(5,2)", Decimal("1.01")), (Decimal("2.50"), "INT", 2),
        (Decimal("2.50"), "DOUBLE", 2.5),
        (Decimal("2.50"), "DECIMAL(5,0)", Decimal(3)), (True, "STRING", "true"), (12, "STRING", "12"),
        (Decimal("2.50"), "STRING", "2.50"), (Decimal("0.0000001"), "STRING", "1E-7"),
        (Decimal("0.000001"), "STRING", "0.000001"),
        (1.5, "STRING", "1.5"), (1.0, "STRING", "1.0"), (1e20, "STRING", "1.0E20"), (1.25e-5, "STRING", "1.25E-5"),
        (1234567.0, "STRING", "1234567.0"),
        (12345678.0, "STRING", "1.2345678E7"), (0.001, "STRING", "0.001"), (-0.0, "STRING", "-0.0"), (NAN, "STRING", "NaN"),
        (-INF, "STRING", "-Infinity"),
        (MOMENT, "STRING", "2024-02-29 13:14:15.678901"), (MOMENT.replace(microsecond=500000), "STRING", "2024-02-29 13:14:15.5"),
        (MOMENT.replace(microsecond=0, second=10), "STRING", "2024-02-29 13:14:10"), (LEAP_DAY, "STRING", "2024-02-29"),
        (MOMENT, "DATE", LEAP_DAY), (LEAP_DAY, "TIMESTAMP", datetime(2024, 2, 29, tzinfo=UTC)),
        (datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), "BIGINT", -1),
        (1, "TIMESTAMP", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), (None, "STRING", None),
    ],
)  # fmt: skip
def test_cast(given, target, expected):
    assert is_same(value("cast", given, to=parse_type(target)), expected)


@pytest.mark.parametrize("given", [NAN, INF, -INF])
def test_a_number_that_is_no_time_is_an_error_and_null_by_try_cast(given: float):
    with pytest.raises(EvaluationError, match="out of range"):
        value("cast", given, to=TIMESTAMP)
    assert value("try_cast", given, to=TIMESTAMP) is None


def test_a_float_is_cast_to_its_shortest_text():
    assert value("cast", literal(0.10000000149011612, FLOAT), to=STRING) == "0.1"
