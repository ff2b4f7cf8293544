"""The figures of a scenario in words and in one table: systems × parameters, failures with their reasons."""

from __future__ import annotations

from collections.abc import Callable

from headrace.bench.histogram import Histogram, Summary
from headrace.bench.report.groups import OURS, Cell, Group
from headrace.bench.report.throughput import rate_of
from headrace.bench.report.words import NOTHING, bytes_, digits, percent, rate, scaled, seconds, times
from headrace.bench.resources import summarise
from headrace.bench.result import Measured

HEADER = (
    "system", "queries", "rate, rows/s", "headrace ÷ it", "event-time p50", "event-time p95", "event-time p99",
    "processing-time p95", "deployment p95", "CPU, cores", "memory",
)  # fmt: skip


def headlines(group: Group) -> list[str]:
    """Return a sentence for each value of the parameter: what we sustain, how others stand to it; and what it costs to grow."""
    ours = [(cell, known) for cell in group.of(OURS) if (known := rate_of(cell))]
    said = [_headline(group, cell, known.mean) for cell, known in ours]
    if len(ours) > 1:
        (first, before), (last, after) = ours[0], ours[-1]
        kept = percent(after.mean / before.mean)
        said.append(f"From {group.label(first)} to {group.label(last)}, headrace keeps {kept} of its rate.")
    return said


def _headline(group: Group, ours: Cell, rows_per_second: float) -> str:
    peers = [(cell, cell.sustainable) for cell in group.cells if cell.sut != OURS and group.ours(cell) is ours]
    peers = [pair for pair in peers if pair[1] is not None or not pair[0].measured]
    said = [f"{times(rows_per_second / theirs.mean)} {cell.sut}" for cell, theirs in peers if theirs is not None]
    said += [f"{cell.sut} failed" for cell, theirs in peers if theirs is None]
    verb = "sustains" if ours.sustainable else "reads"
    begin = f"With {group.label(ours)}, headrace {verb} {scaled(rows_per_second)} rows/s"
    return f"{begin}{': ' if said else ''}{', '.join(said)}."


def table(group: Group) -> tuple[tuple[str, ...], dict[Cell, tuple[str, ...]]]:
    """Return the header and a row for each cell that was measured; a column that says nothing is left out."""
    rows = {cell: _row(group, cell) for cell in group.cells if cell.measured}
    kept = [place for place in range(len(HEADER)) if place < 3 or any(row[place] != NOTHING for row in rows.values())]
    return tuple(HEADER[place] for place in kept), {cell: tuple(row[place] for place in kept) for cell, row in rows.items()}


def asked(group: Group, cell: Cell) -> str:
    """Return the parameters of a cell, as short as can be."""
    return f"{cell.queries:,}" + (f" · {cell.keys:,} keys" if group.by_keys else "")


def _row(group: Group, cell: Cell) -> tuple[str, ...]:
    known, ours = rate_of(cell), group.ours(cell)
    base = ours.sustainable if ours else None
    return (
        cell.sut,
        asked(group, cell),
        f"{rate(known)}{_remark(cell)}",
        times(base.mean / known.mean) if base and known and cell.sut != OURS and cell.sustainable else NOTHING,
        *(_latency(cell, lambda run: run.event_time.histogram, mark) for mark in (_p50, _p95, _p99)),
        _latency(cell, lambda run: run.processing_time.histogram, _p95),
        _latency(cell, _deployments, _p95),
        _used(cell, "cpu_cores", "mean", digits),
        _used(cell, "rss_bytes", "highest", bytes_),
    )


def _remark(cell: Cell) -> str:
    """Return what must be known of a rate: that it was offered, not searched for; that it was not sustained; failures."""
    said = []
    if cell.sustainable is None:
        said.append("offered" if all(run.sustained for run in cell.measured) else "offered, not sustained")
    lost = len(cell.runs) - len(cell.measured)
    if lost:
        said.append(f"{lost} of {len(cell.runs)} runs failed")
    return f" ({'; '.join(said)})" if said else ""


def _p50(summary: Summary) -> float:
    return summary.p50


def _p95(summary: Summary) -> float:
    return summary.p95


def _p99(summary: Summary) -> float:
    return summary.p99


def _latency(cell: Cell, of: Callable[[Measured], Histogram], mark: Callable[[Summary], float]) -> str:
    def figure(run: Measured) -> float | None:
        found = of(run).summary()
        return None if found is None else mark(found)

    known = cell.figure(figure)
    return seconds(known.mean if known else None)


def _deployments(run: Measured) -> Histogram:
    requests = run.deployments.requests
    return Histogram.of([each.live_at_us - each.requested_at_us for each in requests if each.live_at_us is not None])


def _used(cell: Cell, name: str, kind: str, say: Callable[[float], str]) -> str:
    known = cell.figure(lambda run: summarise(run.resources).get(name, {}).get(kind))
    return say(known.mean) if known else NOTHING
