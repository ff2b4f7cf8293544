"""Build the parts of figures with small multiples: one panel for each value of the varied parameter, with equal axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.bench.report.groups import ResultCell, ScenarioGroup, order_systems
from headrace.bench.report.plots import GRID, PlotSpec, make_axis, make_log_axis
from headrace.bench.result import MeasuredRun

MIN_LATENCY_S = 1e-3  # seconds; lower values are drawn at this value
_LOG_AXIS_RATIO = 30  # of the maximum to the 5th percentile; above it, rates get a logarithmic axis


def select_typical_runs(group: ScenarioGroup, has_data: Callable[[MeasuredRun], bool]) -> list[tuple[ResultCell, MeasuredRun]]:
    """Return the typical run of each cell, if it has the data to draw."""
    runs = [(cell, cell.typical_run.figures) for cell in group.cells if cell.typical_run is not None]
    return [(cell, run) for cell, run in runs if run is not None and has_data(run)]


def list_drawn_values(group: ScenarioGroup, typical_runs: Sequence[tuple[ResultCell, MeasuredRun]]) -> list[int]:
    """Return the parameter values that have runs to draw."""
    return sorted({group.parameter_of(cell) for cell, _ in typical_runs})


def make_panel_title(group: ScenarioGroup, cell: ResultCell) -> str:
    """Return the title of the panel of a cell; empty if the figure has a single panel."""
    return group.describe_cell(cell) if len(group.parameter_values) > 1 else ""


def make_seconds_axis(values: Sequence[float]) -> PlotSpec:
    """Return a logarithmic axis for latencies."""
    return make_log_axis("seconds", [max(value, MIN_LATENCY_S) for value in values], 0.06)


def make_amount_axis(unit: str, values: Sequence[float], *, is_rate: bool) -> tuple[PlotSpec, float]:
    """Return an axis that starts at zero, and the smallest value it can show.

    The axis is logarithmic for rates so far apart that a linear one would show only the fastest system.
    """
    top, positive = max(values, default=0.0) or 1.0, sorted(value for value in values if value > 0)
    low = positive[len(positive) // 20] if positive else top
    if not is_rate or top <= _LOG_AXIS_RATIO * low:
        return make_axis(unit, range=[0, top * 1.06], tickformat="~s" if top >= 1000 else "~g", nticks=6), 0.0
    return make_log_axis(unit, [low / 2, top], 0.04), low / 2


def list_drawn_systems(typical_runs: Sequence[tuple[ResultCell, MeasuredRun]]) -> tuple[str, ...]:
    """Return the systems of a figure in display order."""
    return tuple(order_systems({cell.sut for cell, _ in typical_runs}))


def make_time_axis(group: ScenarioGroup) -> PlotSpec:
    """Return the time axis of a run."""
    return make_axis("second of the run", range=[0, group.seconds], nticks=7)


def make_warm_up_shape(group: ScenarioGroup) -> PlotSpec:
    """Return the shaded area of the warm-up, which does not count."""
    until = group.seconds * group.warm_up
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": until, "y0": 0, "y1": 1, "fillcolor": GRID,
        "opacity": 0.45, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip
