"""CAST on values that can be checked by hand."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.engine.compute.evaluator import Evaluator
from headrace.model.expression import Call, Column, Literal
from headrace.model.types import TIMESTAMP

BOOL, INT, BIGINT, DOUBLE, STRING, DATE = pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.date32()
FLOAT, TINYINT = pa.float32(), pa.int8()
CENTS, WIDE, FRACTION = pa.decimal128(10, 2), pa.decimal128(38, 10), pa.decimal128(38, 38)
NAN, INF = math.nan, math.inf
LEAST, GREATEST = -(2**63), 2**63 - 1
ERROR = "an error"


def time(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "of", "kind", "wanted"),
    [
        (" -12 ", STRING, INT, -12), ("1.9", STRING, INT, 1), ("128", STRING, TINYINT, None), ("0x1F", STRING, INT, None),
        ("x", STRING, INT, None),
        ("1e3", STRING, INT, None), ("1e3", STRING, DOUBLE, 1000.0), ("-inf", STRING, DOUBLE, -INF),
        ("abc", STRING, DOUBLE, None),
        ("1.005", STRING, CENTS, Decimal("1.01")), ("1e9", STRING, CENTS, None), ("1e-999999", STRING, CENTS, Decimal("0.00")),
        (" Yes ", STRING, BOOL, True), ("0", STRING, BOOL, False), ("2", STRING, BOOL, None),
        ("2024-02-29", STRING, DATE, date(2024, 2, 29)), ("2023-02-29", STRING, DATE, None), ("0000-01-01", STRING, DATE, None),
        ("2024-3", STRING, DATE, date(2024, 3, 1)), ("2024-01-02 03:04", STRING, TIMESTAMP, time(2024, 1, 2, 3, 4)),
        ("2024-01-02T03:04:05.1234567+02:00", STRING, TIMESTAMP, time(2024, 1, 2, 1, 4, 5, 123456)),
        ("12:30", STRING, TIMESTAMP, None),
        (1.9, DOUBLE, INT, 1), (-1.9, DOUBLE, INT, -1), (NAN, DOUBLE, INT, ERROR), (3e9, DOUBLE, INT, ERROR),
        (-128.9, DOUBLE, TINYINT, -128),
        (2.0**63, DOUBLE, BIGINT, ERROR), (300, INT, TINYINT, ERROR), (GREATEST, BIGINT, DOUBLE, 2.0**63),
        (1e300, DOUBLE, FLOAT, INF),
        (1.005, DOUBLE, CENTS, Decimal("1.01")), (1e9, DOUBLE, CENTS, ERROR), (NAN, DOUBLE, CENTS, ERROR),
        (-0.001, DOUBLE, CENTS, Decimal("0.00")),
        (7, INT, CENTS, Decimal("7.00")), (GREATEST, BIGINT, CENTS, ERROR), (Decimal("-1.99"), CENTS, INT, -1),
        (Decimal("0.10"), CENTS, DOUBLE, 0.1),
        (Decimal("1.0450000000"), WIDE, CENTS, Decimal("1.05")), (Decimal("99999999.9950000000"), WIDE, CENTS, ERROR),
        (1.5, DOUBLE, STRING, "1.5"), (1e20, DOUBLE, STRING, "1.0E20"), (0.001, DOUBLE, STRING, "0.001"),
        (1e-4, DOUBLE, STRING, "1.0E-4"),
        (NAN, DOUBLE, STRING, "NaN"), (-INF, DOUBLE, STRING, "-Infinity"), (-0.0, DOUBLE, STRING, "-0.0"),
        (1e7, DOUBLE, STRING, "1.0E7"),
        (9999999.0, DOUBLE, STRING, "9999999.0"), (123456.789, DOUBLE, STRING, "123456.789"),
        (0.10000000149011612, FLOAT, STRING, "0.1"),
        (-5, INT, STRING, "-5"), (True, BOOL, STRING, "true"), (Decimal("0.0000000001"), WIDE, STRING, "1E-10"),
        (time(2024, 1, 2, 3, 4, 5, 120000), TIMESTAMP, STRING, "2024-01-02 03:04:05.12"),
        (date(2024, 1, 2), DATE, STRING, "2024-01-02"),
        (time(2024, 1, 2, 3, 4, 10), TIMESTAMP, STRING, "2024-01-02 03:04:10"),
        (time(1, 1, 1), TIMESTAMP, STRING, "0001-01-01 00:00:00"),
        (time(1969, 12, 31, 23), TIMESTAMP, DATE, date(1969, 12, 31)),
        (date(1969, 12, 31), DATE, TIMESTAMP, time(1969, 12, 31)),
        (time(1969, 12, 31, 23, 59, 59, 1), TIMESTAMP, BIGINT, -1), (time(2100, 1, 1), TIMESTAMP, INT, ERROR),
        (time(1970, 1, 1, 0, 0, 1, 500000), TIMESTAMP, DOUBLE, 1.5),
        (True, BOOL, INT, 1), (0.0, DOUBLE, BOOL, False), (NAN, DOUBLE, BOOL, True),
        (90, INT, TIMESTAMP, time(1970, 1, 1, 0, 1, 30)),
        (GREATEST, BIGINT, TIMESTAMP, ERROR), (INF, DOUBLE, TIMESTAMP, ERROR), (1, INT, DATE, ERROR),
        (Decimal("0.1"), FRACTION, INT, 0), (Decimal("-0." + "9" * 38), FRACTION, TINYINT, 0),
        (Decimal(10) ** 36, pa.decimal128(38, 1), FRACTION, ERROR),  # a cast of Arrow wraps around
        (5e-324, DOUBLE, STRING, "4.9E-324"), (1.401298464324817e-45, FLOAT, STRING, "1.4E-45"), (1e22, DOUBLE, STRING, "1.0E22"),
        (1e-7, DOUBLE, STRING, "1.0E-7"), (8.0, FLOAT, STRING, "8.0"),
        (".", STRING, INT, 0), ("-.5", STRING, INT, 0), ("-", STRING, INT, None), ("\u00a01", STRING, INT, None), ("1d", STRING,
        DOUBLE, 1.0),
        ("0x1p3", STRING, DOUBLE, 8.0), ("0x1p9999", STRING, DOUBLE, INF), ("१", STRING, CENTS, Decimal("1.00")), ("१", STRING,
        DOUBLE, None),
        ("1.00000017881393432617187499", STRING, FLOAT, 1.0000001192092896),  # by way of a double it would be 1.0000002
        ((1 << 60) + (1 << 36) + 1, BIGINT, FLOAT, 2.0**60 + 2.0**37), (Decimal("16777217.01"), CENTS, FLOAT, 16777218.0),
        ("2024-02-29 12", STRING, TIMESTAMP, time(2024, 2, 29, 12)), ("2024-02-29T", STRING, TIMESTAMP, None),
        ("+2024-01-01", STRING, DATE, date(2024, 1, 1)), ("10000-01-01", STRING, DATE, None),
        ("2024-02-29 12:34:56-0230", STRING, TIMESTAMP, time(2024, 2, 29, 15, 4, 56)), ("2024-02-29 12:34Z", STRING, TIMESTAMP,
        None),
        ("2024-02-29 12:34:56 GMT+1", STRING, TIMESTAMP, time(2024, 2, 29, 11, 34, 56)), ("2024-02-29 1:2:3+18:01", STRING,
        TIMESTAMP, None),
        (None, pa.null(), INT, None), (None, STRING, INT, None),
    ],
    ids=str,
)  # fmt: skip
def test_cast(value, of, kind, wanted):
    """Cast a value as a constant and as a column; the results must be equal."""
    for operand in (Literal(value, of), Column("a", of)):
        evaluator, call = Evaluator({"a": pa.array([value], type=of)}, 1), Call("cast", (operand,), kind)
        result, errors = evaluator(call), evaluator.errors(call)
        found = ERROR if errors is not None else result[0].as_py()
        assert result.type == kind
        assert repr(found) == repr(wanted) or (found == wanted and isinstance(found, datetime))


@pytest.mark.parametrize(
    ("value", "of", "kind", "wanted"),
    [
        (300, INT, TINYINT, None), (100, INT, TINYINT, 100), (NAN, DOUBLE, CENTS, None), ("1.9", STRING, INT, None), (" 19 ",
        STRING, INT, 19),
        ("1.9", STRING, CENTS, Decimal("1.90")), (Decimal("0.0000000001"), WIDE, STRING, "0.0000000001"), (1e20, DOUBLE,
        TIMESTAMP, None),
    ],
    ids=str,
)  # fmt: skip
def test_try_cast_has_no_errors(value, of, kind, wanted):
    evaluator, call = Evaluator({"a": pa.array([value], type=of)}, 1), Call("try_cast", (Column("a", of),), kind)
    assert evaluator.errors(call) is None
    assert evaluator(call).to_pylist() == [wanted]


def test_try_cast_keeps_the_errors_of_its_argument():
    overflow = Call("add", (Column("a", INT), Literal(1, INT)), INT)
    evaluator = Evaluator({"a": pa.array([2**31 - 1, 1], type=INT)}, 2)
    assert evaluator.errors(Call("try_cast", (overflow,), TINYINT)).to_pylist() == [True, False]
