"""Rendering of outcomes for people: tables on a terminal, aligned lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
from headrace.cli.shell.tail import is_numeric, read_tables, show_live
from headrace.cli.terminal import format_cell, format_seconds
from headrace.model.window import format_duration

_STATUS_STYLES = {"live": "green", "failed": "bold red", "removed": "dim"}
_MAX_NAMED_QUERIES = 6  # queries named in a line; the rest is counted
TERMINAL_ROWS = 20
"""Default number of results to show."""


class OutcomeView(Protocol):
    """Renders outcomes as they arrive."""

    def show(self, outcome: Outcome) -> None:
        """Show an outcome; for a followed query, return when following ends."""


@dataclass(frozen=True, slots=True)
class TextGrid:
    """A table before drawing: titles, the titles of right-aligned columns, rows; with `wraps_last` the last column wraps."""

    titles: tuple[str, ...]
    right_aligned: frozenset[str]
    rows: tuple[tuple[Text, ...], ...]
    wraps_last: bool = False


class ScreenView:
    """Renders outcomes on a terminal."""

    def __init__(self, console: Console) -> None:
        """Take a console on a terminal."""
        self._console = console

    def show(self, outcome: Outcome) -> None:
        """See `OutcomeView`."""
        if isinstance(outcome, FollowedQuery):
            show_live(outcome, self._console)
            return
        grid = make_grid(outcome)
        if grid is not None and grid.rows:
            self._console.print(_draw_grid(grid))
        for line in make_lines(outcome):
            self._console.print(line)


class PlainView:
    """Writes outcomes as plain lines, for scripts without --json."""

    def __init__(self, out: TextIO) -> None:
        """Take the file to write to."""
        self._out = out

    def show(self, outcome: Outcome) -> None:
        """See `OutcomeView`."""
        if isinstance(outcome, FollowedQuery):
            self._write_followed(outcome)
            return
        grid = make_grid(outcome)
        if grid is not None and grid.rows:
            self._write_lines(align_lines(grid, _column_widths(grid)))
        self._write_lines(line.plain for line in make_lines(outcome))

    def _write_followed(self, following: FollowedQuery) -> None:
        """Write rows below one heading as they arrive; columns widen when necessary."""
        widths: list[int] = []
        for table in read_tables(following):
            grid = _row_grid(table)
            first = not widths
            widths = [max(pair) for pair in zip(widths or [0] * len(grid.titles), _column_widths(grid), strict=True)]
            self._write_lines(align_lines(grid, widths)[0 if first else 2 :])

    def _write_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._out.write(f"{line}\n")
        self._out.flush()


def make_grid(outcome: Outcome) -> TextGrid | None:
    """Return the table of an outcome, if it has one."""
    match outcome:
        case QueryList():
            return _query_grid(outcome)
        case StreamList():
            return _stream_grid(outcome)
        case ColumnList():
            return TextGrid(("column", "type"), frozenset(), tuple((Text(name), Text(kind)) for name, kind in outcome.columns))
        case ResultRows():
            return _row_grid(outcome.rows)
        case UsageList():
            rows = tuple((Text(f"{text};", "cyan"), Text(about)) for text, about in USAGES)
            return TextGrid(("statement", "what it does"), frozenset(), rows, wraps_last=True)
        case _:
            return None


def make_lines(outcome: Outcome) -> list[Text]:
    """Return the lines of an outcome, which go below its table."""
    match outcome:
        case QueryChanged():
            return _change_lines(outcome)
        case QueryList(queries=()):
            return [Text("no queries: ADD SELECT … AS name; adds one", "dim")]
        case StreamList(streams=()):
            return [Text("no streams", "dim")]
        case QueryList():
            return [Text(f"{query.name}: {query.error}", "red") for query in outcome.queries if query.error]
        case PlanText():
            return [Text(outcome.text.rstrip("\n"))]
        case QuerySharing():
            return _sharing_lines(outcome)
        case ColumnList(sql=sql) if sql:
            return [Text(sql, "dim")]
        case ResultRows():
            return _row_count_lines(outcome)
        case FollowEnded(query=query) if query.status == "removed":
            return [Text(f"query '{query.name}' was removed", "yellow")]
        case _:
            return []


def _change_lines(outcome: QueryChanged) -> list[Text]:
    query = outcome.query
    notes = [Text(query.note, "yellow")] if query.note and outcome.verb != "removed" else []
    if outcome.is_temporary:
        message = f"runs as {query.name} until you stop watching" if outcome.verb == "added" else f"{query.name} was removed"
        return [Text(message, "dim"), *notes]
    text = Text.assemble((query.name, "bold cyan"), f" {outcome.verb}")
    if outcome.verb == "removed":
        return [text]
    duration = f" after {format_seconds(query.deployment_seconds)}" if query.deployment_seconds is not None else ""
    text.append(", ").append(f"{query.status}{duration}", _STATUS_STYLES.get(query.status, "yellow"))
    return [text.append(f": {query.error}", "red") if query.error else text, *notes]


def _sharing_lines(meaning: QuerySharing) -> list[Text]:
    would = "" if meaning.name else "would "
    verb = {"": "gives", "would ": "give"}[would]
    columns = ", ".join(f"{name} {kind}" for name, kind in meaning.columns.items())
    lines = [Text.assemble((f"{would}{verb} ", "dim"), columns)]
    if not meaning.uses:
        lines.append(Text("sharing is unknown here; EXPLAIN; shows the plan of the session", "dim"))
    for use in meaning.uses:
        users = ", ".join(use.shared_with[:_MAX_NAMED_QUERIES]) + (
            f" and {len(use.shared_with) - _MAX_NAMED_QUERIES} more" if len(use.shared_with) > _MAX_NAMED_QUERIES else ""
        )
        shared = Text(f"shared with {users}", "green") if use.shared_with else Text("not shared", "yellow")
        lines.append(Text.assemble((f"{would}use{'' if would else 's'} ", "dim"), use.operator, ", ", shared))
    return lines


def _row_count_lines(outcome: ResultRows) -> list[Text]:
    shown, emitted = outcome.rows.num_rows, outcome.emitted
    if not shown:
        return [Text(f"{outcome.name} has emitted nothing yet", "dim")]
    return [Text(f"{shown:,} rows" if shown >= emitted else f"the last {shown:,} of {emitted:,} rows", "dim")]


def _query_grid(outcome: QueryList) -> TextGrid:
    rows = tuple(
        (
            Text(query.name, "cyan"),
            Text(query.status, _STATUS_STYLES.get(query.status, "yellow")),
            Text(format_seconds(query.deployment_seconds)),
            Text(f"{query.emitted:,}"),
            Text(f"{sum(query.late.values()):,}"),
            Text(" ".join(query.sql.split())),
        )
        for query in outcome.queries
    )
    return TextGrid(
        ("query", "status", "live in", "rows", "late", "text"), frozenset({"live in", "rows", "late"}), rows, wraps_last=True
    )


def _stream_grid(outcome: StreamList) -> TextGrid:
    rows = tuple(
        (
            Text(stream.name, "cyan"),
            Text(stream.source),
            Text(f"{stream.rows:,}"),
            Text(format_seconds(stream.lag_seconds)),
            Text(format_duration(stream.stream.delay)),
            Text(stream.stream.time),
            Text(", ".join(f"{name} {kind}" for name, kind in stream.columns.items())),
        )
        for stream in outcome.streams
    )
    titles = ("stream", "source", "rows", "behind", "watermark", "time", "columns")
    return TextGrid(titles, frozenset({"rows", "behind", "watermark"}), rows, wraps_last=True)


def _row_grid(table: pa.Table) -> TextGrid:
    right = frozenset(field.name for field in table.schema if is_numeric(field.type))
    columns = [[format_cell(value) for value in column.to_pylist()] for column in table.columns]
    return TextGrid(tuple(table.column_names), right, tuple(zip(*columns, strict=True)))


def _draw_grid(grid: TextGrid) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in grid.titles:
        justify: Any = "right" if title in grid.right_aligned else "left"
        wraps = grid.wraps_last and title == grid.titles[-1]
        table.add_column(Text(title), justify=justify, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
    for row in grid.rows:
        table.add_row(*row)
    return table


def _column_widths(grid: TextGrid) -> list[int]:
    return [max([len(title), *(len(row[i]) for row in grid.rows)]) for i, title in enumerate(grid.titles)]


def align_lines(grid: TextGrid, widths: Sequence[int]) -> list[str]:
    """Return a heading, a separator and a line for each row, without truncation."""
    lines = []
    for texts in (grid.titles, ["-" * width for width in widths], *([text.plain for text in row] for row in grid.rows)):
        flat_texts = (" ".join(text.split("\n")) for text in texts)
        cells = (
            text.rjust(width) if title in grid.right_aligned else text.ljust(width)
            for title, text, width in zip(grid.titles, flat_texts, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return lines
