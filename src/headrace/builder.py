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

The other way to make queries of calls, `headrace.fluent`, says what happens to rows one step after the other; it makes these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from headrace.builder_expression import Expression, literal
from headrace.errors import SqlError
from headrace.model.duration import DurationError, parse_duration
from headrace.sql.quoting import identifier

Length = str | timedelta
Written = str | Expression
On = str | Expression | Sequence[str] | bool

_NAME = re.compile(r"\w+")
_HOW = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}


@dataclass(frozen=True, slots=True)
class Windowing:
    """A window to read a stream in: the name of the SQL function, and its lengths."""

    function: str
    lengths: tuple[Length, ...]

    def __post_init__(self) -> None:
        """Refuse what is not a length of time."""
        for length in self.lengths:
            _check_length(length)

    def around(self, source: str) -> str:
        """Return the window over something, as SQL."""
        return f"{self.function}({', '.join([source, *(literal(one).sql for one in self.lengths)])})"


def _check_length(length: Length) -> None:
    if isinstance(length, timedelta):
        return
    if not isinstance(length, str):
        raise SqlError(f"{length!r} is not the length of a window", hint="write '8 seconds', or give a timedelta")
    try:
        parse_duration(length)
    except DurationError as problem:
        raise SqlError(problem.message, detail=problem.detail, hint=problem.hint) from None


def tumble(size: Length) -> Windowing:
    """Return windows one after the other; lengths are texts such as '5 seconds', or timedeltas."""
    return Windowing("TUMBLE", (size,))


def hop(size: Length, slide: Length) -> Windowing:
    """Return windows of a size that begin every `slide`."""
    return Windowing("HOP", (size, slide))


def session_window(gap: Length) -> Windowing:
    """Return, for each key, windows that end when nothing came for longer than `gap`."""
    return Windowing("SESSION", (gap,))


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
class Partner:
    """Something that what stands before it is joined with: how, and ON which condition or USING which columns."""

    origin: Origin
    how: str
    on: str

    @property
    def sql(self) -> str:
        """Its text in FROM."""
        return f"{_HOW[self.how]} {self.origin.sql} {self.on}"


@dataclass(frozen=True, slots=True)
class Select:
    """A query: outputs (none: every column), what is read, what must hold of rows, keys, what must hold of groups.

    `partners` are joined one after the other with all that is read; `views` are lists of which each element is a row.

    Texts are SQL; names alone go by `hr.col`.
    """

    outputs: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    conditions: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    group_conditions: tuple[str, ...] = ()
    partners: tuple[Partner, ...] = ()
    views: tuple[str, ...] = ()

    def select(self, *outputs: Written) -> Select:
        """Give out these, too, after those before."""
        return replace(self, outputs=(*self.outputs, *map(_written, outputs)))

    def from_(self, source: str | Select, window: Windowing | None = None, *, alias: str | None = None) -> Select:
        """Read a stream or the rows of another query, too; a source without alias goes by its name."""
        return replace(self, origins=(*self.origins, Origin(source, window, alias)))

    def join(
        self, source: str | Select, window: Windowing | None = None, *, on: On, how: str = "inner", alias: str | None = None
    ) -> Select:
        """Join what is read so far with one more source, on a condition, or on columns that have one name on both sides.

        A name, or a list of names, stands for columns; any other text, or an expression, for a condition; True for any two rows.
        """
        if how not in _HOW:
            raise SqlError(f"unknown kind of join {how!r}", detail=f"kinds: {', '.join(_HOW)}")
        return replace(self, partners=(*self.partners, Partner(Origin(source, window, alias), how, _on(on))))

    def explode(self, lists: Expression, name: str) -> Select:
        """Read each row once for every element of a list that a registered function returns; the element goes by a name."""
        return replace(self, views=(*self.views, f"LATERAL VIEW explode({lists.sql}) AS {identifier(name)}"))

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
        clauses += [one.sql for one in self.partners]
        clauses += self.views
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


def _on(on: On) -> str:
    if isinstance(on, str) and not _NAME.fullmatch(on):
        return f"ON {_condition(on)}"
    if isinstance(on, Expression | bool):
        return f"ON {_condition(literal(on))}"
    names = [on] if isinstance(on, str) else list(on)
    if not names or not all(isinstance(name, str) for name in names):
        raise SqlError(f"{on!r} is nothing to join on", hint='name columns, on=["user_id"], or give a condition')
    return f"USING ({', '.join(map(identifier, names))})"
