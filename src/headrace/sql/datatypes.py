"""Resolves the SQL type names in a query, and types number literals."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SchemaError, SqlError
from headrace.model.expression import Literal
from headrace.model.schema import TIMESTAMP, parse_type
from headrace.sql.coerce import BIGINT, DOUBLE, INT, MAX_PRECISION, STRING, fits_integer_type

_SQL_TYPES: dict[object, pa.DataType] = {
    exp.DType.TINYINT: pa.int8(), exp.DType.SMALLINT: pa.int16(), exp.DType.INT: pa.int32(), exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(), exp.DType.DOUBLE: pa.float64(), exp.DType.BOOLEAN: pa.bool_(), exp.DType.TEXT: STRING,
    exp.DType.VARCHAR: STRING, exp.DType.DATE: pa.date32(), exp.DType.TIMESTAMPTZ: TIMESTAMP, exp.DType.TIMESTAMPLTZ: TIMESTAMP,
}  # fmt: skip


def resolve_type(node: exp.DataType) -> pa.DataType:
    """Return the type that a query names; a length, as in VARCHAR(10), is rejected since it would have no effect."""
    text = node.sql(dialect="spark")
    kind = _SQL_TYPES.get(node.this)
    if kind is not None and not node.expressions:
        return kind
    try:
        if node.this == exp.DType.DECIMAL:
            return parse_type(text)
    except SchemaError as problem:
        raise SqlError(problem.message, detail=problem.detail, hint=problem.hint) from None
    raise SqlError(
        f"type '{text}' is not supported",
        hint="known: TINYINT … BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), BOOLEAN, STRING, DATE, TIMESTAMP",
    )


def parse_number(text: str) -> Literal:
    """Return a number literal with the type that Spark gives it: INT, BIGINT or DECIMAL; DOUBLE with an exponent."""
    if "e" in text.lower():
        return Literal(float(text), DOUBLE)
    if "." in text or len(text) > MAX_PRECISION:
        return _make_decimal_literal(Decimal(text), text)
    value = int(text)
    kind = INT if fits_integer_type(value, INT) else BIGINT
    return Literal(value, kind) if fits_integer_type(value, kind) else _make_decimal_literal(Decimal(value), text)


def _make_decimal_literal(value: Decimal, text: str) -> Literal:
    """Return a DECIMAL literal with the precision and scale of its text."""
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits), scale)
    if precision > MAX_PRECISION:
        raise SqlError(f"number {text[:60]} has more than {MAX_PRECISION} digits", hint="write it with an exponent: 1e40")
    return Literal(value, pa.decimal128(precision, scale))
