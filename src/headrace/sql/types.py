"""Type names, types of number literals, and type coercion, by the rules of Spark SQL.

A string has a common type only with a string: the binder rejects a text column beside a number. It casts a string *literal*
to the type of the other side (see `headrace.sql.casts`). An untyped NULL (Arrow's null type) takes any type.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SchemaError, SqlError
from headrace.model.expression import Call, Expression, Literal
from headrace.model.types import TIMESTAMP, parse_type, type_name

NULL = pa.null()
BOOLEAN = pa.bool_()
INT = pa.int32()
BIGINT = pa.int64()
FLOAT = pa.float32()
DOUBLE = pa.float64()
STRING = pa.string()
DATE = pa.date32()
MAX_PRECISION = 38
_MIN_SCALE = 6
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}  # width as decimal digits


def is_integer(kind: pa.DataType) -> bool:
    """Tell whether a type is TINYINT, SMALLINT, INT or BIGINT."""
    return kind in _INTEGER_DIGITS


def is_float(kind: pa.DataType) -> bool:
    """Tell whether a type is FLOAT or DOUBLE."""
    return kind in (FLOAT, DOUBLE)


def is_decimal(kind: pa.DataType) -> bool:
    """Tell whether a type is DECIMAL(p, s)."""
    return bool(pa.types.is_decimal128(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Tell whether arithmetic accepts a type."""
    return is_integer(kind) or is_float(kind) or is_decimal(kind)


def is_temporal(kind: pa.DataType) -> bool:
    """Tell whether a type is DATE or TIMESTAMP."""
    return kind in (DATE, TIMESTAMP)


def find_common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type to which both are cast implicitly, or None."""
    if right in (left, NULL):
        return left
    if left == NULL:
        return right
    if is_numeric(left) and is_numeric(right):
        return _find_common_numeric_type(left, right)
    if is_temporal(left) and is_temporal(right):
        return TIMESTAMP
    return None


def _find_common_numeric_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if is_integer(left) and is_integer(right):
        return max(left, right, key=_INTEGER_DIGITS.__getitem__)
    if not (is_float(left) or is_float(right)):
        return find_common_decimal(to_decimal_type(left), to_decimal_type(right))
    if DOUBLE in (left, right) or is_decimal(left) or is_decimal(right):
        return DOUBLE
    return FLOAT


def to_decimal_type(kind: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds every value of an integer type; a decimal type is returned unchanged."""
    return pa.decimal128(_INTEGER_DIGITS[kind], 0) if is_integer(kind) else kind


def find_common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds both; beyond 38 digits, reduce the scale."""
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    excess = max(0, precision - MAX_PRECISION)
    return pa.decimal128(precision - excess, max(0, scale - excess))


def make_bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """Return the decimal type with precision and scale capped at 38."""
    return pa.decimal128(min(precision, MAX_PRECISION), min(scale, MAX_PRECISION))


def decimal_result_type(function: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type of decimal arithmetic (add, sub, mul, div, mod), by the rules of Spark's DecimalPrecision."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    if function in ("add", "sub"):
        scale = max(s1, s2)
        return _adjust_precision(scale + max(p1 - s1, p2 - s2) + 1, scale)
    if function == "mul":
        return _adjust_precision(p1 + p2 + 1, s1 + s2)
    if function == "div":
        scale = max(_MIN_SCALE, s1 + p2 + 1)
        return _adjust_precision(p1 - s1 + s2 + scale, scale)
    scale = max(s1, s2)
    return _adjust_precision(min(p1 - s1, p2 - s2) + scale, scale)


def _adjust_precision(precision: int, scale: int) -> pa.DataType:
    """Apply Spark's adjustPrecisionScale: keep the integer digits, and at least six digits of the fraction."""
    if precision <= MAX_PRECISION:
        return pa.decimal128(precision, scale)
    integer_digits = precision - scale
    return pa.decimal128(MAX_PRECISION, max(MAX_PRECISION - integer_digits, min(scale, _MIN_SCALE)))


def fits_integer_type(value: int, kind: pa.DataType) -> bool:
    """Tell whether an integer type can hold the value."""
    limit = 1 << (kind.bit_width - 1)
    return bool(-limit <= value < limit)


def literal_decimal_type(value: int) -> pa.DataType:
    """Return the narrowest decimal type of an integer: the type of an integer literal beside a decimal."""
    return pa.decimal128(len(str(abs(value))), 0)


def unify_types(parts: list[Expression], verb: str) -> pa.DataType:
    """Return the common type of all parts; string literals take the type of the others. `verb` goes into the error message."""
    typed = [part.type for part in parts if not is_string_literal(part)] or [STRING]
    kind = typed[0]
    for other in typed[1:]:
        wider = find_common_type(kind, other)
        if wider is None:
            raise type_mismatch_error(verb, kind, other)
        kind = wider
    return STRING if kind == NULL and any(is_string_literal(part) for part in parts) else kind


def unify_choices(parts: list[Expression], verb: str) -> pa.DataType:
    """Return the type of CASE, IF and COALESCE: the common type, but STRING if a string literal is beside numbers or times."""
    typed = [part for part in parts if not is_string_literal(part)]
    if len(typed) == len(parts) or not typed:
        return unify_types(parts, verb)
    kind = unify_types(typed, verb)
    if kind == BOOLEAN:
        raise type_mismatch_error(verb, kind, STRING)
    return STRING


def is_string_literal(part: Expression) -> bool:
    """Tell whether an expression is a string literal, which takes the type of the operand beside it."""
    return isinstance(part, Literal) and part.type == STRING


def type_mismatch_error(verb: str, left: pa.DataType, right: pa.DataType) -> SqlError:
    """Return the error for two types without a common type."""
    return SqlError(f"cannot {verb} {type_name(left)} with {type_name(right)}", hint="cast one of them: CAST(… AS type)")


def boolean_call(function: str, *args: Expression) -> Call:
    """Return a call whose result is a BOOLEAN."""
    return Call(function, args, BOOLEAN)


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
