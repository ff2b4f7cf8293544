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
from headrace.model.types import type_name
from headrace.sql.casts import cast_to
from headrace.sql.operators import require_boolean
from headrace.sql.types import BIGINT, DOUBLE, INT, NULL, is_decimal, is_integer, is_numeric, make_bounded_decimal

ONE_LITERAL = Literal(1, INT)


@dataclass(frozen=True, slots=True)
class ParsedAggregate:
    """An aggregate as parsed: bound arguments (none for `*`), DISTINCT, and the FILTER condition or TRUE."""

    name: str
    args: tuple[Expression, ...]
    distinct: bool = False
    where: Expression = TRUE


AggregateBuilder = Callable[[ParsedAggregate], AggregateCall]


def build_aggregate(parsed: ParsedAggregate) -> AggregateCall:
    """Return the aggregate call; SqlError without a location if it is invalid. The name must be in `AGGREGATES`."""
    if any(arg.type == NULL for arg in parsed.args):
        raise SqlError(f"aggregate '{parsed.name}' of an untyped NULL", hint="write CAST(NULL AS type)")
    return AGGREGATES[parsed.name.lower()](parsed)


def _get_only_argument(parsed: ParsedAggregate) -> Expression:
    """Return the argument of an aggregate that takes exactly one."""
    if len(parsed.args) != 1:
        raise SqlError(f"aggregate '{parsed.name}' takes 1 argument, not {len(parsed.args) or '*'}")
    return parsed.args[0]


def _require_number(parsed: ParsedAggregate, value: Expression) -> Expression:
    if not is_numeric(value.type):
        raise SqlError(
            f"aggregate '{parsed.name}' needs a number, not {type_name(value.type)}", hint="cast it: CAST(… AS DOUBLE)"
        )
    return value


def _refuse_distinct(parsed: ParsedAggregate) -> None:
    if parsed.distinct:
        raise SqlError(f"{parsed.name.upper()}(DISTINCT …) is not supported", hint="COUNT(DISTINCT …) is")


def _apply_filter(parsed: ParsedAggregate, value: Expression) -> Expression:
    """Return the value where the FILTER holds, else NULL."""
    if parsed.where == TRUE:
        return value
    return Call("case", (parsed.where, value, Literal(None, value.type)), value.type)


def _build_count(parsed: ParsedAggregate) -> AggregateCall:
    if parsed.distinct:
        return _build_count_distinct(parsed)
    if parsed.args:
        value = _get_only_argument(parsed)
        constant = isinstance(value, Literal) and value.value is not None
        if not constant:
            return AggregateCall("count", (_apply_filter(parsed, value),), BIGINT)
    args = () if parsed.where == TRUE else (_apply_filter(parsed, ONE_LITERAL),)
    return AggregateCall("count", args, BIGINT)


def _build_count_distinct(parsed: ParsedAggregate) -> AggregateCall:
    if not parsed.args:
        raise SqlError("COUNT(DISTINCT *) is not supported", hint="name the columns")
    return AggregateCall("count_distinct", tuple(_apply_filter(parsed, arg) for arg in parsed.args), BIGINT)


def _build_approx_count_distinct(parsed: ParsedAggregate) -> AggregateCall:
    return _build_count_distinct(ParsedAggregate(parsed.name, parsed.args[:1], distinct=True, where=parsed.where))


def _build_count_if(parsed: ParsedAggregate) -> AggregateCall:
    _refuse_distinct(parsed)
    test = require_boolean(_get_only_argument(parsed), "COUNT_IF")
    test = test if parsed.where == TRUE else Call("and", (parsed.where, test), test.type)
    return AggregateCall("count", (Call("case", (test, ONE_LITERAL, Literal(None, INT)), INT),), BIGINT)


def _build_sum(parsed: ParsedAggregate) -> AggregateCall:
    _refuse_distinct(parsed)
    value = _require_number(parsed, _get_only_argument(parsed))
    return AggregateCall("sum", (_apply_filter(parsed, value),), _sum_result_type(value.type))


def _sum_result_type(kind: pa.DataType) -> pa.DataType:
    if is_decimal(kind):
        return make_bounded_decimal(kind.precision + 10, kind.scale)
    return BIGINT if is_integer(kind) else DOUBLE


def _build_avg(parsed: ParsedAggregate) -> AggregateCall:
    _refuse_distinct(parsed)
    value = _require_number(parsed, _get_only_argument(parsed))
    kind = value.type
    result = make_bounded_decimal(kind.precision + 4, kind.scale + 4) if is_decimal(kind) else DOUBLE
    return AggregateCall("avg", (_apply_filter(parsed, value),), result)


def _min_max_builder(function: str) -> AggregateBuilder:
    def build(parsed: ParsedAggregate) -> AggregateCall:  # DISTINCT does not change a minimum or maximum
        value = _get_only_argument(parsed)
        return AggregateCall(function, (_apply_filter(parsed, value),), value.type)

    return build


def _variance_builder(function: str) -> AggregateBuilder:
    def build(parsed: ParsedAggregate) -> AggregateCall:
        _refuse_distinct(parsed)
        value = cast_to(_require_number(parsed, _get_only_argument(parsed)), DOUBLE)
        return AggregateCall(function, (_apply_filter(parsed, value),), DOUBLE)

    return build


def _build_median(parsed: ParsedAggregate) -> AggregateCall:
    _get_only_argument(parsed)
    return _build_percentile(ParsedAggregate(parsed.name, (*parsed.args, Literal(0.5, DOUBLE)), parsed.distinct, parsed.where))


def _build_percentile(parsed: ParsedAggregate) -> AggregateCall:
    value, share = _read_percentile(parsed, 2)
    return AggregateCall("percentile", (_apply_filter(parsed, cast_to(value, DOUBLE)),), DOUBLE, share)


def _build_percentile_disc(parsed: ParsedAggregate) -> AggregateCall:
    value, share = _read_percentile(parsed, 3)
    return AggregateCall("percentile_disc", (_apply_filter(parsed, value),), value.type, share)


def _read_percentile(parsed: ParsedAggregate, max_args: int) -> tuple[Expression, float]:
    """Return the argument and the percentile, a constant in [0, 1]; ignore the third argument (accuracy)."""
    _refuse_distinct(parsed)
    if not 2 <= len(parsed.args) <= max_args:
        raise SqlError(f"aggregate '{parsed.name}' takes a number and a percentile", hint=f"write {parsed.name}(x, 0.5)")
    value, percentile = _require_number(parsed, parsed.args[0]), parsed.args[1]
    if (
        not isinstance(percentile, Literal)
        or not is_numeric(percentile.type)
        or percentile.value is None
        or not 0 <= float(str(percentile.value)) <= 1
    ):
        raise SqlError("the percentile must be a number literal from 0 to 1")
    return value, float(str(percentile.value))


AGGREGATES: dict[str, AggregateBuilder] = {
    "count": _build_count,
    "count_if": _build_count_if,
    "approx_count_distinct": _build_approx_count_distinct,
    "sum": _build_sum,
    "avg": _build_avg,
    "mean": _build_avg,
    "min": _min_max_builder("min"),
    "max": _min_max_builder("max"),
    "var_pop": _variance_builder("var_pop"),
    "var_samp": _variance_builder("var_samp"),
    "variance": _variance_builder("var_samp"),
    "stddev_pop": _variance_builder("stddev_pop"),
    "stddev_samp": _variance_builder("stddev_samp"),
    "stddev": _variance_builder("stddev_samp"),
    "std": _variance_builder("stddev_samp"),
    "median": _build_median,
    "percentile": _build_percentile,
    "percentile_cont": _build_percentile,
    "percentile_approx": _build_percentile_disc,
    "approx_percentile": _build_percentile_disc,
    "percentile_disc": _build_percentile_disc,
}
ORDERED_SET_AGGREGATES = frozenset({"percentile_cont", "percentile_disc"})  # written WITHIN GROUP (ORDER BY x)
UNSUPPORTED_AGGREGATES = frozenset(
    {
        "any",
        "any_value",
        "approx_top_k",
        "array_agg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "collect_list",
        "collect_set",
        "corr",
        "covar_pop",
        "covar_samp",
        "every",
        "first",
        "first_value",
        "grouping",
        "kurtosis",
        "last",
        "last_value",
        "listagg",
        "max_by",
        "min_by",
        "mode",
        "regr_slope",
        "skewness",
        "some",
        "string_agg",
        "try_avg",
        "try_sum",
    }
)
