"""The statements of the shell as values.

`USAGES` lists the whole language, as HELP shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SqlText:
    """The text of a query, and the line and column in its statement where it starts, counted from 1."""

    text: str
    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class StopCondition:
    """When to stop following a query: after a number of rows or seconds, whichever is first; None is no limit."""

    rows: int | None = None
    seconds: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is no limit."""
        return self.rows is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class AddStatement:
    """Add a query; without a name one is generated. `is_name_at_end`: the name was written last, as in `ADD … AS name`."""

    sql: SqlText
    name: str | None = None
    is_name_at_end: bool = False


@dataclass(frozen=True, slots=True)
class ReplaceStatement:
    """Replace a query."""

    name: str
    sql: SqlText
    is_name_at_end: bool = False


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    """Remove queries, one after the other."""

    names: tuple[str, ...]


class ShowKind(StrEnum):
    """What SHOW can list."""

    queries = "QUERIES"
    streams = "STREAMS"
    plan = "PLAN"


@dataclass(frozen=True, slots=True)
class ShowStatement:
    """List queries or streams, or show the plan."""

    kind: ShowKind


@dataclass(frozen=True, slots=True)
class ExplainStatement:
    """Explain what is shared: by all queries (None), by a query (its name), or by a query that is not added (its text)."""

    subject: SqlText | str | None = None


@dataclass(frozen=True, slots=True)
class DescribeStatement:
    """Show the columns of a stream or a query."""

    name: str


@dataclass(frozen=True, slots=True)
class TailStatement:
    """Follow the results of a query, from now on or from the beginning."""

    name: str
    stop: StopCondition = StopCondition()
    from_beginning: bool = False


@dataclass(frozen=True, slots=True)
class ResultsStatement:
    """Show the last `rows` rows that a query emitted."""

    name: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """Run a temporary query: add it, follow it from its beginning, and remove it afterwards."""

    sql: SqlText
    stop: StopCondition = StopCondition()


@dataclass(frozen=True, slots=True)
class HelpStatement:
    """List all statements."""


@dataclass(frozen=True, slots=True)
class QuitStatement:
    """Quit the shell."""


Statement: TypeAlias = (
    AddStatement
    | ReplaceStatement
    | RemoveStatement
    | ShowStatement
    | ExplainStatement
    | DescribeStatement
    | TailStatement
    | ResultsStatement
    | SelectStatement
    | HelpStatement
    | QuitStatement
)

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
