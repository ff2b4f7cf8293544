"""Aggregates, for `agg` and `having` of flows and for outputs of `hr.select`: they stand for those of SQL.

    hr.sum("price")
    hr.count(where=hr.col("price") > 10)
    hr.max("price") - hr.min("price")

An argument is a column's name, SQL, or an expression. With `where`, only rows count for which that holds. Names that are not
here (`std`, `approx_percentile` …) are other names of what is, and go by `hr.call`.
"""

from __future__ import annotations

from typing import Any

from headrace.builder_expression import Expression, literal, written


def sum(value: Any, *, where: Any = None) -> Expression:  # noqa: A001  SQL calls it so, here and below
    """SUM: BIGINT of integers, a wider decimal of decimals, else DOUBLE."""
    return _aggregate("SUM", value, where=where)


def count(value: Any = "*", *, where: Any = None) -> Expression:
    """COUNT of rows, or of rows on which the value is not NULL."""
    return _aggregate("COUNT", value, where=where)


def count_distinct(*values: Any, where: Any = None) -> Expression:
    """COUNT(DISTINCT …): how many different values, or combinations of values, there are; exactly."""
    return _filtered(f"COUNT(DISTINCT {_listed(values)})", where)


def count_if(condition: Any, *, where: Any = None) -> Expression:
    """COUNT_IF: on how many rows a condition holds."""
    return _aggregate("COUNT_IF", condition, where=where)


def min(value: Any, *, where: Any = None) -> Expression:  # noqa: A001
    """MIN: the least value, of any type."""
    return _aggregate("MIN", value, where=where)


def max(value: Any, *, where: Any = None) -> Expression:  # noqa: A001
    """MAX: the greatest value, of any type."""
    return _aggregate("MAX", value, where=where)


def avg(value: Any, *, where: Any = None) -> Expression:
    """AVG: the mean."""
    return _aggregate("AVG", value, where=where)


def var_pop(value: Any, *, where: Any = None) -> Expression:
    """VAR_POP: the variance of all there is."""
    return _aggregate("VAR_POP", value, where=where)


def var_samp(value: Any, *, where: Any = None) -> Expression:
    """VAR_SAMP: the variance, estimated from a sample."""
    return _aggregate("VAR_SAMP", value, where=where)


def stddev_pop(value: Any, *, where: Any = None) -> Expression:
    """STDDEV_POP: the standard deviation of all there is."""
    return _aggregate("STDDEV_POP", value, where=where)


def stddev_samp(value: Any, *, where: Any = None) -> Expression:
    """STDDEV_SAMP: the standard deviation, estimated from a sample."""
    return _aggregate("STDDEV_SAMP", value, where=where)


def median(value: Any, *, where: Any = None) -> Expression:
    """MEDIAN: the value in the middle, interpolated."""
    return _aggregate("MEDIAN", value, where=where)


def percentile(value: Any, share: float, *, where: Any = None) -> Expression:
    """PERCENTILE: the value that a share of all (0 to 1) is not above, interpolated."""
    return _aggregate("PERCENTILE", value, share, where=where)


def percentile_disc(value: Any, share: float, *, where: Any = None) -> Expression:
    """PERCENTILE_DISC: the least value that occurs and that a share of all (0 to 1) is not above."""
    return _filtered(f"PERCENTILE_DISC({literal(share).sql}) WITHIN GROUP (ORDER BY {written(value).sql})", where)


def _aggregate(name: str, *values: Any, where: Any) -> Expression:
    return _filtered(f"{name}({_listed(values)})", where)


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(written(value).sql for value in values)


def _filtered(text: str, where: Any) -> Expression:
    return Expression(text if where is None else f"{text} FILTER (WHERE {written(where).sql})", is_whole=True)
