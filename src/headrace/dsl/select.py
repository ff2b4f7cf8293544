"""The Select builder of the DSL: queries made of calls, with the clauses in any order.

    query = (
        hr.select("older.user_id", hr.col("newer.text").alias("again"))
        .from_("tweets", hr.sliding("1 minute"), alias="newer")
        .from_("tweets", hr.sliding("1 hour"), alias="older")
        .where(hr.col("older.user_id") == hr.col("newer.user_id"))
    )
    session.add(query)

A query is an immutable value: each call returns a new one. The order of calls affects only the order of outputs. A query can
be the source of other queries. It is translated to SQL text and checked like any SQL: errors show their place in `query.sql`.

Stream flows (`hr.stream`) are the other part of the DSL: a sequence of steps over the rows of a stream, built on this module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from headrace.dsl.expression import SqlExpression, literal
from headrace.errors import SqlError
from headrace.model.time import DurationError, parse_duration
from headrace.sql.parser import quote_identifier

WindowLength = str | timedelta
ExpressionLike = str | SqlExpression
JoinCondition = str | SqlExpression | Sequence[str] | bool

_IDENTIFIER = re.compile(r"\w+")
_JOIN_KEYWORDS = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window over a stream: the name of the SQL window function, and its lengths."""

    function: str
    lengths: tuple[WindowLength, ...]

    def __post_init__(self) -> None:
        """Raise SqlError for an invalid length."""
        for length in self.lengths:
            _check_length(length)

    def to_sql(self, source: str) -> str:
        """Return the SQL of the window function applied to a source."""
        return f"{self.function}({', '.join([source, *(literal(length).sql for length in self.lengths)])})"


def _check_length(length: WindowLength) -> None:
    if isinstance(length, timedelta):
        return
    if not isinstance(length, str):
        raise SqlError(f"invalid window length {length!r}", hint="write '8 seconds', or give a timedelta")
    try:
        parse_duration(length)
    except DurationError as problem:
        raise SqlError(problem.message, detail=problem.detail, hint=problem.hint) from None


def tumble(size: WindowLength) -> WindowSpec:
    """Return tumbling windows of length `size`; lengths are texts such as '5 seconds', or timedeltas.

    Raises SqlError for an invalid length.
    """
    return WindowSpec("TUMBLE", (size,))


def hop(size: WindowLength, slide: WindowLength) -> WindowSpec:
    """Return hopping windows of length `size` that start every `slide`; raises SqlError for an invalid length."""
    return WindowSpec("HOP", (size, slide))


def session_window(gap: WindowLength) -> WindowSpec:
    """Return session windows: for each key, a window ends when no row arrives for longer than `gap` in event time.

    Raises SqlError for an invalid length.
    """
    return WindowSpec("SESSION", (gap,))


def sliding(range: WindowLength, lateness: WindowLength | None = None) -> WindowSpec:  # noqa: A002  SQL calls it so
    """Return sliding windows for joins: a row can be joined for `range` from its event time on.

    Rows that are later than `lateness` are dropped. Raises SqlError for an invalid length.
    """
    return WindowSpec("SLIDING", (range,) if lateness is None else (range, lateness))


@dataclass(frozen=True, slots=True)
class FromItem:
    """An item of the FROM clause: a stream by its name, or a sub-query, with an optional window and alias."""

    source: str | Select
    window: WindowSpec | None = None
    alias: str | None = None

    @property
    def sql(self) -> str:
        """The SQL text of the item."""
        source = quote_identifier(self.source) if isinstance(self.source, str) else f"({self.source.sql})"
        windowed = source if self.window is None else self.window.to_sql(source)
        return windowed if self.alias is None else f"{windowed} AS {quote_identifier(self.alias)}"


@dataclass(frozen=True, slots=True)
class JoinClause:
    """A JOIN clause: the item to join with, the kind of join, and the text of ON or USING."""

    item: FromItem
    how: str
    on: str

    @property
    def sql(self) -> str:
        """The SQL text of the clause."""
        return f"{_JOIN_KEYWORDS[self.how]} {self.item.sql} {self.on}"


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT query: outputs (empty: all columns), FROM items, WHERE conditions, GROUP BY keys and HAVING conditions.

    `partners` are JOIN clauses, applied in order; `views` are LATERAL VIEW clauses that unnest lists. A text is SQL; use `hr.col`
    to quote a name.
    """

    outputs: tuple[str, ...] = ()
    origins: tuple[FromItem, ...] = ()
    conditions: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    group_conditions: tuple[str, ...] = ()
    partners: tuple[JoinClause, ...] = ()
    views: tuple[str, ...] = ()

    def select(self, *outputs: ExpressionLike) -> Select:
        """Add output columns: SQL texts or expressions."""
        return replace(self, outputs=(*self.outputs, *map(_to_sql, outputs)))

    def from_(self, source: str | Select, window: WindowSpec | None = None, *, alias: str | None = None) -> Select:
        """Add a source: a stream by its name, or another query, in a `window`; columns refer to it by `alias`, or by its name."""
        return replace(self, origins=(*self.origins, FromItem(source, window, alias)))

    def join(
        self,
        source: str | Select,
        window: WindowSpec | None = None,
        *,
        on: JoinCondition,
        how: str = "inner",
        alias: str | None = None,
    ) -> Select:
        """Join the sources so far with another source.

        `on` is the name, or a list of names, of columns that both sides have; or a condition, as an expression or any other
        text; or True for a cross product. `how` is inner, left, right, full, semi or anti. Raises SqlError for an unknown kind
        of join or an invalid `on`.
        """
        if how not in _JOIN_KEYWORDS:
            raise SqlError(f"unknown kind of join {how!r}", detail=f"kinds: {', '.join(_JOIN_KEYWORDS)}")
        return replace(self, partners=(*self.partners, JoinClause(FromItem(source, window, alias), how, _join_condition_sql(on))))

    def explode(self, lists: SqlExpression, name: str) -> Select:
        """Unnest a list that a registered function returns: one row for each element, as column `name`."""
        return replace(self, views=(*self.views, f"LATERAL VIEW explode({lists.sql}) AS {quote_identifier(name)}"))

    def where(self, *conditions: ExpressionLike) -> Select:
        """Add WHERE conditions, combined by AND."""
        return replace(self, conditions=(*self.conditions, *map(_parenthesize, conditions)))

    def group_by(self, *keys: ExpressionLike) -> Select:
        """Add GROUP BY keys."""
        return replace(self, keys=(*self.keys, *map(_to_sql, keys)))

    def having(self, *conditions: ExpressionLike) -> Select:
        """Add HAVING conditions, combined by AND."""
        return replace(self, group_conditions=(*self.group_conditions, *map(_parenthesize, conditions)))

    @property
    def sql(self) -> str:
        """The SQL text; apart from the order of outputs and joins, it does not depend on the order of calls."""
        clauses = [f"SELECT {', '.join(self.outputs) or '*'}"]
        if self.origins:
            clauses.append(f"FROM {', '.join(sorted(item.sql for item in self.origins))}")
        clauses += [clause.sql for clause in self.partners]
        clauses += self.views
        if self.conditions:
            clauses.append(f"WHERE {' AND '.join(sorted(self.conditions))}")
        if self.keys:
            clauses.append(f"GROUP BY {', '.join(sorted(self.keys))}")
        if self.group_conditions:
            clauses.append(f"HAVING {' AND '.join(sorted(self.group_conditions))}")
        return "\n".join(clauses)


def select(*outputs: ExpressionLike) -> Select:
    """Return a query with these outputs, as SQL texts or expressions; without any, all columns."""
    return Select().select(*outputs)


def from_(source: str | Select, window: WindowSpec | None = None, *, alias: str | None = None) -> Select:
    """Return a query that reads a stream, or another query, in a `window`; columns refer to it by `alias`, or by its name."""
    return Select().from_(source, window, alias=alias)


def _to_sql(value: ExpressionLike) -> str:
    return value if isinstance(value, str) else literal(value).sql


def _parenthesize(condition: ExpressionLike) -> str:
    return f"({_to_sql(condition)})"


def _join_condition_sql(on: JoinCondition) -> str:
    if isinstance(on, str) and not _IDENTIFIER.fullmatch(on):
        return f"ON {_parenthesize(on)}"
    if isinstance(on, SqlExpression | bool):
        return f"ON {_parenthesize(literal(on))}"
    names = [on] if isinstance(on, str) else list(on)
    if not names or not all(isinstance(name, str) for name in names):
        raise SqlError(f"invalid join condition {on!r}", hint='name columns, on=["user_id"], or give a condition')
    return f"USING ({', '.join(map(quote_identifier, names))})"
