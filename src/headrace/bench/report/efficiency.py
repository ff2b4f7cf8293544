"""The figure of efficiency: how much of the rate of a node remains when a cluster has more of them."""

from __future__ import annotations

from headrace.bench.report.figures import rate_of
from headrace.bench.report.groups import BY_NODES, ResultCell, ScenarioGroup
from headrace.bench.report.plots import (
    PlotPanel,
    ReportFigure,
    format_percent,
    format_rate,
    make_axis,
    make_layout,
    make_line,
    make_log_axis,
    make_marker,
)


def compute_efficiency(cell: tuple[ResultCell, float], smallest: tuple[ResultCell, float]) -> float:
    """Return the rate of a node in one cell as a share of the rate of a node in the cell with the fewest nodes."""
    return (cell[1] / cell[0].nodes) / (smallest[1] / smallest[0].nodes)


def draw_efficiency(group: ScenarioGroup) -> ReportFigure | None:
    """Return the efficiency of each system by number of nodes; None where the runs do not vary the nodes."""
    if group.parameter is not BY_NODES:
        return None
    lines = {sut: points for sut in group.systems if len(points := _list_points(group, sut)) > 1}
    if not lines:
        return None
    traces = [
        make_line(
            sut,
            group.systems,
            mode="lines+markers",
            marker=make_marker(sut, group.systems),
            x=[cell.nodes for cell, _ in points],
            y=[compute_efficiency(point, points[0]) for point in points],
            hovertemplate=f"{sut}, %{{x}} nodes: %{{y:.0%}}<extra></extra>",
        )
        for sut, points in lines.items()
    ]
    ticks = {"tickvals": group.parameter_values, "ticktext": [str(value) for value in group.parameter_values]}
    across = make_log_axis("nodes", group.parameter_values, room=0.06, **ticks)
    top = max(value for trace in traces for value in trace["y"])
    vertical = make_axis("of the rate of a node", range=[0, max(1.1, top * 1.06)], tickformat=".0%", nticks=7)
    rows = tuple(
        (sut, str(cell.nodes), format_rate(rate_of(cell)), format_percent(compute_efficiency((cell, rate), points[0])))
        for sut, points in lines.items()
        for cell, rate in points
    )
    note = "The rate of a node, as a share of its rate with the fewest nodes. At 100 %, twice the nodes have twice the rate."
    header = ("system", "nodes", "rate, rows/s", "efficiency")
    panel = PlotPanel({"data": traces, "layout": make_layout(320, xaxis=across, yaxis=vertical)})
    return ReportFigure("efficiency", "Efficiency by number of nodes", note, (panel,), header, rows, tuple(lines))


def _list_points(group: ScenarioGroup, sut: str) -> list[tuple[ResultCell, float]]:
    """Return the measured cells of a system with their rates, by number of nodes."""
    measured = [(cell, known.mean) for cell in group.cells_of(sut) if cell.nodes and (known := rate_of(cell))]
    return sorted(measured, key=lambda point: point[0].nodes)
