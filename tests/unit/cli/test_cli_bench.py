"""`headrace bench list` and `headrace bench report`: the scenarios, and the HTML report of measured runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import synthetic

from headrace.bench.scenarios.scenario import Scenario, list_scenarios


def test_the_scenarios_are_listed(headrace):
    result = headrace("bench", "list")
    assert result.code == 0
    assert all(name in result.out for name in list_scenarios())
    assert "all systems: headrace, spark, flink, limit, duckdb" in result.out


def test_the_scenarios_are_listed_as_json(headrace):
    scenarios = {entry["name"]: entry for entry in headrace("bench", "list", "--json").document["scenarios"]}
    assert list(scenarios) == list_scenarios()
    assert scenarios["sc1"].pop("most_queries") == 100
    assert Scenario.from_json(scenarios["sc1"]).ad_hoc is not None


def test_a_report_is_written(headrace, tmp_path):
    synthetic.append_run(tmp_path, synthetic.runs()[0])
    result = headrace("bench", "report", tmp_path)
    assert (result.code, result.out.strip()) == (0, str(tmp_path / "report.html"))
    assert "Windowed aggregation" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_without_results_is_refused(headrace, tmp_path):
    result = headrace("bench", "report", tmp_path)
    assert result.code == 1
    assert f"result '{tmp_path / 'result.json'}' cannot be read" in result.err
    assert "hint: name a directory" in result.err
