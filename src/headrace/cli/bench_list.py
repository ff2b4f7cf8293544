"""`headrace bench list`: list the available scenarios."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headrace.bench.scenario import PEERS, Scenario
from headrace.bench.scenario_file import list_scenarios, load_scenario


def list_command(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """List the scenarios with their number of queries and their systems. --json prints all parameters."""
    scenarios = [load_scenario(name) for name in list_scenarios()]
    if as_json:
        print(json.dumps({"scenarios": [_scenario_document(scenario) for scenario in scenarios]}, indent=2, ensure_ascii=False))
        return
    table = Table("scenario", "what is measured", "queries", "systems", box=SIMPLE_HEAD, pad_edge=False)
    for scenario in scenarios:
        systems = "all" if scenario.systems == PEERS else ", ".join(scenario.systems)
        table.add_row(scenario.name, scenario.title, f"{scenario.peak_query_count:,}", systems)
    Console().print(table, f"all systems: {', '.join(PEERS)}", sep="")


def _scenario_document(scenario: Scenario) -> dict[str, Any]:
    return {**scenario.to_json(), "most_queries": scenario.peak_query_count}
