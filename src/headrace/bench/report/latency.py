"""Figures of latency: over time, as a distribution, event time beside processing time, and of deployment."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.bench.histogram import Histogram
from headrace.bench.report.groups import Cell, Group
from headrace.bench.report.panels import LEAST, drawn_of, panel_title, seconds_axis, shown_systems, time_axis, values_of, warm_up
from headrace.bench.report.plots import INK, PAPER, Figure, Panel, Spec, axis, colour, layout, line, marker
from headrace.bench.report.words import digits, seconds

_SHARES = (0.0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
_TICKS = (0.5, 0.9, 0.99, 0.999)
_FEW = 40  # points that can be told from each other


def over_time(group: Group) -> Figure | None:
    """Return event-time latency by the second of emission: the median, and up to the 95th percentile a shade."""
    drawn = drawn_of(group, lambda run: len(run.event_time.series.second) > 0)
    if not drawn:
        return None
    every = [value for _, run in drawn for column in (run.event_time.series.p50, run.event_time.series.p95) for value in column]
    vertical = seconds_axis(every)
    panels, rows = [], []
    for value in values_of(group, drawn):
        traces: list[Spec] = []
        here = [(cell, run) for cell, run in drawn if group.value(cell) == value]
        for cell, run in here:
            course = run.event_time.series
            traces += _band(cell.sut, group, course.second, course.p50, course.p95)
            rows += [
                (cell.sut, group.label(cell), str(second), seconds(p50), seconds(p95), seconds(highest))
                for second, p50, p95, highest in zip(course.second, course.p50, course.p95, course.highest, strict=True)
            ]
        spec = {"data": traces, "layout": layout(320, xaxis=time_axis(group), yaxis=vertical, shapes=[warm_up(group)])}
        panels.append(Panel(spec, panel_title(group, here[0][0])))
    note = (
        "Lines are medians of each second, shades reach up to the 95th percentile; the grey part is warm-up and does not count."
    )
    header = ("system", "queries", "second", "p50", "p95", "highest")
    return Figure("latency-time", "Event-time latency over time", note, tuple(panels), header, tuple(rows), shown_systems(drawn))


def _band(sut: str, group: Group, when: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[Spec]:
    """Return a line, and a shade between it and the upper one."""
    floor = [max(value, LEAST) for value in low]
    shade = {"fill": "tonexty", "fillcolor": f"fade({colour(sut, group.systems)})", "hoverinfo": "skip"}
    hidden = {"color": "rgba(0,0,0,0)", "width": 0}
    below = line(sut, group.systems, x=list(when), y=floor, line=hidden, hoverinfo="skip")
    above = line(sut, group.systems, x=list(when), y=[max(value, LEAST) for value in high], **{**shade, "line": hidden})
    few = {"mode": "lines+markers", "marker": marker(sut, group.systems, 6)} if len(when) < _FEW else {}
    hover = f"{sut}, second %{{x}}: median %{{y:.3s}} s<extra></extra>"
    middle = line(sut, group.systems, x=list(when), y=floor, hovertemplate=hover, **few)
    return [below, above, middle]


def distribution(group: Group) -> Figure | None:
    """Return the percentiles of event-time latency, the far end drawn out."""
    drawn = drawn_of(group, lambda run: run.event_time.histogram.count > 0)
    if not drawn:
        return None
    merged = {cell: _merged(cell) for cell, _ in drawn}
    curves = {cell: [mark / 1e6 for mark in one.percentiles(_SHARES)] for cell, one in merged.items()}
    vertical = seconds_axis([value for curve in curves.values() for value in curve])
    ticks = {
        "tickvals": [_stretched(share) for share in _TICKS],
        "ticktext": [f"{share * 100:g} %" for share in _TICKS],
        "tickangle": 0,
    }
    panels, rows = [], []
    for value in values_of(group, drawn):
        cells = [cell for cell in curves if group.value(cell) == value]
        traces = [_curve(cell, group, curves[cell]) for cell in cells]
        rows += [(cell.sut, group.label(cell), *_marks(merged[cell])) for cell in cells]
        across = axis("share of output rows", range=[0, _stretched(_TICKS[-1]) * 1.04], **ticks)
        panels.append(Panel({"data": traces, "layout": layout(320, xaxis=across, yaxis=vertical)}, panel_title(group, cells[0])))
    note = "So many output rows were not later than that, over all repeats."
    header = ("system", "queries", "rows", "mean", "min", "p50", "p90", "p95", "p99", "max")
    title = "Event-time latency, distribution"
    return Figure("latency-distribution", title, note, tuple(panels), header, tuple(rows), shown_systems(drawn))


def _curve(cell: Cell, group: Group, curve: Sequence[float]) -> Spec:
    return line(
        cell.sut,
        group.systems,
        x=[_stretched(share) for share in _SHARES],
        y=[max(value, LEAST) for value in curve],
        customdata=[f"{share * 100:g}" for share in _SHARES],
        hovertemplate=f"{cell.sut}: %{{customdata}} % within %{{y:.3s}} s<extra></extra>",
    )


def _stretched(share: float) -> float:
    return -math.log10(1 - share)


def _merged(cell: Cell) -> Histogram:
    whole = Histogram()
    for run in cell.measured:
        whole = whole.merge(run.event_time.histogram)
    return whole


def _marks(histogram: Histogram) -> tuple[str, ...]:
    found = histogram.summary()
    assert found is not None
    shown = (found.mean, found.lowest, found.p50, found.p90, found.p95, found.p99, found.highest)
    return f"{found.count:,}", *map(seconds, shown)


def two_times(group: Group) -> Figure | None:
    """Return the 95th percentile by event time and by processing time: what lies between is waiting in the queue."""
    found = [(cell, *pair) for cell in group.cells if (pair := _both(cell))]
    if not found:
        return None
    several = len(group.values) > 1
    names = [f"{cell.sut} · {group.value(cell):,}" if several else cell.sut for cell, _, _ in found]
    traces: list[Spec] = []
    for name, (cell, event, processing) in zip(names, found, strict=True):
        traces += _dumbbell(cell, group, name, max(event, LEAST), max(processing, LEAST))
    across = seconds_axis([value for _, event, processing in found for value in (event, processing)])
    vertical = axis(showgrid=False, autorange="reversed", categoryorder="array", categoryarray=names, tickfont={"color": INK})
    spec = {"data": traces, "layout": layout(max(220, 90 + 30 * len(found)), xaxis=across, yaxis=vertical)}
    note = "95th percentiles. Open mark: by processing time; filled: by event time. What lies between is time in the queue."
    rows = tuple((cell.sut, group.label(cell), seconds(event), seconds(processing)) for cell, event, processing in found)
    header = ("system", "queries", "event time p95", "processing time p95")
    return Figure("two-times", "Event-time beside processing-time latency", note, (Panel(spec),), header, rows)


def _both(cell: Cell) -> tuple[float, float] | None:
    event = cell.figure(lambda run: _p95(run.event_time.histogram))
    processing = cell.figure(lambda run: _p95(run.processing_time.histogram))
    return (event.mean, processing.mean) if event and processing else None


def _dumbbell(cell: Cell, group: Group, name: str, event: float, processing: float) -> list[Spec]:
    mark, tone = marker(cell.sut, group.systems, 11), colour(cell.sut, group.systems)
    hollow = {**mark, "color": PAPER, "line": {"color": tone, "width": 2}}
    bar = line(cell.sut, group.systems, x=[processing, event], y=[name, name], hoverinfo="skip")
    ends = ((processing, hollow, "processing time"), (event, mark, "event time"))
    return [
        bar,
        *(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [at],
                "y": [name],
                "marker": style,
                "hovertemplate": f"{name}, by {kind}: %{{x:.3s}} s<extra></extra>",
            }
            for at, style, kind in ends
        ),
    ]


def _p95(histogram: Histogram) -> float | None:
    found = histogram.summary()
    return None if found is None else found.p95


def deployment(group: Group) -> Figure | None:
    """Return how long each request took until it was live, by the moment it was made."""
    drawn = drawn_of(group, lambda run: bool(run.deployments.requests))
    points = []
    for cell, run in drawn:
        start = run.deployments.start_us
        for request in run.deployments.requests:
            if request.live_at_us is not None:
                asked = (request.requested_at_us - start) / 1e6
                points.append((cell, asked, (request.live_at_us - request.requested_at_us) / 1e6, request.query))
    if not points:
        return None
    panels = []
    vertical = seconds_axis([wait for _, _, wait, _ in points])
    for value in values_of(group, drawn):
        cells = [cell for cell, _ in drawn if group.value(cell) == value]
        traces = [_requests(cell, group, [point[1:] for point in points if point[0] is cell]) for cell in cells]
        spec = {"data": traces, "layout": layout(320, xaxis=time_axis(group), yaxis=vertical)}
        panels.append(Panel(spec, panel_title(group, cells[0])))
    rows = tuple((cell.sut, group.label(cell), query, digits(asked), seconds(wait)) for cell, asked, wait, query in points)
    note = "A mark is a request to add or to remove a query; how high it is, how long it took until it was in force."
    header = ("system", "queries", "query", "asked at second", "live after")
    return Figure("deployment", "Deployment latency", note, tuple(panels), header, rows, shown_systems(drawn))


def _requests(cell: Cell, group: Group, points: Sequence[tuple[float, float, str]]) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [asked for asked, _, _ in points],
        "y": [max(wait, LEAST) for _, wait, _ in points],
        "marker": {**marker(cell.sut, group.systems, 7), "opacity": 0.75},
        "text": [query for _, _, query in points],
        "hovertemplate": f"{cell.sut}, %{{text}}: %{{y:.3s}} s<extra></extra>",
    }
