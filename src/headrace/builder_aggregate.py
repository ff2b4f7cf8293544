"""Aggregate functions of the DSL, for `agg` and `having` of flows and for outputs of `hr.select`.

    hr.sum("price")
    hr.count(where=hr.col("price") > 10)
    hr.max("price") - hr.min("price")

An argument is the name of a column, a SQL text, or an expression. `where` restricts the aggregate to rows that fulfil a
condition (FILTER). Other SQL names of these aggregates (`std`, `approx_percentile` …) are available through `hr.call`.
"""

from __future__ import annotations

from typing import Any

from headrace.builder_expression import Expression, literal, written


def sum(value: Any, *, where: Any = None) -> Expression:  # noqa: A001  the name in SQL, here and below
    """Return SUM: a BIGINT for integers, a wider decimal for decimals, else a DOUBLE."""
    return _aggregate("SUM", value, where=where)


def count(value: Any = "*", *, where: Any = None) -> Expression:
    """Return COUNT: the number of rows, or of rows in which the value is not NULL."""
    return _aggregate("COUNT", value, where=where)


def count_distinct(*values: Any, where: Any = None) -> Expression:
    """Return COUNT(DISTINCT …): the exact number of distinct values, or combinations of values."""
    return _filtered(f"COUNT(DISTINCT {_listed(values)})", where)


def count_if(condition: Any, *, where: Any = None) -> Expression:
    """Return COUNT_IF: the number of rows that fulfil a condition."""
    return _aggregate("COUNT_IF", condition, where=where)


def min(value: Any, *, where: Any = None) -> Expression:  # noqa: A001
    """Return MIN: the least value, of any type."""
    return _aggregate("MIN", value, where=where)


def max(value: Any, *, where: Any = None) -> Expression:  # noqa: A001
    """Return MAX: the greatest value, of any type."""
    return _aggregate("MAX", value, where=where)


def avg(value: Any, *, where: Any = None) -> Expression:
    """Return AVG: the arithmetic mean."""
    return _aggregate("AVG", value, where=where)


def var_pop(value: Any, *, where: Any = None) -> Expression:
    """Return VAR_POP: the population variance."""
    return _aggregate("VAR_POP", value, where=where)


def var_samp(value: Any, *, where: Any = None) -> Expression:
    """Return VAR_SAMP: the sample variance."""
    return _aggregate("VAR_SAMP", value, where=where)


def stddev_pop(value: Any, *, where: Any = None) -> Expression:
    """Return STDDEV_POP: the population standard deviation."""
    return _aggregate("STDDEV_POP", value, where=where)


def stddev_samp(value: Any, *, where: Any = None) -> Expression:
    """Return STDDEV_SAMP: the sample standard deviation."""
    return _aggregate("STDDEV_SAMP", value, where=where)


def median(value: Any, *, where: Any = None) -> Expression:
    """Return MEDIAN: the middle value, interpolated."""
    return _aggregate("MEDIAN", value, where=where)


def percentile(value: Any, share: float, *, where: Any = None) -> Expression:
    """Return PERCENTILE: the interpolated value below which a `share` (0 to 1) of the values lies."""
    return _aggregate("PERCENTILE", value, share, where=where)


def percentile_disc(value: Any, share: float, *, where: Any = None) -> Expression:
    """Return PERCENTILE_DISC: the least occurring value that at least a `share` (0 to 1) of the values does not exceed."""
    return _filtered(f"PERCENTILE_DISC({literal(share).sql}) WITHIN GROUP (ORDER BY {written(value).sql})", where)


def _aggregate(name: str, *values: Any, where: Any) -> Expression:
    return _filtered(f"{name}({_listed(values)})", where)


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(written(value).sql for value in values)


def _filtered(text: str, where: Any) -> Expression:
    return Expression(text if where is None else f"{text} FILTER (WHERE {written(where).sql})", is_whole=True)
