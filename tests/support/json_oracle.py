"""The naive meaning of a JSON message, by Python's own parser: a value for each column, or None if the message is rejected."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pyarrow as pa

from headrace.model.types import TIMESTAMP, Schema

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnfitError(Exception):
    pass


class Literal(str):
    """The text of a number."""

    __slots__ = ()


def _refuse(text: str) -> None:
    raise ValueError(text)


def read_object(message: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(message.decode(), parse_int=Literal, parse_float=Literal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def decode_row(
    message: bytes, schema: Schema, paths: Mapping[str, Sequence[str]] | None = None, epoch_scale: int | None = None
) -> list[object] | None:
    members = read_object(message)
    if members is None:
        return None
    try:
        return [
            convert(find_member(members, (paths or {}).get(field.name, (field.name,))), field.type, epoch_scale)
            for field in schema
        ]
    except (UnfitError, ValueError, OverflowError):
        return None


def find_member(members: dict[str, object], path: Sequence[str]) -> object:
    value: object = members
    for name in path:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise UnfitError
        value = value.get(name)
    return value


def convert(value: object, kind: pa.DataType, epoch_scale: int | None) -> object:
    if value is None:
        return None
    if pa.types.is_boolean(kind):
        return _expect(isinstance(value, bool), value)
    if kind == TIMESTAMP and epoch_scale is not None:
        _expect(isinstance(value, Literal), value)
        micros = math.floor(Fraction(Decimal(value)) * 10**epoch_scale)
        return _EPOCH + timedelta(microseconds=micros)
    if pa.types.is_decimal(kind):
        return _to_decimal(value, kind)
    if pa.types.is_integer(kind):
        _expect(isinstance(value, Literal) and re.fullmatch(r"-?\d+", value), value)
        return _expect(-(1 << (kind.bit_width - 1)) <= int(value) < 1 << (kind.bit_width - 1), int(value))
    if pa.types.is_floating(kind):
        return _to_float(value, kind)
    _expect(isinstance(value, str) and not isinstance(value, Literal), value)
    value.encode()
    if kind == TIMESTAMP:
        instant = datetime.fromisoformat(value.strip())
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    return date.fromisoformat(value) if pa.types.is_date(kind) else value


def _expect(holds: object, value: object) -> object:
    if not holds:
        raise UnfitError
    return value


def _to_float(value: object, kind: pa.DataType) -> float:
    if isinstance(value, str) and not isinstance(value, Literal):
        return float(_expect(value in {"NaN", "Infinity", "-Infinity"}, value))
    _expect(isinstance(value, Literal), value)
    with np.errstate(over="ignore"):
        number = float(value) if kind.bit_width == 64 else float(np.float32(float(value)))
    return _expect(math.isfinite(number), number)


def _to_decimal(value: object, kind: pa.DataType) -> Decimal:
    _expect(isinstance(value, str) and _NUMBER.fullmatch(value), value)
    _expect((len(value) < 1000 and abs(Decimal(value).adjusted()) < 200) or not Decimal(value), value)
    with localcontext(prec=2000):
        scaled = Fraction(Decimal(value) or Decimal(0)) * 10**kind.scale
        _expect(scaled.denominator == 1 and abs(scaled.numerator) < 10**kind.precision, value)
        return Decimal(scaled.numerator).scaleb(-kind.scale)
