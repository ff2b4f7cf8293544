"""`headrace bench run`: run systems under a scenario, one after the other, and write each result when it is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from headrace.bench.result import BenchRun
from headrace.bench.result_file import append_run
from headrace.bench.run import ScenarioRunner
from headrace.bench.scenario import SYSTEMS, Scenario
from headrace.bench.scenario_file import load_scenario
from headrace.cli.bench_view import BenchView
from headrace.cli.terminal import format_count, format_seconds, print_json, progress_console
from headrace.errors import HeadraceError


def run_command(
    scenario: Annotated[str, typer.Argument(help="A name from `headrace bench list`, or a .toml file.")],
    sut: Annotated[str, typer.Option(help=f"Systems, separated by commas: {', '.join(SYSTEMS)}.")] = "headrace",
    rate: Annotated[float | None, typer.Option(help="Offer this many rows/s instead of searching the sustainable rate.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Search the sustainable rate; the default without --rate.")] = False,
    duration: Annotated[
        float | None, typer.Option("--seconds", help="Duration of the run; the maximum duration of a trial.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of runs of each system.")] = 1,
    queries: Annotated[str, typer.Option(help="Numbers of queries, separated by commas.")] = "",
    keys: Annotated[int | None, typer.Option(help="Number of distinct keys.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the systems, e.g. mode=separate.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of result.json; runs are appended to it.")] = Path("bench-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with the runs.")] = False,
) -> None:
    """Measure systems under a scenario. A failed run has a reason and no number; the exit code is then 1."""
    if rate is not None and (search or not rate > 0):
        raise HeadraceError("invalid --rate: it must be positive, and excludes --search")
    base, systems = load_scenario(scenario), _parse_systems(sut)
    variants = [_apply_overrides(base, number, duration, keys) for number in _parse_counts(queries)]
    runs = []
    with BenchView(progress_console(as_json=True)) as view:
        for variant in variants:
            for system in systems:
                for number in range(1, repeat + 1):
                    run = ScenarioRunner(system, variant, view.make_watcher(), rate, _parse_options(option or [])).run(number)
                    append_run(out, run)
                    view.show_run(run)
                    runs.append(run)
    if as_json:
        print_json({"runs": [run.to_json() for run in runs]})
    else:
        progress_console(as_json=False).print(
            summary_table(runs), f"Written to {out / 'result.json'}; `headrace bench report {out}` makes a page of it."
        )
    if any(run.failure for run in runs):
        raise typer.Exit(1)


def _parse_systems(text: str) -> list[str]:
    systems = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown or not systems:
        raise HeadraceError(f"unknown system in '{text}'", detail=f"systems: {', '.join(SYSTEMS)}")
    return systems


def _parse_counts(text: str) -> list[int | None]:
    if not text:
        return [None]
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise HeadraceError(f"'{text}' is not a list of numbers", hint="write --queries 1,64") from None


def _apply_overrides(base: Scenario, queries: int | None, duration: float | None, keys: int | None) -> Scenario:
    return base.with_overrides(queries=queries, seconds=duration, keys=keys)


def _parse_options(settings: list[str]) -> dict[str, Any]:
    pairs = [setting.partition("=") for setting in settings]
    if any(not sign for _, sign, _ in pairs):
        raise HeadraceError("invalid --option: write NAME=VALUE", detail=f"given: {', '.join(settings)}")
    return {name: _parse_value(value) for name, _, value in pairs}


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def summary_table(runs: list[BenchRun]) -> Table:
    """Return the runs as a table for the terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("system", "left"),
        ("queries", "right"),
        ("sustainable rows/s", "right"),
        ("event-time latency p95", "right"),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for run in runs:
        figures = run.figures
        if figures is None:
            table.add_row(run.sut, str(run.query_count), Text(f"failed: {run.failure}", "red"), "–")
            continue
        latency = figures.event_time_latency.histogram.summarize()
        table.add_row(
            run.sut,
            str(run.query_count),
            format_count(figures.sustainable_rate or 0),
            format_seconds(latency.p95 if latency else None),
        )
    return table
