"""Evaluates probes with the engine and the reference, in a form in which answers of other systems can be compared with theirs.

An answer is the type of the result and a text for each row: values that differ in any way, also in the sign of zero or in the
trailing digits of a decimal, have different texts. NULL is None. `ERROR` marks a row on which the query would fail.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.backends.reference.evaluate import evaluate
from headrace.engine.compute.evaluator import Evaluator
from headrace.errors import EvaluationError, SqlError
from headrace.model.expression import Expression
from headrace.model.stream import Stream
from headrace.model.types import Schema, type_name
from headrace.sql import Catalog, bind_query
from support.expression_probes import DDL, Probe, list_probes

ERROR = "an error"
ALL = os.environ.get("HEADRACE_EXPRESSIONS") == "all"
_STRIDE = 13  # coprime to the number of operators and of types, so that a part of the probes has all of them
_CATALOG = Catalog((Stream("s", Schema.parse(DDL), "at"),))


@dataclass(frozen=True, slots=True)
class Answer:
    """The type of the result, and a text for each row."""

    type: str
    rows: tuple[str | None, ...]


def select_probes() -> tuple[Probe, ...]:
    """Return every expression if HEADRACE_EXPRESSIONS is `all` (`make expressions`), else every thirteenth."""
    return list_probes() if ALL else list_probes()[::_STRIDE]


def bind_probes(probes: Iterable[Probe]) -> tuple[dict[Probe, Expression], dict[Probe, SqlError]]:
    """Return the bound expressions, and the errors of those that are rejected."""
    results = {probe: bind_probe(probe) for probe in probes}
    bound = {probe: result for probe, result in results.items() if not isinstance(result, SqlError)}
    return bound, {probe: result for probe, result in results.items() if isinstance(result, SqlError)}


def list_inputs(probe: Probe, row: Mapping[str, object]) -> dict[str, object]:
    """Return the values that the expression reads."""
    return {name: row[name] for name in dict.fromkeys(re.findall(r"\b[uab]_\w+", probe.sql))}


def find_crashes(probe: Probe, expression: Expression, rows: pa.Table) -> list[str]:
    """Evaluate the rows one by one and describe every exception; an expression may also fail only over all rows together."""
    crashes = []
    for index in range(rows.num_rows):
        try:
            ask_engine(expression, rows.slice(index, 1))
        except Exception as problem:  # noqa: BLE001
            crashes.append(f"{probe.sql} of {list_inputs(probe, rows.slice(index, 1).to_pylist()[0])}: {problem!r}")
    return crashes or [f"{probe.sql} of all rows together"]


def bind_probe(probe: Probe) -> Expression | SqlError:
    """Return the bound expression, or the error that rejects it."""
    try:
        plan: Any = bind_query(f"SELECT {probe.sql} AS x FROM s", _CATALOG)
    except SqlError as problem:
        return problem
    return plan.branches[0].outputs[0]  # type: ignore[no-any-return]


def ask_engine(expression: Expression, rows: pa.Table) -> Answer:
    """Return the answer of the columnar evaluator."""
    evaluator = Evaluator(rows, rows.num_rows)
    values, errors = evaluator(expression), evaluator.errors(expression)
    failed = [False] * rows.num_rows if errors is None else errors.to_pylist()
    texts = describe_column(values)
    return Answer(type_name(expression.type), tuple(ERROR if bad else text for bad, text in zip(failed, texts, strict=True)))


def ask_reference(expression: Expression, rows: Sequence[Mapping[str, object]]) -> Answer:
    """Return the answer of the reference, row by row."""
    return Answer(type_name(expression.type), tuple(_ask_reference_row(expression, row) for row in rows))


def _ask_reference_row(expression: Expression, row: Mapping[str, object]) -> str | None:
    try:
        value = evaluate(expression, row)
    except EvaluationError:
        return ERROR
    return describe_value(value, expression.type)


def describe_column(column: pa.Array | pa.ChunkedArray) -> Iterable[str | None]:
    """Return the texts of values, also of times that Python cannot represent."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return [
            None if value is None else f"{value} us" for value in column.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        ]
    if pa.types.is_date(kind):
        return [None if value is None else f"day {value}" for value in column.cast(pa.int32()).to_pylist()]
    return [describe_value(value, kind) for value in column.to_pylist()]


def describe_value(value: Any, kind: pa.DataType) -> str | None:
    """Return the text of a value of this type."""
    if value is None:
        return None
    if isinstance(value, datetime):
        elapsed = value - datetime(1970, 1, 1, tzinfo=UTC)
        return f"{(elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds} us"
    if isinstance(value, date):
        return f"day {value.toordinal() - date(1970, 1, 1).toordinal()}"
    if isinstance(value, Decimal):
        return format(value, "f") if value else format(abs(value), "f")
    if isinstance(value, float):
        return (
            "NaN"
            if math.isnan(value)
            else repr(struct.unpack("f", struct.pack("f", value))[0] if kind == pa.float32() else value)
        )
    return repr(value)
