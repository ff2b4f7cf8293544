"""Rendering of a followed query: a live table of its newest rows on a terminal, all rows elsewhere.

For the live table only the last rows of each batch are formatted, and it is drawn a few times per second, so that rendering
keeps up with any rate of the target.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.shell.outcomes import FollowedQuery
from headrace.cli.shell.statements import StopCondition
from headrace.cli.terminal import format_cell, format_count

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
