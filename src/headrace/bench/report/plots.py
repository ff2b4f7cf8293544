"""Build the parts that all figures share: colours by system, axes and layout, as plain values for plotly.js.

Colours are names of CSS variables; the page resolves them for its light and dark themes. This module produces no HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.report.groups import OWN_SYSTEM, SYSTEM_ORDER

PlotSpec = dict[str, Any]
_MARKER_SYMBOLS = {
    "headrace": "circle",
    "headrace_common": "circle-open",
    "headrace_apart": "star",
    "flink": "square",
    "spark": "diamond",
    "duckdb": "triangle-up",
    "limit": "cross",
}
_OTHER_COLOURS = 3
INK, MUTED, GRID, PAPER = "var(--ink)", "var(--muted)", "var(--grid)", "var(--paper)"
DEFAULT_HEIGHT = 340
_TICK_STEPS = (
    (1,),
    (1, 2, 5),
    (1, 2, 3, 5, 7),
    (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
)  # multiples of a power of ten that can have ticks


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """A plot of a figure; `title` is empty if the figure has a single panel."""

    spec: PlotSpec
    title: str = ""

    @property
    def height(self) -> int:
        """The height to reserve before the plot is drawn, in pixels."""
        return int(self.spec["layout"]["height"])


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """Plots side by side, a note that explains them, and their numbers as a table.

    `legend_systems` are the systems of the legend; empty if the plots name their systems.
    """

    name: str
    title: str
    note: str
    panels: tuple[PlotPanel, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend_systems: tuple[str, ...] = ()


def colour_of(sut: str, systems: Sequence[str] = ()) -> str:
    """Return the colour of a system; unknown systems get one of the other colours, by position."""
    if sut in SYSTEM_ORDER:
        return f"var(--{sut})"
    others = [name for name in systems if name not in SYSTEM_ORDER]
    return f"var(--other-{(others.index(sut) if sut in others else 0) % _OTHER_COLOURS + 1})"


def make_line(sut: str, systems: Sequence[str], **more: Any) -> PlotSpec:
    """Return a line trace in the colour of a system."""
    style = {"color": colour_of(sut, systems), "width": 2.5 if sut == OWN_SYSTEM else 1.75}
    return {"type": "scatter", "mode": "lines", "name": sut, "line": style, "showlegend": False, **more}


def make_marker(sut: str, systems: Sequence[str], size: int = 10) -> PlotSpec:
    """Return the marker of a system; systems differ in shape as well as colour."""
    return {
        "color": colour_of(sut, systems),
        "symbol": _MARKER_SYMBOLS.get(sut, "star"),
        "size": size,
        "line": {"color": PAPER, "width": 1},
    }


def make_axis(title: str = "", **more: Any) -> PlotSpec:
    """Return an axis with muted lines and labels."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": MUTED}, "standoff": 8},
        "gridcolor": GRID,
        "linecolor": GRID,
        "tickcolor": GRID,
        "tickfont": {"size": 12, "color": MUTED},
        "zeroline": False,
        "automargin": True,
        **more,
    }


def make_layout(height: int = DEFAULT_HEIGHT, **more: Any) -> PlotSpec:
    """Return the layout of a plot; the page sets its width."""
    return {
        "height": height,
        "margin": {"l": 56, "r": 20, "t": 12, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 13, "color": INK},
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": GRID, "font": {"color": INK, "size": 12}},
        "showlegend": False,
        "hovermode": "closest",
        **more,
    }


def make_log_axis(title: str, values: Sequence[float], room: float = 0.12, **more: Any) -> PlotSpec:
    """Return a logarithmic axis that covers the values, with at least three ticks where possible."""
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = max(0.1, (high - low) * room)
    tick_values = choose_ticks(low - pad, high + pad)
    tick_labels = {"tickvals": tick_values, "ticktext": [format_tick(value) for value in tick_values]}
    return make_axis(title, type="log", range=[low - pad, high + pad], **{**tick_labels, **more})


def choose_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between 10**low and 10**high, at least three where possible."""
    visible: list[float] = []
    for steps in _TICK_STEPS:
        candidates = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
        visible = [candidate for candidate in candidates if low <= math.log10(candidate) <= high]
        if len(visible) >= 3:
            break
    return visible


def format_tick(value: float) -> str:
    """Return the label of a tick: 500, 20 k, 1 M; 0.05."""
    for unit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit * 0.9999:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def spread_labels(positions: Mapping[str, float], gap: float) -> dict[str, float]:
    """Return label positions at least `gap` apart, in the same order and as near as possible to the given positions."""
    names = sorted(positions, key=lambda name: positions[name])
    clusters: list[tuple[float, list[str]]] = []
    for name in names:
        clusters.append((positions[name], [name]))
        while len(clusters) > 1 and _has_overlap(clusters[-2], clusters[-1], gap):
            (low, below), (high, above) = clusters[-2:]
            centre = (low * len(below) + high * len(above)) / (len(below) + len(above))
            clusters[-2:] = [(centre, [*below, *above])]
    return {
        name: centre + (number - (len(members) - 1) / 2) * gap
        for centre, members in clusters
        for number, name in enumerate(members)
    }


def _has_overlap(lower: tuple[float, list[str]], upper: tuple[float, list[str]], gap: float) -> bool:
    return upper[0] - lower[0] < gap * (len(lower[1]) + len(upper[1])) / 2


def make_annotation(label: str, x: float, y: float, text_colour: str = MUTED, **more: Any) -> PlotSpec:
    """Return an annotation without an arrow."""
    return {"text": label, "x": x, "y": y, "showarrow": False, "font": {"color": text_colour, "size": 12}, **more}
