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

from headrace.cli.shell.outcomes import Following
from headrace.cli.shell.statements import End
from headrace.cli.terminal import cell, count

Clock = Callable[[], float]
_DRAW_SECONDS = 0.125
_RATE_SECONDS = 5.0
_AROUND = 7  # lines of the screen around the rows
_MOST_ROWS = 30
_WIDEST = 40  # a column keeps its widest width up to this many characters


def is_number(data_type: pa.DataType) -> bool:
    """Return whether a type is numeric, and so right-aligned."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type))


def bounded(tables: Iterator[pa.Table], end: End, clock: Clock = time.monotonic) -> Iterator[pa.Table]:
    """Yield tables until the stop condition: exactly its number of rows, and its duration to within a tick."""
    remaining = end.rows
    deadline = None if end.seconds is None else clock() + end.seconds
    for table in tables:
        taken = table if remaining is None else table.slice(0, remaining)
        yield taken
        remaining = None if remaining is None else remaining - taken.num_rows
        if remaining == 0 or (deadline is not None and clock() >= deadline):
            return


class Newest:
    """The newest rows of a query as texts, with their total number and rate."""

    def __init__(self, schema: pa.Schema, rows: int, clock: Clock = time.monotonic) -> None:
        """Keep up to `rows` rows."""
        self.schema, self.count = schema, 0
        self._rows: deque[list[Text]] = deque(maxlen=rows)
        self._widths = [len(name) for name in schema.names]
        self._clock, self._begun = clock, clock()
        self._came: deque[tuple[float, int]] = deque()

    def before(self, table: pa.Table) -> None:
        """Add earlier rows, which are shown but not counted."""
        self._keep(table)

    def take(self, table: pa.Table) -> None:
        """Add rows that arrived now."""
        self.count += table.num_rows
        now = self._clock()
        if table.num_rows:
            self._came.append((now, table.num_rows))
        while self._came and self._came[0][0] < now - _RATE_SECONDS:
            self._came.popleft()
        self._keep(table)

    def _keep(self, table: pa.Table) -> None:
        max_rows = self._rows.maxlen or 0
        for row in table.slice(max(0, table.num_rows - max_rows)).to_pylist():
            texts = [cell(value) for value in row.values()]
            self._rows.append(texts)
            self._widths = [max(width, min(len(text), _WIDEST)) for width, text in zip(self._widths, texts, strict=False)]

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begun

    @property
    def rate(self) -> float:
        """Recent rows per second."""
        return sum(rows for _, rows in self._came) / min(max(self.seconds, 1.0), _RATE_SECONDS)

    def table(self) -> Table:
        """Return the rows, newest last; columns get wider when they must, and never narrower."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for field, width in zip(self.schema, self._widths, strict=True):
            justify: Any = "right" if is_number(field.type) else "left"
            table.add_column(Text(field.name), justify=justify, min_width=width, no_wrap=True, overflow="ellipsis")
        for row in self._rows:
            table.add_row(*row)
        return table

    def line(self, name: str) -> Text:
        """Return name, number of rows, rate and duration in one line."""
        figures = f" · {count(self.count)} rows · {count(self.rate)} rows/s · {self.seconds:.0f} s"
        return Text.assemble((name, "bold cyan"), figures)


def live(following: Following, console: Console) -> Newest:
    """Show a live table until the stop condition, the end of the query, or Ctrl-C; it stays on the screen. Return its rows."""
    rows = max(3, min(_MOST_ROWS, console.size.height - _AROUND))
    newest = Newest(following.query.schema, rows)
    tables = following.open(None if following.from_beginning else rows)
    name, next_draw = following.query.name, 0.0

    def render(hint: str = "Ctrl-C stops") -> RenderableType:
        waiting = [] if newest.count or not hint else [Text("no new rows yet …", "dim")]
        return Group(newest.table(), *waiting, newest.line(name).append(f" · {hint}" if hint else "", "dim"))

    with Live(render(), console=console, auto_refresh=False, vertical_overflow="crop") as screen:
        try:
            if not following.from_beginning:
                newest.before(next(tables))
            for table in bounded(tables, following.end):
                newest.take(table)
                if time.monotonic() >= next_draw:
                    screen.update(render(), refresh=True)
                    next_draw = time.monotonic() + _DRAW_SECONDS
        except KeyboardInterrupt:
            pass
        screen.update(render(""), refresh=True)
    return newest


def pieces(following: Following) -> Iterator[pa.Table]:
    """Yield the non-empty tables of a followed query until its end; the caller handles Ctrl-C."""
    tables = following.open(None if following.from_beginning else 0)
    return (table for table in bounded(tables, following.end) if table.num_rows)
