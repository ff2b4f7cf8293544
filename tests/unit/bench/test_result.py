"""The result document: complete after every run; failed runs have no figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import synthetic

from headrace.bench.result import BenchRun, FailedRun, LatencyFigures, MeasuredRun, append_run, name_figures, read_runs
from headrace.bench.scenarios.scenario import Scenario, load_scenario
from headrace.errors import HeadraceError

RECORDED = Path(__file__).parents[3] / "docs" / "bench" / "2026-11-16"
AGGREGATION = load_scenario("aggregation").with_overrides(seconds=12)
NUMBERS = ("sustainable_rows_per_second", "event_time_latency_s", "throughput", "resources", "query_throughput")


def make_run(sut: str = "headrace") -> BenchRun:
    return synthetic.run(AGGREGATION, sut)


def make_failed_run() -> BenchRun:
    return synthetic.run(AGGREGATION, "flink", failed="it was killed by signal 9")


def read_document(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_runs_round_trip_through_the_document(tmp_path):
    ad_hoc = synthetic.run(load_scenario("sc1").with_overrides(seconds=12), "headrace")
    for run in (make_run(), make_failed_run(), ad_hoc):
        append_run(tmp_path / "out", run)
    assert read_runs(tmp_path / "out") == (make_run(), make_failed_run(), ad_hoc)


def test_the_document_is_complete_after_every_run(tmp_path):
    for number, run in enumerate((make_run(), make_failed_run(), make_run("spark")), 1):
        append_run(tmp_path, run)
        assert len(read_document(tmp_path)["runs"]) == number
        assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_run_has_all_fields(tmp_path):
    append_run(tmp_path, make_run())
    assert read_document(tmp_path)["format"] == 2
    (run,) = read_document(tmp_path)["runs"]
    assert (run["sut"], run["queries"], run["repeat"], run["commit"]) == ("headrace", 1, 1, "0ab491a")
    assert run["sustainable_rows_per_second"] > run["offered_rows_per_second"] > 0
    for name in ("event_time_latency_s", "processing_time_latency_s"):
        latency = run[name]
        assert 0 < latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p95"] <= latency["p99"] <= latency["max"]
        assert latency["count"] == sum(latency["histogram"]["counts"])
    assert run["deployment_latency_s"] is None
    assert run["resources"]["summary"]["cpu_cores"]["highest"] > 0
    assert [trial["sustainable"] for trial in run["search"]] == [False, False, True, False, True]
    assert Scenario.from_json(run["scenario"]) == AGGREGATION


def test_deployment_requests_are_recorded():
    run = synthetic.run(load_scenario("sc2").with_overrides(seconds=25), "headrace").to_json()
    latency = run["deployment_latency_s"]
    assert latency["requests"] == len(latency["series"]) == 40
    assert latency["unanswered"] == 0
    assert latency["p50"] <= latency["p95"] <= latency["acknowledged"]["p95"]
    assert run["query_throughput"] > 0


def test_a_failed_run_has_a_reason_and_no_figures(tmp_path):
    append_run(tmp_path, make_failed_run())
    (run,) = read_document(tmp_path)["runs"]
    assert run["failed"] == "it was killed by signal 9"
    assert not set(run) & set(NUMBERS)
    assert all(not trial["sustainable"] and trial["drained"] is None for trial in run["search"])
    assert run["search"]
    (read_run,) = read_runs(tmp_path)
    assert (read_run.figures, read_run.failure) == (None, "it was killed by signal 9")


def test_a_failure_needs_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        FailedRun(" ")


def test_a_run_without_results_has_no_latency():
    empty = MeasuredRun(
        1.0,
        0.0,
        sustained=False,
        sustainable_rate=None,
        event_time_latency=_make_empty_latency(),
        processing_time_latency=_make_empty_latency(),
    )
    latency = empty.to_json()["event_time_latency_s"]
    assert (latency["count"], latency["p95"]) == (0, None)
    assert MeasuredRun.from_json(json.loads(json.dumps(empty.to_json()))) == empty
    assert name_figures(None)["p50"] is None


def _make_empty_latency() -> LatencyFigures:
    return LatencyFigures(synthetic.Histogram())


def test_a_result_of_format_1_is_read_without_its_computed_throughput(tmp_path):
    shutil.copy(RECORDED / "aggregation-1.json", tmp_path / "result.json")
    runs = read_runs(tmp_path)
    assert [run.outcome.data_throughput for run in runs if isinstance(run.outcome, MeasuredRun)] == [None] * len(runs)
    append_run(tmp_path, make_run())
    assert read_document(tmp_path)["format"] == 2
    assert read_runs(tmp_path) == (*runs, make_run())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "is not JSON"),
        (lambda text: "[]", "has no runs"),
        (lambda text: text.replace('"format": 2', '"format": 3'), "has unknown format 3"),
        (lambda text: text.replace('"commit"', '"commits"'), "run 1 of .* lacks 'commit'"),
        (lambda text: text.replace('"repeat": 1', '"repeat": 1, "luck": 3'), "run 1 of .* has 'luck'"),
        (lambda text: text.replace('"repeat": 1', '"repeat": 1, "failed": "no"'), "run 1 of .* has 'offered_rows_per_second'"),
        (lambda text: text.replace('"buckets"', '"bucket"'), "run 1 of .* is damaged"),
        (lambda text: text.replace('"title"', '"titles"'), "lacks the name or title of its scenario"),
        (lambda text: '{"format": 2, "runs": [3]}', "run 1 of .* is not an object"),
    ],
)
def test_a_damaged_document_is_refused_with_the_cause(tmp_path, change, message):
    append_run(tmp_path, make_run())
    path = tmp_path / "result.json"
    changed = change(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    with pytest.raises(HeadraceError, match=message):
        read_runs(tmp_path)


def test_a_missing_document_raises_with_a_hint(tmp_path):
    with pytest.raises(HeadraceError, match="cannot be read") as refusal:
        read_runs(tmp_path)
    assert "headrace bench run" in refusal.value.hint


def test_a_damaged_document_is_not_overwritten(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(HeadraceError, match="is not JSON"):
        append_run(tmp_path, make_run())
    assert (tmp_path / "result.json").read_text() == "{"
