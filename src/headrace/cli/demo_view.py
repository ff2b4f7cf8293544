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

from headrace.cli.explain import SharedPlans
from headrace.cli.terminal import format_cell, format_count, format_seconds
from headrace.planner.explain.plan_diagram import get_operator_kind

if TYPE_CHECKING:
    from headrace.cli.demo import Demo, DemoQueryState


_FIXED_LINES = 24  # lines of the screen outside the table of queries
_MAX_OPERATORS = 6
_EXPLAINED_LINES = 14


def render_screen(demo: Demo, size: ConsoleDimensions) -> RenderableType:
    """Return the whole screen, fitted to the size of the terminal."""
    rows = max(3, size.height - _FIXED_LINES + max(0, _MAX_OPERATORS - len(demo.shared_plans.operators)))
    return Group(
        _render_header(demo),
        _render_figures(demo, size.width),
        _render_queries(demo, rows),
        _render_shared(demo.shared_plans, size.width),
        _render_log(demo),
    )


def _render_header(demo: Demo) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column()
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    title = Text.assemble(("headrace", "bold cyan"), "  ", (f"{demo.live_count} live queries, one pipeline, 0 restarts", "bold"))
    grid.add_row(
        title,
        ProgressBar(total=demo.length, completed=min(demo.elapsed_seconds, demo.length)),
        f"{demo.elapsed_seconds:.0f} of {demo.length:.0f} s",
    )
    return grid


def _render_figures(demo: Demo, width: int) -> RenderableType:
    deployment_seconds = demo.deployment_seconds
    operators = len(demo.shared_plans.operators)
    figures = (
        ("throughput", f"{format_count(demo.meter.rows_per_second)} rows/s", f"{format_count(demo.meter.rows)} rows"),
        ("micro-batch", format_seconds(demo.meter.median_batch_seconds), f"{demo.meter.batches} done"),
        ("event-time lag", format_seconds(demo.event_time_lag), "behind the clock"),
        ("queries", f"{demo.live_count} live", f"+{len(demo.queries)} −{demo.removed_count}"),
        (
            "add → live",
            format_seconds(statistics.median(deployment_seconds) if deployment_seconds else None),
            f"slowest {format_seconds(max(deployment_seconds, default=None))}",
        ),
        ("shared", f"{operators} operators", f"for {len(demo.shared_plans.queries)} queries"),
    )
    panel_width = max(16, width // len(figures) - 1)
    panels = [
        Panel(
            Group(Text(value, "bold green", justify="center"), _dim_text(below)),
            title=name,
            box=ROUNDED,
            border_style="blue",
            width=panel_width,
        )
        for name, value, below in figures
    ]
    return Columns(panels, padding=(0, 1), equal=False)


def _dim_text(text: str) -> Text:
    return Text(text, "dim", justify="center", overflow="ellipsis", no_wrap=True)


def _render_queries(demo: Demo, max_rows: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, 1), header_style="bold")
    table.add_column("query", no_wrap=True)
    table.add_column("description", no_wrap=True, overflow="ellipsis", ratio=4)
    table.add_column("status", no_wrap=True)
    table.add_column("live in", justify="right", no_wrap=True)
    table.add_column("results", justify="right", no_wrap=True)
    table.add_column("latest result", no_wrap=True, overflow="ellipsis", ratio=5)
    queries = sorted(demo.queries.values(), key=lambda query: query.status == "removed")
    visible = queries if len(queries) <= max_rows else [query for query in queries if query.status != "removed"][-max_rows:]
    for query in visible:
        table.add_row(*_query_row(query))
    hidden = len(queries) - len(visible)
    footer = [Text(f"  … and {hidden} more; {demo.removed_count} queries are removed", "dim")] if hidden else []
    return Group(table, *footer)


def _query_row(state: DemoQueryState) -> tuple[RenderableType, ...]:
    is_removed = state.status == "removed"
    deployment_seconds = state.handle.deployment_seconds if state.handle is not None else None
    style = {"live": "green", "failed": "bold red", "removed": "dim"}.get(state.status, "yellow")
    removed_style = "dim" if is_removed else ""
    return (
        Text(state.definition.name, removed_style or "cyan"),
        Text(state.definition.about, removed_style),
        Text(state.status, style),
        Text(format_seconds(deployment_seconds), removed_style),
        Text(f"{state.row_count:,}", removed_style),
        Text(_format_row(state.latest_row), removed_style),
    )


def _format_row(row: Mapping[str, Any]) -> str:
    """Format a row briefly: window_start without its name, window_end omitted."""
    parts = [
        _format_value(value) if name == "window_start" else f"{name} {_format_value(value)}"
        for name, value in row.items()
        if name != "window_end"
    ]
    return "  ".join(parts)


def _format_value(value: Any) -> str:
    if hasattr(value, "strftime"):
        return str(value.strftime("%H:%M:%S"))
    return f"{value:,.2f}" if isinstance(value, float) else str(format_cell(value))


def _render_shared(sharing: SharedPlans, width: int) -> RenderableType:
    lines = []
    operators = sharing.operators
    for stream, operator in operators[:_MAX_OPERATORS]:
        users = sharing.users_of(operator)
        keys = f" by {', '.join(str(key) for key in operator.keys)}" if operator.keys else ""
        predicates = len(operator.predicate_index.predicates)
        line = Text(overflow="ellipsis", no_wrap=True)
        line.append(f"{len(users):3d} × ", "bold magenta").append(f"{get_operator_kind(operator)}{keys} of {stream}", "bold")
        line.append(f" · {predicates} predicate{'s' * (predicates != 1)} · {', '.join(users)}", "dim")
        line.truncate(width - 4)
        lines.append(line)
    if len(operators) > _MAX_OPERATORS:
        lines.append(Text(f"… and {len(operators) - _MAX_OPERATORS} more", "dim"))
    return Panel(
        Group(*lines), title="shared operators: queries × operator", title_align="left", box=ROUNDED, border_style="magenta"
    )


def _render_log(demo: Demo) -> RenderableType:
    entries = demo.log[-3:]
    lines = [Text.assemble((f"{at:6.1f} s  ", "dim"), text) for at, text in entries]
    return Group(*lines, *[Text("")] * (3 - len(lines)))


def format_status_line(demo: Demo) -> str:
    """Return the status as a line of plain text."""
    return (
        f"{demo.elapsed_seconds:5.1f} s · {format_count(demo.meter.rows_per_second)} rows/s · "
        f"batch {format_seconds(demo.meter.median_batch_seconds)} · "
        f"lag {format_seconds(demo.event_time_lag)} · "
        f"{demo.live_count} live queries ({len(demo.queries)} added, {demo.removed_count} removed) · "
        f"{len(demo.shared_plans.operators)} shared operators"
    )


def render_summary(summary: Mapping[str, Any], explained: str) -> RenderableType:
    """Return the summary: the statistics, and the first lines of the explanation."""
    queries, batch, deployment = summary["queries"], summary["batch_seconds"] or {}, summary["deployment_seconds"] or {}
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right")
    grid.add_column()
    grid.add_row(
        "rows",
        f"{summary['rows']:,} in {summary['seconds']:.0f} s = {format_count(summary['rows_per_second'])} rows/s; "
        f"{summary['results']:,} results",
    )
    grid.add_row(
        "micro-batches",
        f"{summary['batches']}, {format_seconds(batch.get('median'))} each (slowest {format_seconds(batch.get('max'))})",
    )
    grid.add_row("add → live", f"{format_seconds(deployment.get('median'))} (slowest {format_seconds(deployment.get('max'))})")
    grid.add_row("event-time lag", format_seconds(summary["event_time_lag_seconds"]))
    grid.add_row("warm-up", f"{format_seconds(summary['warm_up_seconds'])}, not included above")
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
