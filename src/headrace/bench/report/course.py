"""Build the figures over the time of a run: read rate, backlog, and resource use of the system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.report.groups import Cell, Group
from headrace.bench.report.panels import amount_axis, drawn_of, panel_title, shown_systems, time_axis, values_of, warm_up
from headrace.bench.report.plots import Figure, Panel, Spec, layout, line
from headrace.bench.report.words import NOTHING, bytes_, digits, scaled
from headrace.bench.resources import ResourceSample, summarize_samples
from headrace.bench.result import MeasuredRun, ThroughputSeries

_STEP = 1.0  # seconds that a rate is averaged over

_Points = tuple[Sequence[float], Sequence[float]]


def reading(group: Group) -> Figure | None:
    """Return the figure of the read rate over time."""
    note = "Rows read from the queues of the driver, per second. The grey area is warm-up."
    return _course(group, "reading", "Read rate over time", note, "rows/s", lambda run: read_rate(run.throughput))


def backlog(group: Group) -> Figure | None:
    """Return the figure of the backlog over time, in seconds of input."""
    note = (
        "Rows produced but not yet read, in seconds of the offered rate. If the queue keeps growing, the rate is not sustained."
    )

    def backlog_seconds(run: MeasuredRun) -> _Points:
        rows = zip(run.throughput.produced, run.throughput.read, strict=True)
        return run.throughput.second, [(produced - read) / run.offered_rate for produced, read in rows]

    return _course(group, "backlog", "Backlog over time", note, "seconds of input", backlog_seconds)


def read_rate(throughput: ThroughputSeries) -> _Points:
    """Return times and rows/s; each rate is the average over about one second before its time."""
    times, rates, last = [], [], 0
    for i, time in enumerate(throughput.second):
        if i and time - throughput.second[last] >= _STEP * 0.999:
            times.append(time)
            rates.append((throughput.read[i] - throughput.read[last]) / (time - throughput.second[last]))
            last = i
    return times, rates


def _course(group: Group, name: str, title: str, note: str, unit: str, points: Callable[[MeasuredRun], _Points]) -> Figure | None:
    typical_runs = drawn_of(group, lambda run: len(points(run)[0]) > 1)
    if not typical_runs:
        return None
    series = {cell: points(run) for cell, run in typical_runs}
    amounts = [value for _, values in series.values() for value in values]
    vertical, least = amount_axis(unit, amounts, of_rates=unit.endswith("/s"))
    panels = []
    for value in values_of(group, typical_runs):
        cells = [cell for cell in series if group.value(cell) == value]
        traces = [_line(cell, group, series[cell], unit, least) for cell in cells]
        spec = {"data": traces, "layout": layout(280, xaxis=time_axis(group), yaxis=vertical, shapes=[warm_up(group)])}
        panels.append(Panel(spec, panel_title(group, cells[0])))
    rows = [
        (cell.sut, group.label(cell), digits(time), scaled(value))
        for cell, (times, values) in series.items()
        for time, value in zip(times, values, strict=True)
    ]
    header = ("system", "queries", "second", unit)
    return Figure(name, title, note, tuple(panels), header, tuple(rows), shown_systems(typical_runs))


def _line(cell: Cell, group: Group, series: _Points, unit: str, least: float) -> Spec:
    hover = f"{cell.sut}, second %{{x:.1f}}: %{{y:.3~s}} {unit}<extra></extra>"
    return line(cell.sut, group.systems, x=list(series[0]), y=[max(value, least) for value in series[1]], hovertemplate=hover)


@dataclass(frozen=True, slots=True)
class _Used:
    """A resource that a system uses, and how to read it from a sample."""

    title: str
    unit: str
    of: Callable[[ResourceSample], float]


_RESOURCES = (
    _Used("CPU", "cores", lambda sample: sample.cpu_cores),
    _Used("memory", "GiB", lambda sample: sample.rss_bytes / 2**30),
    _Used("state in files", "GiB", lambda sample: sample.state_bytes / 2**30),
    _Used("data served", "MB/s", lambda sample: sample.served_bytes_per_s / 1e6),
)


def resources(group: Group) -> Figure | None:
    """Return the figure of CPU, memory, state and network use, a row of panels each."""
    typical_runs = drawn_of(group, lambda run: len(run.resources) > 1)
    if not typical_runs:
        return None
    panels = [
        Panel(
            _used(group, resource, [pair for pair in typical_runs if group.value(pair[0]) == value], typical_runs),
            _of_what(group, resource, value),
        )
        for resource in _RESOURCES
        if any(resource.of(sample) for _, run in typical_runs for sample in run.resources)
        for value in values_of(group, typical_runs)
    ]
    note = "Total over all processes of the system. Memory is resident memory; data served is sent by the driver."
    header = ("system", "queries", "CPU mean", "CPU max", "memory mean", "memory max", "state mean", "network mean")
    rows = tuple((cell.sut, group.label(cell), *_totals(run.resources)) for cell, run in typical_runs)
    return Figure("resources", "Resource use", note, tuple(panels), header, rows, shown_systems(typical_runs))


def _of_what(group: Group, resource: _Used, value: int) -> str:
    title = f"{resource.title}, {resource.unit}"
    if len(group.values) == 1:
        return title
    return f"{title} · {value:,} {'keys' if group.by_keys else 'query' if value == 1 else 'queries'}"


def _used(
    group: Group,
    resource: _Used,
    panel_runs: Sequence[tuple[Cell, MeasuredRun]],
    typical_runs: Sequence[tuple[Cell, MeasuredRun]],
) -> Spec:
    amounts = [resource.of(sample) for _, run in typical_runs for sample in run.resources]
    vertical, least = amount_axis(resource.unit, amounts, of_rates=resource.unit.endswith("/s"))
    traces = [
        _line(cell, group, ([s.second for s in run.resources], [resource.of(s) for s in run.resources]), resource.unit, least)
        for cell, run in panel_runs
    ]
    return {"data": traces, "layout": layout(220, xaxis=time_axis(group), yaxis=vertical)}


def _totals(samples: Sequence[ResourceSample]) -> tuple[str, ...]:
    totals = summarize_samples(samples)
    cpu, memory = totals["cpu_cores"], totals["rss_bytes"]
    return (
        f"{digits(cpu['mean'])} cores",
        f"{digits(cpu['highest'])} cores",
        bytes_(memory["mean"]),
        bytes_(memory["highest"]),
        bytes_(totals["state_bytes"]["mean"]) if totals["state_bytes"]["mean"] else NOTHING,
        f"{scaled(totals['served_bytes_per_s']['mean'])}B/s" if totals["served_bytes_per_s"]["mean"] else NOTHING,
    )
