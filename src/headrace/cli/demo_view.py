"""What the demonstration looks like: a screen while it runs, a line a second for logs, a summary at the end."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.columns import Columns
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.sharing import Sharing
from headrace.cli.terminal import cell, count, seconds
from headrace.sharing.picture import kind_of

if TYPE_CHECKING:
    from headrace.cli.demo import Demo, Shown

_FIXED_LINES = 24  # everything but the rows of the table of queries
_OPERATORS = 6
_EXPLAINED_LINES = 14


def screen(demo: Demo, size: ConsoleDimensions) -> RenderableType:
    """Return the whole screen, fitted to the height of the terminal."""
    rows = max(3, size.height - _FIXED_LINES + max(0, _OPERATORS - len(demo.sharing.operators)))
    return Group(_head(demo), _figures(demo, size.width), _queries(demo, rows), _shared(demo.sharing, size.width), _log(demo))


def _head(demo: Demo) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column()
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    title = Text.assemble(("headrace", "bold cyan"), "  ", (f"{demo.live} live queries, one pipeline, 0 restarts", "bold"))
    grid.add_row(
        title,
        ProgressBar(total=demo.length, completed=min(demo.seconds, demo.length)),
        f"{demo.seconds:.0f} of {demo.length:.0f} s",
    )
    return grid


def _figures(demo: Demo, width: int) -> RenderableType:
    took = demo.deployments
    operators = len(demo.sharing.operators)
    figures = (
        ("throughput", f"{count(demo.meter.rows_per_second)} rows/s", f"{count(demo.meter.rows)} rows"),
        ("micro-batch", seconds(demo.meter.latency), f"{demo.meter.batches} done"),
        ("event-time lag", seconds(demo.lag), "behind now"),
        ("queries", f"{demo.live} live", f"+{len(demo.shown)} −{demo.removed}"),
        ("add → live", seconds(statistics.median(took) if took else None), f"slowest {seconds(max(took, default=None))}"),
        ("shared", f"{operators} operators", f"for {len(demo.sharing.queries)} queries"),
    )
    each = max(16, width // len(figures) - 1)
    panels = [
        Panel(
            Group(Text(value, "bold green", justify="center"), _dim(below)),
            title=name,
            box=ROUNDED,
            border_style="blue",
            width=each,
        )
        for name, value, below in figures
    ]
    return Columns(panels, padding=(0, 1), equal=False)


def _dim(text: str) -> Text:
    return Text(text, "dim", justify="center", overflow="ellipsis", no_wrap=True)


def _queries(demo: Demo, rows: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, 1), header_style="bold")
    table.add_column("query", no_wrap=True)
    table.add_column("asks for", no_wrap=True, overflow="ellipsis", ratio=4)
    table.add_column("status", no_wrap=True)
    table.add_column("live in", justify="right", no_wrap=True)
    table.add_column("results", justify="right", no_wrap=True)
    table.add_column("latest result", no_wrap=True, overflow="ellipsis", ratio=5)
    shown = sorted(demo.shown.values(), key=lambda one: one.status == "removed")
    newest = shown if len(shown) <= rows else [one for one in shown if one.status != "removed"][-rows:]
    for one in newest:
        table.add_row(*_row(one))
    hidden = len(shown) - len(newest)
    more = [Text(f"  … and {hidden} more, {demo.removed} of all removed", "dim")] if hidden else []
    return Group(table, *more)


def _row(shown: Shown) -> tuple[RenderableType, ...]:
    gone = shown.status == "removed"
    took = shown.query.deployment_seconds if shown.query is not None else None
    style = {"live": "green", "failed": "bold red", "removed": "dim"}.get(shown.status, "yellow")
    rest = "dim" if gone else ""
    return (
        Text(shown.demo.name, rest or "cyan"), Text(shown.demo.about, rest), Text(shown.status, style), Text(seconds(took), rest),
        Text(f"{shown.rows:,}", rest), Text(_latest(shown.latest), rest),
    )  # fmt: skip


def _latest(row: Mapping[str, Any]) -> str:
    """Return the row in few letters: the time a window starts without a name, for it is always there."""
    parts = [
        _brief(value) if name == "window_start" else f"{name} {_brief(value)}"
        for name, value in row.items()
        if name != "window_end"
    ]
    return "  ".join(parts)


def _brief(value: Any) -> str:
    if hasattr(value, "strftime"):
        return str(value.strftime("%H:%M:%S"))
    return f"{value:,.2f}" if isinstance(value, float) else str(cell(value))


def _shared(sharing: Sharing, width: int) -> RenderableType:
    lines = []
    operators = sharing.operators
    for stream, operator in operators[:_OPERATORS]:
        users = sharing.users(operator)
        keys = f" by {', '.join(str(key) for key in operator.keys)}" if operator.keys else ""
        predicates = len(operator.selection.predicates)
        line = Text(overflow="ellipsis", no_wrap=True)
        line.append(f"{len(users):3d} × ", "bold magenta").append(f"{kind_of(operator)}{keys} of {stream}", "bold")
        line.append(f" · {predicates} predicate{'s' * (predicates != 1)} · {', '.join(users)}", "dim")
        line.truncate(width - 4)
        lines.append(line)
    if len(operators) > _OPERATORS:
        lines.append(Text(f"… and {len(operators) - _OPERATORS} more", "dim"))
    return Panel(
        Group(*lines), title="what is shared: queries × operator", title_align="left", box=ROUNDED, border_style="magenta"
    )


def _log(demo: Demo) -> RenderableType:
    last = demo.log[-3:]
    lines = [Text.assemble((f"{at:6.1f} s  ", "dim"), text) for at, text in last]
    return Group(*lines, *[Text("")] * (3 - len(lines)))


def status_line(demo: Demo) -> str:
    """Return one line of plain text."""
    return (
        f"{demo.seconds:5.1f} s · {count(demo.meter.rows_per_second)} rows/s · batch {seconds(demo.meter.latency)} · "
        f"lag {seconds(demo.lag)} · {demo.live} live queries ({len(demo.shown)} added, {demo.removed} removed) · "
        f"{len(demo.sharing.operators)} shared operators"
    )


def closing(summary: Mapping[str, Any], explained: str) -> RenderableType:
    """Return the end: the figures, and the beginning of the explanation."""
    queries, batch, added = summary["queries"], summary["batch_seconds"] or {}, summary["deployment_seconds"] or {}
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right")
    grid.add_column()
    grid.add_row(
        "rows",
        f"{summary['rows']:,} in {summary['seconds']:.0f} s = {count(summary['rows_per_second'])} rows/s; "
        f"{summary['results']:,} results",
    )
    grid.add_row(
        "micro-batches", f"{summary['batches']}, {seconds(batch.get('median'))} each (slowest {seconds(batch.get('max'))})"
    )
    grid.add_row("add → live", f"{seconds(added.get('median'))} (slowest {seconds(added.get('max'))})")
    grid.add_row("event-time lag", seconds(summary["event_time_lag_seconds"]))
    grid.add_row("warm-up", f"{seconds(summary['warm_up_seconds'])} before that, not counted above")
    grid.add_row(
        "at the end",
        f"{queries['live']} live, {queries['removed']} removed, {queries['failed']} failed; "
        f"{summary['shared_operators']} shared operators",
    )
    title = Text(f"{queries['added']} queries, one pipeline, 0 restarts", "bold cyan")
    lines = explained.splitlines()
    more = [Text(f"… {len(lines) - _EXPLAINED_LINES} more lines", "dim")] if len(lines) > _EXPLAINED_LINES else []
    text = Text("\n".join(lines[:_EXPLAINED_LINES]), overflow="ellipsis", no_wrap=True)
    return Group(Panel(grid, title=title, title_align="left", box=ROUNDED, border_style="cyan"), text, *more)
