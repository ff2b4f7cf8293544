"""Vectorised equals row by row, on random typed expressions over random rows.

The oracle evaluates AND and OR from left to right; the vectorised evaluator treats both sides alike (an error on one side does
not matter where the other alone decides). The oracle is patched here to do the same, nothing else differs.
"""

from __future__ import annotations

import importlib
import math
import random
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.engine.compute.evaluator import Evaluator
from headrace.errors import EvaluationError
from headrace.model.expression import Call, Column, Expression, Literal
from headrace.model.types import TIMESTAMP
from support.examples import scale_examples

oracle = importlib.import_module("headrace.backends.reference.evaluate")  # the package has a function of that name

BOOL, INT, BIGINT, DOUBLE, STRING, DATE = pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.date32()
INTEGERS = [pa.int8(), pa.int16(), INT, BIGINT]
FLOATS = [pa.float32(), DOUBLE]
DECIMALS = [pa.decimal128(10, 2), pa.decimal128(38, 10), pa.decimal128(5, 0), pa.decimal128(20, 18)]
NUMBERS = [*INTEGERS, *FLOATS, *DECIMALS]
TYPES = [*NUMBERS, BOOL, STRING, DATE, TIMESTAMP]
UNITS = ["microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year", "YEAR"]
ODD_TEXT = [
    "", " ", "1", " -12 ", "1.9", ".5", "1.", "+7", "1e3", "-1E-2", "99999999999999999999", "128", "0x1F", "NaN", "inf",
    "-Infinity", "true", "NO", "t", "2024-02-29", "2023-02-29", "2024-1-5", "2024", "2024-03", "2024-01-01 10:11",
    "2024-01-01T10:11:12.1234567Z", "2024-01-01 10:11:12+02:00", "0000-01-01", "0001-01-01 00:00:00+10:00", "straße", "İı", "ΑΣ",
    "a%b_c\\d", "ab\nab", "😀é", "12345678901234567890.5", "1.0E20", "007",
]  # fmt: skip


ODD_DOUBLES = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, 1.005, 2.675, math.nan, math.inf, -math.inf, 1e20, 2.0**63, -(2.0**63), 1e-4]


def draw(kind: pa.DataType, rng: random.Random) -> Any:
    """Draw a value of a type: a common value or an edge case."""
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return rng.choice([rng.randint(-9, 9), rng.randint(-9, 9), rng.randint(-bound, bound - 1), -bound, bound - 1])
    if pa.types.is_decimal(kind):
        bound = 10**kind.precision - 1
        units = rng.choice([rng.randint(-999, 999), rng.randint(-bound, bound), rng.randint(-bound, bound), bound, -bound, 0])
        return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -kind.scale))
    return DRAW[kind](rng)


def _double(rng: random.Random) -> float:
    usual = rng.choice([rng.randint(-10_000, 10_000) / 1000, rng.uniform(-100, 100), rng.randint(-99, 99) / 2])
    bits = struct.unpack("d", rng.randbytes(8))[0]
    large = rng.uniform(-1, 1) * 10 ** rng.randint(0, 19)
    return rng.choice([usual, usual, bits, large, rng.choice(ODD_DOUBLES)])


def _text(rng: random.Random) -> str:
    short = "".join(rng.choices("ab %_\\\n.1-éßİ😀", k=rng.randint(0, 6)))
    numbers = [str(rng.randint(-200, 200)), repr(rng.uniform(-9, 9))]
    times = [str(_time(rng).date()), _time(rng).replace(tzinfo=None).isoformat(rng.choice("T "))]
    return rng.choice([short, short, rng.choice(ODD_TEXT), rng.choice(numbers), rng.choice(times)])


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(rng: random.Random) -> datetime:
    odd = [FIRST, LAST, EPOCH, EPOCH - timedelta(microseconds=1), datetime(2024, 2, 29, 12, tzinfo=UTC)]
    usual = EPOCH + timedelta(microseconds=rng.randint(-(10**16), 10**16))
    early = FIRST + timedelta(days=rng.randint(0, 3_600_000))
    return rng.choice([usual, usual, early, rng.choice(odd)])


DRAW: dict[pa.DataType, Callable[[random.Random], Any]] = {
    BOOL: lambda rng: rng.random() < 0.5,
    DOUBLE: _double,
    pa.float32(): lambda rng: pa.scalar(_double(rng)).cast(pa.float32()).as_py(),
    STRING: _text,
    DATE: lambda rng: _time(rng).date(),
    TIMESTAMP: _time,
}


@cache
def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.integers(0, 2**32).map(lambda seed: draw(kind, random.Random(seed)))


@cache
def table_of(seed: int) -> pa.Table:
    """Make a batch of rows, with NULLs: the seed 0 gives no rows, others a slice or several chunks."""
    rng = random.Random(seed)
    count = 0 if seed == 0 else 40
    names = [name_of(kind) for kind in TYPES]
    columns = [[draw(kind, rng) if rng.random() < 0.85 else None for _ in range(count)] for kind in TYPES]
    table = pa.table([pa.array(column, type=kind) for column, kind in zip(columns, TYPES, strict=True)], names=names)
    return (table, table.slice(3, 30), pa.concat_tables([table.slice(0, 7), table.slice(9)]))[seed % 3]


def name_of(kind: pa.DataType) -> str:
    return f"c_{kind}"


def call(function: str, kind: pa.DataType, *args: Any) -> st.SearchStrategy[Expression]:
    """Draw a call; arguments are strategies of expressions."""
    return st.tuples(*args).map(lambda drawn: Call(function, drawn, kind))


def literal(kind: pa.DataType, choices: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Expression]:
    return (choices if choices is not None else values(kind)).map(lambda value: Literal(value, kind))


@cache
def leaf(kind: pa.DataType) -> st.SearchStrategy[Expression]:
    maybe = st.one_of(values(kind), values(kind), st.none())
    return st.one_of(st.just(Column(name_of(kind), kind)), st.just(Column(name_of(kind), kind)), literal(kind, maybe))


def several(kind: pa.DataType, depth: int, least: int, most: int) -> st.SearchStrategy[list[Expression]]:
    return st.lists(expressions(kind, depth), min_size=least, max_size=most)


@cache
def expressions(kind: pa.DataType, depth: int) -> st.SearchStrategy[Expression]:
    if depth == 0:
        return leaf(kind)
    return st.deferred(lambda: st.one_of(leaf(kind), *_calls(kind, depth - 1)))


def _calls(kind: pa.DataType, depth: int) -> list[st.SearchStrategy[Expression]]:
    def sub(other: pa.DataType) -> st.SearchStrategy[Expression]:
        return expressions(other, depth)

    def any_of(kinds: list[pa.DataType], make: Callable[[pa.DataType], st.SearchStrategy[Expression]]) -> Any:
        return st.sampled_from(kinds).flatmap(make)

    drawn = [
        call("case", kind, sub(BOOL), sub(kind), sub(kind)),
        call("case", kind, sub(BOOL), sub(kind), sub(BOOL), sub(kind)),
        several(kind, depth, 1, 3).map(lambda args: Call("coalesce", tuple(args), kind)),
        several(kind, depth, 2, 3).map(lambda args: Call("greatest", tuple(args), kind)),
        several(kind, depth, 2, 3).map(lambda args: Call("least", tuple(args), kind)),
        *(call("cast", kind, sub(source)) for source in TYPES if _castable(source, kind)),
        any_of([source for source in TYPES if _castable(source, kind)], lambda source: call("try_cast", kind, sub(source))),
    ]
    if kind in NUMBERS:
        operands = (lambda: st.sampled_from(DECIMALS).flatmap(sub)) if kind in DECIMALS else (lambda: sub(kind))
        drawn += [call(name, kind, operands(), operands()) for name in ("add", "sub", "mul", "mod")]
        drawn += [call(name, kind, sub(kind)) for name in ("neg", "abs")]
        drawn.append(call("round", kind, sub(kind), literal(INT, st.integers(-4, 6))))
    if kind in DECIMALS:
        drawn += [call("div", kind, any_of(DECIMALS, sub), any_of(DECIMALS, sub))]
        drawn += [call(name, kind, any_of(DECIMALS, sub)) for name in ("ceil", "floor")]
        drawn += [call("round", kind, any_of(DECIMALS, sub), literal(INT, st.integers(-4, 6)))]
    specific: dict[pa.DataType, Callable[[], list[st.SearchStrategy[Expression]]]] = {
        BOOL: lambda: _booleans(sub, any_of, depth),
        STRING: lambda: _strings(sub, depth),
        INT: lambda: _ints(sub, any_of),
        BIGINT: lambda: [
            call("int_div", BIGINT, sub(BIGINT), sub(BIGINT)),
            call("ceil", BIGINT, sub(DOUBLE)),
            call("floor", BIGINT, sub(DOUBLE)),
            call("unix_seconds", BIGINT, sub(TIMESTAMP)),
        ],
        DOUBLE: lambda: [
            call("div", DOUBLE, sub(DOUBLE), sub(DOUBLE)),
            call("pow", DOUBLE, sub(DOUBLE), sub(DOUBLE)),
            *(call(name, DOUBLE, sub(DOUBLE)) for name in ("sqrt", "exp", "ln", "log10", "log2", "sign")),
        ],
        DATE: lambda: [call("date_add", DATE, sub(DATE), sub(INT))],
        TIMESTAMP: lambda: [
            call("date_trunc", TIMESTAMP, literal(STRING, st.sampled_from(UNITS)), sub(TIMESTAMP)),
            call("time_add", TIMESTAMP, sub(TIMESTAMP), literal(BIGINT)),
        ],
    }
    return drawn + (specific[kind]() if kind in specific else [])


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether the binder accepts the cast."""
    if target == BOOL:
        return source not in (DATE, TIMESTAMP)
    return source != DATE or target not in NUMBERS


def _booleans(sub: Any, any_of: Any, depth: int) -> list[st.SearchStrategy[Expression]]:
    compared = ("eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe")
    pattern = literal(STRING, st.one_of(st.text("ab%_\\\n.é", max_size=5), st.none()))
    regex = literal(STRING, st.sampled_from(["a+b", "^a", "[^a]b", "(", "é|1", r"\."]))

    def member(kind: pa.DataType) -> st.SearchStrategy[Expression]:
        choices = st.lists(literal(kind, st.one_of(values(kind), st.none())), min_size=1, max_size=4)
        return st.tuples(sub(kind), choices).map(lambda drawn: Call("in", (drawn[0], *drawn[1]), BOOL))

    return [
        call("and", BOOL, sub(BOOL), sub(BOOL)),
        call("or", BOOL, sub(BOOL), sub(BOOL)),
        call("not", BOOL, sub(BOOL)),
        any_of(TYPES, lambda kind: call("is_null", BOOL, sub(kind))),
        *(any_of([*TYPES, DOUBLE], lambda kind, name=name: call(name, BOOL, sub(kind), sub(kind))) for name in compared),
        any_of([*TYPES, DOUBLE], member),
        call("like", BOOL, sub(STRING), pattern),
        call("like", BOOL, sub(STRING), sub(STRING)),
        call("like", BOOL, sub(STRING), sub(STRING), literal(STRING, st.sampled_from("\\/%_aé😀"))),
        call("rlike", BOOL, sub(STRING), regex),
        *(call(name, BOOL, sub(STRING), sub(STRING)) for name in ("starts_with", "ends_with", "contains")),
        *(call(name, BOOL, sub(STRING), literal(STRING)) for name in ("starts_with", "ends_with", "contains")),
    ]


def _strings(sub: Any, depth: int) -> list[st.SearchStrategy[Expression]]:
    position = literal(INT, st.one_of(st.integers(-6, 6), st.none()))
    return [
        *(call(name, STRING, sub(STRING)) for name in ("upper", "lower", "trim", "ltrim", "rtrim", "reverse")),
        call("substring", STRING, sub(STRING), position, position),
        call("substring", STRING, sub(STRING), position),
        call("substring", STRING, sub(STRING), sub(INT), sub(INT)),
        several(STRING, depth, 1, 3).map(lambda args: Call("concat", tuple(args), STRING)),
        call("replace", STRING, sub(STRING), sub(STRING), sub(STRING)),
        call("replace", STRING, sub(STRING), literal(STRING), literal(STRING)),
    ]


def _ints(sub: Any, any_of: Any) -> list[st.SearchStrategy[Expression]]:
    days = ("year", "quarter", "month", "day", "dayofweek", "dayofyear")
    return [
        call("length", INT, sub(STRING)),
        *(any_of([DATE, TIMESTAMP], lambda kind, name=name: call(name, INT, sub(kind))) for name in days),
        *(call(name, INT, sub(TIMESTAMP)) for name in ("hour", "minute", "second")),
        call("date_diff", INT, sub(DATE), sub(DATE)),
    ]


FAILED = "failed"


def _both_sides(deciding: bool) -> Callable[..., bool | None]:
    def junction(args: tuple[Expression, ...], row: Any) -> bool | None:
        results = [expected(arg, row) for arg in args]
        if deciding in results:
            return deciding
        if FAILED in results:
            raise EvaluationError(FAILED)
        return None if None in results else not deciding

    return junction


@pytest.fixture(autouse=True, scope="module")
def symmetric_oracle():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(oracle._LAZY, "and", _both_sides(deciding=False))
        patch.setitem(oracle._LAZY, "or", _both_sides(deciding=True))
        yield


def expected(expression: Expression, row: Any) -> Any:
    try:
        return oracle.evaluate(expression, row)
    except EvaluationError:
        return FAILED


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (left == right and math.copysign(1, left) == math.copysign(1, right))
    return type(left) is type(right) and left == right


def check(expression: Expression, table: pa.Table) -> None:
    evaluator = Evaluator(table, table.num_rows)
    result, errors = evaluator(expression), evaluator.errors(expression)
    assert result.type == expression.type
    assert len(result) == table.num_rows
    wrong = errors.to_pylist() if errors is not None else [False] * table.num_rows
    assert errors is None or (any(wrong) and evaluator.message(expression))
    for row, value, failed in zip(rows_of(table), result.to_pylist(), wrong, strict=True):
        wanted = expected(expression, row)
        assert failed == (wanted is FAILED), (str(expression), row, wanted)
        assert same(value, None if failed else wanted), (str(expression), row, value, wanted)


KEPT: dict[int, list[dict[str, Any]]] = {}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    if id(table) not in KEPT:  # tables are cached, so ids stay
        KEPT[id(table)] = table.to_pylist()
    return KEPT[id(table)]


TABLES = st.integers(0, 40).map(table_of)


@settings(max_examples=scale_examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(TYPES), data=st.data(), table=TABLES)
def test_equals_row_by_row(kind, data, table):
    check(data.draw(expressions(kind, 3)), table)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_function_equals_row_by_row(kind):
    shapes = _calls(kind, 1)
    for first in range(0, len(shapes), SHAPES_PER_EXAMPLE):
        _check_all(shapes[first : first + SHAPES_PER_EXAMPLE])


UNSHRUNK = (Phase.reuse, Phase.generate)
SHAPES_PER_EXAMPLE = 8  # Hypothesis takes longer to start than to draw and check a few expressions


def _check_all(shapes: list[st.SearchStrategy[Expression]]) -> None:
    """Check an expression of each shape; the error names the wrong one, so that the others need no shrinking."""

    @settings(max_examples=scale_examples(3), deadline=None, suppress_health_check=list(HealthCheck), phases=UNSHRUNK)
    @given(expressions=st.tuples(*shapes), table=TABLES)
    def shapes_equal_row_by_row(expressions, table):
        for expression in expressions:
            check(expression, table)

    shapes_equal_row_by_row()
