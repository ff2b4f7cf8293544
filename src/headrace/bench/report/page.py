"""Render the report as a single HTML file that includes plotly.js."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from headrace.bench.report import figures as figures_module
from headrace.bench.report.component_figures import draw_components
from headrace.bench.report.efficiency import draw_efficiency
from headrace.bench.report.groups import ResultCell, ScenarioGroup, group_runs, order_systems
from headrace.bench.report.plots import PlotPanel, ReportFigure, colour_of, format_percent
from headrace.bench.report.query_figures import draw_data_throughput, draw_request_rates
from headrace.bench.report.summary import format_parameters, make_summary_table, write_headlines
from headrace.bench.result import BenchRun, read_runs
from headrace.errors import HeadraceError
from headrace.storage.posix import replace_file

REPORT_NAME = "report.html"
_SINGLE_PANEL_FIGURES = {"rate", "two-times"}  # figures with all parameter values in one panel
FIGURES: tuple[Callable[[ScenarioGroup], ReportFigure | None], ...] = (
    figures_module.draw_rates,
    draw_efficiency,
    draw_request_rates,
    figures_module.draw_event_and_processing_time,
    figures_module.draw_latency_distribution,
    figures_module.draw_latency_over_time,
    draw_data_throughput,
    figures_module.draw_deployment,
    figures_module.draw_read_rate,
    figures_module.draw_backlog,
    figures_module.draw_resources,
    draw_components,
    figures_module.draw_search,
)


def write_report(folder: Path) -> Path:
    """Write `report.html` for the result document of a folder; return its path."""
    runs = read_runs(folder)
    if not runs:
        raise HeadraceError(f"result '{folder}' has no runs", hint="run a scenario with `headrace bench run`")
    replace_file(folder / REPORT_NAME, render_page(runs).encode())
    return folder / REPORT_NAME


def render_page(runs: Sequence[BenchRun]) -> str:
    """Return the HTML page for these runs."""
    groups = group_runs(runs)
    systems = order_systems({run.system for run in runs})
    return Template(_load_asset("page.html")).substitute(
        style=_load_asset("page.css"),
        plotly=load_plotly_js(),
        script=_load_asset("page.js"),
        card=_make_metadata(runs, groups),
        facts=_render_facts(runs),
        navigation="".join(f'<a href="#{_section_id(group)}">{_escape_html(group.title)}</a>' for group in groups),
        legend="".join(_render_legend_key(sut, systems) for sut in systems),
        sections="".join(_render_section(group) for group in groups),
        origins=_render_origins(runs, systems),
    )


def load_plotly_js() -> str:
    """Return the source of plotly.js, which the Python package plotly contains."""
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except ModuleNotFoundError as error:
        hint = "install it: pip install 'headrace[bench]'"
        raise HeadraceError("the report needs plotly, which is not installed", hint=hint) from error


def _load_asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _render_section(group: ScenarioGroup) -> str:
    figures = [figure for figure in (draw(group) for draw in FIGURES) if figure is not None]
    headline_items = "".join(f"<li>{_escape_html(line)}</li>" for line in write_headlines(group))
    return (
        f'<section id="{_section_id(group)}"><h2>{_escape_html(group.title)}</h2>'
        f'<p class="about">{_escape_html(group.description)}</p>'
        f'<p class="parameters">{_render_parameters(group)}</p>'
        f"{f'<ul class=headlines>{headline_items}</ul>' if headline_items else ''}"
        f"{_render_summary(group)}"
        f'<div class="figures">{"".join(_render_figure(group, figure) for figure in figures)}</div></section>'
    )


def _render_parameters(group: ScenarioGroup) -> str:
    parts = [
        f"scenario <code>{_escape_html(group.name)}</code>",
        *([_escape_html(group.place)] if group.place else []),
        f"{'at most ' if group.reads_topic else ''}{group.seconds:g} s each",
        f"first {format_percent(group.warm_up)} warm-up",
        _describe_load(group),
    ]
    return " · ".join([*parts, *([f"up to {group.max_repeats} repeats"] if group.max_repeats > 1 else [])])


def _describe_load(group: ScenarioGroup) -> str:
    if group.reads_topic:
        return "stored input, as fast as the system reads"
    if any(cell.sustainable_rate for cell in group.cells):
        return f"run at {format_percent(group.load)} of the sustainable rate"
    return "fixed rate"


def _render_summary(group: ScenarioGroup) -> str:
    header, rows = make_summary_table(group)
    body, previous = "", None
    for cell in group.cells:
        is_new_block = previous is not None and previous != cell.parameters
        previous = cell.parameters
        body += _render_summary_row(group, cell, rows.get(cell), len(header), "begins" if is_new_block else "")
    return f'<div class="scroll"><table class="summary">{_render_table_head(header)}<tbody>{body}</tbody></table></div>'


def _render_summary_row(group: ScenarioGroup, cell: ResultCell, row: Sequence[str] | None, width: int, kind: str) -> str:
    system = f'<th scope="row">{_render_legend_key(cell.sut, group.systems)}</th>'
    if row is None:
        reason = f"<strong>failed</strong> {_escape_html('; '.join(cell.failures))}"
        parameters = format_parameters(group, cell)
        return f'<tr class="failed {kind}">{system}<td>{parameters}</td><td colspan="{width - 2}">{reason}</td></tr>'
    return f'<tr class="{kind}">{system}{"".join(f"<td>{_escape_html(value)}</td>" for value in row[1:])}</tr>'


def _render_figure(group: ScenarioGroup, figure: ReportFigure) -> str:
    keys = "".join(_render_legend_key(sut, group.systems) for sut in figure.legend_systems)
    wide = "wide" if len(figure.panels) > 1 or (figure.name == "rate" and len(group.parameter_values) > 1) else ""
    panels = "".join(_render_panel(figure, panel) for panel in figure.panels)
    return (
        f'<figure id="{_section_id(group)}-{figure.name}" class="{wide}"><figcaption><h3>{_escape_html(figure.title)}</h3>'
        f"<p>{_escape_html(figure.note)}</p>{f'<p class=legend>{keys}</p>' if keys else ''}</figcaption>"
        f'<div class="panels n{min(len(figure.panels), 3)}">{panels}</div>'
        f"<details><summary>Numbers</summary>{_render_table(figure.header, figure.rows)}</details></figure>"
    )


def _render_panel(figure: ReportFigure, panel: PlotPanel) -> str:
    label = _escape_html(_make_aria_label(figure, panel.title))
    return (
        f'<div class="panel">{f"<h4>{_escape_html(panel.title)}</h4>" if panel.title else ""}'
        f'<div class="plot" role="img" aria-label="{label}" style="min-height:{panel.height}px">'
        f'<script type="application/json">{_to_script_json(panel.spec)}</script></div></div>'
    )


def _make_aria_label(figure: ReportFigure, panel: str) -> str:
    return f"{figure.title}{f', {panel}' if panel else ''}. {figure.note} The numbers are in the table below."


def _render_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{_escape_html(cell)}</td>' for cell in line)}</tr>" for line in rows)
    return f'<div class="scroll"><table>{_render_table_head(header)}<tbody>{body}</tbody></table></div>'


def _render_table_head(header: Sequence[str]) -> str:
    return f"<thead><tr>{''.join(f'<th scope=col>{_escape_html(name)}</th>' for name in header)}</tr></thead>"


def _render_legend_key(sut: str, systems: Sequence[str]) -> str:
    return f'<span><i class="swatch" style="--c:{colour_of(sut, systems)}"></i>{_escape_html(sut)}</span>'


def _make_metadata(runs: Sequence[BenchRun], groups: Sequence[ScenarioGroup]) -> str:
    """Return the metadata of the report as JSON; it is in the first lines because the list of reports reads no more."""
    all_headlines = (line for group in groups for line in write_headlines(group))
    metadata = {
        "title": ", ".join(group.title for group in groups),
        "scenarios": [group.name for group in groups],
        "systems": order_systems({run.system for run in runs}),
        "started_at": max(run.origin.started_at for run in runs),
        "runs": len(runs),
        "failed": sum(run.failure is not None for run in runs),
        "headline": next(all_headlines, ""),
    }
    return _escape_html(json.dumps(metadata))


def _render_facts(runs: Sequence[BenchRun]) -> str:
    """Return machines, dates, commits and the number of runs."""
    machines = {_describe_machine(run) for run in runs}
    days = sorted({run.origin.started_at[:10] for run in runs})
    commits = sorted({run.origin.commit[:12] + ("+" if run.origin.commit.endswith("+") else "") for run in runs})
    failed = sum(run.failure is not None for run in runs)
    facts = [
        ("machine", "; ".join(sorted(machines))),
        ("date", days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"),
        ("commit", ", ".join(commits)),
        ("runs", f"{len(runs)}" + (f", {failed} failed" if failed else "")),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{_escape_html(value)}</dd></div>" for name, value in facts)


def _describe_machine(run: BenchRun) -> str:
    facts = (("cores", " cores"), ("memory_gib", " GiB"), ("processor", ""), ("system", ""))
    return " · ".join(f"{run.origin.machine[key]}{unit}" for key, unit in facts if run.origin.machine.get(key))


def _render_origins(runs: Sequence[BenchRun], systems: Sequence[str]) -> str:
    """Return the distinct versions and settings of each system."""
    rows = []
    for sut in systems:
        seen = dict.fromkeys(
            (_format_pairs(run.origin.versions), _format_pairs(run.origin.settings)) for run in runs if run.system == sut
        )
        rows += [(sut, versions, settings) for versions, settings in seen]
    return _render_table(("system", "versions", "settings"), rows)


def _format_pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "–"


def _to_script_json(value: object) -> str:
    """Return JSON that is safe inside a script element: `</` is escaped."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")


def _section_id(group: ScenarioGroup) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in f"{group.name} {group.place}".strip())


def _escape_html(text: str) -> str:
    return html.escape(text)
