"""Aggregate functions: the names SQL has for them, and the `AggregateCall` each becomes.

The argument keeps its type for count, count_distinct, sum, avg, min, max and percentile_disc, and is cast to DOUBLE for
variances, deviations and `percentile`. `FILTER (WHERE c)` becomes a CASE around the argument, COUNT_IF(c) too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SqlError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Call, Expression, Literal
from headrace.model.schema import type_name
from headrace.sql.casts import cast
from headrace.sql.coerce import BIGINT, DOUBLE, INT, NULL, bounded_decimal, is_decimal, is_integer, is_numeric
from headrace.sql.operators import condition

ONE = Literal(1, INT)


@dataclass(frozen=True, slots=True)
class Written:
    """An aggregate as written: bound arguments (`*` is no argument), DISTINCT, and the FILTER condition or TRUE."""

    name: str
    args: tuple[Expression, ...]
    distinct: bool = False
    where: Expression = TRUE


Builder = Callable[[Written], AggregateCall]


def aggregate(written: Written) -> AggregateCall:
    """Return the call; SqlError without place if it cannot be. `written.name` must be in `AGGREGATES`."""
    if any(arg.type == NULL for arg in written.args):
        raise SqlError(f"aggregate '{written.name}' of an untyped NULL", hint="write CAST(NULL AS type)")
    return AGGREGATES[written.name.lower()](written)


def _one(written: Written) -> Expression:
    """Return the only argument."""
    if len(written.args) != 1:
        raise SqlError(f"aggregate '{written.name}' takes 1 argument, not {len(written.args) or '*'}")
    return written.args[0]


def _number(written: Written, value: Expression) -> Expression:
    if not is_numeric(value.type):
        raise SqlError(
            f"aggregate '{written.name}' needs a number, not {type_name(value.type)}", hint="cast it: CAST(… AS DOUBLE)"
        )
    return value


def _all_rows(written: Written) -> None:
    if written.distinct:
        raise SqlError(f"{written.name.upper()}(DISTINCT …) is not supported", hint="COUNT(DISTINCT …) is")


def _where(written: Written, value: Expression) -> Expression:
    """Return the value where the FILTER holds, else NULL."""
    if written.where == TRUE:
        return value
    return Call("case", (written.where, value, Literal(None, value.type)), value.type)


def _count(written: Written) -> AggregateCall:
    if written.distinct:
        return _count_distinct(written)
    if written.args:
        value = _one(written)
        constant = isinstance(value, Literal) and value.value is not None
        if not constant:
            return AggregateCall("count", (_where(written, value),), BIGINT)
    args = () if written.where == TRUE else (_where(written, ONE),)
    return AggregateCall("count", args, BIGINT)


def _count_distinct(written: Written) -> AggregateCall:
    if not written.args:
        raise SqlError("COUNT(DISTINCT *) is not supported", hint="name the columns")
    return AggregateCall("count_distinct", tuple(_where(written, arg) for arg in written.args), BIGINT)


def _approx_count_distinct(written: Written) -> AggregateCall:
    return _count_distinct(Written(written.name, written.args[:1], distinct=True, where=written.where))


def _count_if(written: Written) -> AggregateCall:
    _all_rows(written)
    test = condition(_one(written), "COUNT_IF")
    test = test if written.where == TRUE else Call("and", (written.where, test), test.type)
    return AggregateCall("count", (Call("case", (test, ONE, Literal(None, INT)), INT),), BIGINT)


def _sum(written: Written) -> AggregateCall:
    _all_rows(written)
    value = _number(written, _one(written))
    return AggregateCall("sum", (_where(written, value),), _sum_type(value.type))


def _sum_type(kind: pa.DataType) -> pa.DataType:
    if is_decimal(kind):
        return bounded_decimal(kind.precision + 10, kind.scale)
    return BIGINT if is_integer(kind) else DOUBLE


def _avg(written: Written) -> AggregateCall:
    _all_rows(written)
    value = _number(written, _one(written))
    kind = value.type
    result = bounded_decimal(kind.precision + 4, kind.scale + 4) if is_decimal(kind) else DOUBLE
    return AggregateCall("avg", (_where(written, value),), result)


def _extreme(function: str) -> Builder:
    def build(written: Written) -> AggregateCall:  # DISTINCT changes nothing here
        value = _one(written)
        return AggregateCall(function, (_where(written, value),), value.type)

    return build


def _moment(function: str) -> Builder:
    def build(written: Written) -> AggregateCall:
        _all_rows(written)
        value = cast(_number(written, _one(written)), DOUBLE)
        return AggregateCall(function, (_where(written, value),), DOUBLE)

    return build


def _median(written: Written) -> AggregateCall:
    _one(written)
    return _percentile(Written(written.name, (*written.args, Literal(0.5, DOUBLE)), written.distinct, written.where))


def _percentile(written: Written) -> AggregateCall:
    value, share = _share(written, 2)
    return AggregateCall("percentile", (_where(written, cast(value, DOUBLE)),), DOUBLE, share)


def _percentile_disc(written: Written) -> AggregateCall:
    value, share = _share(written, 3)
    return AggregateCall("percentile_disc", (_where(written, value),), value.type, share)


def _share(written: Written, most: int) -> tuple[Expression, float]:
    """Return the argument and the percentile, a constant in [0, 1]; a third argument (accuracy) has no effect."""
    _all_rows(written)
    if not 2 <= len(written.args) <= most:
        raise SqlError(f"aggregate '{written.name}' takes a number and a percentile", hint=f"write {written.name}(x, 0.5)")
    value, given = _number(written, written.args[0]), written.args[1]
    if (
        not isinstance(given, Literal)
        or not is_numeric(given.type)
        or given.value is None
        or not 0 <= float(str(given.value)) <= 1
    ):
        raise SqlError("the percentile must be a number literal from 0 to 1")
    return value, float(str(given.value))


AGGREGATES: dict[str, Builder] = {
    "count": _count, "count_if": _count_if, "approx_count_distinct": _approx_count_distinct,
    "sum": _sum, "avg": _avg, "mean": _avg, "min": _extreme("min"), "max": _extreme("max"),
    "var_pop": _moment("var_pop"), "var_samp": _moment("var_samp"), "variance": _moment("var_samp"),
    "stddev_pop": _moment("stddev_pop"), "stddev_samp": _moment("stddev_samp"), "stddev": _moment("stddev_samp"),
    "std": _moment("stddev_samp"),
    "median": _median, "percentile": _percentile, "percentile_cont": _percentile,
    "percentile_approx": _percentile_disc, "approx_percentile": _percentile_disc, "percentile_disc": _percentile_disc,
}  # fmt: skip
ORDERED = frozenset({"percentile_cont", "percentile_disc"})  # written WITHIN GROUP (ORDER BY x)
UNSUPPORTED = frozenset({
    "any", "any_value", "approx_top_k", "array_agg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "collect_list",
    "collect_set", "corr", "covar_pop", "covar_samp", "every", "first", "first_value", "grouping", "kurtosis", "last",
    "last_value", "listagg", "max_by", "min_by", "mode", "regr_slope", "skewness", "some", "string_agg", "try_avg", "try_sum",
})  # fmt: skip
