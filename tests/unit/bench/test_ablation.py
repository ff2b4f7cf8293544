"""Ablation of headrace: switches become settings of its session, and results tell what was switched off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.report.groups import group_runs
from headrace.bench.result import BenchRun
from headrace.bench.scenarios.scenario import load_scenario
from headrace.bench.systems.adapter import SutConfig
from headrace.bench.systems.headrace import HeadraceAdapter, describe_ablation, parse_window_joins
from headrace.errors import HeadraceError
from unit.bench import synthetic

SWITCHES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, ""),
    ({"grouping": True}, {}, ""),
    ({"grouping": False}, {"grouping": False}, "grouping"),
    ({"reordering": False}, {"reordering": False}, "reordering"),
    ({"optimizer": False}, {"grouping": False, "reordering": False}, "optimizer"),
    ({"window_joins": {"reordering": False, "interval": 9}}, {"reordering": False, "interval": 9}, "reordering"),
    ({"sharing": "none", "grouping": False}, {"grouping": False}, "sharing, grouping"),
    ({"sliding_sharing": False}, {}, "sliding_sharing"),
]


@pytest.mark.parametrize(("options", "settings", "ablation"), SWITCHES)
def test_switches_are_settings_of_the_session(options: dict[str, Any], settings: dict[str, Any], ablation: str) -> None:
    assert parse_window_joins(options) == settings
    assert describe_ablation(options) == ablation


def test_a_switch_is_true_or_false() -> None:
    with pytest.raises(HeadraceError, match="invalid option grouping=off"):
        parse_window_joins({"grouping": "off"})


def test_the_session_gets_what_is_switched_off_and_the_result_tells(tmp_path: Path) -> None:
    adapter = HeadraceAdapter(backend="local")
    config = SutConfig(("127.0.0.1", 1), ("127.0.0.1", 1), tmp_path, (), (), {"optimizer": False}, None)
    adapter._config = config
    assert adapter._session_options() == {"window_joins": {"grouping": False, "reordering": False}}


def test_runs_with_an_ablation_are_no_repeats_of_others() -> None:
    run = synthetic.run(load_scenario("join"), "headrace")
    origin = replace(run.origin, settings={**run.origin.settings, "ablation": "grouping"})
    other = BenchRun.from_json(replace(run, origin=origin).to_json())
    (group,) = group_runs([run, other])
    assert [cell.sut for cell in group.cells] == ["headrace", "headrace without grouping"]
    assert [len(cell.runs) for cell in group.cells] == [1, 1]
