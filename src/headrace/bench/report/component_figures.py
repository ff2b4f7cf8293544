"""The figure of the work of a system by component, as the system measures it itself."""

from __future__ import annotations

from headrace.bench.report.groups import ScenarioGroup
from headrace.bench.report.plots import (
    PlotPanel,
    ReportFigure,
    format_percent,
    format_seconds,
    make_axis,
    make_layout,
    select_typical_runs,
)

_COLOURS = ("#2f6f9f", "#d9822b", "#4f8a5b", "#a8465b", "#7a5ea8", "#8c6d46", "#4d9a9a", "#b0a13a", "#6b7785", "#b9c0c7")


def draw_components(group: ScenarioGroup) -> ReportFigure | None:
    """Return the share of every component in the work of each run, as stacked bars; None where no system measures it."""
    typical_runs = select_typical_runs(group, lambda run: sum(run.component_seconds.values()) > 0)
    if not typical_runs:
        return None
    components = sorted(
        {name for _, run in typical_runs for name in run.component_seconds}, key=lambda name: (name == "other", name)
    )
    names = [f"{cell.sut} · {group.describe_cell(cell)}" for cell, _ in typical_runs]
    totals = [sum(run.component_seconds.values()) for _, run in typical_runs]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": component,
            "y": names,
            "x": [
                run.component_seconds.get(component, 0.0) / total for (_, run), total in zip(typical_runs, totals, strict=True)
            ],
            "marker": {"color": _COLOURS[number % len(_COLOURS)]},
            "hovertemplate": f"%{{y}}, {component}: %{{x:.1%}}<extra></extra>",
            "showlegend": True,
        }
        for number, component in enumerate(components)
    ]
    rows = tuple(
        (cell.sut, group.describe_cell(cell), component, format_seconds(seconds), format_percent(seconds / total))
        for (cell, run), total in zip(typical_runs, totals, strict=True)
        for component, seconds in sorted(run.component_seconds.items(), key=lambda pair: -pair[1])
    )
    across = make_axis("of the seconds of all tasks", range=[0, 1], tickformat=".0%")
    layout = make_layout(max(240, 130 + 40 * len(names)), xaxis=across, yaxis=make_axis(showgrid=False, autorange="reversed"))
    layout |= {"barmode": "stack", "showlegend": True, "legend": {"orientation": "h", "y": -0.3}}
    note = (
        "Seconds of work during the run, warm-up included, by component, as the system measures them itself. The time of a "
        "component does not include those that it calls."
    )
    header = ("system", "queries", "component", "seconds", "share")
    panel = PlotPanel({"data": traces, "layout": layout})
    return ReportFigure("components", "Work by component", note, (panel,), header, rows)
