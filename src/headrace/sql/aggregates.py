"""Builds the `AggregateCall` of each SQL aggregate function.

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
    """An aggregate as parsed: bound arguments (none for `*`), DISTINCT, and the FILTER condition or TRUE."""

    name: str
    args: tuple[Expression, ...]
    distinct: bool = False
    where: Expression = TRUE


Builder = Callable[[Written], AggregateCall]


def aggregate(parsed: Written) -> AggregateCall:
    """Return the aggregate call; SqlError without a location if it is invalid. The name must be in `AGGREGATES`."""
    if any(arg.type == NULL for arg in parsed.args):
        raise SqlError(f"aggregate '{parsed.name}' of an untyped NULL", hint="write CAST(NULL AS type)")
    return AGGREGATES[parsed.name.lower()](parsed)


def _one(parsed: Written) -> Expression:
    """Return the argument of an aggregate that takes exactly one."""
    if len(parsed.args) != 1:
        raise SqlError(f"aggregate '{parsed.name}' takes 1 argument, not {len(parsed.args) or '*'}")
    return parsed.args[0]


def _number(parsed: Written, value: Expression) -> Expression:
    if not is_numeric(value.type):
        raise SqlError(
            f"aggregate '{parsed.name}' needs a number, not {type_name(value.type)}", hint="cast it: CAST(… AS DOUBLE)"
        )
    return value


def _all_rows(parsed: Written) -> None:
    if parsed.distinct:
        raise SqlError(f"{parsed.name.upper()}(DISTINCT …) is not supported", hint="COUNT(DISTINCT …) is")


def _where(parsed: Written, value: Expression) -> Expression:
    """Return the value where the FILTER holds, else NULL."""
    if parsed.where == TRUE:
        return value
    return Call("case", (parsed.where, value, Literal(None, value.type)), value.type)


def _count(parsed: Written) -> AggregateCall:
    if parsed.distinct:
        return _count_distinct(parsed)
    if parsed.args:
        value = _one(parsed)
        constant = isinstance(value, Literal) and value.value is not None
        if not constant:
            return AggregateCall("count", (_where(parsed, value),), BIGINT)
    args = () if parsed.where == TRUE else (_where(parsed, ONE),)
    return AggregateCall("count", args, BIGINT)


def _count_distinct(parsed: Written) -> AggregateCall:
    if not parsed.args:
        raise SqlError("COUNT(DISTINCT *) is not supported", hint="name the columns")
    return AggregateCall("count_distinct", tuple(_where(parsed, arg) for arg in parsed.args), BIGINT)


def _approx_count_distinct(parsed: Written) -> AggregateCall:
    return _count_distinct(Written(parsed.name, parsed.args[:1], distinct=True, where=parsed.where))


def _count_if(parsed: Written) -> AggregateCall:
    _all_rows(parsed)
    test = condition(_one(parsed), "COUNT_IF")
    test = test if parsed.where == TRUE else Call("and", (parsed.where, test), test.type)
    return AggregateCall("count", (Call("case", (test, ONE, Literal(None, INT)), INT),), BIGINT)


def _sum(parsed: Written) -> AggregateCall:
    _all_rows(parsed)
    value = _number(parsed, _one(parsed))
    return AggregateCall("sum", (_where(parsed, value),), _sum_type(value.type))


def _sum_type(kind: pa.DataType) -> pa.DataType:
    if is_decimal(kind):
        return bounded_decimal(kind.precision + 10, kind.scale)
    return BIGINT if is_integer(kind) else DOUBLE


def _avg(parsed: Written) -> AggregateCall:
    _all_rows(parsed)
    value = _number(parsed, _one(parsed))
    kind = value.type
    result = bounded_decimal(kind.precision + 4, kind.scale + 4) if is_decimal(kind) else DOUBLE
    return AggregateCall("avg", (_where(parsed, value),), result)


def _extreme(function: str) -> Builder:
    def build(parsed: Written) -> AggregateCall:  # DISTINCT does not change a minimum or maximum
        value = _one(parsed)
        return AggregateCall(function, (_where(parsed, value),), value.type)

    return build


def _moment(function: str) -> Builder:
    def build(parsed: Written) -> AggregateCall:
        _all_rows(parsed)
        value = cast(_number(parsed, _one(parsed)), DOUBLE)
        return AggregateCall(function, (_where(parsed, value),), DOUBLE)

    return build


def _median(parsed: Written) -> AggregateCall:
    _one(parsed)
    return _percentile(Written(parsed.name, (*parsed.args, Literal(0.5, DOUBLE)), parsed.distinct, parsed.where))


def _percentile(parsed: Written) -> AggregateCall:
    value, share = _share(parsed, 2)
    return AggregateCall("percentile", (_where(parsed, cast(value, DOUBLE)),), DOUBLE, share)


def _percentile_disc(parsed: Written) -> AggregateCall:
    value, share = _share(parsed, 3)
    return AggregateCall("percentile_disc", (_where(parsed, value),), value.type, share)


def _share(parsed: Written, max_args: int) -> tuple[Expression, float]:
    """Return the argument and the percentile, a constant in [0, 1]; ignore the third argument (accuracy)."""
    _all_rows(parsed)
    if not 2 <= len(parsed.args) <= max_args:
        raise SqlError(f"aggregate '{parsed.name}' takes a number and a percentile", hint=f"write {parsed.name}(x, 0.5)")
    value, percentile = _number(parsed, parsed.args[0]), parsed.args[1]
    if (
        not isinstance(percentile, Literal)
        or not is_numeric(percentile.type)
        or percentile.value is None
        or not 0 <= float(str(percentile.value)) <= 1
    ):
        raise SqlError("the percentile must be a number literal from 0 to 1")
    return value, float(str(percentile.value))


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
