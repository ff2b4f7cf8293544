"""The output of `headrace run`: a live table on a terminal, status lines for logs, a summary at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.meter import SessionMeter
from headrace.cli.resume import KnownQuery
from headrace.cli.terminal import format_count, format_seconds, result_table
from headrace.connectors import MemorySink
from headrace.session import Session

_STATUS_LINE_SECONDS = 5.0
_MAX_SHOWN_ROWS = 20
_MAX_SHOWN_QUERIES = 25


class StatusLog:
    """Prints a status line every few seconds if there were new micro-batches, for logs."""

    def __init__(self, session: Session, meter: SessionMeter, console: Console) -> None:
        """Take the session, its meter and the console."""
        self._session, self._meter, self._console = session, meter, console
        self._due, self._batches = 0.0, 0

    def __call__(self) -> None:
        """Print a line if it is due and there were new micro-batches."""
        meter = self._meter
        if meter.elapsed_seconds >= self._due and meter.batches > self._batches:
            self._console.print(format_status_line(self._session, meter), soft_wrap=True)
            self._due, self._batches = meter.elapsed_seconds + _STATUS_LINE_SECONDS, meter.batches


def format_status_line(session: Session, meter: SessionMeter) -> str:
    """Return the statistics of a running session in one line."""
    live = sum(query.status == "live" for query in session.queries())
    return (
        f"batch {session.last_batch} · {format_count(meter.rows_per_second)} rows/s · {format_seconds(meter.median_batch_seconds)} a batch · "
        f"{live} live queries · {meter.rows:,} rows read · {meter.emitted:,} results"
    )


def render_live(session: Session, queries: Mapping[str, KnownQuery], meter: SessionMeter) -> RenderableType:
    """Return the live table of a running session."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("query", "status", "results", "late rows", "goes to"):
        table.add_column(
            title, justify="right" if title in {"results", "late rows"} else "left", overflow="ellipsis", no_wrap=True
        )
    for name, query in list(queries.items())[:_MAX_SHOWN_QUERIES]:
        destination = query.path or query.sink.kind
        table.add_row(name, _color_status(query.status), f"{query.row_count:,}", f"{sum(query.late.values()):,}", destination)
    hidden = len(queries) - _MAX_SHOWN_QUERIES
    footer = [Text(f"… and {hidden} more queries", "dim")] if hidden > 0 else []
    return Group(
        Text(format_status_line(session, meter), "bold"), table, *footer, Text("Ctrl-C stops; the same command resumes", "dim")
    )


def _color_status(status: str) -> Text:
    return Text(status, {"live": "green", "failed": "bold red"}.get(status, "yellow"))


def print_summary(
    queries: Mapping[str, KnownQuery], outcome: Mapping[str, Any], duration: float, console: Console, *, results: bool
) -> None:
    """Print the summary of a run; with `results`, first the rows of queries with a memory sink."""
    if results:
        for name, query in queries.items():
            if isinstance(query.sink, MemorySink) and query.row_count:
                console.print(result_table(f"{name} · {query.row_count:,} rows", query.handle.results(), _MAX_SHOWN_ROWS))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("query", "status", "rows", "late rows", "went to"):
        table.add_column(title, justify="right" if title in {"rows", "late rows"} else "left", overflow="fold")
    for name, query in queries.items():
        destination = Text(query.path or query.sink.kind)
        if query.error:
            destination.append(f"\n{query.error}", "red")
        table.add_row(
            Text(name), _color_status(query.status), f"{query.row_count:,}", f"{sum(query.late.values()):,}", destination
        )
    console.print(table)
    for name, stream in outcome["streams"].items():
        line = f"stream {name}: {stream['rows']:,} rows, {stream['untimed']:,} without event time, "
        line += f"{len(stream['skipped'])} files skipped"
        console.print(line, soft_wrap=True)
        for path, reason in stream["skipped"].items():
            console.print(Text(f"  skipped {path}: {reason}", "yellow"), soft_wrap=True)
    console.print(f"{outcome['batches']} micro-batches, {len(queries)} queries, one pipeline, {duration:.1f} s")
