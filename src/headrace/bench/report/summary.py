"""Summarize a scenario: headline sentences, and a table of systems × parameters with failures and their reasons."""

from __future__ import annotations

from collections.abc import Callable

from headrace.bench.histogram import DistributionSummary, Histogram
from headrace.bench.report.groups import OURS, Cell, Group
from headrace.bench.report.throughput import rate_of
from headrace.bench.report.words import NOTHING, bytes_, digits, percent, rate, scaled, seconds, times
from headrace.bench.resources import summarize_samples
from headrace.bench.result import MeasuredRun

HEADER = (
    "system", "queries", "rate, rows/s", "headrace ÷ system", "event-time p50", "event-time p95", "event-time p99",
    "processing-time p95", "deployment p95", "CPU, cores", "memory",
)  # fmt: skip


def headlines(group: Group) -> list[str]:
    """Return a sentence per parameter value that compares headrace with the others, and one on how its rate changes."""
    ours = [(cell, known) for cell in group.of(OURS) if (known := rate_of(cell))]
    sentences = [_headline(group, cell, own_rate.mean) for cell, own_rate in ours]
    if len(ours) > 1:
        (first, first_rate), (last, last_rate) = ours[0], ours[-1]
        share = percent(last_rate.mean / first_rate.mean)
        sentences.append(f"From {group.label(first)} to {group.label(last)}, headrace keeps {share} of its rate.")
    return sentences


def _headline(group: Group, ours: Cell, rows_per_second: float) -> str:
    peers = [(cell, cell.sustainable) for cell in group.cells if cell.sut != OURS and group.ours(cell) is ours]
    peers = [pair for pair in peers if pair[1] is not None or not pair[0].measured]
    comparisons = [f"{times(rows_per_second / peer_rate.mean)} {cell.sut}" for cell, peer_rate in peers if peer_rate is not None]
    comparisons += [f"{cell.sut} failed" for cell, peer_rate in peers if peer_rate is None]
    verb = "sustains" if ours.sustainable else "reads"
    opening = f"With {group.label(ours)}, headrace {verb} {scaled(rows_per_second)} rows/s"
    return f"{opening}{': ' if comparisons else ''}{', '.join(comparisons)}."


def table(group: Group) -> tuple[tuple[str, ...], dict[Cell, tuple[str, ...]]]:
    """Return the header and a row for each measured cell, without the columns that have no value."""
    rows = {cell: _row(group, cell) for cell in group.cells if cell.measured}
    columns = [column for column in range(len(HEADER)) if column < 3 or any(row[column] != NOTHING for row in rows.values())]
    return tuple(HEADER[column] for column in columns), {
        cell: tuple(row[column] for column in columns) for cell, row in rows.items()
    }


def asked(group: Group, cell: Cell) -> str:
    """Return the parameters of a cell in short form."""
    return f"{cell.queries:,}" + (f" · {cell.keys:,} keys" if group.by_keys else "")


def _row(group: Group, cell: Cell) -> tuple[str, ...]:
    cell_rate, ours = rate_of(cell), group.ours(cell)
    own_rate = ours.sustainable if ours else None
    return (
        cell.sut,
        asked(group, cell),
        f"{rate(cell_rate)}{_remark(cell)}",
        times(own_rate.mean / cell_rate.mean) if own_rate and cell_rate and cell.sut != OURS and cell.sustainable else NOTHING,
        *(_latency(cell, lambda run: run.event_time_latency.histogram, percentile) for percentile in (_p50, _p95, _p99)),
        _latency(cell, lambda run: run.processing_time_latency.histogram, _p95),
        _latency(cell, _deployments, _p95),
        _used(cell, "cpu_cores", "mean", digits),
        _used(cell, "rss_bytes", "highest", bytes_),
    )


def _remark(cell: Cell) -> str:
    """Return the qualification of a rate: offered instead of searched for, not sustained, failed runs."""
    remarks = []
    if cell.sustainable is None:
        remarks.append("offered" if all(run.sustained for run in cell.measured) else "offered, not sustained")
    failed = len(cell.runs) - len(cell.measured)
    if failed:
        remarks.append(f"{failed} of {len(cell.runs)} runs failed")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _p50(summary: DistributionSummary) -> float:
    return summary.p50


def _p95(summary: DistributionSummary) -> float:
    return summary.p95


def _p99(summary: DistributionSummary) -> float:
    return summary.p99


def _latency(
    cell: Cell, histogram_of: Callable[[MeasuredRun], Histogram], percentile: Callable[[DistributionSummary], float]
) -> str:
    def percentile_of_run(run: MeasuredRun) -> float | None:
        summary = histogram_of(run).summarize()
        return None if summary is None else percentile(summary)

    latency = cell.figure(percentile_of_run)
    return seconds(latency.mean if latency else None)


def _deployments(run: MeasuredRun) -> Histogram:
    requests = run.deployments.requests
    return Histogram.from_values(
        [request.live_at_us - request.requested_at_us for request in requests if request.live_at_us is not None]
    )


def _used(cell: Cell, name: str, kind: str, format_value: Callable[[float], str]) -> str:
    usage = cell.figure(lambda run: summarize_samples(run.resources).get(name, {}).get(kind))
    return format_value(usage.mean) if usage else NOTHING
