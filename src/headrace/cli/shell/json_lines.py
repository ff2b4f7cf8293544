"""Rendering of outcomes as JSON, one object per line, each with its `kind`.

Kinds: added, replaced, removed (a query), query, stream, plan, meaning, columns, row, ended, usage; and error, which also goes
to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

import pyarrow as pa

from headrace.cli.shell.meaning import QuerySharing
from headrace.cli.shell.outcomes import (
    ColumnList,
    FollowedQuery,
    FollowEnded,
    Outcome,
    PlanText,
    QueryChanged,
    QueryList,
    ResultRows,
    StreamList,
    UsageList,
)
from headrace.cli.shell.statements import USAGES
from headrace.cli.shell.tail import read_tables
from headrace.cli.shell.target import StreamSummary, query_document
from headrace.connectors.text import to_json_value
from headrace.errors import HeadraceError


class JsonLinesView:
    """Writes outcomes to a file, and flushes it after each."""

    def __init__(self, out: TextIO) -> None:
        """Take the file to write to."""
        self._out = out

    def show(self, outcome: Outcome) -> None:
        """See `OutcomeView`."""
        if isinstance(outcome, FollowedQuery):
            for table in read_tables(outcome):
                self._write_documents(_row_documents(outcome.query.name, table))
        else:
            self._write_documents(_make_documents(outcome))

    def show_error(self, error: HeadraceError, line: int | None) -> None:
        """Write an error and its line in the script."""
        parts = {name: getattr(error, name) for name in ("place", "detail", "hint") if getattr(error, name)}
        self._write_documents(iter([{"kind": "error", "line": line, "error": error.message, **parts}]))

    def _write_documents(self, documents: Iterator[dict[str, Any]]) -> None:
        for document in documents:
            self._out.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
        self._out.flush()


def _make_documents(outcome: Outcome) -> Iterator[dict[str, Any]]:
    match outcome:
        case QueryChanged():
            yield {"kind": outcome.verb, **query_document(outcome.query)}
        case QueryList():
            yield from ({"kind": "query", **query_document(query)} for query in outcome.queries)
        case StreamList():
            yield from ({"kind": "stream", **_stream_document(stream)} for stream in outcome.streams)
        case PlanText():
            yield {"kind": "plan", "text": outcome.text}
        case QuerySharing():
            uses = [{"what": use.operator, "shared_with": list(use.shared_with)} for use in outcome.uses]
            yield {"kind": "meaning", "name": outcome.name or None, "columns": dict(outcome.columns), "uses": uses}
        case ColumnList():
            yield {"kind": "columns", "of": outcome.kind, "name": outcome.name, "columns": dict(outcome.columns)}
        case ResultRows():
            yield from _row_documents(outcome.name, outcome.rows)
        case FollowEnded():
            yield {"kind": "ended", "query": outcome.query.name, "status": outcome.query.status}
        case UsageList():
            yield from ({"kind": "usage", "statement": text, "about": about} for text, about in USAGES)
        case FollowedQuery():
            raise AssertionError("a followed query is written by `show`")


def _row_documents(name: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    for row in table.to_pylist():
        yield {"kind": "row", "query": name, "row": {column: to_json_value(value) for column, value in row.items()}}


def _stream_document(info: StreamSummary) -> dict[str, Any]:
    return {
        "name": info.name,
        "source": info.source,
        "rows": info.rows,
        "lag_seconds": info.lag_seconds,
        "time": info.stream.time,
        "delay_seconds": info.stream.delay / 1e6,
        "columns": info.columns,
    }
