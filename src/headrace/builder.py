"""Queries without writing SQL: say in any order what is read, what must hold and what comes out.

    query = (
        hr.select("older.user_id", hr.col("newer.text").alias("again"))
        .from_("tweets", hr.sliding("1 minute"), alias="newer")
        .from_("tweets", hr.sliding("1 hour"), alias="older")
        .where(hr.col("older.user_id") == hr.col("newer.user_id"))
    )
    session.add(query)

A query is a value: each call gives a new one, and the order of calls leaves no trace but in the order of outputs. It may be
the source of others. It makes SQL text, and that is checked as any other: errors show their place in `query.sql`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from headrace.builder_expression import Expression, literal
from headrace.sql.quoting import identifier

Length = str | timedelta
Written = str | Expression


@dataclass(frozen=True, slots=True)
class Windowing:
    """A window to read a stream in: the name of the SQL function, and its lengths."""

    function: str
    lengths: tuple[Length, ...]

    def around(self, source: str) -> str:
        """Return the window over something, as SQL."""
        return f"{self.function}({', '.join([source, *(literal(one).sql for one in self.lengths)])})"


def tumble(size: Length) -> Windowing:
    """Return windows one after the other; lengths are texts such as '5 seconds', or timedeltas."""
    return Windowing("TUMBLE", (size,))


def hop(size: Length, slide: Length) -> Windowing:
    """Return windows of a size that begin every `slide`."""
    return Windowing("HOP", (size, slide))


def sliding(range: Length, lateness: Length | None = None) -> Windowing:  # noqa: A002  SQL calls it so
    """Return, for joins, the window of a row: `range` from its event time on; rows later than `lateness` are dropped."""
    return Windowing("SLIDING", (range,) if lateness is None else (range, lateness))


@dataclass(frozen=True, slots=True)
class Origin:
    """Something to read: a stream by its name, or another query; in a window, under an alias."""

    of: str | Select
    window: Windowing | None = None
    alias: str | None = None

    @property
    def sql(self) -> str:
        """Its text in FROM."""
        source = identifier(self.of) if isinstance(self.of, str) else f"({self.of.sql})"
        windowed = source if self.window is None else self.window.around(source)
        return windowed if self.alias is None else f"{windowed} AS {identifier(self.alias)}"


@dataclass(frozen=True, slots=True)
class Select:
    """A query: outputs (none: every column), what is read, what must hold of rows, keys, what must hold of groups.

    Texts are SQL; names alone go by `hr.col`.
    """

    outputs: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    conditions: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    group_conditions: tuple[str, ...] = ()

    def select(self, *outputs: Written) -> Select:
        """Give out these, too, after those before."""
        return replace(self, outputs=(*self.outputs, *map(_written, outputs)))

    def from_(self, source: str | Select, window: Windowing | None = None, *, alias: str | None = None) -> Select:
        """Read a stream or the rows of another query, too; a source without alias goes by its name."""
        return replace(self, origins=(*self.origins, Origin(source, window, alias)))

    def where(self, *conditions: Written) -> Select:
        """Keep only rows, or joined rows, for which these hold as well."""
        return replace(self, conditions=(*self.conditions, *map(_condition, conditions)))

    def group_by(self, *keys: Written) -> Select:
        """Aggregate by these, too."""
        return replace(self, keys=(*self.keys, *map(_written, keys)))

    def having(self, *conditions: Written) -> Select:
        """Keep only groups for which these hold as well."""
        return replace(self, group_conditions=(*self.group_conditions, *map(_condition, conditions)))

    @property
    def sql(self) -> str:
        """The text; the same whatever the order of calls, but that of outputs."""
        clauses = [f"SELECT {', '.join(self.outputs) or '*'}"]
        if self.origins:
            clauses.append(f"FROM {', '.join(sorted(one.sql for one in self.origins))}")
        if self.conditions:
            clauses.append(f"WHERE {' AND '.join(sorted(self.conditions))}")
        if self.keys:
            clauses.append(f"GROUP BY {', '.join(sorted(self.keys))}")
        if self.group_conditions:
            clauses.append(f"HAVING {' AND '.join(sorted(self.group_conditions))}")
        return "\n".join(clauses)


def select(*outputs: Written) -> Select:
    """Return a query with these outputs, as SQL or expressions; without any, every column is one."""
    return Select().select(*outputs)


def from_(source: str | Select, window: Windowing | None = None, *, alias: str | None = None) -> Select:
    """Return a query that reads a stream or the rows of another query."""
    return Select().from_(source, window, alias=alias)


def _written(one: Written) -> str:
    return one if isinstance(one, str) else literal(one).sql


def _condition(condition: Written) -> str:
    return f"({_written(condition)})"
