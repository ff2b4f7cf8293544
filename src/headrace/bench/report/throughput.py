"""Figures of rates: what is sustainable, against the parameter that is varied, and how the search got there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.bench.confidence import Confidence
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

_LABEL_GAP = 0.065  # of the height of the plot
_WHISKER = {"type": "data", "thickness": 1.25, "width": 4}


def rate_of(cell: Cell) -> Confidence | None:
    """Return the sustainable rate or, if there was no search, the rate at which rows were read."""
    return cell.sustainable or cell.figure(lambda run: run.read)


def rates(group: Group) -> Figure | None:
    """Return the rates of all systems; None if nothing was measured."""
    found = [(cell, known) for cell in group.cells if (known := rate_of(cell))]
    if not found:
        return None
    searched = any(cell.sustainable for cell, _ in found)
    kind = "Sustainable rate" if searched else "Rate read"
    several = len(group.values) > 1
    against = f" against {'the key range' if group.by_keys else 'the number of queries'}" if several else ""
    note = "A × at the foot marks a system that failed there. " if several and len(found) < len(group.cells) else ""
    bars = "Bars are the 95 % interval over repeats. " if group.repeats > 1 and several else ""
    rows = [(cell.sut, group.label(cell), rate(known), f"{known.runs}") for cell, known in found]
    rows += [
        (cell.sut, group.label(cell), f"failed: {'; '.join(cell.failures)}", "") for cell in group.cells if not rate_of(cell)
    ]
    return Figure(
        "rate",
        f"{kind}{against}",
        f"{note}{bars}{'Both axes are logarithmic.' if several else ''}".strip(),
        (Panel(_lines(group, found) if several else _bars(group, found)),),
        ("system", "queries", f"{kind.lower()}, rows/s", "runs"),
        tuple(rows),
    )


def _lines(group: Group, found: Sequence[tuple[Cell, Confidence]]) -> Spec:
    ends = [bound for _, known in found for bound in known.interval or (known.mean,) if bound > 0]
    vertical = log_axis("rows/s", ends)
    low, high = vertical["range"]
    traces = [_line(group, sut, [pair for pair in found if pair[0].sut == sut]) for sut in group.systems]
    failed = [cell for cell in group.cells if cell.failures and not cell.measured]
    if failed:
        traces.append(_crosses(group, failed, 10**low))
    last = {
        sut: max((group.value(cell), known.mean) for cell, known in found if cell.sut == sut) for sut in {c.sut for c, _ in found}
    }
    places = spread({sut: math.log10(mean) for sut, (_, mean) in last.items()}, _LABEL_GAP * (high - low))
    notes = [
        text(sut, math.log10(last[sut][0]), places[sut], colour(sut, group.systems), xanchor="left", xshift=12) for sut in places
    ]
    ticks = {"tickvals": group.values, "ticktext": [short(value) for value in group.values]}
    across = log_axis("keys" if group.by_keys else "queries", group.values, room=0.06, **ticks)
    margin = {"l": 60, "r": 80, "t": 12, "b": 48}
    return {"data": traces, "layout": layout(380, xaxis=across, yaxis=vertical, annotations=notes, margin=margin)}


def _line(group: Group, sut: str, found: Sequence[tuple[Cell, Confidence]]) -> Spec:
    return line(
        sut,
        group.systems,
        mode="lines+markers",
        marker=marker(sut, group.systems),
        x=[group.value(cell) for cell, _ in found],
        y=[known.mean for _, known in found],
        error_y={
            **_WHISKER,
            "array": [known.half_width or 0 for _, known in found],
            "color": colour(sut, group.systems),
            "visible": any(known.half_width for _, known in found),
        },
        hovertemplate=f"{sut}<br>%{{x:,}} {'keys' if group.by_keys else 'queries'}: %{{y:.3s}} rows/s<extra></extra>",
    )


def _crosses(group: Group, failed: Sequence[Cell], foot: float) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [group.value(cell) for cell in failed],
        "y": [foot] * len(failed),
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


def _bars(group: Group, found: Sequence[tuple[Cell, Confidence]]) -> Spec:
    """Return horizontal bars from zero, best first; each is labelled with its system and its value, or that it failed."""
    best_last = sorted(found, key=lambda pair: pair[1].mean)
    failed = [cell.sut for cell in group.cells if not cell.measured]
    widths = [known.half_width or 0 for _, known in best_last]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [*failed, *(cell.sut for cell, _ in best_last)],
        "x": [*(0 for _ in failed), *(known.mean for _, known in best_last)],
        "text": [*("failed" for _ in failed), *(scaled(known.mean) for _, known in best_last)],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [colour(sut, group.systems) for sut in [*failed, *(cell.sut for cell, _ in best_last)]]},
        "error_x": {**_WHISKER, "array": [*(0 for _ in failed), *widths], "color": MUTED, "visible": any(widths)},
        "hovertemplate": "%{y}: %{x:.3~s} rows/s<extra></extra>",
        "width": 0.62,
    }
    top = max(known.mean + (known.half_width or 0) for _, known in found)
    across = axis("rows/s", range=[0, top * 1.16], tickformat="~s", nticks=6)
    vertical = axis(showgrid=False, tickfont={"color": INK, "size": 13})
    height = max(220, 80 + 44 * (len(failed) + len(best_last)))
    return {"data": [bar], "layout": layout(height, xaxis=across, yaxis=vertical)}


def search(group: Group) -> Figure | None:
    """Return every trial of the searches of typical runs; None if there was no search."""
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
    note = "Filled marks were sustained, open ones were not."
    header = ("system", "queries", "trial", "rows/s", "verdict")
    title, keys = "Search for the sustainable rate", tuple(ordered({cell.sut for cell in runs}))
    return Figure("search", title, note, tuple(panels), header, tuple(rows), keys)


def _trials(group: Group, cell: Cell, trials: Sequence[tuple[float, bool, str]]) -> list[Spec]:
    tone = colour(cell.sut, group.systems)
    mark = marker(cell.sut, group.systems)
    return [
        line(
            cell.sut,
            group.systems,
            mode="lines+markers",
            x=list(range(1, len(trials) + 1)),
            y=[rate_ for rate_, _, _ in trials],
            marker={**mark, "color": [tone if good else PAPER for _, good, _ in trials], "line": {"color": tone, "width": 1.75}},
            text=["sustained" if good else reason for _, good, reason in trials],
            hovertemplate=f"{cell.sut}, trial %{{x}}: %{{y:.3s}} rows/s<br>%{{text}}<extra></extra>",
        )
    ]
