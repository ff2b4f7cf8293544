"""Build the latency figures: over time, distribution, event time versus processing time, and deployment latency."""

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
_FEW = 40  # up to this many points get markers


def over_time(group: Group) -> Figure | None:
    """Return event-time latency by second of emission: the median as a line, a band up to the 95th percentile."""
    typical_runs = drawn_of(group, lambda run: len(run.event_time_latency.series.second) > 0)
    if not typical_runs:
        return None
    latencies = [
        value
        for _, run in typical_runs
        for column in (run.event_time_latency.series.p50, run.event_time_latency.series.p95)
        for value in column
    ]
    vertical = seconds_axis(latencies)
    panels, rows = [], []
    for value in values_of(group, typical_runs):
        traces: list[Spec] = []
        panel_runs = [(cell, run) for cell, run in typical_runs if group.value(cell) == value]
        for cell, run in panel_runs:
            series = run.event_time_latency.series
            traces += _band(cell.sut, group, series.second, series.p50, series.p95)
            rows += [
                (cell.sut, group.label(cell), str(second), seconds(p50), seconds(p95), seconds(highest))
                for second, p50, p95, highest in zip(series.second, series.p50, series.p95, series.highest, strict=True)
            ]
        spec = {"data": traces, "layout": layout(320, xaxis=time_axis(group), yaxis=vertical, shapes=[warm_up(group)])}
        panels.append(Panel(spec, panel_title(group, panel_runs[0][0])))
    note = "Lines: median of each second; bands: up to the 95th percentile. The grey area is warm-up and does not count."
    header = ("system", "queries", "second", "p50", "p95", "max")
    return Figure(
        "latency-time", "Event-time latency over time", note, tuple(panels), header, tuple(rows), shown_systems(typical_runs)
    )


def _band(sut: str, group: Group, times: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[Spec]:
    """Return a line, and a band between it and the upper values."""
    lower = [max(value, LEAST) for value in low]
    band = {"fill": "tonexty", "fillcolor": f"fade({colour(sut, group.systems)})", "hoverinfo": "skip"}
    hidden = {"color": "rgba(0,0,0,0)", "width": 0}
    below = line(sut, group.systems, x=list(times), y=lower, line=hidden, hoverinfo="skip")
    above = line(sut, group.systems, x=list(times), y=[max(value, LEAST) for value in high], **{**band, "line": hidden})
    markers = {"mode": "lines+markers", "marker": marker(sut, group.systems, 6)} if len(times) < _FEW else {}
    hover = f"{sut}, second %{{x}}: median %{{y:.3s}} s<extra></extra>"
    median = line(sut, group.systems, x=list(times), y=lower, hovertemplate=hover, **markers)
    return [below, above, median]


def distribution(group: Group) -> Figure | None:
    """Return the percentiles of event-time latency, on an axis that stretches the tail."""
    typical_runs = drawn_of(group, lambda run: run.event_time_latency.histogram.count > 0)
    if not typical_runs:
        return None
    merged = {cell: _merged(cell) for cell, _ in typical_runs}
    curves = {cell: [value / 1e6 for value in histogram.get_percentiles(_SHARES)] for cell, histogram in merged.items()}
    vertical = seconds_axis([value for curve in curves.values() for value in curve])
    ticks = {
        "tickvals": [_stretched(share) for share in _TICKS],
        "ticktext": [f"{share * 100:g} %" for share in _TICKS],
        "tickangle": 0,
    }
    panels, rows = [], []
    for value in values_of(group, typical_runs):
        cells = [cell for cell in curves if group.value(cell) == value]
        traces = [_curve(cell, group, curves[cell]) for cell in cells]
        rows += [(cell.sut, group.label(cell), *_marks(merged[cell])) for cell in cells]
        across = axis("share of output rows", range=[0, _stretched(_TICKS[-1]) * 1.04], **ticks)
        panels.append(Panel({"data": traces, "layout": layout(320, xaxis=across, yaxis=vertical)}, panel_title(group, cells[0])))
    note = "The share of output rows that arrived within a given latency, over all repeats."
    header = ("system", "queries", "rows", "mean", "min", "p50", "p90", "p95", "p99", "max")
    title = "Distribution of event-time latency"
    return Figure("latency-distribution", title, note, tuple(panels), header, tuple(rows), shown_systems(typical_runs))


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
    merged = Histogram()
    for run in cell.measured:
        merged = merged.merge(run.event_time_latency.histogram)
    return merged


def _marks(histogram: Histogram) -> tuple[str, ...]:
    summary = histogram.summarize()
    assert summary is not None
    latencies = (summary.mean, summary.lowest, summary.p50, summary.p90, summary.p95, summary.p99, summary.highest)
    return f"{summary.count:,}", *map(seconds, latencies)


def two_times(group: Group) -> Figure | None:
    """Return the 95th percentiles of event-time and processing-time latency; their difference is time in the queue."""
    cells = [(cell, *pair) for cell in group.cells if (pair := _both(cell))]
    if not cells:
        return None
    has_several_values = len(group.values) > 1
    names = [f"{cell.sut} · {group.value(cell):,}" if has_several_values else cell.sut for cell, _, _ in cells]
    traces: list[Spec] = []
    for name, (cell, event, processing) in zip(names, cells, strict=True):
        traces += _dumbbell(cell, group, name, max(event, LEAST), max(processing, LEAST))
    across = seconds_axis([value for _, event, processing in cells for value in (event, processing)])
    vertical = axis(showgrid=False, autorange="reversed", categoryorder="array", categoryarray=names, tickfont={"color": INK})
    spec = {"data": traces, "layout": layout(max(220, 90 + 30 * len(cells)), xaxis=across, yaxis=vertical)}
    note = "95th percentiles. Open marker: processing time; filled marker: event time. The difference is time in the queue."
    rows = tuple((cell.sut, group.label(cell), seconds(event), seconds(processing)) for cell, event, processing in cells)
    header = ("system", "queries", "event time p95", "processing time p95")
    return Figure("two-times", "Event-time and processing-time latency", note, (Panel(spec),), header, rows)


def _both(cell: Cell) -> tuple[float, float] | None:
    event = cell.figure(lambda run: _p95(run.event_time_latency.histogram))
    processing = cell.figure(lambda run: _p95(run.processing_time_latency.histogram))
    return (event.mean, processing.mean) if event and processing else None


def _dumbbell(cell: Cell, group: Group, name: str, event: float, processing: float) -> list[Spec]:
    mark, system_colour = marker(cell.sut, group.systems, 11), colour(cell.sut, group.systems)
    hollow = {**mark, "color": PAPER, "line": {"color": system_colour, "width": 2}}
    connector = line(cell.sut, group.systems, x=[processing, event], y=[name, name], hoverinfo="skip")
    ends = ((processing, hollow, "processing time"), (event, mark, "event time"))
    return [
        connector,
        *(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [latency],
                "y": [name],
                "marker": style,
                "hovertemplate": f"{name}, by {kind}: %{{x:.3s}} s<extra></extra>",
            }
            for latency, style, kind in ends
        ),
    ]


def _p95(histogram: Histogram) -> float | None:
    summary = histogram.summarize()
    return None if summary is None else summary.p95


def deployment(group: Group) -> Figure | None:
    """Return the time from each request until it took effect, by the time of the request."""
    typical_runs = drawn_of(group, lambda run: bool(run.deployments.requests))
    points = []
    for cell, run in typical_runs:
        start = run.deployments.start_us
        for request in run.deployments.requests:
            if request.live_at_us is not None:
                requested_at = (request.requested_at_us - start) / 1e6
                points.append((cell, requested_at, (request.live_at_us - request.requested_at_us) / 1e6, request.query))
    if not points:
        return None
    panels = []
    vertical = seconds_axis([wait for _, _, wait, _ in points])
    for value in values_of(group, typical_runs):
        cells = [cell for cell, _ in typical_runs if group.value(cell) == value]
        traces = [_requests(cell, group, [point[1:] for point in points if point[0] is cell]) for cell in cells]
        spec = {"data": traces, "layout": layout(320, xaxis=time_axis(group), yaxis=vertical)}
        panels.append(Panel(spec, panel_title(group, cells[0])))
    rows = tuple(
        (cell.sut, group.label(cell), query, digits(requested_at), seconds(wait)) for cell, requested_at, wait, query in points
    )
    note = "Each marker is a request to add or remove a query; its height is the time until the request took effect."
    header = ("system", "queries", "query", "requested at second", "in effect after")
    return Figure("deployment", "Deployment latency", note, tuple(panels), header, rows, shown_systems(typical_runs))


def _requests(cell: Cell, group: Group, points: Sequence[tuple[float, float, str]]) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [requested_at for requested_at, _, _ in points],
        "y": [max(wait, LEAST) for _, wait, _ in points],
        "marker": {**marker(cell.sut, group.systems, 7), "opacity": 0.75},
        "text": [query for _, _, query in points],
        "hovertemplate": f"{cell.sut}, %{{text}}: %{{y:.3s}} s<extra></extra>",
    }
