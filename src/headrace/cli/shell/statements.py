"""What can be said to the shell, as values; `parse` makes them of text.

`USAGES` is the whole language, as HELP shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Sql:
    """A query's text, and where in its statement it begins, counted from 1."""

    text: str
    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """When following a query ends: after so many rows or seconds, whatever comes first; None is never."""

    rows: int | None = None
    seconds: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether it goes on for as long as the query does."""
        return self.rows is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class Add:
    """Add a query; without a name one is chosen. `at_end`: the name was written behind the query, as in `ADD … AS name`."""

    sql: Sql
    name: str | None = None
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Put another query in the place of one."""

    name: str
    sql: Sql
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove queries, one after the other."""

    names: tuple[str, ...]


class Shown(StrEnum):
    """What there is to be shown."""

    queries = "QUERIES"
    streams = "STREAMS"
    plan = "PLAN"


@dataclass(frozen=True, slots=True)
class Show:
    """Show all of a kind."""

    what: Shown


@dataclass(frozen=True, slots=True)
class Explain:
    """Say what is shared: by all queries (None), by one that is there (its name), or by one that might be added."""

    of: Sql | str | None = None


@dataclass(frozen=True, slots=True)
class Describe:
    """Show the columns of a stream or a query."""

    name: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Follow the results of a query, from now on or from the beginning."""

    name: str
    end: End = End()
    from_beginning: bool = False


@dataclass(frozen=True, slots=True)
class Results:
    """Show what a query has emitted; the last `rows` of it."""

    name: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """A query by itself: it is added, followed from its beginning, and removed when that ends."""

    sql: Sql
    end: End = End()


@dataclass(frozen=True, slots=True)
class Help:
    """Say what can be said."""


@dataclass(frozen=True, slots=True)
class Quit:
    """Leave."""


Statement: TypeAlias = Add | Replace | Remove | Show | Explain | Describe | Tail | Results | Select | Help | Quit

USAGES: tuple[tuple[str, str], ...] = (
    ("SELECT … [LIMIT n] [FOR 5 SECONDS]", "run a query while you watch; it is removed when you stop"),
    ("ADD SELECT … AS name", "add a query that stays; ADD name AS SELECT … is the same"),
    ("REPLACE name AS SELECT …", "put another query in its place"),
    ("REMOVE name [, name …]", "remove queries; what they emitted stays"),
    ("TAIL name [FROM BEGINNING] [LIMIT n] [FOR 5 SECONDS]", "follow what a query emits"),
    ("RESULTS name [LIMIT n]", "show the last rows that a query emitted"),
    ("SHOW QUERIES | STREAMS | PLAN", "what there is, and what it shares"),
    ("EXPLAIN [name | SELECT …]", "what all queries share, or one, or what one would share"),
    ("DESCRIBE name", "the columns of a stream or a query"),
    ("HELP, QUIT", "this list; leave"),
)
