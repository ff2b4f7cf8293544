"""Each function on values that can be checked by hand, and the contract of the evaluator."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.engine.compute.evaluator import SUPPORTED_FUNCTIONS, Evaluator
from headrace.model.expression import BUILTIN_FUNCTIONS, Call, Column, Literal
from headrace.model.types import TIMESTAMP

BOOL, INT, BIGINT, DOUBLE, STRING, DATE = pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.date32()
FLOAT, TINYINT = pa.float32(), pa.int8()
CENTS, WIDE = pa.decimal128(10, 2), pa.decimal128(38, 10)
NAN, INF = math.nan, math.inf
LEAST, GREATEST = -(2**63), 2**63 - 1
ERROR = "an error"


def time(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


def run(function, kind, *args):
    """Evaluate over one row, once with constants and once with columns (but for those that must be constant)."""
    results = []
    for constant in (True, False):
        table, operands = {}, []
        for index, (value, of) in enumerate(args):
            if constant or (function, index) in MUST_BE_CONSTANT or (function == "in" and index):
                operands.append(Literal(value, of))
            else:
                table[f"c{index}"] = pa.array([value], type=of)
                operands.append(Column(f"c{index}", of))
        evaluator, call = Evaluator(table, 1), Call(function, tuple(operands), kind)
        result, errors = evaluator(call), evaluator.errors(call)
        assert result.type == kind
        results.append(ERROR if errors is not None and errors[0].as_py() else result[0].as_py())
    assert repr(results[0]) == repr(results[1])
    return results[0]


MUST_BE_CONSTANT = {("round", 1), ("date_trunc", 0), ("like", 2)}


def check(wanted, function, kind, *args):
    found = run(function, kind, *args)
    assert (found == wanted and type(found) is type(wanted)) or repr(found) == repr(wanted)


def test_the_evaluator_supports_every_function():
    assert SUPPORTED_FUNCTIONS == BUILTIN_FUNCTIONS


@pytest.mark.parametrize(
    ("function", "left", "right", "wanted"),
    [
        ("and", True, None, None), ("and", False, None, False), ("and", True, True, True),
        ("or", True, None, True), ("or", False, None, None), ("or", False, False, False),
    ],
)  # fmt: skip
def test_logic(function, left, right, wanted):
    check(wanted, function, BOOL, (left, BOOL), (right, BOOL))
    check(wanted, function, BOOL, (right, BOOL), (left, BOOL))


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [(NAN, NAN, 0), (NAN, INF, 1), (1.0, NAN, -1), (-0.0, 0.0, 0), (1.0, 2.0, -1), (-INF, NAN, -1)],
)
def test_doubles_compare_as_in_spark(left, right, order):
    wanted = {"eq": order == 0, "ne": order != 0, "lt": order < 0, "le": order <= 0, "gt": order > 0, "ge": order >= 0}
    for function, result in wanted.items():
        check(result, function, BOOL, (left, DOUBLE), (right, DOUBLE))
        check(None, function, BOOL, (left, DOUBLE), (None, DOUBLE))
    check(order == 0, "eq_null_safe", BOOL, (left, DOUBLE), (right, DOUBLE))


def test_null_safe_equality():
    check(True, "eq_null_safe", BOOL, (None, INT), (None, INT))
    check(False, "eq_null_safe", BOOL, (None, INT), (1, INT))


@pytest.mark.parametrize(
    ("value", "choices", "wanted"),
    [(1.0, [1.0, 2.0], True), (3.0, [1.0], False), (3.0, [1.0, None], None), (1.0, [1.0, None], True),
     (None, [1.0], None), (NAN, [NAN], True), (-0.0, [0.0], True), (0.0, [-0.0], True), (1.0, [None], None)],
)  # fmt: skip
def test_in(value, choices, wanted):
    check(wanted, "in", BOOL, (value, DOUBLE), *((choice, DOUBLE) for choice in choices))


@pytest.mark.parametrize(
    ("text", "pattern", "wanted"),
    [("abc", "abc", True), ("abc", "a%", True), ("abc", "%c", True), ("abc", "%b%", True), ("abc", "a_c", True),
     ("abc", "ab", False),
     ("a\nc", "a_c", True), ("a\nc", "a%c", True), ("a%c", r"a\%c", True), ("abc", r"a\%c", False), ("", "", True),
     ("a", "", False),
     ("a.c", "a.c", True), ("abc", "a.c", False), ("é", "_", True), ("ab\n", "ab", False), ("a\\", "a\\", True),
     (None, "%", None),
     ("", "%", True), ("a", None, None), ("a+b-c", "a+_-%", True)],
)  # fmt: skip
def test_like(text, pattern, wanted):
    check(wanted, "like", BOOL, (text, STRING), (pattern, STRING))


@pytest.mark.parametrize(
    ("text", "pattern", "escape", "wanted"),
    [("a_", "a/_", "/", True), ("ab", "a/_", "/", False), ("a/", "a//", "/", True), ("a/", "a/", "/", True),
     ("a\\b", "a\\_", "/", True),
     ("é%", "_é%", "é", True), ("éx", "_é%", "é", False), ("%", "%%", "%", True), ("ab", "a%", "%", False),
     ("a%", "a%", "%", True),
     ("ab", "a_", "_", False), ("ab", "a/b", "/", True), ("ab", None, "/", None)],
)  # fmt: skip
def test_like_with_an_escape_character(text, pattern, escape, wanted):
    check(wanted, "like", BOOL, (text, STRING), (pattern, STRING), (escape, STRING))


def test_rlike():
    check(True, "rlike", BOOL, ("xaab", STRING), ("a+b", STRING))
    check(False, "rlike", BOOL, ("xaab", STRING), ("^a", STRING))
    check(ERROR, "rlike", BOOL, ("xaab", STRING), ("(", STRING))
    check(None, "rlike", BOOL, (None, STRING), ("(", STRING))


@pytest.mark.parametrize(
    ("function", "kind", "left", "right", "wanted"),
    [
        ("add", BIGINT, GREATEST, 1, ERROR), ("add", BIGINT, GREATEST, -1, GREATEST - 1), ("add", TINYINT, 100, 28, ERROR),
        ("sub", BIGINT, LEAST, 1, ERROR), ("sub", BIGINT, -1, GREATEST, LEAST), ("sub", INT, None, 1, None),
        ("mul", BIGINT, LEAST, -1, ERROR), ("mul", BIGINT, -1, LEAST, ERROR), ("mul", BIGINT, 2**32, 2**31, ERROR),
        ("mul", BIGINT, 2**32, -(2**31), LEAST), ("mul", BIGINT, 0, LEAST, 0), ("mul", DOUBLE, 1e200, 1e200, INF),
        ("int_div", BIGINT, 7, -2, -3), ("int_div", BIGINT, 7, 0, None), ("int_div", BIGINT, LEAST, -1, ERROR),
        ("mod", BIGINT, -7, 3, -1), ("mod", BIGINT, 7, -3, 1), ("mod", BIGINT, LEAST, -1, 0), ("mod", BIGINT, 1, 0, None),
        ("mod", DOUBLE, -5.5, 2.0, -1.5), ("mod", DOUBLE, 1.0, 0.0, None), ("mod", DOUBLE, 1.0, -0.0, None),
        ("div", DOUBLE, 1.0, 4.0, 0.25), ("div", DOUBLE, 1.0, 0.0, None), ("div", DOUBLE, NAN, -0.0, None),
        ("pow", DOUBLE, 2.0, 10.0, 1024.0), ("pow", DOUBLE, 1.0, NAN, NAN), ("pow", DOUBLE, -1.0, INF, NAN),
    ],
)  # fmt: skip
def test_arithmetic(function, kind, left, right, wanted):
    check(wanted, function, kind, (left, kind), (right, kind))


@pytest.mark.parametrize(
    ("function", "kind", "left", "right", "wanted"),
    [
        ("add", CENTS, ("0.05", CENTS), ("0.0050000000", WIDE), "0.06"),
        ("sub", CENTS, ("-99999999.99", CENTS), ("0.01", CENTS), ERROR),
        ("mul", WIDE, ("1.50", CENTS), ("-0.0000000001", WIDE), "-0.0000000002"),
        ("mul", WIDE, ("9999999999999999999999999999.0000000000", WIDE), ("2.00", CENTS), ERROR),
        ("div", CENTS, ("1.00", CENTS), ("3.00", CENTS), "0.33"),
        ("div", CENTS, ("2.00", CENTS), ("-3.00", CENTS), "-0.67"),
        ("div", CENTS, ("1.01", CENTS), ("2.00", CENTS), "0.51"),
        ("div", CENTS, ("1.00", CENTS), ("0.00", CENTS), None),
        ("mod", CENTS, ("-7.25", CENTS), ("2.10", CENTS), "-0.95"),
        ("mod", CENTS, ("-7.25", CENTS), ("0.00", CENTS), None),
    ],
)
def test_decimal_arithmetic(function, kind, left, right, wanted):
    exact = Decimal(wanted) if wanted not in (None, ERROR) else wanted
    check(exact, function, kind, *((Decimal(text), of) for text, of in (left, right)))


@pytest.mark.parametrize(
    ("function", "kind", "value", "of", "wanted"),
    [
        ("neg", BIGINT, LEAST, BIGINT, ERROR), ("neg", TINYINT, -128, TINYINT, ERROR), ("neg", DOUBLE, 0.0, DOUBLE, -0.0),
        ("abs", BIGINT, LEAST, BIGINT, ERROR), ("abs", CENTS, Decimal("-1.50"), CENTS, Decimal("1.50")),
        ("ceil", BIGINT, 1.2, DOUBLE, 2), ("ceil", BIGINT, -1.2, DOUBLE, -1), ("ceil", BIGINT, NAN, DOUBLE, ERROR),
        ("floor", BIGINT, -1.2, DOUBLE, -2), ("floor", BIGINT, 2.0**63, DOUBLE, ERROR),
        ("floor", BIGINT, -(2.0**63), DOUBLE, LEAST),
        ("ceil", pa.decimal128(2, 0), Decimal("9.01"), CENTS, Decimal(10)),
        ("ceil", pa.decimal128(1, 0), Decimal("9.01"), CENTS, ERROR),
        ("sqrt", DOUBLE, -1.0, DOUBLE, NAN), ("sqrt", DOUBLE, 9.0, DOUBLE, 3.0), ("exp", DOUBLE, 0.0, DOUBLE, 1.0),
        ("ln", DOUBLE, 0.0, DOUBLE, None), ("ln", DOUBLE, NAN, DOUBLE, NAN), ("log10", DOUBLE, 1000.0, DOUBLE, 3.0),
        ("log2", DOUBLE, 8.0, DOUBLE, 3.0), ("sign", DOUBLE, -3.5, DOUBLE, -1.0), ("sign", DOUBLE, -0.0, DOUBLE, -0.0),
        ("sign", DOUBLE, NAN, DOUBLE, NAN), ("not", BOOL, None, BOOL, None),
        ("is_null", BOOL, None, INT, True), ("is_null", BOOL, NAN, DOUBLE, False),
    ],
)  # fmt: skip
def test_functions_of_one_number(function, kind, value, of, wanted):
    check(wanted, function, kind, (value, of))


@pytest.mark.parametrize(
    ("value", "digits", "wanted"),
    [(2.5, 0, 3.0), (-2.5, 0, -3.0), (1.005, 2, 1.01), (2.675, 2, 2.68), (0.49999999999999994, 0, 0.0), (-0.4, 0, 0.0),
     (1234.0, -2, 1200.0),
     (1250.0, -2, 1300.0), (NAN, 1, NAN), (-INF, 1, -INF), (1e300, 2, 1e300), (123456789012345.675, 2, 123456789012345.67),
     (5e-324, 3, 0.0),
     (1.5, None, None), (12.0, -20, 0.0), (0.1, 30, 0.1)],
)  # fmt: skip
def test_round_doubles(value, digits, wanted):
    check(wanted, "round", DOUBLE, (value, DOUBLE), (digits, INT))


def test_round_other_numbers():
    check(Decimal("1.30"), "round", CENTS, (Decimal("1.25"), CENTS), (1, INT))
    check(Decimal("1.25"), "round", CENTS, (Decimal("1.25"), CENTS), (5, INT))
    check(130, "round", INT, (125, INT), (-1, INT))
    check(ERROR, "round", TINYINT, (127, TINYINT), (-1, INT))
    check(0, "round", BIGINT, (GREATEST, BIGINT), (-30, INT))


def test_greatest_and_least_ignore_nulls():
    check(NAN, "greatest", DOUBLE, (1.0, DOUBLE), (NAN, DOUBLE), (None, DOUBLE))
    check(1.0, "least", DOUBLE, (None, DOUBLE), (NAN, DOUBLE), (1.0, DOUBLE))
    check("b", "greatest", STRING, ("a", STRING), ("b", STRING))
    check(None, "least", INT, (None, INT), (None, INT))


@pytest.mark.parametrize(
    ("function", "args", "wanted"),
    [
        ("upper", ["straße é"], "STRASSE É"), ("lower", ["ABCÉ"], "abcé"), ("upper", ["abc"], "ABC"),
        ("trim", ["  a\t "], "a\t"),
        ("ltrim", ["  a "], "a "), ("rtrim", [" a  "], " a"), ("reverse", ["aé😀"], "😀éa"), ("concat", ["a", "b", "c"], "abc"),
        ("concat", ["a", None], None), ("replace", ["aXbX", "X", "--"], "a--b--"), ("replace", ["ab", "", "x"], "ab"),
        ("starts_with", ["abc", "ab"], True), ("ends_with", ["abc", "bc"], True), ("contains", ["abc", "x"], False),
        ("contains", ["abc", None], None), ("length", ["é😀"], 2),
    ],
)  # fmt: skip
def test_strings(function, args, wanted):
    kind = {bool: BOOL, int: INT}.get(type(wanted), BOOL if function == "contains" else STRING)
    check(wanted, function, kind, *((arg, STRING) for arg in args))


@pytest.mark.parametrize(
    ("position", "length", "wanted"),
    [
        (1, 2, "ab"),
        (0, 2, "ab"),
        (2, 9, "bc"),
        (-2, 1, "b"),
        (-5, 3, "a"),
        (-5, 2, ""),
        (-2, 9, "bc"),
        (2, 0, ""),
        (2, -1, ""),
        (9, 1, ""),
    ],
)
def test_substring(position, length, wanted):
    check(wanted, "substring", STRING, ("abc", STRING), (position, INT), (length, INT))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        ("year", 2024),
        ("quarter", 1),
        ("month", 2),
        ("day", 29),
        ("dayofweek", 5),
        ("dayofyear", 60),
        ("hour", 23),
        ("minute", 58),
        ("second", 57),
    ],
)
def test_fields_of_times(function, wanted):
    check(wanted, function, INT, (time(2024, 2, 29, 23, 58, 57, 999999), TIMESTAMP))
    if function not in ("hour", "minute", "second"):
        check(wanted, function, INT, (date(2024, 2, 29), DATE))


def test_seconds_have_their_fraction():
    for moment, wanted in (
        (time(2024, 2, 29, 23, 58, 57, 120), "57.000120"),
        (time(1969, 12, 31, 23, 59, 59, 999999), "59.999999"),
    ):
        check(Decimal(wanted), "second_with_fraction", pa.decimal128(8, 6), (moment, TIMESTAMP))


@pytest.mark.parametrize(
    ("unit", "wanted"),
    [("year", time(1969, 1, 1)), ("quarter", time(1969, 10, 1)), ("month", time(1969, 12, 1)), ("week", time(1969, 12, 29)),
     ("day", time(1969, 12, 31)), ("HOUR", time(1969, 12, 31, 23)), ("millisecond", time(1969, 12, 31, 23, 59, 59, 999000)),
     ("age", ERROR)],
)  # fmt: skip
def test_date_trunc(unit, wanted):
    check(wanted, "date_trunc", TIMESTAMP, (unit, STRING), (time(1969, 12, 31, 23, 59, 59, 999999), TIMESTAMP))


def test_adding_to_dates_and_times():
    check(date(2024, 3, 1), "date_add", DATE, (date(2024, 2, 28), DATE), (2, INT))
    check(ERROR, "date_add", DATE, (date(9999, 12, 31), DATE), (1, INT))
    check(-2, "date_diff", INT, (date(2024, 2, 28), DATE), (date(2024, 3, 1), DATE))
    check(time(1970, 1, 1), "time_add", TIMESTAMP, (time(1969, 12, 31, 23), TIMESTAMP), (3_600_000_000, BIGINT))
    check(ERROR, "time_add", TIMESTAMP, (time(9999, 12, 31), TIMESTAMP), (GREATEST, BIGINT))
    check(-1, "unix_seconds", BIGINT, (time(1969, 12, 31, 23, 59, 59, 1), TIMESTAMP))


# --- the evaluator itself ----------------------------------------------------------------------------------------------

A, B, ONE = Column("a", BIGINT), Column("b", BIGINT), Literal(1, BIGINT)
OVERFLOW = Call("mul", (A, B), BIGINT)
ROWS = {"a": pa.array([1, GREATEST, None, GREATEST]), "b": pa.array([2, 2, 2, 0])}


def test_columns_are_not_copied_and_literals_are_broadcast():
    table = pa.table(ROWS)
    assert Evaluator(ROWS, 4)(A) is ROWS["a"]
    assert Evaluator(table, 4)(A).chunk(0).buffers()[1].address == ROWS["a"].buffers()[1].address
    assert Evaluator(table, 4)(ONE).to_pylist() == [1, 1, 1, 1]
    assert Evaluator(table, 4)(Literal(None, STRING)).to_pylist() == [None] * 4


def test_errors_have_rows_and_a_message():
    evaluator = Evaluator(ROWS, 4)
    assert evaluator(OVERFLOW).to_pylist() == [2, None, None, 0]
    assert evaluator.errors(OVERFLOW).to_pylist() == [False, True, False, False]
    assert evaluator.message(OVERFLOW) == "integer overflow in a * b"
    assert (evaluator.errors(A), evaluator.message(A)) == (None, "")


def test_errors_of_arguments_propagate_to_the_call():
    evaluator = Evaluator(ROWS, 4)
    lost = Call("is_null", (OVERFLOW,), BOOL)
    assert evaluator(lost).to_pylist() == [False, None, True, False]
    assert evaluator.message(lost) == "integer overflow in a * b"


def test_equal_expressions_are_computed_once():
    evaluator = Evaluator(ROWS, 4)
    again = Call("mul", (Column("a", BIGINT), Column("b", BIGINT)), BIGINT)
    assert evaluator(Call("neg", (OVERFLOW,), BIGINT)) is not None
    assert evaluator(again) is evaluator(OVERFLOW)


def test_errors_of_unneeded_parts_are_ignored():
    evaluator = Evaluator(ROWS, 4)
    bad = Call("gt", (OVERFLOW, ONE), BOOL)
    small = Call("lt", (A, Literal(10, BIGINT)), BOOL)
    large = Call("not", (small,), BOOL)
    for harmless in (
        Call("and", (bad, small), BOOL),
        Call("and", (small, bad), BOOL),
        Call("or", (bad, large), BOOL),
        Call("case", (small, OVERFLOW, ONE), BIGINT),
        Call("coalesce", (A, OVERFLOW), BIGINT),
    ):
        assert evaluator.errors(harmless) is None, harmless
    for harmful in (
        Call("or", (small, bad), BOOL),
        Call("case", (large, OVERFLOW, ONE), BIGINT),
        Call("case", (bad, ONE, ONE), BIGINT),
        Call("coalesce", (OVERFLOW, A), BIGINT),
    ):
        assert evaluator.errors(harmful).to_pylist() == [False, True, False, False], harmful
        assert not evaluator(harmful)[1].is_valid


def test_an_error_in_a_constant_affects_every_row():
    bad = Call("add", (Literal(GREATEST, BIGINT), ONE), BIGINT)
    assert Evaluator({}, 2).errors(bad).to_pylist() == [True, True]
    assert Evaluator({}, 2).errors(Call("add", (bad, ONE), BIGINT)).to_pylist() == [True, True]
    assert Evaluator({}, 0).errors(bad) is None
    assert len(Evaluator({}, 0)(bad)) == 0


def test_case_without_else_is_null():
    call = Call("case", (Call("lt", (A, B), BOOL), A), BIGINT)
    assert Evaluator(ROWS, 4)(call).to_pylist() == [1, None, None, None]
