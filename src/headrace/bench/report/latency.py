"""Build the latency figures: over time, distribution, event time versus processing time, and deployment latency."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.bench.histogram import Histogram
from headrace.bench.report.groups import ResultCell, ScenarioGroup
from headrace.bench.report.panels import (
    MIN_LATENCY_S,
    list_drawn_systems,
    list_drawn_values,
    make_panel_title,
    make_seconds_axis,
    make_time_axis,
    make_warm_up_shape,
    select_typical_runs,
)
from headrace.bench.report.plots import (
    INK,
    PAPER,
    PlotPanel,
    PlotSpec,
    ReportFigure,
    colour_of,
    make_axis,
    make_layout,
    make_line,
    make_marker,
)
from headrace.bench.report.words import format_number, format_seconds

_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
_QUANTILE_TICKS = (0.5, 0.9, 0.99, 0.999)
_MARKER_LIMIT = 40  # up to this many points get markers


def draw_latency_over_time(group: ScenarioGroup) -> ReportFigure | None:
    """Return event-time latency by second of emission: the median as a line, a band up to the 95th percentile."""
    typical_runs = select_typical_runs(group, lambda run: len(run.event_time_latency.series.second) > 0)
    if not typical_runs:
        return None
    latencies = [
        value
        for _, run in typical_runs
        for column in (run.event_time_latency.series.p50, run.event_time_latency.series.p95)
        for value in column
    ]
    vertical = make_seconds_axis(latencies)
    panels, rows = [], []
    for value in list_drawn_values(group, typical_runs):
        traces: list[PlotSpec] = []
        panel_runs = [(cell, run) for cell, run in typical_runs if group.parameter_of(cell) == value]
        for cell, run in panel_runs:
            series = run.event_time_latency.series
            traces += _make_band(cell.sut, group, series.second, series.p50, series.p95)
            rows += [
                (
                    cell.sut,
                    group.describe_cell(cell),
                    str(second),
                    format_seconds(p50),
                    format_seconds(p95),
                    format_seconds(highest),
                )
                for second, p50, p95, highest in zip(series.second, series.p50, series.p95, series.highest, strict=True)
            ]
        spec = {
            "data": traces,
            "layout": make_layout(320, xaxis=make_time_axis(group), yaxis=vertical, shapes=[make_warm_up_shape(group)]),
        }
        panels.append(PlotPanel(spec, make_panel_title(group, panel_runs[0][0])))
    note = "Lines: median of each second; bands: up to the 95th percentile. The grey area is warm-up and does not count."
    header = ("system", "queries", "second", "p50", "p95", "max")
    return ReportFigure(
        "latency-time", "Event-time latency over time", note, tuple(panels), header, tuple(rows), list_drawn_systems(typical_runs)
    )


def _make_band(
    sut: str, group: ScenarioGroup, times: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> list[PlotSpec]:
    """Return a line, and a band between it and the upper values."""
    lower = [max(value, MIN_LATENCY_S) for value in low]
    band = {"fill": "tonexty", "fillcolor": f"fade({colour_of(sut, group.systems)})", "hoverinfo": "skip"}
    hidden = {"color": "rgba(0,0,0,0)", "width": 0}
    below = make_line(sut, group.systems, x=list(times), y=lower, line=hidden, hoverinfo="skip")
    above = make_line(
        sut, group.systems, x=list(times), y=[max(value, MIN_LATENCY_S) for value in high], **{**band, "line": hidden}
    )
    markers = {"mode": "lines+markers", "marker": make_marker(sut, group.systems, 6)} if len(times) < _MARKER_LIMIT else {}
    hover = f"{sut}, second %{{x}}: median %{{y:.3s}} s<extra></extra>"
    median = make_line(sut, group.systems, x=list(times), y=lower, hovertemplate=hover, **markers)
    return [below, above, median]


def draw_latency_distribution(group: ScenarioGroup) -> ReportFigure | None:
    """Return the percentiles of event-time latency, on an axis that stretches the tail."""
    typical_runs = select_typical_runs(group, lambda run: run.event_time_latency.histogram.count > 0)
    if not typical_runs:
        return None
    merged = {cell: _merge_histograms(cell) for cell, _ in typical_runs}
    curves = {cell: [value / 1e6 for value in histogram.get_percentiles(_QUANTILES)] for cell, histogram in merged.items()}
    vertical = make_seconds_axis([value for curve in curves.values() for value in curve])
    ticks = {
        "tickvals": [_stretch_quantile(share) for share in _QUANTILE_TICKS],
        "ticktext": [f"{share * 100:g} %" for share in _QUANTILE_TICKS],
        "tickangle": 0,
    }
    panels, rows = [], []
    for value in list_drawn_values(group, typical_runs):
        cells = [cell for cell in curves if group.parameter_of(cell) == value]
        traces = [_make_quantile_curve(cell, group, curves[cell]) for cell in cells]
        rows += [(cell.sut, group.describe_cell(cell), *_format_summary(merged[cell])) for cell in cells]
        across = make_axis("share of output rows", range=[0, _stretch_quantile(_QUANTILE_TICKS[-1]) * 1.04], **ticks)
        panels.append(
            PlotPanel(
                {"data": traces, "layout": make_layout(320, xaxis=across, yaxis=vertical)}, make_panel_title(group, cells[0])
            )
        )
    note = "The share of output rows that arrived within a given latency, over all repeats."
    header = ("system", "queries", "rows", "mean", "min", "p50", "p90", "p95", "p99", "max")
    title = "Distribution of event-time latency"
    return ReportFigure("latency-distribution", title, note, tuple(panels), header, tuple(rows), list_drawn_systems(typical_runs))


def _make_quantile_curve(cell: ResultCell, group: ScenarioGroup, curve: Sequence[float]) -> PlotSpec:
    return make_line(
        cell.sut,
        group.systems,
        x=[_stretch_quantile(share) for share in _QUANTILES],
        y=[max(value, MIN_LATENCY_S) for value in curve],
        customdata=[f"{share * 100:g}" for share in _QUANTILES],
        hovertemplate=f"{cell.sut}: %{{customdata}} % within %{{y:.3s}} s<extra></extra>",
    )


def _stretch_quantile(share: float) -> float:
    return -math.log10(1 - share)


def _merge_histograms(cell: ResultCell) -> Histogram:
    merged = Histogram()
    for run in cell.measured:
        merged = merged.merge(run.event_time_latency.histogram)
    return merged


def _format_summary(histogram: Histogram) -> tuple[str, ...]:
    summary = histogram.summarize()
    assert summary is not None
    latencies = (summary.mean, summary.lowest, summary.p50, summary.p90, summary.p95, summary.p99, summary.highest)
    return f"{summary.count:,}", *map(format_seconds, latencies)


def draw_event_and_processing_time(group: ScenarioGroup) -> ReportFigure | None:
    """Return the 95th percentiles of event-time and processing-time latency; their difference is time in the queue."""
    cells = [(cell, *pair) for cell in group.cells if (pair := _compute_both_p95(cell))]
    if not cells:
        return None
    has_several_values = len(group.parameter_values) > 1
    names = [f"{cell.sut} · {group.parameter_of(cell):,}" if has_several_values else cell.sut for cell, _, _ in cells]
    traces: list[PlotSpec] = []
    for name, (cell, event, processing) in zip(names, cells, strict=True):
        traces += _make_dumbbell(cell, group, name, max(event, MIN_LATENCY_S), max(processing, MIN_LATENCY_S))
    across = make_seconds_axis([value for _, event, processing in cells for value in (event, processing)])
    vertical = make_axis(
        showgrid=False, autorange="reversed", categoryorder="array", categoryarray=names, tickfont={"color": INK}
    )
    spec = {"data": traces, "layout": make_layout(max(220, 90 + 30 * len(cells)), xaxis=across, yaxis=vertical)}
    note = "95th percentiles. Open marker: processing time; filled marker: event time. The difference is time in the queue."
    rows = tuple(
        (cell.sut, group.describe_cell(cell), format_seconds(event), format_seconds(processing))
        for cell, event, processing in cells
    )
    header = ("system", "queries", "event time p95", "processing time p95")
    return ReportFigure("two-times", "Event-time and processing-time latency", note, (PlotPanel(spec),), header, rows)


def _compute_both_p95(cell: ResultCell) -> tuple[float, float] | None:
    event = cell.compute_confidence(lambda run: _p95_of(run.event_time_latency.histogram))
    processing = cell.compute_confidence(lambda run: _p95_of(run.processing_time_latency.histogram))
    return (event.mean, processing.mean) if event and processing else None


def _make_dumbbell(cell: ResultCell, group: ScenarioGroup, name: str, event: float, processing: float) -> list[PlotSpec]:
    mark, system_colour = make_marker(cell.sut, group.systems, 11), colour_of(cell.sut, group.systems)
    hollow = {**mark, "color": PAPER, "line": {"color": system_colour, "width": 2}}
    connector = make_line(cell.sut, group.systems, x=[processing, event], y=[name, name], hoverinfo="skip")
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


def _p95_of(histogram: Histogram) -> float | None:
    summary = histogram.summarize()
    return None if summary is None else summary.p95


def draw_deployment(group: ScenarioGroup) -> ReportFigure | None:
    """Return the time from each request until it took effect, by the time of the request."""
    typical_runs = select_typical_runs(group, lambda run: bool(run.deployments.requests))
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
    vertical = make_seconds_axis([wait for _, _, wait, _ in points])
    for value in list_drawn_values(group, typical_runs):
        cells = [cell for cell, _ in typical_runs if group.parameter_of(cell) == value]
        traces = [_make_request_markers(cell, group, [point[1:] for point in points if point[0] is cell]) for cell in cells]
        spec = {"data": traces, "layout": make_layout(320, xaxis=make_time_axis(group), yaxis=vertical)}
        panels.append(PlotPanel(spec, make_panel_title(group, cells[0])))
    rows = tuple(
        (cell.sut, group.describe_cell(cell), query, format_number(requested_at), format_seconds(wait))
        for cell, requested_at, wait, query in points
    )
    note = "Each marker is a request to add or remove a query; its height is the time until the request took effect."
    header = ("system", "queries", "query", "requested at second", "in effect after")
    return ReportFigure("deployment", "Deployment latency", note, tuple(panels), header, rows, list_drawn_systems(typical_runs))


def _make_request_markers(cell: ResultCell, group: ScenarioGroup, points: Sequence[tuple[float, float, str]]) -> PlotSpec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [requested_at for requested_at, _, _ in points],
        "y": [max(wait, MIN_LATENCY_S) for _, wait, _ in points],
        "marker": {**make_marker(cell.sut, group.systems, 7), "opacity": 0.75},
        "text": [query for _, _, query in points],
        "hovertemplate": f"{cell.sut}, %{{text}}: %{{y:.3s}} s<extra></extra>",
    }
