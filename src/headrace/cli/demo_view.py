"""The output of the demo: a screen while it runs, a line per second for logs, a summary at the end."""

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
from headrace.sharing.picture import get_operator_kind

if TYPE_CHECKING:
    from headrace.cli.demo import Demo, Shown

_FIXED_LINES = 24  # lines of the screen outside the table of queries
_OPERATORS = 6
_EXPLAINED_LINES = 14


def screen(demo: Demo, size: ConsoleDimensions) -> RenderableType:
    """Return the whole screen, fitted to the size of the terminal."""
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
    deployment_seconds = demo.deployments
    operators = len(demo.sharing.operators)
    figures = (
        ("throughput", f"{count(demo.meter.rows_per_second)} rows/s", f"{count(demo.meter.rows)} rows"),
        ("micro-batch", seconds(demo.meter.latency), f"{demo.meter.batches} done"),
        ("event-time lag", seconds(demo.lag), "behind now"),
        ("queries", f"{demo.live} live", f"+{len(demo.shown)} −{demo.removed}"),
        (
            "add → live",
            seconds(statistics.median(deployment_seconds) if deployment_seconds else None),
            f"slowest {seconds(max(deployment_seconds, default=None))}",
        ),
        ("shared", f"{operators} operators", f"for {len(demo.sharing.queries)} queries"),
    )
    panel_width = max(16, width // len(figures) - 1)
    panels = [
        Panel(
            Group(Text(value, "bold green", justify="center"), _dim(below)),
            title=name,
            box=ROUNDED,
            border_style="blue",
            width=panel_width,
        )
        for name, value, below in figures
    ]
    return Columns(panels, padding=(0, 1), equal=False)


def _dim(text: str) -> Text:
    return Text(text, "dim", justify="center", overflow="ellipsis", no_wrap=True)


def _queries(demo: Demo, max_rows: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, 1), header_style="bold")
    table.add_column("query", no_wrap=True)
    table.add_column("asks for", no_wrap=True, overflow="ellipsis", ratio=4)
    table.add_column("status", no_wrap=True)
    table.add_column("live in", justify="right", no_wrap=True)
    table.add_column("results", justify="right", no_wrap=True)
    table.add_column("latest result", no_wrap=True, overflow="ellipsis", ratio=5)
    queries = sorted(demo.shown.values(), key=lambda query: query.status == "removed")
    visible = queries if len(queries) <= max_rows else [query for query in queries if query.status != "removed"][-max_rows:]
    for query in visible:
        table.add_row(*_row(query))
    hidden = len(queries) - len(visible)
    footer = [Text(f"  … and {hidden} more, {demo.removed} of all removed", "dim")] if hidden else []
    return Group(table, *footer)


def _row(state: Shown) -> tuple[RenderableType, ...]:
    is_removed = state.status == "removed"
    deployment_seconds = state.query.deployment_seconds if state.query is not None else None
    style = {"live": "green", "failed": "bold red", "removed": "dim"}.get(state.status, "yellow")
    removed_style = "dim" if is_removed else ""
    return (
        Text(state.demo.name, removed_style or "cyan"),
        Text(state.demo.about, removed_style),
        Text(state.status, style),
        Text(seconds(deployment_seconds), removed_style),
        Text(f"{state.rows:,}", removed_style),
        Text(_latest(state.latest), removed_style),
    )


def _latest(row: Mapping[str, Any]) -> str:
    """Format a row briefly: window_start without its name, window_end omitted."""
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
        predicates = len(operator.predicate_index.predicates)
        line = Text(overflow="ellipsis", no_wrap=True)
        line.append(f"{len(users):3d} × ", "bold magenta").append(f"{get_operator_kind(operator)}{keys} of {stream}", "bold")
        line.append(f" · {predicates} predicate{'s' * (predicates != 1)} · {', '.join(users)}", "dim")
        line.truncate(width - 4)
        lines.append(line)
    if len(operators) > _OPERATORS:
        lines.append(Text(f"… and {len(operators) - _OPERATORS} more", "dim"))
    return Panel(
        Group(*lines), title="shared operators: queries × operator", title_align="left", box=ROUNDED, border_style="magenta"
    )


def _log(demo: Demo) -> RenderableType:
    entries = demo.log[-3:]
    lines = [Text.assemble((f"{at:6.1f} s  ", "dim"), text) for at, text in entries]
    return Group(*lines, *[Text("")] * (3 - len(lines)))


def status_line(demo: Demo) -> str:
    """Return the status as a line of plain text."""
    return (
        f"{demo.seconds:5.1f} s · {count(demo.meter.rows_per_second)} rows/s · batch {seconds(demo.meter.latency)} · "
        f"lag {seconds(demo.lag)} · {demo.live} live queries ({len(demo.shown)} added, {demo.removed} removed) · "
        f"{len(demo.sharing.operators)} shared operators"
    )


def closing(summary: Mapping[str, Any], explained: str) -> RenderableType:
    """Return the summary: the statistics, and the first lines of the explanation."""
    queries, batch, deployment = summary["queries"], summary["batch_seconds"] or {}, summary["deployment_seconds"] or {}
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
    grid.add_row("add → live", f"{seconds(deployment.get('median'))} (slowest {seconds(deployment.get('max'))})")
    grid.add_row("event-time lag", seconds(summary["event_time_lag_seconds"]))
    grid.add_row("warm-up", f"{seconds(summary['warm_up_seconds'])}, not included above")
    grid.add_row(
        "at the end",
        f"{queries['live']} live, {queries['removed']} removed, {queries['failed']} failed; "
        f"{summary['shared_operators']} shared operators",
    )
    title = Text(f"{queries['added']} queries, one pipeline, 0 restarts", "bold cyan")
    lines = explained.splitlines()
    footer = [Text(f"… {len(lines) - _EXPLAINED_LINES} more lines", "dim")] if len(lines) > _EXPLAINED_LINES else []
    text = Text("\n".join(lines[:_EXPLAINED_LINES]), overflow="ellipsis", no_wrap=True)
    return Group(Panel(grid, title=title, title_align="left", box=ROUNDED, border_style="cyan"), text, *footer)
