"""Text and HTML of sessions and queries, as `repr` and notebooks show them; for local and remote ones alike.

All HTML is escaped and bounded: the newest rows and queries only, and long texts shortened.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.connectors.row_text import to_json_value
from headrace.model.time import EPOCH, MIN_TIME

PREVIEW_ROWS = 20  # of a table
_LINE_CHARACTERS = 80
_CELL_CHARACTERS = 200
_SQL_CHARACTERS = 2_000
_TEXT_STYLE = "text-align:left;vertical-align:top;padding:0.1em 0.7em"
_NUMBER_STYLE = "text-align:right;vertical-align:top;padding:0.1em 0.7em"


@dataclass(frozen=True, slots=True)
class QueryDisplay:
    """What is shown of a query; `state` is its status and, if it cannot continue, why."""

    name: str
    state: str
    emitted: int
    sql: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class StreamDisplay:
    """What is shown of a stream; `latest` is the maximum event time so far, or an empty text."""

    name: str
    rows: int
    latest: str
    source: str
    status: str = "ok"

    @property
    def title(self) -> str:
        """The name, with the status unless all is well."""
        return self.name if self.status == "ok" else f"{self.name} ({self.status})"


@dataclass(frozen=True, slots=True)
class SessionDisplay:
    """What is shown of a session; `state` describes it in a few words."""

    state: str
    streams: Sequence[StreamDisplay] = ()
    queries: Sequence[QueryDisplay] = ()


def display_stream(name: str, report: Mapping[str, Any]) -> StreamDisplay:
    """Return what is shown of a stream, given its report of a session."""
    latest = "" if report["max_event_time"] == MIN_TIME else format_event_time(report["max_event_time"])
    kind = report["source"].get("kind", report["source"].get("source", ""))
    return StreamDisplay(name, report["rows"], latest, str(kind), report["status"])


def format_event_time(microseconds: int) -> str:
    """Return an event time as ISO-8601 text, or as a number if no calendar has it."""
    try:
        return str(to_json_value(EPOCH + timedelta(microseconds=microseconds)))
    except OverflowError:
        return f"{microseconds} µs"


def format_query(kind: str, query: QueryDisplay) -> str:
    """Return one line: the name, the state, the number of rows, and the beginning of the SQL text."""
    return f"<{kind} {query.name} ({query.state}, {_count(query.emitted, 'row')}): {_shorten_line(query.sql)}>"


def format_session(kind: str, session: SessionDisplay) -> str:
    """Return one line: the state, the names of the streams, and the number of queries."""
    names = ", ".join(stream.name for stream in session.streams[:PREVIEW_ROWS])
    more = ", …" if len(session.streams) > PREVIEW_ROWS else ""
    streams = f"{_count(len(session.streams), 'stream')}{f' ({names}{more})' if names else ''}"
    return f"<{kind} ({session.state}): {streams}, {_count_queries(session.queries)}>"


def render_query(query: QueryDisplay, rows: pa.Table | None, note: str = "") -> str:
    """Return a query as HTML: its state, its SQL text, and the last of `rows`; `note` explains missing rows."""
    parts = [
        f"<div><b>{_escape(query.name)}</b> ({_escape(query.state)}, {_count(query.emitted, 'row')})</div>",
        f'<pre style="margin:0.3em 0">{_escape(_shorten(query.sql, _SQL_CHARACTERS))}</pre>',
    ]
    if query.error:
        parts.append(f'<pre style="margin:0.3em 0;color:#c00">{_escape(_shorten(query.error, _SQL_CHARACTERS))}</pre>')
    if note:
        parts.append(f"<div><i>{_escape(note)}</i></div>")
    if rows is not None and rows.num_rows:
        parts.append(_render_rows(rows.slice(max(0, rows.num_rows - PREVIEW_ROWS))))
        if query.emitted > min(rows.num_rows, PREVIEW_ROWS):
            parts.append(f"<div><i>the last {min(rows.num_rows, PREVIEW_ROWS)} of {query.emitted:,} rows</i></div>")
    return f"<div>{''.join(parts)}</div>"


def render_session(title: str, session: SessionDisplay, note: str = "") -> str:
    """Return a session as HTML: its state, its streams, and its newest queries; `note` explains missing parts."""
    parts = [f"<div><b>{_escape(title)}</b> ({_escape(session.state)})</div>"]
    if note:
        parts.append(f"<div><i>{_escape(note)}</i></div>")
    streams, queries = session.streams[:PREVIEW_ROWS], session.queries[-PREVIEW_ROWS:]
    if streams:
        cells = [[stream.title, stream.source, f"{stream.rows:,}", stream.latest] for stream in streams]
        parts.append(_render_table(["stream", "source", "rows", "latest event time"], [False, False, True, False], cells))
        parts.append(_render_omission(len(session.streams) - len(streams), "stream"))
    if queries:
        cells = [[query.name, query.state, f"{query.emitted:,}", _shorten_line(query.sql)] for query in queries]
        parts.append(_render_table(["query", "status", "rows", "SQL"], [False, False, True, False], cells))
        parts.append(_render_omission(len(session.queries) - len(queries), "older query"))
    return f"<div>{''.join(parts)}</div>"


def _render_omission(count: int, noun: str) -> str:
    return f"<div><i>and {_count(count, noun)} more</i></div>" if count else ""


def _render_rows(rows: pa.Table) -> str:
    is_number = [pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in rows.schema.types]
    columns = [[to_json_value(value) for value in column.to_pylist()] for column in rows.columns]
    return _render_table(rows.column_names, is_number, list(zip(*columns, strict=True)))


def _render_table(names: Sequence[str], is_number: Sequence[bool], rows: Sequence[Sequence[Any]]) -> str:
    styles = [_NUMBER_STYLE if number else _TEXT_STYLE for number in is_number]
    header = "".join(f'<th style="{style}">{_escape(name)}</th>' for name, style in zip(names, styles, strict=True))
    lines = [
        "".join(f'<td style="{style}">{_render_cell(value)}</td>' for value, style in zip(row, styles, strict=True))
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table style="margin:0.3em 0"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>'


def _render_cell(value: Any) -> str:
    return '<span style="opacity:0.5">NULL</span>' if value is None else _escape(_shorten(str(value), _CELL_CHARACTERS))


def _count_queries(queries: Sequence[QueryDisplay]) -> str:
    states = list(dict.fromkeys(query.state for query in queries))
    counted = ", ".join(f"{sum(query.state == state for query in queries)} {state}" for state in states)
    return _count(len(queries), "query") + (f" ({counted})" if counted else "")


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _shorten_line(text: str) -> str:
    return _shorten(" ".join(text.split()), _LINE_CHARACTERS)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _escape(text: str) -> str:
    return html.escape(text)
