"""Summarize a scenario: headline sentences, and a table of systems × parameters with failures and their reasons."""

from __future__ import annotations

from collections.abc import Callable

from headrace.bench.measure.resources import summarize_samples
from headrace.bench.measure.statistics import DistributionSummary, Histogram
from headrace.bench.report.efficiency import compute_efficiency
from headrace.bench.report.figures import rate_of
from headrace.bench.report.groups import BY_NODES, BY_QUERIES, OWN_SYSTEM, ResultCell, ScenarioGroup
from headrace.bench.report.plots import (
    NO_VALUE,
    format_bytes,
    format_number,
    format_percent,
    format_rate,
    format_ratio,
    format_scaled,
    format_seconds,
)
from headrace.bench.result import MeasuredRun

SUMMARY_HEADER = (
    "system", "queries", "rate, rows/s", "headrace ÷ system", "event-time p50", "event-time p95", "event-time p99",
    "processing-time p95", "slowest query, rows/s", "overall, rows/s", "requests/s",
    "deployment p95", "CPU, cores", "memory",
)  # fmt: skip


def write_headlines(group: ScenarioGroup) -> list[str]:
    """Return a sentence per parameter value that compares headrace with the others, and one on how its rate changes."""
    ours = [(cell, known) for cell in group.cells_of(OWN_SYSTEM) if (known := rate_of(cell))]
    sentences = [_write_headline(group, cell, own_rate.mean) for cell, own_rate in ours]
    if len(ours) > 1:
        (first, first_rate), (last, last_rate) = ours[0], ours[-1]
        sentences.append(_describe_change(group, (first, first_rate.mean), (last, last_rate.mean)))
    return sentences


def _describe_change(group: ScenarioGroup, first: tuple[ResultCell, float], last: tuple[ResultCell, float]) -> str:
    change = f"From {group.describe_cell(first[0])} to {group.describe_cell(last[0])}, headrace"
    if group.parameter is BY_NODES:
        efficiency = format_percent(compute_efficiency(last, first))
        return f"{change} has {format_ratio(last[1] / first[1])} the rate: {efficiency} of the rate of a node is kept."
    return f"{change} keeps {format_percent(last[1] / first[1])} of its rate."


def _write_headline(group: ScenarioGroup, ours: ResultCell, rows_per_second: float) -> str:
    peers = [
        (cell, cell.sustainable_rate) for cell in group.cells if cell.sut != OWN_SYSTEM and group.find_own_cell(cell) is ours
    ]
    peers = [pair for pair in peers if pair[1] is not None or not pair[0].measured]
    comparisons = [
        f"{format_ratio(rows_per_second / peer_rate.mean)} {cell.sut}" for cell, peer_rate in peers if peer_rate is not None
    ]
    comparisons += [f"{cell.sut} failed" for cell, peer_rate in peers if peer_rate is None]
    verb = "sustains" if ours.sustainable_rate and not group.reads_topic else "reads"
    opening = f"With {group.describe_cell(ours)}, headrace {verb} {format_scaled(rows_per_second)} rows/s"
    return f"{opening}{': ' if comparisons else ''}{', '.join(comparisons)}."


def make_summary_table(group: ScenarioGroup) -> tuple[tuple[str, ...], dict[ResultCell, tuple[str, ...]]]:
    """Return the header and a row for each measured cell, without the columns that have no value."""
    rows = {cell: _make_row(group, cell) for cell in group.cells if cell.measured}
    columns = [
        column for column in range(len(SUMMARY_HEADER)) if column < 3 or any(row[column] != NO_VALUE for row in rows.values())
    ]
    return tuple(SUMMARY_HEADER[column] for column in columns), {
        cell: tuple(row[column] for column in columns) for cell, row in rows.items()
    }


def format_parameters(group: ScenarioGroup, cell: ResultCell) -> str:
    """Return the parameters of a cell in short form."""
    parameter = group.parameter
    return f"{cell.queries:,}" + ("" if parameter is BY_QUERIES else f" · {parameter.format_value(parameter.value_of(cell))}")


def _make_row(group: ScenarioGroup, cell: ResultCell) -> tuple[str, ...]:
    cell_rate, ours = rate_of(cell), group.find_own_cell(cell)
    own_rate = ours.sustainable_rate if ours else None
    return (
        cell.sut,
        format_parameters(group, cell),
        f"{format_rate(cell_rate)}{_make_rate_remark(cell)}",
        format_ratio(own_rate.mean / cell_rate.mean)
        if own_rate and cell_rate and cell.sut != OWN_SYSTEM and cell.sustainable_rate
        else NO_VALUE,
        *(
            _format_latency(cell, lambda run: run.event_time_latency.histogram, percentile)
            for percentile in (_p50_of, _p95_of, _p99_of)
        ),
        _format_latency(cell, lambda run: run.processing_time_latency.histogram, _p95_of),
        _format_mean(cell, lambda run: run.data_throughput.slowest if run.data_throughput else None),
        _format_mean(cell, lambda run: run.data_throughput.overall if run.data_throughput else None),
        _format_mean(cell, lambda run: run.sustainable_request_rate),
        _format_latency(cell, _build_deployment_histogram, _p95_of),
        _format_resource(cell, "cpu_cores", "mean", format_number),
        _format_resource(cell, "rss_bytes", "highest", format_bytes),
    )


def _make_rate_remark(cell: ResultCell) -> str:
    """Return the qualification of a rate: offered instead of searched for, not sustained, failed runs."""
    remarks = []
    if cell.sustainable_rate is None:
        remarks.append("offered" if all(run.sustained for run in cell.measured) else "offered, not sustained")
    failed = len(cell.runs) - len(cell.measured)
    if failed:
        remarks.append(f"{failed} of {len(cell.runs)} runs failed")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _p50_of(summary: DistributionSummary) -> float:
    return summary.p50


def _p95_of(summary: DistributionSummary) -> float:
    return summary.p95


def _p99_of(summary: DistributionSummary) -> float:
    return summary.p99


def _format_latency(
    cell: ResultCell, histogram_of: Callable[[MeasuredRun], Histogram], percentile: Callable[[DistributionSummary], float]
) -> str:
    def percentile_of_run(run: MeasuredRun) -> float | None:
        summary = histogram_of(run).summarize()
        return None if summary is None else percentile(summary)

    latency = cell.compute_confidence(percentile_of_run)
    return format_seconds(latency.mean if latency else None)


def _format_mean(cell: ResultCell, measurement: Callable[[MeasuredRun], float | None]) -> str:
    known = cell.compute_confidence(measurement)
    return format_scaled(known.mean) if known else NO_VALUE


def _build_deployment_histogram(run: MeasuredRun) -> Histogram:
    requests = run.deployments.requests
    return Histogram.from_values(
        [request.live_at_us - request.requested_at_us for request in requests if request.live_at_us is not None]
    )


def _format_resource(cell: ResultCell, name: str, kind: str, format_value: Callable[[float], str]) -> str:
    usage = cell.compute_confidence(lambda run: summarize_samples(run.resources).get(name, {}).get(kind))
    return format_value(usage.mean) if usage else NO_VALUE
