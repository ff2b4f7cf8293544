"""Expressions of the DSL. They are translated to SQL and checked together with the query.

    hr.col("s.b") < hr.col("t.b")
    hr.col("r.name").like("a%") | hr.col("r.a").is_null()
    (hr.col("r.a") + 1).alias("next")

Python values become literals. Python does not allow overloading of `and`, `or`, `not` and chains such as `1 < x < 5`: use `&`,
`|`, `~`.
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
from headrace.sql.quoting import quote_identifier, quote_string

_MICROSECOND = timedelta(microseconds=1)
_NAME = re.compile(r"(?!\d)\w+(?:\.(?!\d)\w+)*")


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A SQL expression, and whether it can be an operand without parentheses."""

    sql: str
    is_whole: bool = False

    @property
    def operand(self) -> str:
        """The SQL text as an operand of another expression, in parentheses if needed."""
        return self.sql if self.is_whole else f"({self.sql})"

    def alias(self, name: str) -> Expression:
        """Return the expression with a column name, for `select`."""
        return Expression(f"{self.sql} AS {quote_identifier(name)}")

    def cast(self, type: str) -> Expression:  # noqa: A002  the word of SQL
        """Return CAST to a SQL type, such as `DOUBLE` or `DECIMAL(10, 2)`."""
        return Expression(f"CAST({self.sql} AS {type})", is_whole=True)

    def between(self, low: Any, high: Any) -> Expression:
        """Return BETWEEN: whether the value lies between `low` and `high`, both included."""
        return Expression(f"{self.operand} BETWEEN {_operand(low)} AND {_operand(high)}")

    def like(self, pattern: str | Expression) -> Expression:
        """Return LIKE: whether a text matches a pattern, in which `%` stands for any text and `_` for one character."""
        return Expression(f"{self.operand} LIKE {_operand(pattern)}")

    def is_in(self, *values: Any) -> Expression:
        """Return IN: whether the value equals one of `values`."""
        return Expression(f"{self.operand} IN ({', '.join(map(_operand, values))})")

    def is_null(self) -> Expression:
        """Return whether the value is NULL."""
        return Expression(f"{self.operand} IS NULL")

    def is_not_null(self) -> Expression:
        """Return whether the value is not NULL."""
        return Expression(f"{self.operand} IS NOT NULL")

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        """`=`; IS NULL if the other side is None."""
        return self.is_null() if other is None else _binary(self, "=", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        """`<>`; IS NOT NULL if the other side is None."""
        return self.is_not_null() if other is None else _binary(self, "<>", other)

    __hash__ = None  # type: ignore[assignment]  # == builds SQL, so expressions cannot be dictionary keys

    def __lt__(self, other: Any) -> Expression:
        """`<`."""
        return _binary(self, "<", other)

    def __le__(self, other: Any) -> Expression:
        """`<=`."""
        return _binary(self, "<=", other)

    def __gt__(self, other: Any) -> Expression:
        """`>`."""
        return _binary(self, ">", other)

    def __ge__(self, other: Any) -> Expression:
        """`>=`."""
        return _binary(self, ">=", other)

    def __and__(self, other: Any) -> Expression:
        """AND."""
        return _binary(self, "AND", other)

    def __rand__(self, other: Any) -> Expression:
        """AND with a Python value on the left."""
        return _binary(other, "AND", self)

    def __or__(self, other: Any) -> Expression:
        """OR."""
        return _binary(self, "OR", other)

    def __ror__(self, other: Any) -> Expression:
        """OR with a Python value on the left."""
        return _binary(other, "OR", self)

    def __invert__(self) -> Expression:
        """NOT."""
        return Expression(f"NOT {self.operand}")

    def __add__(self, other: Any) -> Expression:
        """`+`."""
        return _binary(self, "+", other)

    def __radd__(self, other: Any) -> Expression:
        """`+` with a Python value on the left."""
        return _binary(other, "+", self)

    def __sub__(self, other: Any) -> Expression:
        """`-`."""
        return _binary(self, "-", other)

    def __rsub__(self, other: Any) -> Expression:
        """`-` with a Python value on the left."""
        return _binary(other, "-", self)

    def __mul__(self, other: Any) -> Expression:
        """`*`."""
        return _binary(self, "*", other)

    def __rmul__(self, other: Any) -> Expression:
        """`*` with a Python value on the left."""
        return _binary(other, "*", self)

    def __truediv__(self, other: Any) -> Expression:
        """`/`."""
        return _binary(self, "/", other)

    def __rtruediv__(self, other: Any) -> Expression:
        """`/` with a Python value on the left."""
        return _binary(other, "/", self)

    def __mod__(self, other: Any) -> Expression:
        """`%`; in SQL the result has the sign of the left side."""
        return _binary(self, "%", other)

    def __rmod__(self, other: Any) -> Expression:
        """`%` with a Python value on the left."""
        return _binary(other, "%", self)

    def __neg__(self) -> Expression:
        """`-`."""
        return Expression(f"-{self.operand}")

    def __bool__(self) -> NoReturn:
        """Raise SqlError: an expression has a value for each row only."""
        raise SqlError("an expression has no truth value in Python", hint="use &, | and ~ for and, or and not")

    def __str__(self) -> str:
        """Return the SQL text."""
        return self.sql


def col(*name: str) -> Expression:
    """Return a column: `col("b")`, `col("s.b")`; with separate parts, `col("s", "b.c")`, if a name contains a dot."""
    parts = name if len(name) > 1 else tuple(part for dotted in name for part in dotted.split("."))
    return Expression(".".join(map(quote_identifier, parts)), is_whole=True)


def written(value: Any) -> Expression:
    """Convert an argument to an expression: a name is a column, any other text is SQL, and other values are literals."""
    if not isinstance(value, str):
        return literal(value)
    return col(value) if _NAME.fullmatch(value) else Expression(value)


def call(function: str, *arguments: Any) -> Expression:
    """Return a call of a SQL function or a registered function: `call("upper", "name")`.

    An argument is the name of a column, a SQL text, an expression or a value. Raises SqlError for an invalid function name.
    """
    if not _NAME.fullmatch(function) or "." in function:
        raise SqlError(f"invalid function name {function!r}", hint="use a name without dots or spaces")
    return Expression(f"{function}({', '.join(written(argument).sql for argument in arguments)})", is_whole=True)


def literal(value: Any) -> Expression:
    """Return a Python value as a SQL literal; an expression is returned unchanged.

    A datetime without a zone is UTC. Raises SqlError for a value that has no SQL literal.
    """
    if isinstance(value, Expression):
        return value
    if value is None or isinstance(value, bool):
        return Expression({None: "NULL", True: "TRUE", False: "FALSE"}[value], is_whole=True)
    if isinstance(value, str):
        return Expression(quote_string(value), is_whole=True)
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        return Expression(f"TIMESTAMP '{moment.isoformat(sep=' ')}'", is_whole=True)
    if isinstance(value, date):
        return Expression(f"DATE '{value.isoformat()}'", is_whole=True)
    if isinstance(value, timedelta):
        return Expression(f"INTERVAL '{value // _MICROSECOND}' MICROSECONDS", is_whole=True)
    return _number(value)


def _number(value: Any) -> Expression:
    if isinstance(value, Integral):
        text = str(int(value))
    elif isinstance(value, float) and not math.isfinite(value):
        return Expression(f"CAST('{float(value)}' AS DOUBLE)", is_whole=True)
    elif isinstance(value, Decimal) and value.is_finite():
        text = f"{value:f}"
    elif isinstance(value, float):
        text = repr(float(value))
    else:
        raise SqlError(f"{value!r} cannot be written in SQL", hint="use a number, a text, a time, None, or hr.col(…)")
    return Expression(text, is_whole=not text.startswith("-"))


def _operand(value: Any) -> str:
    return literal(value).operand


def _binary(left: Any, operator: str, right: Any) -> Expression:
    return Expression(f"{_operand(left)} {operator} {_operand(right)}")
