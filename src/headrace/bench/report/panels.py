"""Small multiples: one panel for each value of the parameter that is varied, all with the same axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.bench.report.groups import Cell, Group, ordered
from headrace.bench.report.plots import GRID, Spec, axis, log_axis
from headrace.bench.result import Measured

LEAST = 1e-3  # seconds: what is below is drawn there
_FAR = 30  # times the lowest twentieth


def drawn_of(group: Group, has: Callable[[Measured], bool]) -> list[tuple[Cell, Measured]]:
    """Return the typical run of each cell that has what is to be drawn."""
    found = [(cell, cell.typical.measured) for cell in group.cells if cell.typical is not None]
    return [(cell, run) for cell, run in found if run is not None and has(run)]


def values_of(group: Group, drawn: Sequence[tuple[Cell, Measured]]) -> list[int]:
    """Return the values of the parameter for which there is something to draw."""
    return sorted({group.value(cell) for cell, _ in drawn})


def panel_title(group: Group, cell: Cell) -> str:
    """Return what tells the panel of a cell from the others; nothing if there is only one."""
    return group.label(cell) if len(group.values) > 1 else ""


def seconds_axis(values: Sequence[float]) -> Spec:
    """Return a logarithmic axis of latencies."""
    return log_axis("seconds", [max(value, LEAST) for value in values], 0.06)


def amount_axis(unit: str, values: Sequence[float], *, of_rates: bool) -> tuple[Spec, float]:
    """Return an axis from zero and the least it can show.

    For rates it is logarithmic if they are so far apart that one system alone could be seen.
    """
    top, positive = max(values, default=0.0) or 1.0, sorted(value for value in values if value > 0)
    usual = positive[len(positive) // 20] if positive else top
    if not of_rates or top <= _FAR * usual:
        return axis(unit, range=[0, top * 1.06], tickformat="~s" if top >= 1000 else "~g", nticks=6), 0.0
    return log_axis(unit, [usual / 2, top], 0.04), usual / 2


def shown_systems(drawn: Sequence[tuple[Cell, Measured]]) -> tuple[str, ...]:
    """Return the systems of a figure, in their order."""
    return tuple(ordered({cell.sut for cell, _ in drawn}))


def time_axis(group: Group) -> Spec:
    """Return the axis of a run's time."""
    return axis("second of the run", range=[0, group.seconds], nticks=7)


def warm_up(group: Group) -> Spec:
    """Return the part of a time axis that does not count, as a shade."""
    until = group.seconds * group.warm_up
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": until, "y0": 0, "y1": 1, "fillcolor": GRID,
        "opacity": 0.45, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip
