"""The statements of the shell as values.

`USAGES` lists the whole language, as HELP shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Sql:
    """The text of a query, and the line and column in its statement where it starts, counted from 1."""

    text: str
    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """When to stop following a query: after a number of rows or seconds, whichever is first; None is no limit."""

    rows: int | None = None
    seconds: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is no limit."""
        return self.rows is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class Add:
    """Add a query; without a name one is generated. `is_name_at_end`: the name was written last, as in `ADD … AS name`."""

    sql: Sql
    name: str | None = None
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace a query."""

    name: str
    sql: Sql
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove queries, one after the other."""

    names: tuple[str, ...]


class Shown(StrEnum):
    """What SHOW can list."""

    queries = "QUERIES"
    streams = "STREAMS"
    plan = "PLAN"


@dataclass(frozen=True, slots=True)
class Show:
    """List queries or streams, or show the plan."""

    what: Shown


@dataclass(frozen=True, slots=True)
class Explain:
    """Explain what is shared: by all queries (None), by a query (its name), or by a query that is not added (its text)."""

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
    """Show the last `rows` rows that a query emitted."""

    name: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """Run a temporary query: add it, follow it from its beginning, and remove it afterwards."""

    sql: Sql
    end: End = End()


@dataclass(frozen=True, slots=True)
class Help:
    """List all statements."""


@dataclass(frozen=True, slots=True)
class Quit:
    """Quit the shell."""


Statement: TypeAlias = Add | Replace | Remove | Show | Explain | Describe | Tail | Results | Select | Help | Quit

USAGES: tuple[tuple[str, str], ...] = (
    ("SELECT … [LIMIT n] [FOR 5 SECONDS]", "run a query while you watch it; it is removed when you stop"),
    ("ADD SELECT … AS name", "add a query that stays; ADD name AS SELECT … is the same"),
    ("REPLACE name AS SELECT …", "replace a query"),
    ("REMOVE name [, name …]", "remove queries; their results stay"),
    ("TAIL name [FROM BEGINNING] [LIMIT n] [FOR 5 SECONDS]", "follow the results of a query"),
    ("RESULTS name [LIMIT n]", "show the last results of a query"),
    ("SHOW QUERIES | STREAMS | PLAN", "list queries or streams, or show the shared plan"),
    ("EXPLAIN [name | SELECT …]", "show what all queries share, what a query shares, or what it would share"),
    ("DESCRIBE name", "show the columns of a stream or a query"),
    ("HELP, QUIT", "show this list; quit"),
)
