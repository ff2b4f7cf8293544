"""`headrace bench list` and `headrace bench report`: what there is, and a page of what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import synthetic

from headrace.bench.scenarios.scenario import Scenario, list_scenarios


def test_the_scenarios_are_listed(headrace):
    said = headrace("bench", "list")
    assert said.code == 0
    assert all(name in said.out for name in list_scenarios())
    assert "all systems: headrace, spark, flink, limit, duckdb" in said.out


def test_the_list_as_json(headrace):
    found = {entry["name"]: entry for entry in headrace("bench", "list", "--json").document["scenarios"]}
    assert list(found) == list_scenarios()
    assert found["sc1"].pop("most_queries") == 100
    assert Scenario.from_json(found["sc1"]).ad_hoc is not None


def test_a_report_is_made(headrace, tmp_path):
    synthetic.append_run(tmp_path, synthetic.runs()[0])
    said = headrace("bench", "report", tmp_path)
    assert (said.code, said.out.strip()) == (0, str(tmp_path / "report.html"))
    assert "Windowed aggregation" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_of_nothing_is_refused(headrace, tmp_path):
    said = headrace("bench", "report", tmp_path)
    assert said.code == 1
    assert f"result '{tmp_path / 'result.json'}' cannot be read" in said.err
    assert "hint: name a directory" in said.err
