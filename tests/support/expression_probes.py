"""Expressions over every pair of types, and the rows of limit values on which several evaluators must agree.

`build_rows` makes three columns for each type: `u_…` has all values of the type, `a_…` and `b_…` together have all pairs of a few
limit values. `list_probes` enumerates the expressions: the same list in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.model.types import Schema

DENORMAL, LEAST_NORMAL, GREATEST = 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308
DENORMAL_SINGLE, GREATEST_SINGLE = 1.401298464324817e-45, 3.4028234663852886e38
PAIR_VALUES = 9


@dataclass(frozen=True, slots=True)
class ProbedType:
    """A type with its short name, the limit values that are paired with others, and more values for functions of one argument."""

    name: str
    sql: str
    limits: tuple[Any, ...]
    more: tuple[Any, ...] = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """All values."""
        return self.limits + self.more


@dataclass(frozen=True, slots=True)
class Probe:
    """An expression, the operator it probes and the types of its operands."""

    operator: str
    types: tuple[str, ...]
    sql: str

    def __str__(self) -> str:
        """Return operator and types."""
        return f"{self.operator} of {', '.join(self.types)}"


def _integers(name: str, sql: str, bits: int) -> ProbedType:
    bound = 1 << (bits - 1)
    return ProbedType(
        name,
        sql,
        (None, 0, 1, -1, -bound, bound - 1, 7, -10, 100),
        (bound - 2, 1 - bound, 15, 25, -25, 50, 127, *((1 << 60) + (1 << 36) + 1,) * (bits == 64)),
    )


def _decimals(precision: int, scale: int) -> ProbedType:
    greatest = Decimal((0, (9,) * precision, -scale))
    unit = Decimal((0, (1,), -scale))
    inner = [Decimal(text) for text in ("1", "7.5", "-2.5", "0.4") if _fits(Decimal(text), precision, scale)]
    more = [
        Decimal(text)
        for text in ("0.05", "-0.5", "1.005", "12.345", "99.5", "-0.05", "5", "15", "50")
        if _fits(Decimal(text), precision, scale)
    ]
    limits = (None, Decimal((0, (0,), -scale)), unit, -unit, greatest, greatest.copy_negate(), *inner)
    digits = tuple(int(digit) for digit in ("1234567895" * 4)[:precision])
    return ProbedType(
        f"dec{precision}_{scale}",
        f"DECIMAL({precision},{scale})",
        limits[:PAIR_VALUES],
        (*limits[PAIR_VALUES:], *more, Decimal((1, digits, -scale))),
    )


def _fits(value: Decimal, precision: int, scale: int) -> bool:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return -exponent <= scale and len(digits) + exponent <= precision - scale


def _time(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


_DOUBLES = (
    0.0, 1e-7, 1e22, 1e21, 1e23, 2e-3, 1e-3, 9.999e-4, 1e7, 9999999.999, 123456789.125, 2.0**31, -(2.0**31), 2.0**53, 2.0**63,
    -(2.0**63), 0.1,
    0.30000000000000004, 1.005, 2.675, 0.5, -0.5, 1.5, -2.5, 4.35, 1e15 + 0.5, LEAST_NORMAL, 1e-323, -DENORMAL, 1e300, -1e300,
    100.0, 127.9, -128.9,
    3.0, 1e38, 1e-38, 0.045, 1234.5, 253402300799.999999, 253402300800.0, -62135596800.0, -62135596801.0, 1e-6, 1.9999999,
)  # fmt: skip
_SINGLES = (
    0.0, 1.0, 0.10000000149011612, 1e10, 16777216.0, 1.1754943508222875e-38, 0.0010000000474974513, 9.999999747378752e-05,
    10000000.0, 2.5, -0.5,
    3.4028234663852886e38, 2.8025969286496341e-45, 1.00499999523162841796875, 123456.7890625, 33554432.0, 8.5899346e9, 3.0, 1e-10,
)  # fmt: skip
_STRINGS = (
    "0", "-0", "+1", "01", "1.", ".5", ".", "-", "+", "1e3", "1E-3", "1e400", "-1e400", "1e-400", "1d", "1f", "1.5D", "1L",
    "0x1F", "1_000", "1,000", "१",
    "NaN", "nan", "Infinity", "-infinity", "inf", "+inf", "infinit", "127", "128", "-128", "-129", "32768", "2147483648",
    "9223372036854775807",
    "9223372036854775808", "99999999999999999999999999999999999999", "100000000000000000000000000000000000000",
    "0.000000000000000000000000000000000000005",
    "true", "TRUE", " t ", "y", "no", "off", "2024", "2024-2", "2024-02-30", "2024-2-9", "2024-02-29T", "2024-02-29 ",
    "2024-02-29 x", "2024-02-29T12:34",
    "2024-02-29 12:34:56.123456789", "2024-02-29 12:34:56.", "2024-02-29 12:34:56Z", "2024-02-29 12:34:56 UTC",
    "2024-02-29 12:34:56+2", "2024-02-29 12:34:56+02:30",
    "2024-02-29 12:34:56-0230", "2024-02-29 12:34:56 GMT+1", "1.00000017881393432617187499", "0x1p3", "2024-02-29 24:00:00",
    "2024-02-29 12", "2024-02-29 1:2:3", "12:34:56", "2024-02-29 12:34Z", "0000-01-01",
    "10000-01-01", "-2024-01-01", "+2024-01-01",
    "\t1\n", "\u00a01", "1\u20031", "Ünïcödé ẞß ŉ", "😀x", "a\nb", "%_\\", "İi", "  pad  ", "epoch",
    "2024-02-29 12:34:56.1 Europe/Berlin",
)  # fmt: skip

TYPES = (
    _integers("tiny", "TINYINT", 8),
    _integers("small", "SMALLINT", 16),
    _integers("int", "INT", 32),
    _integers("big", "BIGINT", 64),
    ProbedType(
        "float", "FLOAT", (None, -0.0, 1.5, math.nan, math.inf, -math.inf, DENORMAL_SINGLE, GREATEST_SINGLE, -7.0), _SINGLES
    ),
    ProbedType("double", "DOUBLE", (None, -0.0, 1.5, math.nan, math.inf, -math.inf, DENORMAL, GREATEST, -7.0), _DOUBLES),
    _decimals(5, 2),
    _decimals(10, 0),
    _decimals(18, 6),
    _decimals(38, 0),
    _decimals(38, 18),
    _decimals(38, 38),
    ProbedType("bool", "BOOLEAN", (None, True, False)),
    ProbedType("text", "STRING", (None, "", "abc", "1", "1.5", "2024-02-29", "é😀ß", " 7 ", "a%b"), _STRINGS),
    ProbedType(
        "date",
        "DATE",
        (None, date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(1969, 12, 31)),
        (date(1582, 10, 4), date(1582, 10, 15), date(2023, 1, 1), date(2000, 12, 31), date(1900, 3, 1), date(1, 1, 2), date(1,
        1, 7)),
    ),
    ProbedType(
        "time",
        "TIMESTAMP",
        (
            None,
            _time(1, 1, 1),
            _time(9999, 12, 31, 23, 59, 59, 999999),
            _time(1970, 1, 1),
            _time(2024, 2, 29, 12, 34, 56, 789012),
            _time(1969, 12, 31, 23, 59, 59, 999999),
        ),
        (_time(2024, 2, 29), _time(1582, 10, 4, 23), _time(2023, 1, 1, 0, 0, 0, 100), _time(2000, 12, 31, 6, 7, 8, 500000),
        _time(1, 1, 1, 0, 0, 0, 1), _time(1900, 1, 1, 0, 0, 59, 1)),
    ),
)  # fmt: skip
NUMBERS = tuple(kind for kind in TYPES if kind.name not in ("bool", "text", "date", "time"))
TIMES = tuple(kind for kind in TYPES if kind.name in ("date", "time"))
ROW_COUNT = max(PAIR_VALUES**2, *(len(kind.values) for kind in TYPES))
DDL = ", ".join(f"{side}_{kind.name} {kind.sql}" for kind in TYPES for side in "uab") + ", at TIMESTAMP"


def build_rows() -> pa.Table:
    """Return the rows: a column is called `u_int`, `a_int` or `b_int`; `at` is the event time."""
    columns: dict[str, list[Any]] = {}
    for kind in TYPES:
        padded = (*kind.limits, *[None] * (PAIR_VALUES - len(kind.limits)))
        columns[f"u_{kind.name}"] = [kind.values[row] if row < len(kind.values) else None for row in range(ROW_COUNT)]
        columns[f"a_{kind.name}"] = [padded[row // PAIR_VALUES % PAIR_VALUES] for row in range(ROW_COUNT)]
        columns[f"b_{kind.name}"] = [padded[row % PAIR_VALUES] for row in range(ROW_COUNT)]
    columns["at"] = [_time(2024, 1, 1)] * ROW_COUNT
    schema = Schema.parse(DDL)
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema.to_arrow())


_PAIR_OPERATORS = {
    "+": "{a} + {b}",
    "-": "{a} - {b}",
    "*": "{a} * {b}",
    "/": "{a} / {b}",
    "%": "{a} % {b}",
    "DIV": "{a} DIV {b}",
    "=": "{a} = {b}",
    "<=>": "{a} <=> {b}",
    "<": "{a} < {b}",
    ">=": "{a} >= {b}",
    "coalesce": "coalesce({a}, {b})",
    "if": "if({a} IS NULL, {b}, {a})",
    "case": "CASE WHEN {a} IS NOT NULL THEN {a} ELSE {b} END",
    "greatest": "greatest({a}, {b})",
    "least": "least({a}, {b})",
    "nullif": "nullif({a}, {b})",
    "in": "{a} IN ({b}, NULL)",
    "concat": "{a} || {b}",
    "pow": "pow({a}, {b})",
    "datediff": "datediff({a}, {b})",
    "date_add": "date_add({a}, {b})",
    "date_sub": "date_sub({a}, {b})",
}
_LITERALS = (
    "0", "1", "-1", "2147483648", "1.5", "0.10", "1e0", "1.5e-3", "NULL", "TRUE", "'1'", "'1.5'", "'x'", "DATE '2024-02-29'",
    "TIMESTAMP '1969-12-31 23:59:59.5'",
    "99999999999999999999999999999999999999", "0.00000000000000000000000000000000000001", "'2024-02-29'",
)  # fmt: skip
_LITERAL_OPERATORS = ("+", "*", "/", "%", "=", "<", ">=", "coalesce", "greatest", "in")
_UNARY_FUNCTIONS = (
    "-{u}", "abs({u})", "negative({u})", "positive({u})", "ceil({u})", "floor({u})", "round({u})", "sqrt({u})", "exp({u})",
    "ln({u})", "log10({u})", "log2({u})",
    "sign({u})", "upper({u})", "lower({u})", "length({u})", "trim({u})", "ltrim({u})", "rtrim({u})", "reverse({u})",
    "{u} || ''", "isnull({u})", "isnotnull({u})",
    "year({u})", "quarter({u})", "month({u})", "day({u})", "dayofweek({u})", "dayofyear({u})", "weekday({u})", "hour({u})",
    "minute({u})", "second({u})",
    "unix_seconds({u})", "unix_timestamp({u})", "to_date({u})", "to_timestamp({u})", "NOT {u}", "{u} IS TRUE", "int({u})",
    "string({u})", "double({u})", "decimal({u})",
    "substring({u}, 2)", "left({u}, 2)", "right({u}, 2)", "contains({u}, '1')", "startswith({u}, '-')", "endswith({u}, '0')",
    "replace({u}, '0', 'o')",
)  # fmt: skip
_ROUND_DIGITS = (-100, -39, -38, -20, -19, -10, -3, -2, -1, 1, 2, 3, 10, 17, 38, 39, 100)
_FIELDS = (
    "YEAR", "YEARS", "YR", "YEAROFWEEK", "QUARTER", "QTR", "MONTH", "MON", "WEEK", "W", "DAY", "D", "DAYS", "DAYOFWEEK", "DOW",
    "DAYOFWEEK_ISO", "DOW_ISO", "DOY", "HOUR", "H",
    "MINUTE", "M", "MIN", "SECOND", "S", "SEC", "SECONDS",
)  # fmt: skip
_UNITS = (
    "YEAR",
    "YYYY",
    "YY",
    "QUARTER",
    "MONTH",
    "MM",
    "MON",
    "WEEK",
    "DAY",
    "DD",
    "HOUR",
    "MINUTE",
    "SECOND",
    "MILLISECOND",
    "MICROSECOND",
)
_LIKES = ("", "%", "_", "a%", "%b", "%1%", "_%_", "é__", "a\\\\%b", "2024-__-%")
_REGEXES = (
    "", "^1", "\\\\d+", "^\\\\d{4}-", "\\\\w", "\\\\s", "\\\\bx", "[[:alpha:]]", "[a-z&&[^b]]", "(?i)ABC", "a++", "(a)\\\\1",
    "(?=1)", "(?<=2)0", "(?<y>1)", "\\\\p{L}", "\\\\p{Lu}", "\\\\p{IsAlphabetic}",
    "\\\\pL", "\\\\h", "\\\\R", "\\\\Q.\\\\E", "\\\\x41", "\\\\x{1F600}", "\\\\u0041", "\\\\cA", "\\\\e", "\\\\0101", "\\\\z",
    "\\\\Z", "x$", "b$", "^b", "(?m)^b", ".b", "(?s).b", "a.b", "[]a]", "[^]", "[a", "(", "*",
    "a{,2}", "a{1001}", "x{2,1}", "\\\\N", "\\\\X", "\\\\v", "\\\\S+", "\\\\D", "\\\\W", "[\\\\d]", "(?x) 1 ", "(?u)É",
    "(?U)\\\\w", "(?>a)", "\\\\G1", "\\\\A1", "[\\\\w-]", "é", "😀", "^.$", "^..$", "\\\\_", "\\\\-", "\\\\y",
    "[a[b]]", "[\\\\[]", "{", "a{", "}", "]", "\\\\p{javaLowerCase}", "(?-i)a", "\\\\p{Greek}", "\\\\p{IsGreek}", "\\\\x4",
    "\\\\a", "a|b|", "(?:a)", "(?P<n>a)", "a**", "a?+", "\\\\C",
)  # fmt: skip
_SUBSTRINGS = (
    "0",
    "1",
    "-1",
    "2, 1",
    "-2, 1",
    "-5, 3",
    "0, 2",
    "1, -1",
    "2147483647",
    "-2147483648",
    "-2147483648, 2147483647",
    "2, 2147483647",
    "NULL",
    "1, NULL",
)


def list_probes() -> tuple[Probe, ...]:
    """Return every expression."""
    return (
        *_pair_probes(),
        *_literal_probes(),
        *_cast_probes(),
        *_function_probes(),
        *_time_probes(),
        *_text_probes(),
    )


def _pair_probes() -> Iterator[Probe]:
    for left in TYPES:
        for right in TYPES:
            for operator, template in _PAIR_OPERATORS.items():
                yield Probe(operator, (left.sql, right.sql), template.format(a=f"a_{left.name}", b=f"b_{right.name}"))


def _literal_probes() -> Iterator[Probe]:
    for kind in TYPES:
        for literal in _LITERALS:
            for operator in _LITERAL_OPERATORS:
                template = _PAIR_OPERATORS[operator]
                yield Probe(operator, (kind.sql, literal), template.format(a=f"u_{kind.name}", b=literal))
                if operator in "+-*/%":
                    yield Probe(operator, (literal, kind.sql), template.format(a=literal, b=f"u_{kind.name}"))


def _cast_probes() -> Iterator[Probe]:
    for source in TYPES:
        for target in TYPES:
            for function in ("CAST", "TRY_CAST"):
                yield Probe(function, (source.sql, target.sql), f"{function}(u_{source.name} AS {target.sql})")
    for source in NUMBERS:  # a cast of a computed value, and back
        yield Probe("CAST", (source.sql, "STRING", source.sql), f"CAST(CAST(u_{source.name} AS STRING) AS {source.sql})")
        yield Probe("CAST", (source.sql, "DECIMAL(38,38)", "INT"), f"CAST(CAST(u_{source.name} / 10.0 AS DECIMAL(38,38)) AS INT)")


def _function_probes() -> Iterator[Probe]:
    for kind in TYPES:
        for template in _UNARY_FUNCTIONS:
            yield Probe(template.format(u="x"), (kind.sql,), template.format(u=f"u_{kind.name}"))
    for kind in NUMBERS:
        for digits in _ROUND_DIGITS:
            yield Probe("round", (kind.sql, str(digits)), f"round(u_{kind.name}, {digits})")
        yield Probe("log", (kind.sql, "10"), f"log(10, u_{kind.name})")
        yield Probe("log", ("10", kind.sql), f"log(u_{kind.name}, 10)")


def _time_probes() -> Iterator[Probe]:
    for kind in TIMES:
        for field in _FIELDS:
            yield Probe("extract", (field, kind.sql), f"EXTRACT({field} FROM u_{kind.name})")
            yield Probe("date_part", (field, kind.sql), f"date_part('{field}', u_{kind.name})")
        for unit in _UNITS:
            yield Probe("date_trunc", (unit, kind.sql), f"date_trunc('{unit}', u_{kind.name})")
            yield Probe("trunc", (unit, kind.sql), f"trunc(u_{kind.name}, '{unit}')")
        for interval in ("1 DAY", "-1 DAY", "1 MICROSECOND", "-1 MICROSECOND", "25 HOURS", "36500 DAYS"):
            number, unit = interval.split()
            yield Probe("+ interval", (kind.sql, interval), f"u_{kind.name} + INTERVAL '{number}' {unit}")
        yield Probe("date_add", (kind.sql, "2147483647"), f"date_add(u_{kind.name}, 2147483647)")
        yield Probe("date_sub", (kind.sql, "-2147483648"), f"date_sub(u_{kind.name}, -2147483648)")


def _text_probes() -> Iterator[Probe]:
    for pattern in _LIKES:
        yield Probe("like", (pattern,), f"u_text LIKE '{pattern}'")
        yield Probe("ilike", (pattern,), f"u_text ILIKE '{pattern}'")
    for pattern in _REGEXES:
        yield Probe("rlike", (pattern,), f"u_text RLIKE '{pattern}'")
    for bounds in _SUBSTRINGS:
        yield Probe("substring", (bounds,), f"substring(u_text, {bounds})")
    for count in ("0", "1", "-1", "2147483647", "-2147483648", "NULL"):
        yield Probe("left", (count,), f"left(u_text, {count})")
        yield Probe("right", (count,), f"right(u_text, {count})")
    for search, replacement in (("", "x"), ("1", ""), ("é", "ee"), ("😀", "a")):
        yield Probe("replace", (search, replacement), f"replace(u_text, '{search}', '{replacement}')")
    for function in ("contains", "startswith", "endswith"):
        yield Probe(function, ("STRING", "STRING"), f"{function}(a_text, b_text)")
