"""Render the report as a single HTML file that includes plotly.js."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from headrace.bench.report import course, latency, throughput
from headrace.bench.report.groups import Cell, Group, grouped, ordered
from headrace.bench.report.plots import Figure, Panel, colour
from headrace.bench.report.summary import asked, headlines, table
from headrace.bench.report.words import percent
from headrace.bench.result import BenchRun
from headrace.bench.result_file import read_runs
from headrace.connectors.durable import replace_file
from headrace.errors import HeadraceError

NAME = "report.html"
_NAMED = {"rate", "two-times"}  # figures with all parameter values in one panel
FIGURES: tuple[Callable[[Group], Figure | None], ...] = (
    throughput.rates,
    latency.two_times,
    latency.distribution,
    latency.over_time,
    latency.deployment,
    course.reading,
    course.backlog,
    course.resources,
    throughput.search,
)


def write_report(folder: Path) -> Path:
    """Write `report.html` for the result document of a folder; return its path."""
    runs = read_runs(folder)
    if not runs:
        raise HeadraceError(f"result '{folder}' has no runs", hint="run a scenario with `headrace bench run`")
    replace_file(folder / NAME, page(runs).encode())
    return folder / NAME


def page(runs: Sequence[BenchRun]) -> str:
    """Return the HTML page for these runs."""
    groups = grouped(runs)
    systems = ordered({run.sut for run in runs})
    return Template(_asset("page.html")).substitute(
        style=_asset("page.css"),
        plotly=plotly_js(),
        script=_asset("page.js"),
        card=_card(runs, groups),
        facts=_facts(runs),
        navigation="".join(f'<a href="#{_id(group)}">{_e(group.title)}</a>' for group in groups),
        legend="".join(_key(sut, systems) for sut in systems),
        sections="".join(_section(group) for group in groups),
        origins=_origins(runs, systems),
    )


def plotly_js() -> str:
    """Return the source of plotly.js, which the Python package plotly contains."""
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except ModuleNotFoundError as error:
        hint = "install it: pip install 'headrace[bench]'"
        raise HeadraceError("the report needs plotly, which is not installed", hint=hint) from error


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _section(group: Group) -> str:
    figures = [figure for figure in (draw(group) for draw in FIGURES) if figure is not None]
    headline_items = "".join(f"<li>{_e(line)}</li>" for line in headlines(group))
    return (
        f'<section id="{_id(group)}"><h2>{_e(group.title)}</h2><p class="about">{_e(group.about)}</p>'
        f'<p class="parameters">{_parameters(group)}</p>{f"<ul class=headlines>{headline_items}</ul>" if headline_items else ""}'
        f'{_summary(group)}<div class="figures">{"".join(_figure(group, figure) for figure in figures)}</div></section>'
    )


def _parameters(group: Group) -> str:
    parts = [
        f"scenario <code>{_e(group.name)}</code>",
        f"{group.seconds:g} s each",
        f"first {percent(group.warm_up)} warm-up",
        f"run at {percent(group.load)} of the sustainable rate" if any(c.sustainable for c in group.cells) else "fixed rate",
    ]
    return " · ".join([*parts, *([f"up to {group.repeats} repeats"] if group.repeats > 1 else [])])


def _summary(group: Group) -> str:
    header, rows = table(group)
    body, previous = "", None
    for cell in group.cells:
        is_new_block = previous is not None and previous != (cell.queries, cell.keys)
        previous = (cell.queries, cell.keys)
        body += _summary_row(group, cell, rows.get(cell), len(header), "begins" if is_new_block else "")
    return f'<div class="scroll"><table class="summary">{_head(header)}<tbody>{body}</tbody></table></div>'


def _summary_row(group: Group, cell: Cell, row: Sequence[str] | None, width: int, kind: str) -> str:
    system = f'<th scope="row">{_key(cell.sut, group.systems)}</th>'
    if row is None:
        reason = f"<strong>failed</strong> {_e('; '.join(cell.failures))}"
        return f'<tr class="failed {kind}">{system}<td>{asked(group, cell)}</td><td colspan="{width - 2}">{reason}</td></tr>'
    return f'<tr class="{kind}">{system}{"".join(f"<td>{_e(value)}</td>" for value in row[1:])}</tr>'


def _figure(group: Group, figure: Figure) -> str:
    keys = "".join(_key(sut, group.systems) for sut in figure.keys)
    wide = "wide" if len(figure.panels) > 1 or (figure.name == "rate" and len(group.values) > 1) else ""
    return (
        f'<figure id="{_id(group)}-{figure.name}" class="{wide}"><figcaption><h3>{_e(figure.title)}</h3>'
        f"<p>{_e(figure.note)}</p>{f'<p class=legend>{keys}</p>' if keys else ''}</figcaption>"
        f'<div class="panels n{min(len(figure.panels), 3)}">{"".join(_panel(figure, panel) for panel in figure.panels)}</div>'
        f"<details><summary>Numbers</summary>{_table(figure.header, figure.rows)}</details></figure>"
    )


def _panel(figure: Figure, panel: Panel) -> str:
    return (
        f'<div class="panel">{f"<h4>{_e(panel.title)}</h4>" if panel.title else ""}'
        f'<div class="plot" role="img" aria-label="{_e(_label(figure, panel.title))}" style="min-height:{panel.height}px">'
        f'<script type="application/json">{_json(panel.spec)}</script></div></div>'
    )


def _label(figure: Figure, panel: str) -> str:
    return f"{figure.title}{f', {panel}' if panel else ''}. {figure.note} The numbers are in the table below."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{_e(cell)}</td>' for cell in line)}</tr>" for line in rows)
    return f'<div class="scroll"><table>{_head(header)}<tbody>{body}</tbody></table></div>'


def _head(header: Sequence[str]) -> str:
    return f"<thead><tr>{''.join(f'<th scope=col>{_e(name)}</th>' for name in header)}</tr></thead>"


def _key(sut: str, systems: Sequence[str]) -> str:
    return f'<span><i class="swatch" style="--c:{colour(sut, systems)}"></i>{_e(sut)}</span>'


def _card(runs: Sequence[BenchRun], groups: Sequence[Group]) -> str:
    """Return the metadata of the report as JSON; it is in the first lines because the list of reports reads no more."""
    all_headlines = (line for group in groups for line in headlines(group))
    metadata = {
        "title": ", ".join(group.title for group in groups),
        "scenarios": [group.name for group in groups],
        "systems": ordered({run.sut for run in runs}),
        "started_at": max(run.origin.started_at for run in runs),
        "runs": len(runs),
        "failed": sum(run.failure is not None for run in runs),
        "headline": next(all_headlines, ""),
    }
    return _e(json.dumps(metadata, ensure_ascii=False))


def _facts(runs: Sequence[BenchRun]) -> str:
    """Return machines, dates, commits and the number of runs."""
    machines = {_machine(run) for run in runs}
    days = sorted({run.origin.started_at[:10] for run in runs})
    commits = sorted({run.origin.commit[:12] + ("+" if run.origin.commit.endswith("+") else "") for run in runs})
    failed = sum(run.failure is not None for run in runs)
    facts = [
        ("machine", "; ".join(sorted(machines))),
        ("date", days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"),
        ("commit", ", ".join(commits)),
        ("runs", f"{len(runs)}" + (f", {failed} failed" if failed else "")),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{_e(value)}</dd></div>" for name, value in facts)


def _machine(run: BenchRun) -> str:
    facts = (("cores", " cores"), ("memory_gib", " GiB"), ("processor", ""), ("system", ""))
    return " · ".join(f"{run.origin.machine[key]}{unit}" for key, unit in facts if run.origin.machine.get(key))


def _origins(runs: Sequence[BenchRun], systems: Sequence[str]) -> str:
    """Return the distinct versions and settings of each system."""
    rows = []
    for sut in systems:
        seen = dict.fromkeys((_pairs(run.origin.versions), _pairs(run.origin.settings)) for run in runs if run.sut == sut)
        rows += [(sut, versions, settings) for versions, settings in seen]
    return _table(("system", "versions", "settings"), rows)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "–"


def _json(value: object) -> str:
    """Return JSON that is safe inside a script element: `</` is escaped."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")


def _id(group: Group) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in group.name)


def _e(text: str) -> str:
    return html.escape(text)
