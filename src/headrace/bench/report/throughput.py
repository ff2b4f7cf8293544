"""Build the figures of rates: sustainable rate by varied parameter, and the trials of the search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.bench.confidence import ConfidenceInterval
from headrace.bench.report.groups import Cell, Group, ordered
from headrace.bench.report.plots import (
    INK,
    MUTED,
    PAPER,
    Figure,
    Panel,
    Spec,
    axis,
    colour,
    layout,
    line,
    log_axis,
    marker,
    short,
    spread,
    text,
)
from headrace.bench.report.words import rate, scaled

_LABEL_GAP = 0.065  # share of the plot height
_WHISKER = {"type": "data", "thickness": 1.25, "width": 4}


def rate_of(cell: Cell) -> ConfidenceInterval | None:
    """Return the sustainable rate, or the read rate if there was no search."""
    return cell.sustainable or cell.figure(lambda run: run.read_rate)


def rates(group: Group) -> Figure | None:
    """Return the figure of the rates of all systems; None without measurements."""
    measured = [(cell, known) for cell in group.cells if (known := rate_of(cell))]
    if not measured:
        return None
    searched = any(cell.sustainable for cell, _ in measured)
    kind = "Sustainable rate" if searched else "Read rate"
    has_several_values = len(group.values) > 1
    parameter = f" by {'key range' if group.by_keys else 'number of queries'}" if has_several_values else ""
    note = (
        "A × at the bottom marks a system that failed at this value. "
        if has_several_values and len(measured) < len(group.cells)
        else ""
    )
    error_bars = "Error bars show the 95 % confidence interval over repeats. " if group.repeats > 1 and has_several_values else ""
    rows = [(cell.sut, group.label(cell), rate(cell_rate), f"{cell_rate.runs}") for cell, cell_rate in measured]
    rows += [
        (cell.sut, group.label(cell), f"failed: {'; '.join(cell.failures)}", "") for cell in group.cells if not rate_of(cell)
    ]
    return Figure(
        "rate",
        f"{kind}{parameter}",
        f"{note}{error_bars}{'Both axes are logarithmic.' if has_several_values else ''}".strip(),
        (Panel(_lines(group, measured) if has_several_values else _bars(group, measured)),),
        ("system", "queries", f"{kind.lower()}, rows/s", "runs"),
        tuple(rows),
    )


def _lines(group: Group, measured: Sequence[tuple[Cell, ConfidenceInterval]]) -> Spec:
    bounds = [bound for _, cell_rate in measured for bound in cell_rate.interval or (cell_rate.mean,) if bound > 0]
    vertical = log_axis("rows/s", bounds)
    low, high = vertical["range"]
    traces = [_line(group, sut, [pair for pair in measured if pair[0].sut == sut]) for sut in group.systems]
    failed = [cell for cell in group.cells if cell.failures and not cell.measured]
    if failed:
        traces.append(_crosses(group, failed, 10**low))
    last_points = {
        sut: max((group.value(cell), cell_rate.mean) for cell, cell_rate in measured if cell.sut == sut)
        for sut in {c.sut for c, _ in measured}
    }
    label_positions = spread({sut: math.log10(mean) for sut, (_, mean) in last_points.items()}, _LABEL_GAP * (high - low))
    labels = [
        text(sut, math.log10(last_points[sut][0]), label_positions[sut], colour(sut, group.systems), xanchor="left", xshift=12)
        for sut in label_positions
    ]
    ticks = {"tickvals": group.values, "ticktext": [short(value) for value in group.values]}
    across = log_axis("keys" if group.by_keys else "queries", group.values, room=0.06, **ticks)
    margin = {"l": 60, "r": 80, "t": 12, "b": 48}
    return {"data": traces, "layout": layout(380, xaxis=across, yaxis=vertical, annotations=labels, margin=margin)}


def _line(group: Group, sut: str, points: Sequence[tuple[Cell, ConfidenceInterval]]) -> Spec:
    return line(
        sut,
        group.systems,
        mode="lines+markers",
        marker=marker(sut, group.systems),
        x=[group.value(cell) for cell, _ in points],
        y=[cell_rate.mean for _, cell_rate in points],
        error_y={
            **_WHISKER,
            "array": [cell_rate.half_width or 0 for _, cell_rate in points],
            "color": colour(sut, group.systems),
            "visible": any(cell_rate.half_width for _, cell_rate in points),
        },
        hovertemplate=f"{sut}<br>%{{x:,}} {'keys' if group.by_keys else 'queries'}: %{{y:.3s}} rows/s<extra></extra>",
    )


def _crosses(group: Group, failed: Sequence[Cell], bottom: float) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [group.value(cell) for cell in failed],
        "y": [bottom] * len(failed),
        "cliponaxis": False,
        "marker": {
            "symbol": "x-thin",
            "size": 10,
            "line": {"width": 2.5, "color": [colour(c.sut, group.systems) for c in failed]},
        },
        "hovertext": [f"{cell.sut} failed: {'; '.join(cell.failures)}" for cell in failed],
        "hoverinfo": "text",
        "showlegend": False,
    }


def _bars(group: Group, measured: Sequence[tuple[Cell, ConfidenceInterval]]) -> Spec:
    """Return horizontal bars from zero, best first, each labelled with its system and its value or "failed"."""
    best_last = sorted(measured, key=lambda pair: pair[1].mean)
    failed = [cell.sut for cell in group.cells if not cell.measured]
    widths = [cell_rate.half_width or 0 for _, cell_rate in best_last]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [*failed, *(cell.sut for cell, _ in best_last)],
        "x": [*(0 for _ in failed), *(cell_rate.mean for _, cell_rate in best_last)],
        "text": [*("failed" for _ in failed), *(scaled(cell_rate.mean) for _, cell_rate in best_last)],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [colour(sut, group.systems) for sut in [*failed, *(cell.sut for cell, _ in best_last)]]},
        "error_x": {**_WHISKER, "array": [*(0 for _ in failed), *widths], "color": MUTED, "visible": any(widths)},
        "hovertemplate": "%{y}: %{x:.3~s} rows/s<extra></extra>",
        "width": 0.62,
    }
    top = max(cell_rate.mean + (cell_rate.half_width or 0) for _, cell_rate in measured)
    across = axis("rows/s", range=[0, top * 1.16], tickformat="~s", nticks=6)
    vertical = axis(showgrid=False, tickfont={"color": INK, "size": 13})
    height = max(220, 80 + 44 * (len(failed) + len(best_last)))
    return {"data": [bar], "layout": layout(height, xaxis=across, yaxis=vertical)}


def search(group: Group) -> Figure | None:
    """Return the figure of all search trials of the typical runs; None if there was no search."""
    runs = {cell: cell.typical or cell.runs[0] for cell in group.cells if (cell.typical or cell.runs[0]).trials}
    if not runs:
        return None
    vertical = log_axis("rows/s", [trial.rate for run in runs.values() for trial in run.trials])
    panels, rows = [], []
    for value in group.values:
        cells = [cell for cell in runs if group.value(cell) == value]
        traces = [
            trace
            for cell in cells
            for trace in _trials(group, cell, [(t.rate, t.sustainable, t.reason) for t in runs[cell].trials])
        ]
        rows += [
            (cell.sut, group.label(cell), str(number), scaled(trial.rate), "sustained" if trial.sustainable else trial.reason)
            for cell in cells
            for number, trial in enumerate(runs[cell].trials, 1)
        ]
        spec = {"data": traces, "layout": layout(280, xaxis=axis("trial", dtick=1), yaxis=vertical)}
        panels.append(Panel(spec, group.label(cells[0]) if len(group.values) > 1 and cells else ""))
    note = "Filled markers: sustained; open markers: not sustained."
    header = ("system", "queries", "trial", "rows/s", "verdict")
    title, keys = "Search for the sustainable rate", tuple(ordered({cell.sut for cell in runs}))
    return Figure("search", title, note, tuple(panels), header, tuple(rows), keys)


def _trials(group: Group, cell: Cell, trials: Sequence[tuple[float, bool, str]]) -> list[Spec]:
    system_colour = colour(cell.sut, group.systems)
    system_marker = marker(cell.sut, group.systems)
    return [
        line(
            cell.sut,
            group.systems,
            mode="lines+markers",
            x=list(range(1, len(trials) + 1)),
            y=[trial_rate for trial_rate, _, _ in trials],
            marker={
                **system_marker,
                "color": [system_colour if sustained else PAPER for _, sustained, _ in trials],
                "line": {"color": system_colour, "width": 1.75},
            },
            text=["sustained" if sustained else reason for _, sustained, reason in trials],
            hovertemplate=f"{cell.sut}, trial %{{x}}: %{{y:.3s}} rows/s<br>%{{text}}<extra></extra>",
        )
    ]
