"""Complete runs: a rate search, then the scenario; a failed or killed system gives a reason and no figures."""

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
from headrace.bench import trial
from headrace.bench.cluster import BenchCluster
from headrace.bench.result import BenchRun
from headrace.bench.run import BenchRig, RunWatcher, ScenarioRunner
from headrace.bench.scenarios.scenario import parse_scenario
from headrace.bench.systems.process import SutEvent
from headrace.bench.trial import TrialRunner
from headrace.errors import HeadraceError

pytestmark = pytest.mark.usefixtures("preloaded")

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
pool_rows = 100_000
[queries]
generator = "fields"
"""


places: list[dict[str, object]] = []
"""The cluster and the address that each system of `simulate_systems` was started with."""


def make_silent_watcher() -> RunWatcher:
    return RunWatcher(lambda _phase, _rate: None, lambda _status, _second, _total, _latencies: None, lambda _verdict: None)


def make_runner(sut: str, rate: float | None = None, text: str = SCENARIO, requests: float | None = None) -> ScenarioRunner:
    return ScenarioRunner(sut, parse_scenario("small", text, "small.toml"), make_silent_watcher(), rate, requests=requests)


def is_final_run(starts: list[int]) -> bool:
    """Return whether this start is for the final run, after the trials of the search."""
    return "_measure" in {frame.function for frame in inspect.stack()} and bool(starts)


def simulate_systems(
    monkeypatch: pytest.MonkeyPatch, capacity: float, dies_in_run: bool = False, slower_in_run: float = 1.0
) -> list[int]:
    """Replace systems by simulated systems; return the list that records their starts."""
    starts: list[int] = []
    places.clear()

    @contextlib.contextmanager
    def rig(sut, streams, queries, options, **place) -> Iterator[BenchRig]:
        starts.append(len(queries))
        places.append(place)
        world = World(capacity * (slower_in_run if is_final_run(starts) else 1.0))
        if dies_in_run and is_final_run(starts):
            world.dies_at = world.now + 20
        yield BenchRig(
            TrialRunner(world, world, world, {q.name: q for q in queries}, world.clock, world.sleep), {"x": "1"}, {"y": 2}
        )

    monkeypatch.setattr(run_module, "start_rig", rig)
    return starts


def test_a_search_finds_the_capacity_and_the_run_offers_a_lower_rate(monkeypatch):
    starts = simulate_systems(monkeypatch, 1000.0)
    bench_run = make_runner("limit").run()
    assert bench_run.failure is None
    assert bench_run.figures.sustainable_rate == pytest.approx(1000.0, rel=0.08)
    assert bench_run.figures.offered_rate == pytest.approx(0.9 * bench_run.figures.sustainable_rate, rel=0.01)
    assert bench_run.figures.event_time_latency.histogram.count > 0
    assert bench_run.figures.data_throughput.rates == {"q1": pytest.approx(3_000, rel=0.05)}  # of its results, not the read rate
    assert (bench_run.origin.versions["x"], bench_run.origin.settings) == ("1", {"y": 2})
    assert len(starts) >= 2  # the final run uses a newly started system
    assert bench_run.trials[0].rate == 4000


def test_an_unsustained_rate_gives_no_figures(monkeypatch):
    simulate_systems(monkeypatch, 1000.0)
    document = json.loads(json.dumps(make_runner("limit", 3000.0).run().to_json()))
    assert document["failed"].startswith("3,000 rows/s was not sustained: the queue rose by")
    assert "sustainable_rows_per_second" not in document


def test_a_system_that_dies_after_the_search_gives_no_figures(monkeypatch):
    simulate_systems(monkeypatch, 5000.0, dies_in_run=True)
    bench_run = make_runner("limit").run()
    assert bench_run.figures is None
    assert "ended during the trial" in bench_run.failure
    assert all(not verdict.sustainable for verdict in bench_run.trials)


def test_a_failed_final_run_lowers_the_sustainable_rate(monkeypatch):
    simulate_systems(monkeypatch, 1000.0, slower_in_run=0.8)
    bench_run = make_runner("limit").run()
    assert bench_run.failure is None
    assert bench_run.figures.sustained
    assert 0.9 * bench_run.figures.sustainable_rate == pytest.approx(
        800.0, rel=0.1
    )  # the final run offers 90 % of the sustainable rate
    assert bench_run.trials[-1].reason  # the failed final run is recorded


def test_a_search_without_a_sustained_final_run_gives_no_figures(monkeypatch):
    simulate_systems(monkeypatch, 1000.0, slower_in_run=0.5)
    bench_run = make_runner("limit").run()
    assert bench_run.figures is None
    assert "was in the shorter trials of the search: the queue" in bench_run.failure


def test_an_over_saturation_run_keeps_its_figures(monkeypatch):
    simulate_systems(monkeypatch, 1000.0)
    bench_run = make_runner("limit", text=SCENARIO.replace("seconds = 40\n[search]", "seconds = 40\nload = 1.2\n[search]")).run()
    assert not bench_run.figures.sustained
    assert bench_run.figures.sustainable_rate == pytest.approx(1000.0, rel=0.08)


def test_a_failed_start_is_the_reason_of_the_failure(monkeypatch):
    @contextlib.contextmanager
    def rig(*_: object, **__: object) -> Iterator[BenchRig]:
        raise HeadraceError("flink cannot run", detail="no Java was found")
        yield

    monkeypatch.setattr(run_module, "start_rig", rig)
    assert "no Java was found" in make_runner("flink").run().failure


def test_a_system_not_listed_in_the_scenario_is_not_started():
    text = SCENARIO.replace('about = "A few rows."', 'about = "A few rows."\nsystems = ["headrace"]')
    assert make_runner("duckdb", 100.0, text).run().failure == "scenario 'small' does not list system 'duckdb'"


def test_every_system_of_a_run_gets_the_cluster_and_the_address(monkeypatch):
    simulate_systems(monkeypatch, 1000.0)
    runner = make_runner("spark", text=SCENARIO + "[cluster]\nnodes = 3\n")
    runner.host = "127.0.0.5"
    document = json.loads(json.dumps(runner.run().to_json()))
    assert document["scenario"]["cluster"] == {"nodes": 3, "cores": 0.5, "memory_mib": 2048, "master": ""}
    assert places == [{"cluster": BenchCluster(3), "host": "127.0.0.5"}] * len(places)
    assert len(places) >= 2


@pytest.mark.parametrize("sut", ["limit", "duckdb"])
def test_a_system_that_is_one_process_fails_on_a_cluster(sut):
    text = SCENARIO + "[cluster]\nnodes = 2\n"
    assert make_runner(sut, 100.0, text).run().failure == f"{sut} runs in one process and cannot use a cluster"


@pytest.fixture
def short_lead_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waiting around a trial: the systems of these tests have no costs to leave out of it."""
    monkeypatch.setattr(trial, "_LEAD_IN_SECONDS", 0.5)
    monkeypatch.setattr(trial, "_LAST_RESULTS_SECONDS", 0.5)


def _shorten(text: str) -> str:
    return text.replace("seconds = 40", "seconds = 3")


def test_a_run_with_real_processes(short_lead_in: None):
    bench_run = make_runner("limit", 50_000.0, _shorten(SCENARIO).replace('generator = "fields"\n"""', "")).run()
    assert bench_run.failure is None
    assert bench_run.figures.sustainable_rate == 50_000.0
    assert bench_run.figures.throughput.read[-1] > 100_000
    assert bench_run.figures.resources


def test_a_killed_system_gives_a_reason_and_no_figures(short_lead_in: None):
    killed: list[int] = []

    class Killer(ScenarioRunner):
        @contextlib.contextmanager
        def start_system(self, queries, rate):
            with super().start_system(queries, rate) as ready:
                self.pid = ready.trial_runner.sut.pids()[0]
                yield ready

    def kill(_status, second, _total, _latencies) -> None:
        if second > 0.3 and not killed:
            killed.append(killer.pid)
            os.kill(killer.pid, signal.SIGKILL)

    base = make_runner("limit")
    killer = Killer(
        "limit",
        parse_scenario("small", _shorten(SCENARIO), "small.toml"),
        RunWatcher(base.watcher.on_phase, kill, base.watcher.on_verdict),
        20_000.0,
    )
    bench_run = killer.run()
    assert killed
    assert bench_run.figures is None
    assert bench_run.failure.startswith("limit ended during the trial")


TRAFFIC = (
    SCENARIO
    + """
[ad_hoc]
kind = "traffic"
queries = 50
per_second = 10
[request_search]
rows_per_second = 400
start = 200
seconds = 40
trials = 12
"""
)


def simulate_slow_changes(monkeypatch: pytest.MonkeyPatch, capacity: float, answers_per_second: float) -> None:
    """Replace systems by simulated ones that make so many changes a second, one after the other."""

    class SlowWorld(World):
        def add(self, query) -> None:
            self.answer_later("live", query.name)

        def remove(self, name: str) -> None:
            self.answer_later("removed", name)

        def answer_later(self, event: str, name: str) -> None:
            self.free_at = max(getattr(self, "free_at", 0.0), self.now) + 1 / answers_per_second
            self.pending_events.append(SutEvent(event, name, int(self.free_at * 1e6)))

        def events(self) -> list[SutEvent]:
            due = [event for event in self.pending_events if event.at <= self.now * 1e6]
            self.pending_events = self.pending_events[len(due) :]
            return due

    @contextlib.contextmanager
    def rig(sut, streams, queries, options, **place) -> Iterator[BenchRig]:
        world = SlowWorld(capacity)
        yield BenchRig(TrialRunner(world, world, world, {q.name: q for q in queries}, world.clock, world.sleep), {}, {})

    monkeypatch.setattr(run_module, "start_rig", rig)


def test_a_search_finds_the_sustainable_rate_of_requests(monkeypatch):
    simulate_slow_changes(monkeypatch, 1000.0, 60.0)
    bench_run = make_runner("limit", text=TRAFFIC).run()
    assert bench_run.failure is None
    assert bench_run.figures.sustainable_request_rate == pytest.approx(60.0, rel=0.15)
    assert bench_run.figures.sustainable_rate is None
    assert bench_run.figures.offered_rate == pytest.approx(400, rel=0.02)
    assert {verdict.unit for verdict in bench_run.trials} == {"requests/s"}
    assert any("queue" in verdict.reason for verdict in bench_run.trials)
    assert BenchRun.from_json(json.loads(json.dumps(bench_run.to_json()))).figures.sustainable_request_rate is not None


def test_requests_are_not_sustained_if_the_rows_are_not(monkeypatch):
    simulate_slow_changes(monkeypatch, 300.0, 1e6)
    bench_run = make_runner("limit", text=TRAFFIC, requests=20.0).run()
    assert bench_run.failure.startswith("20.0 requests/s were not sustained: 400 rows/s were not sustained: the queue")


def test_a_given_rate_of_requests_is_not_searched(monkeypatch):
    simulate_slow_changes(monkeypatch, 1000.0, 100.0)
    bench_run = make_runner("limit", 500.0, TRAFFIC, requests=20.0).run()
    assert bench_run.figures.sustainable_request_rate == 20.0
    assert bench_run.figures.offered_rate == pytest.approx(500, rel=0.02)
    assert bench_run.trials == ()
    assert make_runner("limit", 500.0, TRAFFIC, requests=300.0).run().failure.startswith("300.0 requests/s were not sustained")


def test_a_search_for_requests_needs_traffic():
    with pytest.raises(HeadraceError, match="has a \\[request_search\\] without traffic"):
        parse_scenario("small", SCENARIO + "[request_search]\n", "small.toml")
