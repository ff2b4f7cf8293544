"""Rendering of outcomes: tables and a live table on a terminal, aligned lines elsewhere, or JSON lines.

For the live table of a followed query only the last rows of each batch are formatted, and it is drawn a few times per second, so
that rendering keeps up with any rate of the target.

A JSON line is an object with its `kind`: added, replaced, removed (a query), query, stream, plan, meaning, columns, row, ended,
usage; and error, which also goes to standard error.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.shell.outcomes import (
    ColumnList,
    FollowedQuery,
    FollowEnded,
    Outcome,
    PartitionsChanged,
    PlanText,
    QueryChanged,
    QueryList,
    QuerySharing,
    ResultRows,
    SinkList,
    StreamCreated,
    StreamDropped,
    StreamList,
    UsageList,
)
from headrace.cli.shell.parser import USAGES, StopCondition
from headrace.cli.shell.target import StreamSummary, query_document
from headrace.cli.terminal import format_cell, format_count, format_seconds
from headrace.connectors.row_text import to_json_value
from headrace.errors import HeadraceError
from headrace.model.window import format_duration

Clock = Callable[[], float]
_DRAW_SECONDS = 0.125
_RATE_SECONDS = 5.0
_RESERVED_LINES = 7  # lines of the screen around the rows
_MAX_LIVE_ROWS = 30
_MAX_STICKY_WIDTH = 40  # a column keeps its widest width up to this many characters


def is_numeric(data_type: pa.DataType) -> bool:
    """Return whether a type is numeric, and so right-aligned."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type))


def limit_tables(tables: Iterator[pa.Table], end: StopCondition, clock: Clock = time.monotonic) -> Iterator[pa.Table]:
    """Yield tables until the stop condition: exactly its number of rows, and its duration to within a tick."""
    remaining = end.rows
    deadline = None if end.seconds is None else clock() + end.seconds
    for table in tables:
        taken = table if remaining is None else table.slice(0, remaining)
        yield taken
        remaining = None if remaining is None else remaining - taken.num_rows
        if remaining == 0 or (deadline is not None and clock() >= deadline):
            return


class NewestRows:
    """The newest rows of a query as texts, with their total number and rate."""

    def __init__(self, schema: pa.Schema, rows: int, clock: Clock = time.monotonic) -> None:
        """Keep up to `rows` rows."""
        self.schema, self.row_count = schema, 0
        self._rows: deque[list[Text]] = deque(maxlen=rows)
        self._widths = [len(name) for name in schema.names]
        self._clock, self._started_at = clock, clock()
        self._arrivals: deque[tuple[float, int]] = deque()

    def add_earlier(self, table: pa.Table) -> None:
        """Add earlier rows, which are shown but not counted."""
        self._keep_newest(table)

    def add(self, table: pa.Table) -> None:
        """Add rows that arrived now."""
        self.row_count += table.num_rows
        now = self._clock()
        if table.num_rows:
            self._arrivals.append((now, table.num_rows))
        while self._arrivals and self._arrivals[0][0] < now - _RATE_SECONDS:
            self._arrivals.popleft()
        self._keep_newest(table)

    def _keep_newest(self, table: pa.Table) -> None:
        max_rows = self._rows.maxlen or 0
        for row in table.slice(max(0, table.num_rows - max_rows)).to_pylist():
            texts = [format_cell(value) for value in row.values()]
            self._rows.append(texts)
            self._widths = [
                max(width, min(len(text), _MAX_STICKY_WIDTH)) for width, text in zip(self._widths, texts, strict=False)
            ]

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started_at

    @property
    def rate(self) -> float:
        """Recent rows per second."""
        return sum(rows for _, rows in self._arrivals) / min(max(self.elapsed_seconds, 1.0), _RATE_SECONDS)

    def render_table(self) -> Table:
        """Return the rows, newest last; columns get wider when they must, and never narrower."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for field, width in zip(self.schema, self._widths, strict=True):
            justify: Any = "right" if is_numeric(field.type) else "left"
            table.add_column(Text(field.name), justify=justify, min_width=width, no_wrap=True, overflow="ellipsis")
        for row in self._rows:
            table.add_row(*row)
        return table

    def render_status(self, name: str) -> Text:
        """Return name, number of rows, rate and duration in one line."""
        figures = f" · {format_count(self.row_count)} rows · {format_count(self.rate)} rows/s · {self.elapsed_seconds:.0f} s"
        return Text.assemble((name, "bold cyan"), figures)


def show_live(following: FollowedQuery, console: Console) -> NewestRows:
    """Show a live table until the stop condition, the end of the query, or Ctrl-C; it stays on the screen. Return its rows."""
    rows = max(3, min(_MAX_LIVE_ROWS, console.size.height - _RESERVED_LINES))
    newest = NewestRows(following.query.schema, rows)
    tables = following.open(None if following.from_beginning else rows)
    name, next_draw = following.query.name, 0.0

    def render(hint: str = "Ctrl-C stops") -> RenderableType:
        waiting = [] if newest.row_count or not hint else [Text("no new rows yet …", "dim")]
        return Group(newest.render_table(), *waiting, newest.render_status(name).append(f" · {hint}" if hint else "", "dim"))

    with Live(render(), console=console, auto_refresh=False, vertical_overflow="crop") as screen:
        try:
            if not following.from_beginning:
                newest.add_earlier(next(tables))
            for table in limit_tables(tables, following.stop):
                newest.add(table)
                if time.monotonic() >= next_draw:
                    screen.update(render(), refresh=True)
                    next_draw = time.monotonic() + _DRAW_SECONDS
        except KeyboardInterrupt:
            pass
        screen.update(render(""), refresh=True)
    return newest


def read_tables(following: FollowedQuery) -> Iterator[pa.Table]:
    """Yield the non-empty tables of a followed query until its end; the caller handles Ctrl-C."""
    tables = following.open(None if following.from_beginning else 0)
    return (table for table in limit_tables(tables, following.stop) if table.num_rows)


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
        case ResultRows() | SinkList():
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
        case StreamList():
            return [Text(f"{stream.name}: {stream.error}", "red") for stream in outcome.streams if stream.error]
        case StreamCreated():
            return [Text.assemble((outcome.name, "bold cyan"), " created")]
        case StreamDropped():
            return [Text.assemble((outcome.name, "bold cyan"), " dropped")]
        case PartitionsChanged():
            follows = "follows the cores and the load" if outcome.is_auto else f"{outcome.next} from the next micro-batch on"
            return [Text(f"{outcome.partitions} key partitions; {follows}")]
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
            Text(stream.status, "green" if stream.status == "ok" else "bold red"),
            Text(f"{stream.rows:,}"),
            Text(format_seconds(stream.lag_seconds)),
            Text(format_duration(stream.stream.delay)),
            Text(stream.stream.time),
            Text(", ".join(f"{name} {kind}" for name, kind in stream.columns.items())),
        )
        for stream in outcome.streams
    )
    titles = ("stream", "source", "status", "rows", "behind", "watermark", "time", "columns")
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
        case SinkList():
            yield from ({"kind": "sink", **row} for row in outcome.rows.to_pylist())
        case StreamList():
            yield from ({"kind": "stream", **_stream_document(stream)} for stream in outcome.streams)
        case StreamCreated():
            yield {"kind": "created", "name": outcome.name}
        case StreamDropped():
            yield {"kind": "dropped", "name": outcome.name}
        case PartitionsChanged():
            yield {"kind": "rescaled", "partitions": outcome.partitions, "next": outcome.next, "auto": outcome.is_auto}
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
        "status": info.status,
        "error": info.error or None,
        "rows": info.rows,
        "lag_seconds": info.lag_seconds,
        "time": info.stream.time,
        "delay_seconds": info.stream.delay / 1e6,
        "columns": info.columns,
    }
