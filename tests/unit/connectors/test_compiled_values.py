"""Numbers and times in their usual forms: the compiled loops decide them exactly, and leave none of them to Python."""

from __future__ import annotations

import json
import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from headrace.connectors.message_formats.columns import DecodedColumns
from headrace.connectors.message_formats.kernels.decoded import DEFERRED
from headrace.model.types import Schema
from support.messages import decode_messages

SMALLEST_NORMAL = 2.0**-1022


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of all values that a compiled loop has left to Python."""
    rows: list[int] = []
    convert = DecodedColumns.convert_deferred

    def convert_deferred(decoded: DecodedColumns, column: int, kind: object) -> list[tuple[int, int, int]]:
        rows.extend(np.flatnonzero(decoded.states[column] == DEFERRED).tolist())
        return convert(decoded, column, kind)

    monkeypatch.setattr(DecodedColumns, "convert_deferred", convert_deferred)
    return rows


def decode_column(kind: str, texts: list[str], deferred: list[int], *, is_quoted: bool, allowed: int = 0) -> list[object]:
    """Return what JSON messages with these texts have in a column; no more values than allowed are left to Python."""
    messages = [f'{{"v":{json.dumps(text) if is_quoted else text}}}'.encode() for text in texts]
    decoded = decode_messages("json", messages, Schema.parse(f"v {kind}"))
    assert list(decoded.reasons) == []
    assert len(deferred) <= allowed, [texts[row] for row in deferred]
    return decoded.table["v"].to_pylist()


def list_doubles() -> list[float]:
    """Return doubles of every size."""
    chance = random.Random(7)
    values = [struct.unpack("<d", struct.pack("<Q", chance.getrandbits(64)))[0] for _ in range(3_000)]
    values += [chance.random() * 10.0 ** chance.randrange(-30, 30) for _ in range(1_000)]
    values += [float(f"{digits}e{power}") for power in range(-300, 300, 7) for digits in (1, 9, 123456789012345678)]
    return [sign * value for value in values if SMALLEST_NORMAL < abs(value) < 1e308 for sign in (1, -1)]


@pytest.mark.parametrize("digits", [3, 15, 17, 18, 19])
def test_doubles_of_every_size_are_exact(digits: int, deferred: list[int]):
    """Of 17 digits and more, those are left to Python whose rounding depends on bits that the table of powers does not have."""
    texts = [f"{value:.{digits - 1}e}" for value in list_doubles()]
    found = decode_column("DOUBLE", texts, deferred, is_quoted=False, allowed=len(texts) // 20 if digits > 15 else 0)
    assert [repr(value) for value in found] == [repr(float(text)) for text in texts]


def test_doubles_at_the_limits_of_the_table_are_exact(deferred: list[int]):
    texts = [
        "3.3376107877608026e-308", "1.7976931348623157e308", "9007199254740991e22", "9007199254740991e-22", "9007199254740993e-1",
        "9007199254740991e23", "1e-22", "1e-23", "1e22", "0.0", "-0.0", "0e-400", "0E+400", "-0e400", "1E308", "5e-307",
        "1234567890123456789", "-9999999999999999999", "0.000000000000000001", "1844674407370955161e-5",
    ]  # fmt: skip
    found = decode_column("DOUBLE", texts, deferred, is_quoted=False)
    assert [repr(value) for value in found] == [repr(float(text)) for text in texts]


def test_decimals_of_eighteen_digits_are_exact(deferred: list[int]):
    texts = [
        f"{sign}{digits}"
        for digits in ("0", "0.1", "7.5", "99.25", "9999999999999999.99", "10e3", "12.5e-1", "5E+2")
        for sign in ("", "-")
    ]
    texts += ["999999999999999999e-2", "1e15", "1234567890123456.780e0", "0e99", "0.0e-40"]
    expected = [Decimal(text) for text in texts]
    for is_quoted in (False, True):
        assert decode_column("DECIMAL(18, 2)", texts, deferred, is_quoted=is_quoted) == expected


def test_every_day_of_four_centuries_is_a_date(deferred: list[int]):
    days = [date(1700, 1, 1) + timedelta(days=number) for number in range(0, 146_100, 3)]
    days += [date(1, 1, 1), date(9999, 12, 31)]
    days += [date(year, month, 1) - timedelta(days=1) for year in (1900, 2000, 2023, 2024) for month in range(1, 13)]
    assert decode_column("DATE", [day.isoformat() for day in days], deferred, is_quoted=True) == days
    times = decode_column("TIMESTAMP", [day.isoformat() for day in days], deferred, is_quoted=True)
    assert times == [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days]


def list_times() -> list[str]:
    """Return times in all usual forms: with a blank or T, without seconds, with digits of a second, with an offset."""
    clocks = ["00:00", "23:59", "07:08:09", "23:59:59", "12:00:00.5", "12:00:59.000001", "09:30:00.1234567", "10:20:30.987654321"]
    zones = ["", "Z", "+00", "-23", "+0530", "-0959", "+23:59", "-01:30"]
    return [f"2024-02-29{mark}{clock}{zone}" for mark in "T " for clock in clocks for zone in zones]


def test_times_in_the_usual_forms_are_exact(deferred: list[int]):
    texts = [*list_times(), "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00-00:01"]
    texts.append("9999-12-31T23:59:59+00:01")
    found = decode_column("TIMESTAMP", texts, deferred, is_quoted=True)
    expected = [datetime.fromisoformat(text) for text in texts]
    assert found == [time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC) for time in expected]


def test_csv_decides_the_same_values(deferred: list[int]):
    rows = [f"{text},2024-02-29,12345.67".encode() for text in list_times()]
    decoded = decode_messages("csv", rows, Schema.parse("t TIMESTAMP, d DATE, a DECIMAL(12, 2)"))
    assert deferred == []
    assert decoded.table.num_rows == len(rows)
    assert set(decoded.table["d"].to_pylist()) == {date(2024, 2, 29)}
    assert set(decoded.table["a"].to_pylist()) == {Decimal("12345.67")}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("DATE", "2023-02-29"), ("DATE", "1900-02-29"), ("DATE", "2024-04-31"), ("DATE", "2024-13-01"), ("DATE", "2024-00-10"),
        ("DATE", "2024-01-00"), ("DATE", "2024-01-32"), ("DATE", "0000-01-01"), ("DATE", "2024/01-01"), ("DATE", "2024-01/01"),
        ("DATE", "2024-01-1x"), ("DATE", "2x24-01-01"), ("DATE", "20:4-01-01"), ("DATE", "202/-01-01"),
        ("TIMESTAMP", "2024-01-01T24:00"), ("TIMESTAMP", "2024-01-01T23:60"), ("TIMESTAMP", "2024-01-01T23:59:60"),
        ("TIMESTAMP", "2024-01-01T1:00"), ("TIMESTAMP", "2024-01-01T10:00:0"),
        ("TIMESTAMP", "2024-01-01T10:00:00."), ("TIMESTAMP", "2024-01-01T10:00:00ZZ"), ("TIMESTAMP", "2024-01-01T10:00:00+24"),
        ("TIMESTAMP", "2024-01-01T10:00:00+1"), ("TIMESTAMP", "2024-01-01T10:00:00*10"),
        ("TIMESTAMP", "0001-01-01T00:00:00+00:01"), ("TIMESTAMP", "9999-12-31T23:59:59-00:01"),
        ("TIMESTAMP", "2024-01-01T10:00:00+10x30"), ("TIMESTAMP", "2024-02-30T10:00"), ("TIMESTAMP", "2024-01-01T"),
    ],
)  # fmt: skip
def test_what_is_no_date_or_time_is_rejected(kind: str, text: str):
    decoded = decode_messages("json", [f'{{"v":"{text}"}}'.encode(), b"{}"], Schema.parse(f"v {kind}"))
    assert decoded.rejected.tolist() == [0]
    decoded = decode_messages("csv", [text.encode()], Schema.parse(f"v {kind}"))
    assert decoded.rejected.tolist() == [0]
