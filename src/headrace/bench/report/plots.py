"""Build the parts that all figures share: number formats, colours by system, axes, layout and panels.

Numbers have three significant digits and a unit. Plots are plain values for plotly.js; their colours are names of CSS variables,
which the page resolves for its light and dark themes. Figures are small multiples: one panel for each value of the varied
parameter, with equal axes. This module produces no HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.measure.statistics import ConfidenceInterval
from headrace.bench.report.groups import OWN_SYSTEM, SYSTEM_ORDER, ResultCell, ScenarioGroup, order_systems
from headrace.bench.result import MeasuredRun

NO_VALUE = "–"
_SI_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def format_number(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = abs(float(f"{value:.3g}"))  # otherwise 99.96 would get four digits
    decimals = max(0, 2 - math.floor(math.log10(rounded)))
    return f"{value:,.{decimals}f}"


def format_scaled(value: float) -> str:
    """Return a number with a prefix: k, M or G."""
    unit, letter = _choose_prefix(value)
    return f"{format_number(value / unit)} {letter}".strip()


def _choose_prefix(value: float) -> tuple[float, str]:
    return next(((unit, letter) for unit, letter in _SI_PREFIXES if abs(value) >= unit * 0.9995), (1.0, ""))


def format_seconds(value: float | None) -> str:
    """Return a duration, in milliseconds below one second."""
    if value is None:
        return NO_VALUE
    return f"{format_number(value)} s" if value >= 0.9995 else f"{format_number(value * 1000)} ms"


def format_rate(value: ConfidenceInterval | None) -> str:
    """Return a rate in rows/s with its confidence interval, both with the same prefix and number of decimals."""
    if value is None:
        return NO_VALUE
    if value.half_width is None:
        return format_scaled(value.mean)
    unit, letter = _choose_prefix(value.mean)
    mean = format_number(value.mean / unit)
    decimals = len(mean.partition(".")[2])
    return f"{mean} ± {value.half_width / unit:,.{decimals}f} {letter}".strip()


def format_bytes(value: float) -> str:
    """Return a number of bytes in MiB or GiB."""
    return f"{format_number(value / 2**30)} GiB" if value >= 2**30 else f"{format_number(value / 2**20)} MiB"


def format_ratio(value: float) -> str:
    """Return a ratio with the sign ×."""
    return f"{format_number(value) if value < 100 else f'{value:,.0f}'} ×"


def format_percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share * 100:.0f} %"


PlotSpec = dict[str, Any]
_MARKER_SYMBOLS = {
    "headrace": "circle",
    "headrace_local": "circle-dot",
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
    until = 0 if group.reads_topic else group.seconds * group.warm_up  # a topic's ends at another second in each run
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": until, "y0": 0, "y1": 1, "fillcolor": GRID,
        "opacity": 0.45, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip
