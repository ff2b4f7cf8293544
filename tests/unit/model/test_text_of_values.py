"""Texts of values, as Spark reads and writes them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from headrace.model.text_form import (
    format_decimal,
    format_double,
    format_single,
    format_timestamp,
    parse_boolean,
    parse_date,
    parse_decimal,
    parse_double,
    parse_integer,
    parse_single,
    parse_timestamp,
    round_to_decimal,
    round_to_single,
    to_single,
)

INF, NAN = math.inf, math.nan


def is_same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and repr(left) == repr(right)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("127", 127), ("128", None), ("-128", -128), ("-129", None), ("+5", 5), (" \t7\x7f", 7), ("7.9", 7), ("-7.9", -7),
        (".5", 0), (".", 0), ("", None), ("1e2", None), ("1 2", None),
        ("0000000000000000000000000000127", 127), ("99999999999999999999", None),
    ],
)  # fmt: skip
def test_integers(text: str, value: int | None):
    assert parse_integer(text, pa.int8()) == value


def test_integers_of_all_sizes_and_exact_ones():
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        bound = 2 ** (kind.bit_width - 1)
        assert [parse_integer(str(value), kind) for value in (bound - 1, bound, -bound, -bound - 1)] == [
            bound - 1,
            None,
            -bound,
            None,
        ]
    assert [parse_integer(text, pa.int32(), exact=True) for text in ("+7", "-7", "7.0", ".5", "")] == [7, -7, None, None, None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5), (" 2 ", 2.0), ("1e3d", 1000.0), ("1F", 1.0), (".5", 0.5), ("5.", 5.0), ("1e400", INF), ("Infinity", INF),
        ("-inf", -INF), ("NaN", NAN), ("+NaN", NAN), ("0x1.8p1", 3.0), ("-0x1p9999", -INF), ("0x1p9999", INF), ("0x1p-1d", 0.5),
        ("", None), ("1 2", None), ("abc", None), ("-0", -0.0),
    ],
)  # fmt: skip
def test_doubles(text: str, value: float | None):
    assert is_same(parse_double(text), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.10000000149011612), ("1e39", INF), ("-1e39", -INF), ("1e-60", 0.0), ("nan", NAN), ("-inf", -INF), ("x", None),
        ("1.00000005960464477539062500000001", 1.0000001192092896),  # just above half-way, where a double is half-way
        ("1.00000005960464477539062499999999", 1.0), ("1.000000059604644775390625", 1.0), ("0x1p1", 2.0),
        ("-1.00000005960464477539062500000001", -1.0000001192092896), ("-1.00000005960464477539062499999999", -1.0),
    ],
)  # fmt: skip
def test_singles_are_rounded_once(text: str, value: float | None):
    assert is_same(parse_single(text), value)


def test_nearest_singles():
    assert (to_single(1e39), to_single(-1e39), to_single(0.1)) == (INF, -INF, 0.10000000149011612)
    assert round_to_single(Fraction(1, 10)) == 0.10000000149011612
    assert round_to_single(1 + Fraction(1, 2**24) + Fraction(1, 2**80)) == 1 + 2**-23
    assert round_to_single(1 + Fraction(1, 2**24) - Fraction(1, 2**80)) == 1.0
    assert round_to_single(1 + Fraction(3, 2**24) - Fraction(1, 2**80)) == 1 + 2**-23
    assert round_to_single(1 + Fraction(1, 2**24)) == 1.0  # exactly half-way: to even


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.005", "1.01"), ("-1.005", "-1.01"), ("1.0049", "1.00"), ("999.994", "999.99"), ("999.995", None), ("-999.995", None),
        ("0", "0.00"), ("0e999", "0.00"), ("1e-999", "0.00"), ("1e999", None), ("1e2", "100.00"), ("1e3", None), (" 1 ", "1.00"),
        ("", None), ("1d", None), ("-0.001", "0.00"), ("1e-400", "0.00"), ("1e-401", "0.00"),
    ],
)  # fmt: skip
def test_decimals(text: str, value: str | None):
    parsed = parse_decimal(text, pa.decimal128(5, 2))
    assert (None if parsed is None else str(parsed)) == value


def test_decimals_keep_all_digits():
    kind = pa.decimal128(38, 0)
    assert round_to_decimal(Fraction(10**38 - 1), kind) == Decimal(10**38 - 1)
    assert round_to_decimal(Fraction(10**38), kind) is None
    assert [round_to_decimal(Fraction(part, 2), kind) for part in (1, -1, 3, -3)] == [1, -1, 2, -2]
    assert format_decimal(Decimal("1.50")) == "1.50"


@pytest.mark.parametrize(
    ("text", "value"), [(" Yes\x7f", True), ("T", True), ("1", True), ("no", False), ("0", False), ("2", None)]
)
def test_booleans(text: str, value: bool | None):
    assert parse_boolean(text) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024", date(2024, 1, 1)), ("2024-3", date(2024, 3, 1)), ("2024-03-05", date(2024, 3, 5)),
        ("+2024-3-5 x", date(2024, 3, 5)),
        ("2024-03-05Tnoon", date(2024, 3, 5)), ("2024-02-30", None), ("2024-13", None), ("24", None),
        ("0000", None), ("10000", None), ("2024-3-5x", None), ("", None),
    ],
)  # fmt: skip
def test_dates(text: str, value: date | None):
    assert parse_date(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024", (2024, 1, 1)), ("2024-03-05 06", (2024, 3, 5, 6)), ("2024-03-05T06:07", (2024, 3, 5, 6, 7)),
        ("2024-03-05 06:07:08", (2024, 3, 5, 6, 7, 8)), ("2024-03-05 06:07:08.5", (2024, 3, 5, 6, 7, 8, 500_000)),
        ("2024-03-05 06:07:08.1234567", (2024, 3, 5, 6, 7, 8, 123_456)), ("2024-03-05 06:07:08Z", (2024, 3, 5, 6, 7, 8)),
        ("2024-03-05 06:07:08 UTC", (2024, 3, 5, 6, 7, 8)), ("2024-03-05 06:07:08+01:30", (2024, 3, 5, 4, 37, 8)),
        ("2024-03-05 06:07:08-01:30", (2024, 3, 5, 7, 37, 8)), ("2024-03-05 06:07:08GMT+1", (2024, 3, 5, 5, 7, 8)),
        ("2024-03-05 06:07:08+0130", (2024, 3, 5, 4, 37, 8)), ("2024-03-05 06:07:08+013008", (2024, 3, 5, 4, 37, 0)),
        ("2024-03-05 06:07:08+0160", None), ("2024-03-05 06:07:08+013060", None), ("2024-03-05 06:07:08Z+1", None),
        ("2024-03-05 06:07:08+01:00:08", (2024, 3, 5, 5, 7, 0)),
        ("2024-03-05 06:07:08+18", (2024, 3, 4, 12, 7, 8)), ("2024-03-05 06:07:08+18:01", None), ("2024-03-05 06:07:08+19", None),
        ("2024-03-05 06:07:08+01:60", None), ("2024-03-05 06:07:08+01:59", (2024, 3, 5, 4, 8, 8)),
        ("2024-03-05 06:07:08 Europe/Berlin", None), ("2024-03-05 24:00:00", None), ("2024-02-30 01:00", None),
        ("0001-01-01 00:00:00+01", None), ("9999-12-31 23:59:59-01", None), ("noon", None), ("", None),
    ],
)  # fmt: skip
def test_timestamps(text: str, value: tuple[int, ...] | None):
    assert parse_timestamp(text) == (None if value is None else datetime(*value, tzinfo=UTC))  # type: ignore[misc,arg-type]


def test_timestamps_are_written_in_utc_without_trailing_zeros():
    instant = datetime(2024, 3, 5, 6, 7, 0, 120_000, tzinfo=timezone(timedelta(hours=1)))
    assert format_timestamp(instant) == "2024-03-05 05:07:00.12"
    assert format_timestamp(instant.replace(microsecond=0, second=10)) == "2024-03-05 05:07:10"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (-1.5, "-1.5"), (100.0, "100.0"), (120.0, "120.0"), (1234567.0, "1234567.0"),
        (12345678.0, "1.2345678E7"), (1e7, "1.0E7"), (9999999.5, "9999999.5"), (0.001, "0.001"), (0.00123, "0.00123"),
        (0.01, "0.01"), (0.12, "0.12"), (0.000999, "9.99E-4"), (1e-5, "1.0E-5"), (1.25e300, "1.25E300"), (5e-324, "4.9E-324"),
        (-1e-10, "-1.0E-10"), (INF, "Infinity"), (-INF, "-Infinity"), (NAN, "NaN"),
    ],
)  # fmt: skip
def test_doubles_are_written_as_in_java(value: float, text: str):
    assert format_double(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (16777216.0, "1.6777216E7"), (3.4028235e38, "3.4028235E38"), (1.5, "1.5"),
        (1.17549435e-38, "1.1754944E-38"),
        (1e10, "1.0E10"), (INF, "Infinity"), (NAN, "NaN"), (1 + 2**-23, "1.0000001"), (-0.0, "-0.0"), (1.4e-45, "1.4E-45"),
    ],
)  # fmt: skip
def test_singles_are_written_with_the_fewest_digits(value: float, text: str):
    assert format_single(to_single(value)) == text
