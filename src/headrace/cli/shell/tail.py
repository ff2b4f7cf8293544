"""Following a query: a live table of its newest rows for a terminal, lines for everything else.

However many rows come, only the last few of each table are turned into text for the live table, and it is drawn a few times
a second: it keeps up with whatever the target can hand over.
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
_AROUND = 7  # lines of the screen that are not rows
_MOST_ROWS = 30
_WIDEST = 40  # characters that a column keeps once it needed them


def is_number(kind: pa.DataType) -> bool:
    """Tell whether values of a type are written with their ends below each other."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def bounded(tables: Iterator[pa.Table], end: End, clock: Clock = time.monotonic) -> Iterator[pa.Table]:
    """Yield tables until the end: not a row more, and not much longer than a tick."""
    left = end.rows
    until = None if end.seconds is None else clock() + end.seconds
    for table in tables:
        taken = table if left is None else table.slice(0, left)
        yield taken
        left = None if left is None else left - taken.num_rows
        if left == 0 or (until is not None and clock() >= until):
            return


class Newest:
    """The newest rows of a query as texts, how many came in all, and how fast they come."""

    def __init__(self, schema: pa.Schema, rows: int, clock: Clock = time.monotonic) -> None:
        """Keep so many rows."""
        self.schema, self.count = schema, 0
        self._rows: deque[list[Text]] = deque(maxlen=rows)
        self._widths = [len(name) for name in schema.names]
        self._clock, self._begun = clock, clock()
        self._came: deque[tuple[float, int]] = deque()

    def before(self, table: pa.Table) -> None:
        """Take rows of before: they are shown, but not counted."""
        self._keep(table)

    def take(self, table: pa.Table) -> None:
        """Take rows that came now."""
        self.count += table.num_rows
        now = self._clock()
        if table.num_rows:
            self._came.append((now, table.num_rows))
        while self._came and self._came[0][0] < now - _RATE_SECONDS:
            self._came.popleft()
        self._keep(table)

    def _keep(self, table: pa.Table) -> None:
        most = self._rows.maxlen or 0
        for row in table.slice(max(0, table.num_rows - most)).to_pylist():
            texts = [cell(value) for value in row.values()]
            self._rows.append(texts)
            self._widths = [max(width, min(len(text), _WIDEST)) for width, text in zip(self._widths, texts, strict=False)]

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return self._clock() - self._begun

    @property
    def rate(self) -> float:
        """Rows in a second, lately."""
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
        """Return how it goes, in one line."""
        figures = f" · {count(self.count)} rows · {count(self.rate)} rows/s · {self.seconds:.0f} s"
        return Text.assemble((name, "bold cyan"), figures)


def live(following: Following, console: Console) -> Newest:
    """Show a live table until the end of it, of the query, or Ctrl-C; it stays on the screen. Return what was seen."""
    shown = max(3, min(_MOST_ROWS, console.size.height - _AROUND))
    newest = Newest(following.query.schema, shown)
    tables = following.open(None if following.from_beginning else shown)
    name, due = following.query.name, 0.0

    def drawn(hint: str = "Ctrl-C ends this") -> RenderableType:
        waiting = [] if newest.count or not hint else [Text("no new rows yet …", "dim")]
        return Group(newest.table(), *waiting, newest.line(name).append(f" · {hint}" if hint else "", "dim"))

    with Live(drawn(), console=console, auto_refresh=False, vertical_overflow="crop") as screen:
        try:
            if not following.from_beginning:
                newest.before(next(tables))
            for table in bounded(tables, following.end):
                newest.take(table)
                if time.monotonic() >= due:
                    screen.update(drawn(), refresh=True)
                    due = time.monotonic() + _DRAW_SECONDS
        except KeyboardInterrupt:
            pass
        screen.update(drawn(""), refresh=True)
    return newest


def pieces(following: Following) -> Iterator[pa.Table]:
    """Yield what comes of a query, without the empty tables, until its end; Ctrl-C is for the caller."""
    tables = following.open(None if following.from_beginning else 0)
    return (table for table in bounded(tables, following.end) if table.num_rows)
