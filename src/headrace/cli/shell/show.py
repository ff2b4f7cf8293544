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

from headrace.cli.shell.meaning import Meaning
from headrace.cli.shell.outcomes import Changed, Columns, Ended, Following, Outcome, Plan, Queries, Rows, Streams, Usage
from headrace.cli.shell.statements import USAGES
from headrace.cli.shell.tail import is_number, live, pieces
from headrace.cli.terminal import cell, seconds
from headrace.model.window import format_duration

_STYLES = {"live": "green", "failed": "bold red", "removed": "dim"}
_NAMED = 6  # queries named in a line; the rest is counted
TERMINAL_ROWS = 20
"""Default number of results to show."""


class View(Protocol):
    """Renders outcomes as they arrive."""

    def show(self, outcome: Outcome) -> None:
        """Show an outcome; for a followed query, return when following ends."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table before drawing: titles, the titles of right-aligned columns, rows; with `wraps_last` the last column wraps."""

    titles: tuple[str, ...]
    right: frozenset[str]
    rows: tuple[tuple[Text, ...], ...]
    last: bool = False


class Screen:
    """Renders outcomes on a terminal."""

    def __init__(self, console: Console) -> None:
        """Take a console on a terminal."""
        self._console = console

    def show(self, outcome: Outcome) -> None:
        """See `OutcomeView`."""
        if isinstance(outcome, Following):
            live(outcome, self._console)
            return
        grid = grid_of(outcome)
        if grid is not None and grid.rows:
            self._console.print(_drawn(grid))
        for line in lines_of(outcome):
            self._console.print(line)


class Plain:
    """Writes outcomes as plain lines, for scripts without --json."""

    def __init__(self, out: TextIO) -> None:
        """Take the file to write to."""
        self._out = out

    def show(self, outcome: Outcome) -> None:
        """See `OutcomeView`."""
        if isinstance(outcome, Following):
            self._follow(outcome)
            return
        grid = grid_of(outcome)
        if grid is not None and grid.rows:
            self._write(aligned(grid, _widths(grid)))
        self._write(line.plain for line in lines_of(outcome))

    def _follow(self, following: Following) -> None:
        """Write rows below one heading as they arrive; columns widen when necessary."""
        widths: list[int] = []
        for table in pieces(following):
            grid = _grid_of_rows(table)
            first = not widths
            widths = [max(pair) for pair in zip(widths or [0] * len(grid.titles), _widths(grid), strict=True)]
            self._write(aligned(grid, widths)[0 if first else 2 :])

    def _write(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._out.write(f"{line}\n")
        self._out.flush()


def grid_of(outcome: Outcome) -> Grid | None:
    """Return the table of an outcome, if it has one."""
    match outcome:
        case Queries():
            return _grid_of_queries(outcome)
        case Streams():
            return _grid_of_streams(outcome)
        case Columns():
            return Grid(("column", "type"), frozenset(), tuple((Text(name), Text(kind)) for name, kind in outcome.columns))
        case Rows():
            return _grid_of_rows(outcome.rows)
        case Usage():
            rows = tuple((Text(f"{text};", "cyan"), Text(about)) for text, about in USAGES)
            return Grid(("statement", "what it does"), frozenset(), rows, last=True)
        case _:
            return None


def lines_of(outcome: Outcome) -> list[Text]:
    """Return the lines of an outcome, which go below its table."""
    match outcome:
        case Changed():
            return _changed(outcome)
        case Queries(queries=()):
            return [Text("no queries: ADD SELECT … AS name; adds one", "dim")]
        case Streams(streams=()):
            return [Text("no streams", "dim")]
        case Queries():
            return [Text(f"{query.name}: {query.error}", "red") for query in outcome.queries if query.error]
        case Plan():
            return [Text(outcome.text.rstrip("\n"))]
        case Meaning():
            return _meaning(outcome)
        case Columns(sql=sql) if sql:
            return [Text(sql, "dim")]
        case Rows():
            return _counted(outcome)
        case Ended(query=query) if query.status == "removed":
            return [Text(f"query '{query.name}' was removed", "yellow")]
        case _:
            return []


def _changed(outcome: Changed) -> list[Text]:
    query = outcome.query
    notes = [Text(query.note, "yellow")] if query.note and outcome.verb != "removed" else []
    if outcome.passing:
        message = f"runs as {query.name} until you stop watching" if outcome.verb == "added" else f"{query.name} was removed"
        return [Text(message, "dim"), *notes]
    text = Text.assemble((query.name, "bold cyan"), f" {outcome.verb}")
    if outcome.verb == "removed":
        return [text]
    duration = f" after {seconds(query.deployment_seconds)}" if query.deployment_seconds is not None else ""
    text.append(", ").append(f"{query.status}{duration}", _STYLES.get(query.status, "yellow"))
    return [text.append(f": {query.error}", "red") if query.error else text, *notes]


def _meaning(meaning: Meaning) -> list[Text]:
    would = "" if meaning.name else "would "
    verb = {"": "gives", "would ": "give"}[would]
    columns = ", ".join(f"{name} {kind}" for name, kind in meaning.columns.items())
    lines = [Text.assemble((f"{would}{verb} ", "dim"), columns)]
    if not meaning.uses:
        lines.append(Text("sharing is unknown here; EXPLAIN; shows the plan of the session", "dim"))
    for use in meaning.uses:
        users = ", ".join(use.others[:_NAMED]) + (f" and {len(use.others) - _NAMED} more" if len(use.others) > _NAMED else "")
        shared = Text(f"shared with {users}", "green") if use.others else Text("not shared", "yellow")
        lines.append(Text.assemble((f"{would}use{'' if would else 's'} ", "dim"), use.what, ", ", shared))
    return lines


def _counted(outcome: Rows) -> list[Text]:
    shown, emitted = outcome.rows.num_rows, outcome.emitted
    if not shown:
        return [Text(f"{outcome.name} has emitted nothing yet", "dim")]
    return [Text(f"{shown:,} rows" if shown >= emitted else f"the last {shown:,} of {emitted:,} rows", "dim")]


def _grid_of_queries(outcome: Queries) -> Grid:
    rows = tuple(
        (
            Text(query.name, "cyan"),
            Text(query.status, _STYLES.get(query.status, "yellow")),
            Text(seconds(query.deployment_seconds)),
            Text(f"{query.emitted:,}"),
            Text(f"{sum(query.late.values()):,}"),
            Text(" ".join(query.sql.split())),
        )
        for query in outcome.queries
    )
    return Grid(("query", "status", "live in", "rows", "late", "text"), frozenset({"live in", "rows", "late"}), rows, last=True)


def _grid_of_streams(outcome: Streams) -> Grid:
    rows = tuple(
        (
            Text(stream.name, "cyan"),
            Text(stream.source),
            Text(f"{stream.rows:,}"),
            Text(seconds(stream.lag_seconds)),
            Text(format_duration(stream.stream.delay)),
            Text(stream.stream.time),
            Text(", ".join(f"{name} {kind}" for name, kind in stream.columns.items())),
        )
        for stream in outcome.streams
    )
    titles = ("stream", "source", "rows", "behind", "watermark", "time", "columns")
    return Grid(titles, frozenset({"rows", "behind", "watermark"}), rows, last=True)


def _grid_of_rows(table: pa.Table) -> Grid:
    right = frozenset(field.name for field in table.schema if is_number(field.type))
    columns = [[cell(value) for value in column.to_pylist()] for column in table.columns]
    return Grid(tuple(table.column_names), right, tuple(zip(*columns, strict=True)))


def _drawn(grid: Grid) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in grid.titles:
        justify: Any = "right" if title in grid.right else "left"
        wraps = grid.last and title == grid.titles[-1]
        table.add_column(Text(title), justify=justify, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
    for row in grid.rows:
        table.add_row(*row)
    return table


def _widths(grid: Grid) -> list[int]:
    return [max([len(title), *(len(row[i]) for row in grid.rows)]) for i, title in enumerate(grid.titles)]


def aligned(grid: Grid, widths: Sequence[int]) -> list[str]:
    """Return a heading, a separator and a line for each row, without truncation."""
    lines = []
    for texts in (grid.titles, ["-" * width for width in widths], *([text.plain for text in row] for row in grid.rows)):
        flat_texts = (" ".join(text.split("\n")) for text in texts)
        cells = (
            text.rjust(width) if title in grid.right else text.ljust(width)
            for title, text, width in zip(grid.titles, flat_texts, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return lines
