"""The figures of a report: sustainable rates and the trials of the search, latency, and the time line of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.measure.resources import ResourceSample, summarize_samples
from headrace.bench.measure.statistics import ConfidenceInterval, Histogram
from headrace.bench.report.groups import ResultCell, ScenarioGroup, order_systems
from headrace.bench.report.plots import (
    INK,
    MIN_LATENCY_S,
    MUTED,
    NO_VALUE,
    PAPER,
    PlotPanel,
    PlotSpec,
    ReportFigure,
    colour_of,
    format_bytes,
    format_number,
    format_rate,
    format_scaled,
    format_seconds,
    format_tick,
    list_drawn_systems,
    list_drawn_values,
    make_amount_axis,
    make_annotation,
    make_axis,
    make_layout,
    make_line,
    make_log_axis,
    make_marker,
    make_panel_title,
    make_seconds_axis,
    make_time_axis,
    make_warm_up_shape,
    select_typical_runs,
    spread_labels,
)
from headrace.bench.result import MeasuredRun, ThroughputSeries

_RATE_STEP_S = 1.0  # seconds that a rate is averaged over

_TimeSeries = tuple[Sequence[float], Sequence[float]]


def draw_read_rate(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of the read rate over time."""
    note = "Rows read from the queues of the driver, per second. The grey area is warm-up."
    if group.reads_topic:
        note = "Messages whose offsets the system committed to the broker, per second."
    return _draw_timeline(group, "reading", "Read rate over time", note, "rows/s", lambda run: compute_read_rate(run.throughput))


def draw_backlog(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of the backlog over time, in seconds of input."""
    note = (
        "Rows produced but not yet read, in seconds of the offered rate. If the queue keeps growing, the rate is not sustained."
    )

    if group.reads_topic:  # all rows are there from the start
        return None

    def backlog_seconds(run: MeasuredRun) -> _TimeSeries:
        rows = zip(run.throughput.produced, run.throughput.read, strict=True)
        return run.throughput.second, [(produced - read) / run.offered_rate for produced, read in rows]

    return _draw_timeline(group, "backlog", "Backlog over time", note, "seconds of input", backlog_seconds)


def compute_read_rate(throughput: ThroughputSeries) -> _TimeSeries:
    """Return times and rows/s; each rate is the average over about one second before its time."""
    times, rates, last = [], [], 0
    for i, time in enumerate(throughput.second):
        if i and time - throughput.second[last] >= _RATE_STEP_S * 0.999:
            times.append(time)
            rates.append((throughput.read[i] - throughput.read[last]) / (time - throughput.second[last]))
            last = i
    return times, rates


def _draw_timeline(
    group: ScenarioGroup, name: str, title: str, note: str, unit: str, points: Callable[[MeasuredRun], _TimeSeries]
) -> ReportFigure | None:
    typical_runs = select_typical_runs(group, lambda run: len(points(run)[0]) > 1)
    if not typical_runs:
        return None
    series = {cell: points(run) for cell, run in typical_runs}
    amounts = [value for _, values in series.values() for value in values]
    vertical, least = make_amount_axis(unit, amounts, is_rate=unit.endswith("/s"))
    panels = []
    for value in list_drawn_values(group, typical_runs):
        cells = [cell for cell in series if group.parameter_of(cell) == value]
        traces = [_make_trace(cell, group, series[cell], unit, least) for cell in cells]
        spec = {
            "data": traces,
            "layout": make_layout(280, xaxis=make_time_axis(group), yaxis=vertical, shapes=[make_warm_up_shape(group)]),
        }
        panels.append(PlotPanel(spec, make_panel_title(group, cells[0])))
    rows = [
        (cell.sut, group.describe_cell(cell), format_number(time), format_scaled(value))
        for cell, (times, values) in series.items()
        for time, value in zip(times, values, strict=True)
    ]
    header = ("system", "queries", "second", unit)
    return ReportFigure(name, title, note, tuple(panels), header, tuple(rows), list_drawn_systems(typical_runs))


def _make_trace(cell: ResultCell, group: ScenarioGroup, series: _TimeSeries, unit: str, least: float) -> PlotSpec:
    hover = f"{cell.sut}, second %{{x:.1f}}: %{{y:.3~s}} {unit}<extra></extra>"
    return make_line(
        cell.sut, group.systems, x=list(series[0]), y=[max(value, least) for value in series[1]], hovertemplate=hover
    )


@dataclass(frozen=True, slots=True)
class _Resource:
    """A resource that a system uses, and how to read it from a sample."""

    title: str
    unit: str
    value_of: Callable[[ResourceSample], float]


_RESOURCES = (
    _Resource("CPU", "cores", lambda sample: sample.cpu_cores),
    _Resource("memory", "GiB", lambda sample: sample.rss_bytes / 2**30),
    _Resource("state in files", "GiB", lambda sample: sample.state_bytes / 2**30),
    _Resource("data served", "MB/s", lambda sample: sample.served_bytes_per_s / 1e6),
)


def draw_resources(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of CPU, memory, state and network use, a row of panels each."""
    typical_runs = select_typical_runs(group, lambda run: len(run.resources) > 1)
    if not typical_runs:
        return None
    panels = [
        PlotPanel(
            _make_resource_plot(
                group, resource, [pair for pair in typical_runs if group.parameter_of(pair[0]) == value], typical_runs
            ),
            _make_resource_title(group, resource, value),
        )
        for resource in _RESOURCES
        if any(resource.value_of(sample) for _, run in typical_runs for sample in run.resources)
        for value in list_drawn_values(group, typical_runs)
    ]
    note = "Total over all processes of the system. Memory is resident memory; data served is sent by the driver."
    header = ("system", "queries", "CPU mean", "CPU max", "memory mean", "memory max", "state mean", "network mean")
    rows = tuple((cell.sut, group.describe_cell(cell), *_format_totals(run.resources)) for cell, run in typical_runs)
    return ReportFigure("resources", "Resource use", note, tuple(panels), header, rows, list_drawn_systems(typical_runs))


def _make_resource_title(group: ScenarioGroup, resource: _Resource, value: int) -> str:
    title = f"{resource.title}, {resource.unit}"
    if len(group.parameter_values) == 1:
        return title
    return f"{title} · {group.parameter.format_value(value)}"


def _make_resource_plot(
    group: ScenarioGroup,
    resource: _Resource,
    panel_runs: Sequence[tuple[ResultCell, MeasuredRun]],
    typical_runs: Sequence[tuple[ResultCell, MeasuredRun]],
) -> PlotSpec:
    amounts = [resource.value_of(sample) for _, run in typical_runs for sample in run.resources]
    vertical, least = make_amount_axis(resource.unit, amounts, is_rate=resource.unit.endswith("/s"))
    traces = [
        _make_trace(
            cell, group, ([s.second for s in run.resources], [resource.value_of(s) for s in run.resources]), resource.unit, least
        )
        for cell, run in panel_runs
    ]
    return {"data": traces, "layout": make_layout(220, xaxis=make_time_axis(group), yaxis=vertical)}


def _format_totals(samples: Sequence[ResourceSample]) -> tuple[str, ...]:
    totals = summarize_samples(samples)
    cpu, memory = totals["cpu_cores"], totals["rss_bytes"]
    return (
        f"{format_number(cpu['mean'])} cores",
        f"{format_number(cpu['highest'])} cores",
        format_bytes(memory["mean"]),
        format_bytes(memory["highest"]),
        format_bytes(totals["state_bytes"]["mean"]) if totals["state_bytes"]["mean"] else NO_VALUE,
        f"{format_scaled(totals['served_bytes_per_s']['mean'])}B/s" if totals["served_bytes_per_s"]["mean"] else NO_VALUE,
    )


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


_LABEL_GAP = 0.065  # share of the plot height
_WHISKER = {"type": "data", "thickness": 1.25, "width": 4}


def rate_of(cell: ResultCell) -> ConfidenceInterval | None:
    """Return the sustainable rate, or the read rate if there was no search."""
    return cell.sustainable_rate or cell.compute_confidence(lambda run: run.read_rate)


def draw_rates(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of the rates of all systems; None without measurements."""
    measured = [(cell, known) for cell in group.cells if (known := rate_of(cell))]
    if not measured:
        return None
    searched = any(cell.sustainable_rate for cell, _ in measured) and not group.reads_topic
    kind = "Sustainable rate" if searched else "Read rate"
    has_several_values = len(group.parameter_values) > 1
    parameter = f" by {group.parameter.title}" if has_several_values else ""
    note = (
        "A × at the bottom marks a system that failed at this value. "
        if has_several_values and len(measured) < len(group.cells)
        else ""
    )
    error_bars = (
        "Error bars show the 95 % confidence interval over repeats. " if group.max_repeats > 1 and has_several_values else ""
    )
    rows = [(cell.sut, group.describe_cell(cell), format_rate(cell_rate), f"{cell_rate.runs}") for cell, cell_rate in measured]
    rows += [
        (cell.sut, group.describe_cell(cell), f"failed: {'; '.join(cell.failures)}", "")
        for cell in group.cells
        if not rate_of(cell)
    ]
    return ReportFigure(
        "rate",
        f"{kind}{parameter}",
        f"{note}{error_bars}{'Both axes are logarithmic.' if has_several_values else ''}".strip(),
        (PlotPanel(_make_line_plot(group, measured) if has_several_values else _make_bar_plot(group, measured)),),
        ("system", "queries", f"{kind.lower()}, rows/s", "runs"),
        tuple(rows),
    )


def _make_line_plot(group: ScenarioGroup, measured: Sequence[tuple[ResultCell, ConfidenceInterval]]) -> PlotSpec:
    bounds = [bound for _, cell_rate in measured for bound in cell_rate.interval or (cell_rate.mean,) if bound > 0]
    vertical = make_log_axis("rows/s", bounds)
    low, high = vertical["range"]
    traces = [_make_system_line(group, sut, [pair for pair in measured if pair[0].sut == sut]) for sut in group.systems]
    failed = [cell for cell in group.cells if cell.failures and not cell.measured]
    if failed:
        traces.append(_make_failure_marks(group, failed, 10**low))
    last_points = {
        sut: max((group.parameter_of(cell), cell_rate.mean) for cell, cell_rate in measured if cell.sut == sut)
        for sut in {c.sut for c, _ in measured}
    }
    label_positions = spread_labels({sut: math.log10(mean) for sut, (_, mean) in last_points.items()}, _LABEL_GAP * (high - low))
    labels = [
        make_annotation(
            sut, math.log10(last_points[sut][0]), label_positions[sut], colour_of(sut, group.systems), xanchor="left", xshift=12
        )
        for sut in label_positions
    ]
    ticks = {"tickvals": group.parameter_values, "ticktext": [format_tick(value) for value in group.parameter_values]}
    across = make_log_axis(group.parameter.units, group.parameter_values, room=0.06, **ticks)
    margin = {"l": 60, "r": 80, "t": 12, "b": 48}
    return {"data": traces, "layout": make_layout(380, xaxis=across, yaxis=vertical, annotations=labels, margin=margin)}


def _make_system_line(group: ScenarioGroup, sut: str, points: Sequence[tuple[ResultCell, ConfidenceInterval]]) -> PlotSpec:
    return make_line(
        sut,
        group.systems,
        mode="lines+markers",
        marker=make_marker(sut, group.systems),
        x=[group.parameter_of(cell) for cell, _ in points],
        y=[cell_rate.mean for _, cell_rate in points],
        error_y={
            **_WHISKER,
            "array": [cell_rate.half_width or 0 for _, cell_rate in points],
            "color": colour_of(sut, group.systems),
            "visible": any(cell_rate.half_width for _, cell_rate in points),
        },
        hovertemplate=f"{sut}<br>%{{x:,}} {group.parameter.units}: %{{y:.3s}} rows/s<extra></extra>",
    )


def _make_failure_marks(group: ScenarioGroup, failed: Sequence[ResultCell], bottom: float) -> PlotSpec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [group.parameter_of(cell) for cell in failed],
        "y": [bottom] * len(failed),
        "cliponaxis": False,
        "marker": {
            "symbol": "x-thin",
            "size": 10,
            "line": {"width": 2.5, "color": [colour_of(c.sut, group.systems) for c in failed]},
        },
        "hovertext": [f"{cell.sut} failed: {'; '.join(cell.failures)}" for cell in failed],
        "hoverinfo": "text",
        "showlegend": False,
    }


def _make_bar_plot(group: ScenarioGroup, measured: Sequence[tuple[ResultCell, ConfidenceInterval]]) -> PlotSpec:
    """Return horizontal bars from zero, best first, each labelled with its system and its value or "failed"."""
    best_last = sorted(measured, key=lambda pair: pair[1].mean)
    failed = [cell.sut for cell in group.cells if not cell.measured]
    widths = [cell_rate.half_width or 0 for _, cell_rate in best_last]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [*failed, *(cell.sut for cell, _ in best_last)],
        "x": [*(0 for _ in failed), *(cell_rate.mean for _, cell_rate in best_last)],
        "text": [*("failed" for _ in failed), *(format_scaled(cell_rate.mean) for _, cell_rate in best_last)],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [colour_of(sut, group.systems) for sut in [*failed, *(cell.sut for cell, _ in best_last)]]},
        "error_x": {**_WHISKER, "array": [*(0 for _ in failed), *widths], "color": MUTED, "visible": any(widths)},
        "hovertemplate": "%{y}: %{x:.3~s} rows/s<extra></extra>",
        "width": 0.62,
    }
    top = max(cell_rate.mean + (cell_rate.half_width or 0) for _, cell_rate in measured)
    across = make_axis("rows/s", range=[0, top * 1.16], tickformat="~s", nticks=6)
    vertical = make_axis(showgrid=False, tickfont={"color": INK, "size": 13})
    height = max(220, 80 + 44 * (len(failed) + len(best_last)))
    return {"data": [bar], "layout": make_layout(height, xaxis=across, yaxis=vertical)}


def draw_search(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of all search trials of the typical runs; None if there was no search."""
    runs = {cell: cell.typical_run or cell.runs[0] for cell in group.cells if (cell.typical_run or cell.runs[0]).trials}
    if not runs:
        return None
    unit = next(trial.unit for run in runs.values() for trial in run.trials)
    vertical = make_log_axis(unit, [trial.rate for run in runs.values() for trial in run.trials])
    panels, rows = [], []
    for value in group.parameter_values:
        cells = [cell for cell in runs if group.parameter_of(cell) == value]
        traces = [
            trace
            for cell in cells
            for trace in _make_trial_lines(group, cell, [(t.rate, t.sustainable, t.reason) for t in runs[cell].trials])
        ]
        rows += [
            (
                cell.sut,
                group.describe_cell(cell),
                str(number),
                format_scaled(trial.rate),
                "sustained" if trial.sustainable else trial.reason,
            )
            for cell in cells
            for number, trial in enumerate(runs[cell].trials, 1)
        ]
        spec = {"data": traces, "layout": make_layout(280, xaxis=make_axis("trial", dtick=1), yaxis=vertical)}
        panels.append(PlotPanel(spec, group.describe_cell(cells[0]) if len(group.parameter_values) > 1 and cells else ""))
    note = "Filled markers: sustained; open markers: not sustained."
    header = ("system", "queries", "trial", unit, "verdict")
    title, keys = "Search for the sustainable rate", tuple(order_systems({cell.sut for cell in runs}))
    return ReportFigure("search", title, note, tuple(panels), header, tuple(rows), keys)


def _make_trial_lines(group: ScenarioGroup, cell: ResultCell, trials: Sequence[tuple[float, bool, str]]) -> list[PlotSpec]:
    system_colour = colour_of(cell.sut, group.systems)
    system_marker = make_marker(cell.sut, group.systems)
    return [
        make_line(
            cell.sut,
            group.systems,
            mode="lines+markers",
            x=list(range(1, len(trials) + 1)),
            y=[trial_rate for trial_rate, _, _ in trials],
            marker={
                **system_marker,
                "color": [system_colour if sustained else PAPER for _, sustained, _ in trials],
                "line": {"color": system_colour, "width": 1.75},
            },
            text=["sustained" if sustained else reason for _, sustained, reason in trials],
            hovertemplate=f"{cell.sut}, trial %{{x}}: %{{y:.3s}} rows/s<br>%{{text}}<extra></extra>",
        )
    ]
