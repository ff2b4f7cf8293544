"""Rendering of outcomes as JSON, one object per line, each with its `kind`.

Kinds: added, replaced, removed (a query), query, stream, plan, meaning, columns, row, ended, usage; and error, which also goes
to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

import pyarrow as pa

from headrace.cli.shell.meaning import Meaning
from headrace.cli.shell.outcomes import Changed, Columns, Ended, Following, Outcome, Plan, Queries, Rows, Streams, Usage
from headrace.cli.shell.statements import USAGES
from headrace.cli.shell.tail import pieces
from headrace.cli.shell.target import StreamInfo, described
from headrace.connectors.text import to_json_value
from headrace.errors import HeadraceError


class JsonLines:
    """Writes outcomes to a file, and flushes it after each."""

    def __init__(self, out: TextIO) -> None:
        """Take the file to write to."""
        self._out = out

    def show(self, outcome: Outcome) -> None:
        """See `OutcomeView`."""
        if isinstance(outcome, Following):
            for table in pieces(outcome):
                self._write(_rows(outcome.query.name, table))
        else:
            self._write(_documents(outcome))

    def error(self, error: HeadraceError, line: int | None) -> None:
        """Write an error and its line in the script."""
        parts = {name: getattr(error, name) for name in ("place", "detail", "hint") if getattr(error, name)}
        self._write(iter([{"kind": "error", "line": line, "error": error.message, **parts}]))

    def _write(self, documents: Iterator[dict[str, Any]]) -> None:
        for document in documents:
            self._out.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
        self._out.flush()


def _documents(outcome: Outcome) -> Iterator[dict[str, Any]]:
    match outcome:
        case Changed():
            yield {"kind": outcome.verb, **described(outcome.query)}
        case Queries():
            yield from ({"kind": "query", **described(query)} for query in outcome.queries)
        case Streams():
            yield from ({"kind": "stream", **_stream(stream)} for stream in outcome.streams)
        case Plan():
            yield {"kind": "plan", "text": outcome.text}
        case Meaning():
            uses = [{"what": use.what, "shared_with": list(use.others)} for use in outcome.uses]
            yield {"kind": "meaning", "name": outcome.name or None, "columns": dict(outcome.columns), "uses": uses}
        case Columns():
            yield {"kind": "columns", "of": outcome.kind, "name": outcome.name, "columns": dict(outcome.columns)}
        case Rows():
            yield from _rows(outcome.name, outcome.rows)
        case Ended():
            yield {"kind": "ended", "query": outcome.query.name, "status": outcome.query.status}
        case Usage():
            yield from ({"kind": "usage", "statement": text, "about": about} for text, about in USAGES)
        case Following():
            raise AssertionError("a followed query is written by `show`")


def _rows(name: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    for row in table.to_pylist():
        yield {"kind": "row", "query": name, "row": {column: to_json_value(value) for column, value in row.items()}}


def _stream(info: StreamInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "source": info.source,
        "rows": info.rows,
        "lag_seconds": info.lag_seconds,
        "time": info.stream.time,
        "delay_seconds": info.stream.delay / 1e6,
        "columns": info.columns,
    }
