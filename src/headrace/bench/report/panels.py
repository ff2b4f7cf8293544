"""Build the parts of figures with small multiples: one panel for each value of the varied parameter, with equal axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.bench.report.groups import Cell, Group, ordered
from headrace.bench.report.plots import GRID, Spec, axis, log_axis
from headrace.bench.result import MeasuredRun

LEAST = 1e-3  # seconds; lower values are drawn at this value
_FAR = 30  # of the maximum to the 5th percentile; above it, rates get a logarithmic axis


def drawn_of(group: Group, has_data: Callable[[MeasuredRun], bool]) -> list[tuple[Cell, MeasuredRun]]:
    """Return the typical run of each cell, if it has the data to draw."""
    runs = [(cell, cell.typical.figures) for cell in group.cells if cell.typical is not None]
    return [(cell, run) for cell, run in runs if run is not None and has_data(run)]


def values_of(group: Group, typical_runs: Sequence[tuple[Cell, MeasuredRun]]) -> list[int]:
    """Return the parameter values that have runs to draw."""
    return sorted({group.value(cell) for cell, _ in typical_runs})


def panel_title(group: Group, cell: Cell) -> str:
    """Return the title of the panel of a cell; empty if the figure has a single panel."""
    return group.label(cell) if len(group.values) > 1 else ""


def seconds_axis(values: Sequence[float]) -> Spec:
    """Return a logarithmic axis for latencies."""
    return log_axis("seconds", [max(value, LEAST) for value in values], 0.06)


def amount_axis(unit: str, values: Sequence[float], *, of_rates: bool) -> tuple[Spec, float]:
    """Return an axis that starts at zero, and the smallest value it can show.

    The axis is logarithmic for rates so far apart that a linear one would show only the fastest system.
    """
    top, positive = max(values, default=0.0) or 1.0, sorted(value for value in values if value > 0)
    low = positive[len(positive) // 20] if positive else top
    if not of_rates or top <= _FAR * low:
        return axis(unit, range=[0, top * 1.06], tickformat="~s" if top >= 1000 else "~g", nticks=6), 0.0
    return log_axis(unit, [low / 2, top], 0.04), low / 2


def shown_systems(typical_runs: Sequence[tuple[Cell, MeasuredRun]]) -> tuple[str, ...]:
    """Return the systems of a figure in display order."""
    return tuple(ordered({cell.sut for cell, _ in typical_runs}))


def time_axis(group: Group) -> Spec:
    """Return the time axis of a run."""
    return axis("second of the run", range=[0, group.seconds], nticks=7)


def warm_up(group: Group) -> Spec:
    """Return the shaded area of the warm-up, which does not count."""
    until = group.seconds * group.warm_up
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": until, "y0": 0, "y1": 1, "fillcolor": GRID,
        "opacity": 0.45, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip
