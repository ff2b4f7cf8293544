"""Figures of the course of a run: rows read, rows waiting, and what the system used meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.report.groups import Cell, Group
from headrace.bench.report.panels import amount_axis, drawn_of, panel_title, shown_systems, time_axis, values_of, warm_up
from headrace.bench.report.plots import Figure, Panel, Spec, layout, line
from headrace.bench.report.words import NOTHING, bytes_, digits, scaled
from headrace.bench.resources import Sample, summarise
from headrace.bench.result import Measured, Throughput

_STEP = 1.0  # seconds over which a rate is taken

_Points = tuple[Sequence[float], Sequence[float]]


def reading(group: Group) -> Figure | None:
    """Return the rate at which rows were read."""
    note = "Rows read from the queues of the driver, by the second. The grey part is warm-up."
    return _course(group, "reading", "Rate read over time", note, "rows/s", lambda run: read_rate(run.throughput))


def backlog(group: Group) -> Figure | None:
    """Return how many seconds of input were waiting."""
    note = "Rows stamped but not yet read, as seconds of the offered rate. A queue that keeps growing is not sustained."

    def waiting(run: Measured) -> _Points:
        rows = zip(run.throughput.produced, run.throughput.read, strict=True)
        return run.throughput.second, [(made - taken) / run.offered for made, taken in rows]

    return _course(group, "backlog", "Backlog over time", note, "seconds of input", waiting)


def read_rate(course: Throughput) -> _Points:
    """Return rows/s, each over about a second before the moment it is told for."""
    when, rates, last = [], [], 0
    for place, moment in enumerate(course.second):
        if place and moment - course.second[last] >= _STEP * 0.999:
            when.append(moment)
            rates.append((course.read[place] - course.read[last]) / (moment - course.second[last]))
            last = place
    return when, rates


def _course(group: Group, name: str, title: str, note: str, unit: str, points: Callable[[Measured], _Points]) -> Figure | None:
    drawn = drawn_of(group, lambda run: len(points(run)[0]) > 1)
    if not drawn:
        return None
    courses = {cell: points(run) for cell, run in drawn}
    amounts = [value for _, values in courses.values() for value in values]
    vertical, least = amount_axis(unit, amounts, of_rates=unit.endswith("/s"))
    panels = []
    for value in values_of(group, drawn):
        cells = [cell for cell in courses if group.value(cell) == value]
        traces = [_line(cell, group, courses[cell], unit, least) for cell in cells]
        spec = {"data": traces, "layout": layout(280, xaxis=time_axis(group), yaxis=vertical, shapes=[warm_up(group)])}
        panels.append(Panel(spec, panel_title(group, cells[0])))
    rows = [
        (cell.sut, group.label(cell), digits(moment), scaled(value))
        for cell, (when, values) in courses.items()
        for moment, value in zip(when, values, strict=True)
    ]
    header = ("system", "queries", "second", unit)
    return Figure(name, title, note, tuple(panels), header, tuple(rows), shown_systems(drawn))


def _line(cell: Cell, group: Group, points: _Points, unit: str, least: float) -> Spec:
    hover = f"{cell.sut}, second %{{x:.1f}}: %{{y:.3~s}} {unit}<extra></extra>"
    return line(cell.sut, group.systems, x=list(points[0]), y=[max(value, least) for value in points[1]], hovertemplate=hover)


@dataclass(frozen=True, slots=True)
class _Used:
    """Something a system uses."""

    title: str
    unit: str
    of: Callable[[Sample], float]


_RESOURCES = (
    _Used("CPU", "cores", lambda sample: sample.cpu_cores),
    _Used("memory", "GiB", lambda sample: sample.rss_bytes / 2**30),
    _Used("state in files", "GiB", lambda sample: sample.state_bytes / 2**30),
    _Used("served to it", "MB/s", lambda sample: sample.served_bytes_per_s / 1e6),
)


def resources(group: Group) -> Figure | None:
    """Return CPU, memory and network, each a row of panels."""
    drawn = drawn_of(group, lambda run: len(run.resources) > 1)
    if not drawn:
        return None
    panels = [
        Panel(_used(group, used, [pair for pair in drawn if group.value(pair[0]) == value], drawn), _of_what(group, used, value))
        for used in _RESOURCES
        if any(used.of(sample) for _, run in drawn for sample in run.resources)
        for value in values_of(group, drawn)
    ]
    note = "All processes of the system together. Memory is what is resident; the driver counts what it serves."
    header = ("system", "queries", "CPU mean", "CPU highest", "memory mean", "memory highest", "state mean", "network mean")
    rows = tuple((cell.sut, group.label(cell), *_totals(run.resources)) for cell, run in drawn)
    return Figure("resources", "Resource use", note, tuple(panels), header, rows, shown_systems(drawn))


def _of_what(group: Group, used: _Used, value: int) -> str:
    what = f"{used.title}, {used.unit}"
    if len(group.values) == 1:
        return what
    return f"{what} · {value:,} {'keys' if group.by_keys else 'query' if value == 1 else 'queries'}"


def _used(group: Group, used: _Used, here: Sequence[tuple[Cell, Measured]], drawn: Sequence[tuple[Cell, Measured]]) -> Spec:
    amounts = [used.of(sample) for _, run in drawn for sample in run.resources]
    vertical, least = amount_axis(used.unit, amounts, of_rates=used.unit.endswith("/s"))
    traces = [
        _line(cell, group, ([s.second for s in run.resources], [used.of(s) for s in run.resources]), used.unit, least)
        for cell, run in here
    ]
    return {"data": traces, "layout": layout(220, xaxis=time_axis(group), yaxis=vertical)}


def _totals(samples: Sequence[Sample]) -> tuple[str, ...]:
    found = summarise(samples)
    cpu, memory = found["cpu_cores"], found["rss_bytes"]
    return (
        f"{digits(cpu['mean'])} cores",
        f"{digits(cpu['highest'])} cores",
        bytes_(memory["mean"]),
        bytes_(memory["highest"]),
        bytes_(found["state_bytes"]["mean"]) if found["state_bytes"]["mean"] else NOTHING,
        f"{scaled(found['served_bytes_per_s']['mean'])}B/s" if found["served_bytes_per_s"]["mean"] else NOTHING,
    )
