"""Decimal arithmetic where Arrow alone gives wrong results: beyond 38 digits, and where a rounding needs a digit more."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.engine.compute import decimal as decimals
from headrace.engine.compute.evaluator import Evaluator
from headrace.model.expression import Call, Column

NINES = "9" * 38


def compute(function: str, kind: pa.DataType, *operands: tuple[str, pa.DataType]) -> tuple[object, bool]:
    """Evaluate over three rows, of which the first matters: Arrow reports some failures only in the last row."""
    columns = {f"c{n}": pa.array([Decimal(text), None, Decimal(0)], type=of) for n, (text, of) in enumerate(operands)}
    call = Call(function, tuple(Column(f"c{n}", of) for n, (_, of) in enumerate(operands)), kind)
    evaluator = Evaluator(columns, 3)
    errors = evaluator.errors(call)
    return evaluator(call)[0].as_py(), errors is not None and errors[0].as_py()


@pytest.mark.parametrize(
    ("function", "kind", "left", "right", "wanted"),
    [
        # the types of a % b have no common type of 38 digits
        ("mod", (38, 18), ("7.5", (38, 18)), ("2", (38, 0)), "1.500000000000000000"),
        ("mod", (38, 18), ("-7.5", (38, 18)), ("2", (38, 0)), "-1.500000000000000000"),
        ("mod", (18, 6), ("9223372036854775807", (20, 0)), ("0.000001", (18, 6)), "0.000000"),
        ("mod", (38, 38), ("7", (3, 0)), ("0.00000000000000000000000000000000000003", (38, 38)), f"0.{'0' * 37}1"),
        # quotients of 256 bits
        ("div", (38, 6), ("9223372036854775807", (20, 0)), (f"0.{NINES}", (38, 38)), "9223372036854775807.000000"),
        ("div", (38, 12), (f"{'9' * 20}.{'9' * 18}", (38, 18)), ("1", (18, 6)), f"1{'0' * 20}.{'0' * 12}"),
        ("div", (38, 6), (NINES, (38, 0)), ("0.01", (5, 2)), None),
        ("mul", (38, 6), (f"{'9' * 20}.{'9' * 18}", (38, 18)), (f"0.{NINES}", (38, 38)), f"1{'0' * 20}.{'0' * 6}"),
        ("add", (38, 0), (NINES, (38, 0)), ("0.4", (5, 2)), NINES),
        ("add", (38, 0), (NINES, (38, 0)), ("0.5", (5, 2)), None),
    ],
    ids=str,
)  # fmt: skip
def test_arithmetic_beyond_38_digits(function, kind, left, right, wanted):
    operands = [(text, pa.decimal128(*of)) for text, of in (left, right)]
    value, failed = compute(function, pa.decimal128(*kind), *operands)
    assert (None if value is None else format(value, "f")) == wanted
    assert failed == (wanted is None)


@pytest.mark.parametrize(
    ("of", "text"), [((5, 2), "999.99"), ((38, 0), NINES), ((38, 38), f"0.{NINES}"), ((38, 18), f"{'9' * 20}.9")]
)
def test_a_rounding_may_need_a_digit_more(of, text):
    kind, value = pa.decimal128(*of), Decimal(text)
    whole = pa.decimal128(min(38, kind.precision - kind.scale + 1), 0)
    for function, number in (("ceil", value), ("floor", value.copy_negate())):
        result, failed = compute(function, whole, (str(number), kind))
        assert (result, failed) == (number.to_integral_value("ROUND_UP" if kind.scale else None), False)


def test_rounding_to_any_digits_fits_or_fails():
    column = pa.array([Decimal("999.99"), None, Decimal("-0.05")], pa.decimal128(5, 2))
    for digits, wanted in (
        (1, ["1000.0", None, "-0.1"]),
        (-3, ["1000", None, "0"]),
        (-100, ["0", None, "0"]),
        (50, ["999.99", None, "-0.05"]),
    ):
        kind = pa.decimal128(6, min(max(digits, 0), 2))
        result = decimals.round_decimals(column, digits, kind, "")
        assert result.errors is None
        assert [None if value is None else str(value) for value in result.value.to_pylist()] == wanted
    failed = decimals.round_decimals(column, 0, pa.decimal128(3, 0), "too large")
    assert failed.errors.to_pylist() == [True, False, False]
    assert failed.value.to_pylist() == [None, None, Decimal(0)]
