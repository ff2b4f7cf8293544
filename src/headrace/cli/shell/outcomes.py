"""The outcomes of statements as values, which views render."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from headrace.cli.shell.meaning import Meaning
from headrace.cli.shell.statements import End
from headrace.cli.shell.target import QueryInfo, StreamInfo


@dataclass(frozen=True, slots=True)
class Changed:
    """A query was added, replaced or removed (`verb`); `is_temporary` if it is the temporary query of a SELECT."""

    verb: str
    query: QueryInfo
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Queries:
    """All queries."""

    queries: tuple[QueryInfo, ...]


@dataclass(frozen=True, slots=True)
class Streams:
    """All streams."""

    streams: tuple[StreamInfo, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The shared plan as text."""

    text: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a stream or query (`kind`)."""

    kind: str
    name: str
    columns: tuple[tuple[str, str], ...]
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """The last rows of a query, and the total number it has emitted."""

    name: str
    rows: pa.Table
    emitted: int


@dataclass(frozen=True, slots=True)
class Following:
    """A query to follow until `stop`; `open(back)` calls the target's `follow`.

    With `from_beginning` earlier rows count as results; otherwise a view may show them, but does not count them.
    """

    query: QueryInfo
    end: End
    from_beginning: bool
    open: Callable[[int | None], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Ended:
    """Following a query has ended; `query` is its current state."""

    query: QueryInfo


@dataclass(frozen=True, slots=True)
class Usage:
    """The list of all statements."""


Outcome: TypeAlias = Changed | Queries | Streams | Plan | Meaning | Columns | Rows | Following | Ended | Usage
