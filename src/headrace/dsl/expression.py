"""Expressions and aggregate functions of the DSL. They are translated to SQL and checked together with the query.

    hr.col("s.b") < hr.col("t.b")
    hr.col("r.name").like("a%") | hr.col("r.a").is_null()
    (hr.col("r.a") + 1).alias("next")
    hr.sum("price")
    hr.count(where=hr.col("price") > 10)
    hr.max("price") - hr.min("price")

Python values become literals. Python does not allow overloading of `and`, `or`, `not` and chains such as `1 < x < 5`: use `&`,
`|`, `~`.

Aggregates are for `agg` and `having` of flows and for outputs of `hr.select`. Their argument is the name of a column, a SQL
text, or an expression. `where` restricts the aggregate to rows that fulfil a condition (FILTER). Other SQL names of these
aggregates (`std`, `approx_percentile` …) are available through `hr.call`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from numbers import Integral
from typing import Any, NoReturn

from headrace.errors import SqlError
from headrace.sql.parser import quote_identifier, quote_string

_MICROSECOND = timedelta(microseconds=1)
_COLUMN_NAME = re.compile(r"(?!\d)\w+(?:\.(?!\d)\w+)*")


@dataclass(frozen=True, slots=True, eq=False)
class SqlExpression:
    """A SQL expression, and whether it can be an operand without parentheses."""

    sql: str
    is_atomic: bool = False

    @property
    def operand(self) -> str:
        """The SQL text as an operand of another expression, in parentheses if needed."""
        return self.sql if self.is_atomic else f"({self.sql})"

    def alias(self, name: str) -> SqlExpression:
        """Return the expression with a column name, for `select`."""
        return SqlExpression(f"{self.sql} AS {quote_identifier(name)}")

    def cast(self, type: str) -> SqlExpression:  # noqa: A002  the word of SQL
        """Return CAST to a SQL type, such as `DOUBLE` or `DECIMAL(10, 2)`."""
        return SqlExpression(f"CAST({self.sql} AS {type})", is_atomic=True)

    def between(self, low: Any, high: Any) -> SqlExpression:
        """Return BETWEEN: whether the value lies between `low` and `high`, both included."""
        return SqlExpression(f"{self.operand} BETWEEN {_operand_sql(low)} AND {_operand_sql(high)}")

    def like(self, pattern: str | SqlExpression) -> SqlExpression:
        """Return LIKE: whether a text matches a pattern, in which `%` stands for any text and `_` for one character."""
        return SqlExpression(f"{self.operand} LIKE {_operand_sql(pattern)}")

    def is_in(self, *values: Any) -> SqlExpression:
        """Return IN: whether the value equals one of `values`."""
        return SqlExpression(f"{self.operand} IN ({', '.join(map(_operand_sql, values))})")

    def is_null(self) -> SqlExpression:
        """Return whether the value is NULL."""
        return SqlExpression(f"{self.operand} IS NULL")

    def is_not_null(self) -> SqlExpression:
        """Return whether the value is not NULL."""
        return SqlExpression(f"{self.operand} IS NOT NULL")

    def __eq__(self, other: object) -> SqlExpression:  # type: ignore[override]
        """`=`; IS NULL if the other side is None."""
        return self.is_null() if other is None else _binary_expression(self, "=", other)

    def __ne__(self, other: object) -> SqlExpression:  # type: ignore[override]
        """`<>`; IS NOT NULL if the other side is None."""
        return self.is_not_null() if other is None else _binary_expression(self, "<>", other)

    __hash__ = None  # type: ignore[assignment]  # == builds SQL, so expressions cannot be dictionary keys

    def __lt__(self, other: Any) -> SqlExpression:
        """`<`."""
        return _binary_expression(self, "<", other)

    def __le__(self, other: Any) -> SqlExpression:
        """`<=`."""
        return _binary_expression(self, "<=", other)

    def __gt__(self, other: Any) -> SqlExpression:
        """`>`."""
        return _binary_expression(self, ">", other)

    def __ge__(self, other: Any) -> SqlExpression:
        """`>=`."""
        return _binary_expression(self, ">=", other)

    def __and__(self, other: Any) -> SqlExpression:
        """AND."""
        return _binary_expression(self, "AND", other)

    def __rand__(self, other: Any) -> SqlExpression:
        """AND with a Python value on the left."""
        return _binary_expression(other, "AND", self)

    def __or__(self, other: Any) -> SqlExpression:
        """OR."""
        return _binary_expression(self, "OR", other)

    def __ror__(self, other: Any) -> SqlExpression:
        """OR with a Python value on the left."""
        return _binary_expression(other, "OR", self)

    def __invert__(self) -> SqlExpression:
        """NOT."""
        return SqlExpression(f"NOT {self.operand}")

    def __add__(self, other: Any) -> SqlExpression:
        """`+`."""
        return _binary_expression(self, "+", other)

    def __radd__(self, other: Any) -> SqlExpression:
        """`+` with a Python value on the left."""
        return _binary_expression(other, "+", self)

    def __sub__(self, other: Any) -> SqlExpression:
        """`-`."""
        return _binary_expression(self, "-", other)

    def __rsub__(self, other: Any) -> SqlExpression:
        """`-` with a Python value on the left."""
        return _binary_expression(other, "-", self)

    def __mul__(self, other: Any) -> SqlExpression:
        """`*`."""
        return _binary_expression(self, "*", other)

    def __rmul__(self, other: Any) -> SqlExpression:
        """`*` with a Python value on the left."""
        return _binary_expression(other, "*", self)

    def __truediv__(self, other: Any) -> SqlExpression:
        """`/`."""
        return _binary_expression(self, "/", other)

    def __rtruediv__(self, other: Any) -> SqlExpression:
        """`/` with a Python value on the left."""
        return _binary_expression(other, "/", self)

    def __mod__(self, other: Any) -> SqlExpression:
        """`%`; in SQL the result has the sign of the left side."""
        return _binary_expression(self, "%", other)

    def __rmod__(self, other: Any) -> SqlExpression:
        """`%` with a Python value on the left."""
        return _binary_expression(other, "%", self)

    def __neg__(self) -> SqlExpression:
        """`-`."""
        return SqlExpression(f"-{self.operand}")

    def __bool__(self) -> NoReturn:
        """Raise SqlError: an expression has a value for each row only."""
        raise SqlError("an expression has no truth value in Python", hint="use &, | and ~ for and, or and not")

    def __str__(self) -> str:
        """Return the SQL text."""
        return self.sql


def col(*name: str) -> SqlExpression:
    """Return a column: `col("b")`, `col("s.b")`; with separate parts, `col("s", "b.c")`, if a name contains a dot."""
    parts = name if len(name) > 1 else tuple(part for dotted in name for part in dotted.split("."))
    return SqlExpression(".".join(map(quote_identifier, parts)), is_atomic=True)


def to_expression(value: Any) -> SqlExpression:
    """Convert an argument to an expression: a name is a column, any other text is SQL, and other values are literals."""
    if not isinstance(value, str):
        return literal(value)
    return col(value) if _COLUMN_NAME.fullmatch(value) else SqlExpression(value)


def call(function: str, *arguments: Any) -> SqlExpression:
    """Return a call of a SQL function or a registered function: `call("upper", "name")`.

    An argument is the name of a column, a SQL text, an expression or a value. Raises SqlError for an invalid function name.
    """
    if not _COLUMN_NAME.fullmatch(function) or "." in function:
        raise SqlError(f"invalid function name {function!r}", hint="use a name without dots or spaces")
    return SqlExpression(f"{function}({', '.join(to_expression(argument).sql for argument in arguments)})", is_atomic=True)


def literal(value: Any) -> SqlExpression:
    """Return a Python value as a SQL literal; an expression is returned unchanged.

    A datetime without a zone is UTC. Raises SqlError for a value that has no SQL literal.
    """
    if isinstance(value, SqlExpression):
        return value
    if value is None or isinstance(value, bool):
        return SqlExpression({None: "NULL", True: "TRUE", False: "FALSE"}[value], is_atomic=True)
    if isinstance(value, str):
        return SqlExpression(quote_string(value), is_atomic=True)
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        return SqlExpression(f"TIMESTAMP '{moment.isoformat(sep=' ')}'", is_atomic=True)
    if isinstance(value, date):
        return SqlExpression(f"DATE '{value.isoformat()}'", is_atomic=True)
    if isinstance(value, timedelta):
        return SqlExpression(f"INTERVAL '{value // _MICROSECOND}' MICROSECONDS", is_atomic=True)
    return _number_literal(value)


def _number_literal(value: Any) -> SqlExpression:
    if isinstance(value, Integral):
        text = str(int(value))
    elif isinstance(value, float) and not math.isfinite(value):
        return SqlExpression(f"CAST('{float(value)}' AS DOUBLE)", is_atomic=True)
    elif isinstance(value, Decimal) and value.is_finite():
        text = f"{value:f}"
    elif isinstance(value, float):
        text = repr(float(value))
    else:
        raise SqlError(f"{value!r} cannot be written in SQL", hint="use a number, a text, a time, None, or hr.col(…)")
    return SqlExpression(text, is_atomic=not text.startswith("-"))


def _operand_sql(value: Any) -> str:
    return literal(value).operand


def _binary_expression(left: Any, operator: str, right: Any) -> SqlExpression:
    return SqlExpression(f"{_operand_sql(left)} {operator} {_operand_sql(right)}")


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
