"""The model of a query of the DSL: a SELECT statement as an immutable value, and its only translation to SQL text.

The Select builder (`select`) and stream flows (`stream`) are two ways to make a statement. They decide what a text argument
means and in which order clauses stand; the statement renders its clauses as they are. Both are a `BuiltQuery`, so either can be
the source of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.dsl.expression import SqlExpression, literal
from headrace.dsl.windows import WindowSpec
from headrace.errors import SqlError
from headrace.sql.parser import quote_identifier

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
class FromItem:
    """An item of the FROM clause: a stream by its name, or a sub-query, with an optional window and alias."""

    source: str | DslStatement
    window: WindowSpec | None = None
    alias: str | None = None

    @property
    def name(self) -> str:
        """The name that columns refer to: the alias, or the stream's name; empty for a sub-query without an alias."""
        return self.alias or (self.source if isinstance(self.source, str) else "")

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
    condition_sql: str

    @classmethod
    def create(cls, item: FromItem, on: JoinCondition, how: str) -> JoinClause:
        """Return the clause of a condition as users write it; raises SqlError for an unknown kind of join or an invalid `on`."""
        if how not in _JOIN_KEYWORDS:
            raise SqlError(f"unknown kind of join {how!r}", detail=f"kinds: {', '.join(_JOIN_KEYWORDS)}")
        return cls(item, how, _join_condition_sql(on))

    @property
    def sql(self) -> str:
        """The SQL text of the clause."""
        return f"{_JOIN_KEYWORDS[self.how]} {self.item.sql} {self.condition_sql}"


@dataclass(frozen=True, slots=True)
class DslStatement:
    """A SELECT statement, clause by clause, each in the order of the text; expressions and conditions are SQL.

    Without outputs it selects all columns. `joins` apply to the FROM items in order, `views` are LATERAL VIEW clauses, and
    conditions of one clause are combined by AND.
    """

    outputs: tuple[str, ...] = ()
    from_items: tuple[FromItem, ...] = ()
    joins: tuple[JoinClause, ...] = ()
    views: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    group_conditions: tuple[str, ...] = ()

    def append(self, **clauses: Iterable[str | FromItem | JoinClause]) -> DslStatement:
        """Return the statement with more elements at the end of its clauses, given by the names of the fields."""
        return replace(self, **{name: (*getattr(self, name), *added) for name, added in clauses.items()})

    def explode(self, lists: SqlExpression, name: str) -> DslStatement:
        """Return the statement with a view that unnests a list: one row for each element, as column `name`."""
        return self.append(views=[f"LATERAL VIEW explode({lists.sql}) AS {quote_identifier(name)}"])

    def sort_clauses(self) -> DslStatement:
        """Return the statement with all clauses sorted by their text whose order does not change the result."""
        return replace(
            self,
            from_items=tuple(sorted(self.from_items, key=lambda item: item.sql)),
            conditions=tuple(sorted(self.conditions, key=_parenthesize)),
            keys=tuple(sorted(self.keys)),
            group_conditions=tuple(sorted(self.group_conditions, key=_parenthesize)),
        )

    @property
    def items(self) -> tuple[FromItem, ...]:
        """All sources: the FROM items, then those of the joins."""
        return (*self.from_items, *(clause.item for clause in self.joins))

    @property
    def sql(self) -> str:
        """The SQL text; equal statements have equal texts."""
        clauses = [f"SELECT {', '.join(self.outputs) or '*'}"]
        if self.from_items:
            clauses.append(f"FROM {', '.join(item.sql for item in self.from_items)}")
        clauses += [clause.sql for clause in self.joins]
        clauses += self.views
        if self.conditions:
            clauses.append(f"WHERE {' AND '.join(map(_parenthesize, self.conditions))}")
        if self.keys:
            clauses.append(f"GROUP BY {', '.join(self.keys)}")
        if self.group_conditions:
            clauses.append(f"HAVING {' AND '.join(map(_parenthesize, self.group_conditions))}")
        return "\n".join(clauses)


class BuiltQuery(Protocol):
    """A query made of calls: a `Select` or a `StreamFlow`."""

    @property
    def statement(self) -> DslStatement:
        """The statement; raises SqlError if the calls do not make a whole query yet."""


def get_source(source: str | BuiltQuery) -> str | DslStatement:
    """Return the source of a FROM item: the name of a stream, or the statement of a query."""
    return source if isinstance(source, str) else source.statement


def _parenthesize(condition: str) -> str:
    return f"({condition})"


def _join_condition_sql(on: JoinCondition) -> str:
    if isinstance(on, str) and not _IDENTIFIER.fullmatch(on):
        return f"ON {_parenthesize(on)}"
    if isinstance(on, SqlExpression | bool):
        return f"ON {_parenthesize(literal(on).sql)}"
    names = [on] if isinstance(on, str) else list(on)
    if not names or not all(isinstance(name, str) for name in names):
        raise SqlError(f"invalid join condition {on!r}", hint='name columns, on=["user_id"], or give a condition')
    return f"USING ({', '.join(map(quote_identifier, names))})"
