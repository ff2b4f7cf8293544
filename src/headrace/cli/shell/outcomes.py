"""What comes of statements, as values; `show` draws them, `json_lines` writes them down."""

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
    """A query was added, replaced or removed (`verb`); `passing` if it is there only to be watched."""

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
    """What all queries share, as text."""

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
    """The last rows of a query, and how many it had emitted in all."""

    name: str
    rows: pa.Table
    emitted: int


@dataclass(frozen=True, slots=True)
class Following:
    """A query to be followed until `end`: `open(back)` is the target's `follow`.

    Whoever shows it takes what there was before if `from_beginning`; otherwise that is for the eye only, and not counted.
    """

    query: QueryInfo
    end: End
    from_beginning: bool
    open: Callable[[int | None], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Ended:
    """Following a query ended; the query, as it is now."""

    query: QueryInfo


@dataclass(frozen=True, slots=True)
class Usage:
    """What can be said."""


Outcome: TypeAlias = Changed | Queries | Streams | Plan | Meaning | Columns | Rows | Following | Ended | Usage
