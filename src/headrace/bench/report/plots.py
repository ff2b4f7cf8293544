"""What all figures have in common: colours by system, axes, layout – plain values that plotly.js draws.

Colours are names of CSS variables; the page puts in what they stand for, in light and in dark. Nothing here knows HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.report.groups import ORDER, OURS

Spec = dict[str, Any]
_SYMBOLS = {
    "headrace": "circle",
    "headrace_common": "circle-open",
    "headrace_apart": "star",
    "flink": "square",
    "spark": "diamond",
    "duckdb": "triangle-up",
    "limit": "cross",
}
_OTHERS = 3
INK, MUTED, GRID, PAPER = "var(--ink)", "var(--muted)", "var(--grid)", "var(--paper)"
HEIGHT = 340
_STEPS = ((1,), (1, 2, 5), (1, 2, 3, 5, 7), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8))  # of a power of ten, where ticks may stand


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure; `title` tells it from the others, and is empty if there are none."""

    spec: Spec
    title: str = ""

    @property
    def height(self) -> int:
        """How much room it takes before it is drawn, in pixels."""
        return int(self.spec["layout"]["height"])


@dataclass(frozen=True, slots=True)
class Figure:
    """Plots side by side, what they say in a sentence, and their numbers as a table.

    `keys` are the systems whose colours must be told; none if the plots name them.
    """

    name: str
    title: str
    note: str
    panels: tuple[Panel, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...] = ()


def colour(sut: str, systems: Sequence[str] = ()) -> str:
    """Return the colour of a system; one that is not known gets one of the others, by its place among them."""
    if sut in ORDER:
        return f"var(--{sut})"
    others = [name for name in systems if name not in ORDER]
    return f"var(--other-{(others.index(sut) if sut in others else 0) % _OTHERS + 1})"


def line(sut: str, systems: Sequence[str], **more: Any) -> Spec:
    """Return a trace of a system: a line, in its colour."""
    style = {"color": colour(sut, systems), "width": 2.5 if sut == OURS else 1.75}
    return {"type": "scatter", "mode": "lines", "name": sut, "line": style, "showlegend": False, **more}


def marker(sut: str, systems: Sequence[str], size: int = 10) -> Spec:
    """Return the mark of a system, which differs in shape too."""
    return {
        "color": colour(sut, systems),
        "symbol": _SYMBOLS.get(sut, "star"),
        "size": size,
        "line": {"color": PAPER, "width": 1},
    }


def axis(title: str = "", **more: Any) -> Spec:
    """Return a quiet axis."""
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


def layout(height: int = HEIGHT, **more: Any) -> Spec:
    """Return the layout of a figure; the page gives it its width."""
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


def log_axis(title: str, values: Sequence[float], room: float = 0.12, **more: Any) -> Spec:
    """Return a logarithmic axis over some values, with as many ticks as it takes to read it."""
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = max(0.1, (high - low) * room)
    shown = ticks(low - pad, high + pad)
    given = {"tickvals": shown, "ticktext": [short(mark) for mark in shown]}
    return axis(title, type="log", range=[low - pad, high + pad], **{**given, **more})


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two powers of ten, at least three if there are so many."""
    found: list[float] = []
    for steps in _STEPS:
        marks = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
        found = [mark for mark in marks if low <= math.log10(mark) <= high]
        if len(found) >= 3:
            break
    return found


def short(value: float) -> str:
    """Return a number for an axis: 500, 20 k, 1 M; 0.05."""
    for unit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit * 0.9999:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def spread(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """Return places for labels, at least `gap` apart, in the same order and as near as can be to where they belong."""
    names = sorted(places, key=lambda name: places[name])
    clusters: list[tuple[float, list[str]]] = []
    for name in names:
        clusters.append((places[name], [name]))
        while len(clusters) > 1 and _overlap(clusters[-2], clusters[-1], gap):
            (low, below), (high, above) = clusters[-2:]
            centre = (low * len(below) + high * len(above)) / (len(below) + len(above))
            clusters[-2:] = [(centre, [*below, *above])]
    return {
        name: centre + (number - (len(members) - 1) / 2) * gap
        for centre, members in clusters
        for number, name in enumerate(members)
    }


def _overlap(one: tuple[float, list[str]], two: tuple[float, list[str]], gap: float) -> bool:
    return two[0] - one[0] < gap * (len(one[1]) + len(two[1])) / 2


def text(words: str, x: float, y: float, tone: str = MUTED, **more: Any) -> Spec:
    """Return a note in a figure."""
    return {"text": words, "x": x, "y": y, "showarrow": False, "font": {"color": tone, "size": 12}, **more}
