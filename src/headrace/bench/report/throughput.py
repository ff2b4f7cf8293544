"""Build the figures of rates: sustainable rate by varied parameter, and the trials of the search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.bench.confidence import ConfidenceInterval
from headrace.bench.report.groups import ResultCell, ScenarioGroup, order_systems
from headrace.bench.report.plots import (
    INK,
    MUTED,
    PAPER,
    PlotPanel,
    PlotSpec,
    ReportFigure,
    colour_of,
    format_tick,
    make_annotation,
    make_axis,
    make_layout,
    make_line,
    make_log_axis,
    make_marker,
    spread_labels,
)
from headrace.bench.report.words import format_rate, format_scaled

_LABEL_GAP = 0.065  # share of the plot height
_WHISKER = {"type": "data", "thickness": 1.25, "width": 4}


def rate_of(cell: ResultCell) -> ConfidenceInterval | None:
    """Return the sustainable rate, or the read rate if there was no search."""
    return cell.sustainable_rate or cell.compute_confidence(lambda run: run.read_rate)


def draw_rates(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of the rates of all systems; None without measurements."""
    measured = [(cell, known) for cell in group.cells if (known := rate_of(cell))]
    if not measured:
        return None
    searched = any(cell.sustainable_rate for cell, _ in measured)
    kind = "Sustainable rate" if searched else "Read rate"
    has_several_values = len(group.parameter_values) > 1
    parameter = f" by {'key range' if group.has_key_ranges else 'number of queries'}" if has_several_values else ""
    note = (
        "A × at the bottom marks a system that failed at this value. "
        if has_several_values and len(measured) < len(group.cells)
        else ""
    )
    error_bars = (
        "Error bars show the 95 % confidence interval over repeats. " if group.max_repeats > 1 and has_several_values else ""
    )
    rows = [(cell.sut, group.describe_cell(cell), format_rate(cell_rate), f"{cell_rate.runs}") for cell, cell_rate in measured]
    rows += [
        (cell.sut, group.describe_cell(cell), f"failed: {'; '.join(cell.failures)}", "")
        for cell in group.cells
        if not rate_of(cell)
    ]
    return ReportFigure(
        "rate",
        f"{kind}{parameter}",
        f"{note}{error_bars}{'Both axes are logarithmic.' if has_several_values else ''}".strip(),
        (PlotPanel(_make_line_plot(group, measured) if has_several_values else _make_bar_plot(group, measured)),),
        ("system", "queries", f"{kind.lower()}, rows/s", "runs"),
        tuple(rows),
    )


def _make_line_plot(group: ScenarioGroup, measured: Sequence[tuple[ResultCell, ConfidenceInterval]]) -> PlotSpec:
    bounds = [bound for _, cell_rate in measured for bound in cell_rate.interval or (cell_rate.mean,) if bound > 0]
    vertical = make_log_axis("rows/s", bounds)
    low, high = vertical["range"]
    traces = [_make_system_line(group, sut, [pair for pair in measured if pair[0].sut == sut]) for sut in group.systems]
    failed = [cell for cell in group.cells if cell.failures and not cell.measured]
    if failed:
        traces.append(_make_failure_marks(group, failed, 10**low))
    last_points = {
        sut: max((group.parameter_of(cell), cell_rate.mean) for cell, cell_rate in measured if cell.sut == sut)
        for sut in {c.sut for c, _ in measured}
    }
    label_positions = spread_labels({sut: math.log10(mean) for sut, (_, mean) in last_points.items()}, _LABEL_GAP * (high - low))
    labels = [
        make_annotation(
            sut, math.log10(last_points[sut][0]), label_positions[sut], colour_of(sut, group.systems), xanchor="left", xshift=12
        )
        for sut in label_positions
    ]
    ticks = {"tickvals": group.parameter_values, "ticktext": [format_tick(value) for value in group.parameter_values]}
    across = make_log_axis("keys" if group.has_key_ranges else "queries", group.parameter_values, room=0.06, **ticks)
    margin = {"l": 60, "r": 80, "t": 12, "b": 48}
    return {"data": traces, "layout": make_layout(380, xaxis=across, yaxis=vertical, annotations=labels, margin=margin)}


def _make_system_line(group: ScenarioGroup, sut: str, points: Sequence[tuple[ResultCell, ConfidenceInterval]]) -> PlotSpec:
    return make_line(
        sut,
        group.systems,
        mode="lines+markers",
        marker=make_marker(sut, group.systems),
        x=[group.parameter_of(cell) for cell, _ in points],
        y=[cell_rate.mean for _, cell_rate in points],
        error_y={
            **_WHISKER,
            "array": [cell_rate.half_width or 0 for _, cell_rate in points],
            "color": colour_of(sut, group.systems),
            "visible": any(cell_rate.half_width for _, cell_rate in points),
        },
        hovertemplate=f"{sut}<br>%{{x:,}} {'keys' if group.has_key_ranges else 'queries'}: %{{y:.3s}} rows/s<extra></extra>",
    )


def _make_failure_marks(group: ScenarioGroup, failed: Sequence[ResultCell], bottom: float) -> PlotSpec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [group.parameter_of(cell) for cell in failed],
        "y": [bottom] * len(failed),
        "cliponaxis": False,
        "marker": {
            "symbol": "x-thin",
            "size": 10,
            "line": {"width": 2.5, "color": [colour_of(c.sut, group.systems) for c in failed]},
        },
        "hovertext": [f"{cell.sut} failed: {'; '.join(cell.failures)}" for cell in failed],
        "hoverinfo": "text",
        "showlegend": False,
    }


def _make_bar_plot(group: ScenarioGroup, measured: Sequence[tuple[ResultCell, ConfidenceInterval]]) -> PlotSpec:
    """Return horizontal bars from zero, best first, each labelled with its system and its value or "failed"."""
    best_last = sorted(measured, key=lambda pair: pair[1].mean)
    failed = [cell.sut for cell in group.cells if not cell.measured]
    widths = [cell_rate.half_width or 0 for _, cell_rate in best_last]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [*failed, *(cell.sut for cell, _ in best_last)],
        "x": [*(0 for _ in failed), *(cell_rate.mean for _, cell_rate in best_last)],
        "text": [*("failed" for _ in failed), *(format_scaled(cell_rate.mean) for _, cell_rate in best_last)],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [colour_of(sut, group.systems) for sut in [*failed, *(cell.sut for cell, _ in best_last)]]},
        "error_x": {**_WHISKER, "array": [*(0 for _ in failed), *widths], "color": MUTED, "visible": any(widths)},
        "hovertemplate": "%{y}: %{x:.3~s} rows/s<extra></extra>",
        "width": 0.62,
    }
    top = max(cell_rate.mean + (cell_rate.half_width or 0) for _, cell_rate in measured)
    across = make_axis("rows/s", range=[0, top * 1.16], tickformat="~s", nticks=6)
    vertical = make_axis(showgrid=False, tickfont={"color": INK, "size": 13})
    height = max(220, 80 + 44 * (len(failed) + len(best_last)))
    return {"data": [bar], "layout": make_layout(height, xaxis=across, yaxis=vertical)}


def draw_search(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of all search trials of the typical runs; None if there was no search."""
    runs = {cell: cell.typical_run or cell.runs[0] for cell in group.cells if (cell.typical_run or cell.runs[0]).trials}
    if not runs:
        return None
    vertical = make_log_axis("rows/s", [trial.rate for run in runs.values() for trial in run.trials])
    panels, rows = [], []
    for value in group.parameter_values:
        cells = [cell for cell in runs if group.parameter_of(cell) == value]
        traces = [
            trace
            for cell in cells
            for trace in _make_trial_lines(group, cell, [(t.rate, t.sustainable, t.reason) for t in runs[cell].trials])
        ]
        rows += [
            (
                cell.sut,
                group.describe_cell(cell),
                str(number),
                format_scaled(trial.rate),
                "sustained" if trial.sustainable else trial.reason,
            )
            for cell in cells
            for number, trial in enumerate(runs[cell].trials, 1)
        ]
        spec = {"data": traces, "layout": make_layout(280, xaxis=make_axis("trial", dtick=1), yaxis=vertical)}
        panels.append(PlotPanel(spec, group.describe_cell(cells[0]) if len(group.parameter_values) > 1 and cells else ""))
    note = "Filled markers: sustained; open markers: not sustained."
    header = ("system", "queries", "trial", "rows/s", "verdict")
    title, keys = "Search for the sustainable rate", tuple(order_systems({cell.sut for cell in runs}))
    return ReportFigure("search", title, note, tuple(panels), header, tuple(rows), keys)


def _make_trial_lines(group: ScenarioGroup, cell: ResultCell, trials: Sequence[tuple[float, bool, str]]) -> list[PlotSpec]:
    system_colour = colour_of(cell.sut, group.systems)
    system_marker = make_marker(cell.sut, group.systems)
    return [
        make_line(
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
