"""`headrace bench list` and `headrace bench report`: the scenarios, and the HTML report of measured runs."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import synthetic

from headrace.bench.cluster import BenchCluster
from headrace.bench.driver.client import DriverStatus
from headrace.bench.measure.sustainable import TrialVerdict
from headrace.bench.result import BenchRun, read_runs
from headrace.bench.run import ScenarioRunner
from headrace.bench.scenarios.scenario import Scenario, list_scenarios
from headrace.cli.bench import BenchView


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


def test_results_are_written_to_this_machine_only(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = headrace("bench", "run", "kafka", "--out", "s3://bucket/out")
    assert (refused.code, "--out 's3://bucket/out' is in an object store" in refused.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_report_without_results_is_refused(headrace, tmp_path):
    result = headrace("bench", "report", tmp_path)
    assert result.code == 1
    assert f"result '{tmp_path / 'result.json'}' cannot be read" in result.err
    assert "hint: name a directory" in result.err


@pytest.mark.parametrize(
    ("words", "clusters"),
    [
        ((), [None]),
        (("--nodes", "1,4"), [BenchCluster(1), BenchCluster(4)]),
        (("--nodes", "2", "--node-cores", "1"), [BenchCluster(2, 1.0)]),
        (("--master", "spark://127.0.0.1:7077"), [BenchCluster(master="spark://127.0.0.1:7077")]),
    ],
)
def test_a_run_on_nodes_or_on_a_cluster_of_the_user(headrace, tmp_path, monkeypatch, words, clusters):
    """The runs fail, because nothing is started; their scenarios have the cluster."""
    asked: list[tuple[BenchCluster | None, str]] = []

    def fail_to_start(self: ScenarioRunner, repeat: int) -> BenchRun:
        asked.append((self.scenario.cluster, self.host))
        return synthetic.run(self.scenario, self.sut, repeat, failed="not started")

    monkeypatch.setattr(ScenarioRunner, "run", fail_to_start)
    result = headrace("bench", "run", "aggregation", *words, "--host", "127.0.0.9", "--out", tmp_path, "--json")
    assert result.code == 1
    assert asked == [(cluster, "127.0.0.9") for cluster in clusters]
    documents = [run["scenario"]["cluster"] for run in result.document["runs"]]
    assert documents == [None if cluster is None else cluster.to_json() for cluster in clusters]


def test_the_nodes_of_a_scenario_can_be_changed_one_by_one(headrace, tmp_path, monkeypatch):
    monkeypatch.setattr(ScenarioRunner, "run", lambda self, repeat: synthetic.run(self.scenario, self.sut, repeat))
    out = headrace("bench", "run", "by-nodes-join", "--nodes", "4", "--out", tmp_path).out
    assert "nodes" in out
    assert read_runs(tmp_path)[0].scenario["cluster"] == {"nodes": 4, "cores": 0.5, "memory_mib": 2048, "master": ""}
    result = headrace("bench", "run", "by-nodes-join", "--nodes", "4", "--master", "spark://127.0.0.1:7077")
    assert (result.code, "--master excludes --nodes" in result.err) == (1, True)
    assert "write --nodes 1,4" in headrace("bench", "run", "join", "--nodes", "two").err


def make_status(second: float, produced: int, read: int) -> DriverStatus:
    return DriverStatus(int(second * 1e6), produced, read, read, False, 0, 0)


def test_without_a_terminal_a_line_is_printed_every_five_seconds(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("headrace.cli.bench.time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    with BenchView(Console(file=out, width=20, force_terminal=False)) as view:
        watcher = view.make_watcher()
        watcher.on_phase("search of the sustainable rate", 2_000_000.0)
        for second in range(12):
            now[0] = 100.0 + second
            watcher.on_sample(make_status(second, 2_000 * second, 1_500 * second), second, 60.0, None)
        watcher.on_verdict(TrialVerdict(2_000_000.0, False, "the backlog grew"))
        watcher.on_phase("warm-up", None)
        watcher.on_sample(make_status(20, 2_000, 500), 20.0, 60.0, None)
        now[0] = 200.0
        watcher.on_sample(make_status(21, 3_000, 500), 21.0, 60.0, None)
        watcher.on_verdict(TrialVerdict(1_000.0, True))
    assert out.getvalue().splitlines() == [
        "search of the sustainable rate, 2.00 M rows/s offered",
        "  0 s: queue 0",
        "  5 s: read 1,500 rows/s, queue 2,500",
        "  10 s: read 1,500 rows/s, queue 5,000",
        "  2.00 M rows/s not sustained: the backlog grew",
        "warm-up",
        "  21 s: queue 2,500",
        "  1,000 rows/s sustained",
    ]


def test_a_terminal_shows_a_progress_bar_that_ends():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with BenchView(console) as view:
        watcher = view.make_watcher()
        watcher.on_phase("trial 3", 5_000.0)
        watcher.on_sample(make_status(1, 10_000, 4_000), 1.0, 60.0, None)
        view._progress.refresh()
        assert "trial 3, 5,000 rows/s offered" in out.getvalue()
        assert "queue 6,000" in out.getvalue()
    assert not view._progress.live.is_started
