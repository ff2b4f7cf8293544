"""Figures by query: the data throughput of each of them, and the rate of requests to add and remove some."""

from __future__ import annotations

from headrace.bench.measure.data_throughput import DataThroughput
from headrace.bench.report.groups import ResultCell, ScenarioGroup
from headrace.bench.report.plots import (
    NO_VALUE,
    PlotPanel,
    PlotSpec,
    ReportFigure,
    colour_of,
    format_rate,
    format_scaled,
    list_drawn_systems,
    list_drawn_values,
    make_amount_axis,
    make_axis,
    make_layout,
    make_line,
    make_marker,
    make_panel_title,
    select_typical_runs,
)

_MARKER_LIMIT = 40  # up to this many points get markers


def draw_data_throughput(group: ScenarioGroup) -> ReportFigure | None:
    """Return the rates of all queries, fastest first; None where no query has one."""
    typical_runs = select_typical_runs(group, lambda run: bool(run.data_throughput and run.data_throughput.rates))
    measured = [(cell, run.data_throughput) for cell, run in typical_runs if run.data_throughput is not None]
    if not measured:
        return None
    vertical, _ = make_amount_axis("rows/s", [rate for _, data in measured for rate in data.rates.values()], is_rate=True)
    panels = []
    for value in list_drawn_values(group, typical_runs):
        drawn = [(cell, data) for cell, data in measured if group.parameter_of(cell) == value]
        traces = [_make_rank_curve(group, cell, data) for cell, data in drawn]
        layout = make_layout(280, xaxis=make_axis("queries, fastest first", rangemode="tozero"), yaxis=vertical)
        panels.append(PlotPanel({"data": traces, "layout": layout}, make_panel_title(group, drawn[0][0])))
    rows = tuple((cell.sut, group.describe_cell(cell), *_describe_rates(data)) for cell, data in measured)
    note = (
        "Rows of its streams that each query turned into results, per second, measured where the results arrive. "
        "Silent queries had fewer than two results; overall is the sum over the queries that were live at a time."
    )
    header = ("system", "queries", "slowest, rows/s", "slowest query", "overall, rows/s", "silent queries")
    return ReportFigure(
        "data-throughput", "Data throughput of each query", note, tuple(panels), header, rows, list_drawn_systems(typical_runs)
    )


def draw_request_rates(group: ScenarioGroup) -> ReportFigure | None:
    """Return the sustainable rates of requests as bars; None where none was searched."""
    rates = {cell: rate for cell in group.cells if (rate := cell.compute_confidence(lambda run: run.sustainable_request_rate))}
    if not rates:
        return None
    has_several_values = len(group.parameter_values) > 1
    names = {cell: f"{cell.sut} · {group.describe_cell(cell)}" if has_several_values else cell.sut for cell in group.cells}
    drawn = sorted(group.cells, key=lambda cell: rates[cell].mean if cell in rates else 0.0)
    values = [rates[cell].mean if cell in rates else 0.0 for cell in drawn]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [names[cell] for cell in drawn],
        "x": values,
        "text": [format_scaled(rates[cell].mean) if cell in rates else "failed" for cell in drawn],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [colour_of(cell.sut, group.systems) for cell in drawn]},
        "hovertemplate": "%{y}: %{x:.3~s} requests/s<extra></extra>",
        "width": 0.62,
    }
    across = make_axis("requests/s", range=[0, max(values) * 1.16], tickformat="~s", nticks=6)
    height = max(220, 80 + 44 * len(drawn))
    layout = make_layout(height, xaxis=across, yaxis=make_axis(showgrid=False))
    note = (
        "Requests to add and to remove queries, each batch sent after the acknowledgement of the one before: the highest rate at "
        "which neither their queue nor the latency of deployment keeps growing, and the rate of rows is sustained."
    )
    rows = tuple(
        (
            cell.sut,
            group.describe_cell(cell),
            format_rate(rates[cell]) if cell in rates else f"failed: {'; '.join(cell.failures)}",
        )
        for cell in group.cells
    )
    panel = PlotPanel({"data": [bar], "layout": layout})
    header = ("system", "queries", "sustainable requests/s")
    return ReportFigure("query-throughput", "Sustainable query throughput", note, (panel,), header, rows)


def _make_rank_curve(group: ScenarioGroup, cell: ResultCell, data: DataThroughput) -> PlotSpec:
    ranked = sorted(data.rates, key=lambda name: -data.rates[name])
    markers = {"mode": "lines+markers", "marker": make_marker(cell.sut, group.systems, 6)} if len(ranked) < _MARKER_LIMIT else {}
    return make_line(
        cell.sut,
        group.systems,
        x=list(range(1, len(ranked) + 1)),
        y=[data.rates[name] for name in ranked],
        text=ranked,
        hovertemplate=f"{cell.sut}, %{{text}}: %{{y:.3s}} rows/s<extra></extra>",
        **markers,
    )


def _describe_rates(data: DataThroughput) -> tuple[str, str, str, str]:
    slowest = NO_VALUE if data.slowest is None else format_scaled(data.slowest)
    return slowest, data.slowest_query or NO_VALUE, format_scaled(data.overall), f"{len(data.silent):,}"
