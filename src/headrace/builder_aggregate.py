"""Aggregate functions of the DSL, for `agg` and `having` of flows and for outputs of `hr.select`.

    hr.sum("price")
    hr.count(where=hr.col("price") > 10)
    hr.max("price") - hr.min("price")

An argument is the name of a column, a SQL text, or an expression. `where` restricts the aggregate to rows that fulfil a
condition (FILTER). Other SQL names of these aggregates (`std`, `approx_percentile` …) are available through `hr.call`.
"""

from __future__ import annotations

from typing import Any

from headrace.builder_expression import SqlExpression, literal, to_expression


def sum(value: Any, *, where: Any = None) -> SqlExpression:  # noqa: A001  the name in SQL, here and below
    """Return SUM: a BIGINT for integers, a wider decimal for decimals, else a DOUBLE."""
    return _aggregate_call("SUM", value, where=where)


def count(value: Any = "*", *, where: Any = None) -> SqlExpression:
    """Return COUNT: the number of rows, or of rows in which the value is not NULL."""
    return _aggregate_call("COUNT", value, where=where)


def count_distinct(*values: Any, where: Any = None) -> SqlExpression:
    """Return COUNT(DISTINCT …): the exact number of distinct values, or combinations of values."""
    return _with_filter(f"COUNT(DISTINCT {_argument_list(values)})", where)


def count_if(condition: Any, *, where: Any = None) -> SqlExpression:
    """Return COUNT_IF: the number of rows that fulfil a condition."""
    return _aggregate_call("COUNT_IF", condition, where=where)


def min(value: Any, *, where: Any = None) -> SqlExpression:  # noqa: A001
    """Return MIN: the least value, of any type."""
    return _aggregate_call("MIN", value, where=where)


def max(value: Any, *, where: Any = None) -> SqlExpression:  # noqa: A001
    """Return MAX: the greatest value, of any type."""
    return _aggregate_call("MAX", value, where=where)


def avg(value: Any, *, where: Any = None) -> SqlExpression:
    """Return AVG: the arithmetic mean."""
    return _aggregate_call("AVG", value, where=where)


def var_pop(value: Any, *, where: Any = None) -> SqlExpression:
    """Return VAR_POP: the population variance."""
    return _aggregate_call("VAR_POP", value, where=where)


def var_samp(value: Any, *, where: Any = None) -> SqlExpression:
    """Return VAR_SAMP: the sample variance."""
    return _aggregate_call("VAR_SAMP", value, where=where)


def stddev_pop(value: Any, *, where: Any = None) -> SqlExpression:
    """Return STDDEV_POP: the population standard deviation."""
    return _aggregate_call("STDDEV_POP", value, where=where)


def stddev_samp(value: Any, *, where: Any = None) -> SqlExpression:
    """Return STDDEV_SAMP: the sample standard deviation."""
    return _aggregate_call("STDDEV_SAMP", value, where=where)


def median(value: Any, *, where: Any = None) -> SqlExpression:
    """Return MEDIAN: the middle value, interpolated."""
    return _aggregate_call("MEDIAN", value, where=where)


def percentile(value: Any, share: float, *, where: Any = None) -> SqlExpression:
    """Return PERCENTILE: the interpolated value below which a `share` (0 to 1) of the values lies."""
    return _aggregate_call("PERCENTILE", value, share, where=where)


def percentile_disc(value: Any, share: float, *, where: Any = None) -> SqlExpression:
    """Return PERCENTILE_DISC: the least occurring value that at least a `share` (0 to 1) of the values does not exceed."""
    return _with_filter(f"PERCENTILE_DISC({literal(share).sql}) WITHIN GROUP (ORDER BY {to_expression(value).sql})", where)


def _aggregate_call(name: str, *values: Any, where: Any) -> SqlExpression:
    return _with_filter(f"{name}({_argument_list(values)})", where)


def _argument_list(values: tuple[Any, ...]) -> str:
    return ", ".join(to_expression(value).sql for value in values)


def _with_filter(text: str, where: Any) -> SqlExpression:
    return SqlExpression(text if where is None else f"{text} FILTER (WHERE {to_expression(where).sql})", is_atomic=True)
