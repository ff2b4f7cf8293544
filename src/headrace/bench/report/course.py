"""Build the figures over the time of a run: read rate, backlog, and resource use of the system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.report.groups import ResultCell, ScenarioGroup
from headrace.bench.report.panels import (
    list_drawn_systems,
    list_drawn_values,
    make_amount_axis,
    make_panel_title,
    make_time_axis,
    make_warm_up_shape,
    select_typical_runs,
)
from headrace.bench.report.plots import PlotPanel, PlotSpec, ReportFigure, make_layout, make_line
from headrace.bench.report.words import NO_VALUE, format_bytes, format_number, format_scaled
from headrace.bench.resources import ResourceSample, summarize_samples
from headrace.bench.result import MeasuredRun, ThroughputSeries

_RATE_STEP_S = 1.0  # seconds that a rate is averaged over

_TimeSeries = tuple[Sequence[float], Sequence[float]]


def draw_read_rate(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of the read rate over time."""
    note = "Rows read from the queues of the driver, per second. The grey area is warm-up."
    return _draw_timeline(group, "reading", "Read rate over time", note, "rows/s", lambda run: compute_read_rate(run.throughput))


def draw_backlog(group: ScenarioGroup) -> ReportFigure | None:
    """Return the figure of the backlog over time, in seconds of input."""
    note = (
        "Rows produced but not yet read, in seconds of the offered rate. If the queue keeps growing, the rate is not sustained."
    )

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
    return f"{title} · {value:,} {'keys' if group.has_key_ranges else 'query' if value == 1 else 'queries'}"


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
