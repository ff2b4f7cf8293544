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

Stream flows (`hr.stream`) are the other part of the DSL: a sequence of steps over the rows of a stream. Both make the same
`DslStatement`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.dsl.expression import SqlExpression, literal
from headrace.dsl.statement import BuiltQuery, DslStatement, ExpressionLike, FromItem, JoinClause, JoinCondition, get_source
from headrace.dsl.windows import WindowSpec


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT query; without outputs it selects all columns. A text is SQL; use `hr.col` to quote a name.

    Field, for internal use: `statement`, with its clauses sorted.
    """

    statement: DslStatement = field(default_factory=DslStatement)

    def select(self, *outputs: ExpressionLike) -> Select:
        """Add output columns: SQL texts or expressions."""
        return self._append(outputs=map(_to_sql, outputs))

    def from_(self, source: str | BuiltQuery, window: WindowSpec | None = None, *, alias: str | None = None) -> Select:
        """Add a source: a stream by its name, or another query, in a `window`; columns refer to it by `alias`, or by its name."""
        return self._append(from_items=[FromItem(get_source(source), window, alias)])

    def join(
        self,
        source: str | BuiltQuery,
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
        return self._append(joins=[JoinClause.create(FromItem(get_source(source), window, alias), on, how)])

    def explode(self, lists: SqlExpression, name: str) -> Select:
        """Unnest a list that a registered function returns: one row for each element, as column `name`."""
        return Select(self.statement.explode(lists, name))

    def where(self, *conditions: ExpressionLike) -> Select:
        """Add WHERE conditions, combined by AND."""
        return self._append(conditions=map(_to_sql, conditions))

    def group_by(self, *keys: ExpressionLike) -> Select:
        """Add GROUP BY keys."""
        return self._append(keys=map(_to_sql, keys))

    def having(self, *conditions: ExpressionLike) -> Select:
        """Add HAVING conditions, combined by AND."""
        return self._append(group_conditions=map(_to_sql, conditions))

    @property
    def sql(self) -> str:
        """The SQL text; apart from the order of outputs and joins, it does not depend on the order of calls."""
        return self.statement.sql

    def _append(self, **clauses: Iterable[str | FromItem | JoinClause]) -> Select:
        return Select(self.statement.append(**clauses).sort_clauses())


def select(*outputs: ExpressionLike) -> Select:
    """Return a query with these outputs, as SQL texts or expressions; without any, all columns."""
    return Select().select(*outputs)


def from_(source: str | BuiltQuery, window: WindowSpec | None = None, *, alias: str | None = None) -> Select:
    """Return a query that reads a stream, or another query, in a `window`; columns refer to it by `alias`, or by its name."""
    return Select().from_(source, window, alias=alias)


def _to_sql(value: ExpressionLike) -> str:
    return value if isinstance(value, str) else literal(value).sql
