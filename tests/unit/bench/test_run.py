"""Whole runs: a search, then the scenario; a system that cannot run, or is killed, gives a reason and no number."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
from collections.abc import Iterator

import pytest
from test_trial import World

from headrace.bench import run as run_module
from headrace.bench.run import BenchRig, RunWatcher, ScenarioRunner
from headrace.bench.scenarios.scenario import parse_scenario
from headrace.bench.trial import TrialRunner
from headrace.errors import HeadraceError

SCENARIO = """
title = "Small"
about = "A few rows."
seconds = 40
[search]
start = 4000
floor = 10
ceiling = 100_000
seconds = 40
[streams.fields]
generator = "fields"
keys = 10
[queries]
generator = "fields"
"""


def quiet() -> RunWatcher:
    return RunWatcher(lambda _phase, _rate: None, lambda _status, _second, _total, _latencies: None, lambda _verdict: None)


def runner(sut: str, rate: float | None = None, text: str = SCENARIO) -> ScenarioRunner:
    return ScenarioRunner(sut, parse_scenario("small", text, "small.toml"), quiet(), rate)


def for_the_run(starts: list[int]) -> bool:
    """Whether this is the last start: the run itself, after the search; it is asked for by no trial."""
    return "_measure" in {frame.function for frame in inspect.stack()} and bool(starts)


def simulated(
    monkeypatch: pytest.MonkeyPatch, capacity: float, dies_in_run: bool = False, slower_in_run: float = 1.0
) -> list[int]:
    """Let runs happen on simulated systems; return where their starts are noted."""
    starts: list[int] = []

    @contextlib.contextmanager
    def rig(sut, streams, queries, options) -> Iterator[BenchRig]:
        starts.append(len(queries))
        world = World(capacity * (slower_in_run if for_the_run(starts) else 1.0))
        if dies_in_run and for_the_run(starts):
            world.dies_at = world.now + 20
        yield BenchRig(
            TrialRunner(world, world, world, {q.name: q for q in queries}, world.clock, world.sleep), {"x": "1"}, {"y": 2}
        )

    monkeypatch.setattr(run_module, "start_rig", rig)
    return starts


def test_a_search_finds_the_capacity_and_the_run_is_below_it(monkeypatch):
    starts = simulated(monkeypatch, 1000.0)
    found = runner("limit").run()
    assert found.failure is None
    assert found.figures.sustainable_rate == pytest.approx(1000.0, rel=0.08)
    assert found.figures.offered_rate == pytest.approx(0.9 * found.figures.sustainable_rate, rel=0.01)
    assert found.figures.event_time_latency.histogram.count > 0
    assert (found.origin.versions["x"], found.origin.settings) == ("1", {"y": 2})
    assert len(starts) >= 2  # the run itself is on a system started anew
    assert found.trials[0].rate == 4000


def test_a_rate_that_is_not_sustained_gives_no_number(monkeypatch):
    simulated(monkeypatch, 1000.0)
    document = json.loads(json.dumps(runner("limit", 3000.0).run().to_json()))
    assert document["failed"].startswith("3,000 rows/s was not sustained: the queue rose by")
    assert "sustainable_rows_per_second" not in document


def test_a_system_that_dies_after_the_search_gives_no_number(monkeypatch):
    simulated(monkeypatch, 5000.0, dies_in_run=True)
    found = runner("limit").run()
    assert found.figures is None
    assert "ended during the trial" in found.failure
    assert all(not verdict.sustainable for verdict in found.trials)


def test_what_the_run_does_not_bear_out_is_not_claimed(monkeypatch):
    simulated(monkeypatch, 1000.0, slower_in_run=0.8)
    found = runner("limit").run()
    assert found.failure is None
    assert found.figures.sustained
    assert 0.9 * found.figures.sustainable_rate == pytest.approx(800.0, rel=0.1)  # the run is at nine tenths of what is claimed
    assert found.trials[-1].reason  # the run that did not hold is told


def test_a_search_that_no_run_bears_out_gives_no_number(monkeypatch):
    simulated(monkeypatch, 1000.0, slower_in_run=0.5)
    found = runner("limit").run()
    assert found.figures is None
    assert "was in the shorter trials of the search: the queue" in found.failure


def test_over_saturation_is_meant_not_to_be_sustained(monkeypatch):
    simulated(monkeypatch, 1000.0)
    found = runner("limit", text=SCENARIO.replace("seconds = 40\n[search]", "seconds = 40\nload = 1.2\n[search]")).run()
    assert not found.figures.sustained
    assert found.figures.sustainable_rate == pytest.approx(1000.0, rel=0.08)


def test_a_system_that_cannot_start_says_why(monkeypatch):
    @contextlib.contextmanager
    def rig(*_: object) -> Iterator[BenchRig]:
        raise HeadraceError("flink cannot run", detail="no Java was found")
        yield

    monkeypatch.setattr(run_module, "start_rig", rig)
    assert "no Java was found" in runner("flink").run().failure


def test_a_system_the_scenario_is_not_for_is_not_started():
    text = SCENARIO.replace('about = "A few rows."', 'about = "A few rows."\nsystems = ["headrace"]')
    assert runner("duckdb", 100.0, text).run().failure == "scenario 'small' does not list system 'duckdb'"


def _short(text: str) -> str:
    return text.replace("seconds = 40", "seconds = 8")


def test_a_real_driver_a_real_kernel_and_a_real_collector():
    found = runner("limit", 20_000.0, _short(SCENARIO).replace('generator = "fields"\n"""', "")).run()
    assert found.failure is None
    assert found.figures.sustainable_rate == 20_000.0
    assert found.figures.throughput.read[-1] > 100_000
    assert found.figures.resources


def test_a_system_killed_in_the_middle_gives_a_reason_and_no_number():
    killed: list[int] = []

    class Killer(ScenarioRunner):
        @contextlib.contextmanager
        def start_system(self, queries, rate):
            with super().start_system(queries, rate) as ready:
                self.pid = ready.trial_runner.sut.pids()[0]
                yield ready

    def kill(_status, second, _total, _latencies) -> None:
        if second > 3 and not killed:
            killed.append(one.pid)
            os.kill(one.pid, signal.SIGKILL)

    base = runner("limit")
    one = Killer(
        "limit",
        parse_scenario("small", _short(SCENARIO), "small.toml"),
        RunWatcher(base.watcher.on_phase, kill, base.watcher.on_verdict),
        20_000.0,
    )
    found = one.run()
    assert killed
    assert found.figures is None
    assert found.failure.startswith("limit ended during the trial")
