"""Trials observe a system from outside: offered rows, read rows and results; a failed system ends the trial.

The driver, the collector and the system are simulated with a fake clock, so that tests do not wait.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import pytest

from headrace.bench.driver.client import DriverStatus
from headrace.bench.driver.rates import RateScript
from headrace.bench.measure.collector import Emissions
from headrace.bench.measure.sustainable import SustainabilityLimits
from headrace.bench.queries.sets import make_query_generator
from headrace.bench.scenarios.scenario import ScenarioStep
from headrace.bench.systems.process import SutEvent
from headrace.bench.trial import OfferedLoad, TrialRunner
from headrace.errors import HeadraceError

QUERIES = make_query_generator("fields", {}).queries(3)
LIMITS = SustainabilityLimits()


@dataclass
class World:
    """Simulates a driver, a collector and a system that reads at most `capacity` rows/s and answers a second later."""

    capacity: float
    now: float = 1_000_000.0
    rate: float = 0.0
    produced: float = 0.0
    read: float = 0.0
    dropped: int = 0
    overflow_after: float = float("inf")
    taken_until: float = 0.0
    pending_events: list[SutEvent] = field(default_factory=list)
    dies_at: float = float("inf")
    limited_at: float | None = None
    system: str = "simulated"

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.produced += self.rate * seconds
        self.read = min(self.produced, self.read + self.capacity * seconds)

    def clock(self) -> float:
        return self.now

    # the driver
    def start(self, script: RateScript | None) -> int:
        self.rate = 0.0 if script is None else float(script.count_rows(np.array([1.0]))[0])
        return int(self.now * 1e6)

    def status(self) -> DriverStatus:
        full = self.produced - self.read > self.overflow_after
        return DriverStatus(int(self.now * 1e6), int(self.produced), int(self.read), int(self.read), full, self.dropped, 0)

    def log(self) -> World:
        return self

    def event_time_before(self, stream: str, ends):
        return np.asarray(ends) - 1

    def rows_before(self, stream: str, times):
        return (np.asarray(times) - 1_000_000_000_000) * 3 // 1_000

    def pulled_at(self, stream: str, times):
        return np.asarray(times)

    # the collector: a result each second, delayed by the queue length plus one second
    def take(self) -> Emissions:
        until = int(self.now)
        ends = np.arange(max(int(self.taken_until), until - 100), until, dtype=np.int64) * 1_000_000
        self.taken_until = until
        late = int((1 + (self.produced - self.read) / self.capacity) * 1e6)
        ones = np.ones(len(ends), np.int64)
        return Emissions(ends + late, ones * 0, (QUERIES[0].name,), ends, ones * 5, ones * -1)

    # the system
    @property
    def alive(self) -> bool:
        return self.now < self.dies_at

    def tail(self) -> str:
        return "last words"

    state = None

    def pids(self) -> list[int]:
        return [os.getpid()]

    def add(self, query) -> None:
        self.pending_events.append(SutEvent("live", query.name, int(self.now * 1e6) + 500_000))

    def limit_nodes(self) -> None:
        self.limited_at = self.now

    def read_component_seconds(self) -> dict[str, float]:
        return {"join": self.now / 10}

    def remove(self, name: str) -> None:
        self.pending_events.append(SutEvent("removed", name, int(self.now * 1e6) + 250_000))
        self.dropped += 2

    def events(self) -> list[SutEvent]:
        taken_events, self.pending_events = self.pending_events, []
        return taken_events


def make_trial_runner(world: World) -> TrialRunner:
    return TrialRunner(world, world, world, {QUERIES[0].name: QUERIES[0]}, world.clock, world.sleep)


def make_load(rate: float, seconds: float = 40.0, steps: tuple[ScenarioStep, ...] = (), longest: float = 1.0) -> OfferedLoad:
    return OfferedLoad(rate, RateScript.constant(rate), seconds, LIMITS, steps, longest)


def test_a_rate_below_the_capacity_is_sustained_and_drained():
    trial = make_trial_runner(World(1000.0)).run_trial(make_load(800.0))
    assert trial.verdict.sustainable, trial.verdict.reason
    assert trial.drained
    assert trial.failure == ""
    assert trial.offered_rate == pytest.approx(800.0, rel=0.01)
    assert trial.latencies.event_time.summarize().p50 == pytest.approx(1.0, abs=0.2)


def test_a_rate_above_the_capacity_fails_early_and_shows_the_capacity():
    world = World(1000.0)
    trial = make_trial_runner(world).run_trial(make_load(5000.0, 600.0))
    assert not trial.verdict.sustainable
    assert trial.verdict.drained == pytest.approx(1000.0, rel=0.05)
    assert world.now < 1_000_000 + 60
    assert not trial.drained


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (World(1000.0, dies_at=1_000_010.0), "simulated ended during the trial: last words"),
        (World(1000.0, pending_events=[SutEvent("failed", reason="out of memory")]), "simulated failed: out of memory"),
        (World(1000.0, pending_events=[SutEvent("refused", "q1", reason="a join")]), "query 'q1' was refused: a join"),
    ],
)
def test_a_system_failure_is_the_reason_of_the_verdict(world: World, reason: str):
    trial = make_trial_runner(world).run_trial(make_load(500.0))
    assert trial.failure == reason
    assert not trial.verdict.sustainable
    assert trial.verdict.reason == reason
    assert not trial.drained


def test_a_queue_overflow_is_not_a_failure():
    trial = make_trial_runner(World(10.0, overflow_after=100.0)).run_trial(make_load(500.0))
    assert not trial.failure
    assert trial.verdict.reason == "the queue overflowed: the system read far too slowly"
    assert not trial.drained


def test_a_dropped_connection_is_a_failure_unless_a_query_was_removed():
    world = World(1000.0)
    runner = make_trial_runner(world)
    steps = (ScenarioStep(5.0, (QUERIES[1],), ()), ScenarioStep(9.0, (), (QUERIES[0].name,)))
    trial = runner.run_trial(make_load(500.0, steps=steps))
    assert trial.failure == ""
    assert {(r.query, r.live_at_us - r.requested_at_us) for r in trial.requests} == {
        (QUERIES[1].name, 500_000),
        (QUERIES[0].name, 250_000),
    }
    assert set(runner.queries) == {QUERIES[1].name}
    second_world = World(1000.0)
    second_runner = make_trial_runner(second_world)
    statuses = iter(range(100_000))
    original_status = second_world.status
    second_world.status = lambda: (
        original_status() if next(statuses) < 20 else DriverStatus(int(second_world.now * 1e6), 9, 9, 9, False, 1, 0)
    )
    assert second_runner.run_trial(make_load(500.0)).failure == "a connection to the driver was dropped"


def test_an_unanswered_request_has_no_live_time():
    world = World(1000.0)
    world.add = lambda query: None
    trial = make_trial_runner(world).run_trial(make_load(500.0, steps=(ScenarioStep(5.0, (QUERIES[1],), ()),)))
    assert [(r.query, r.live_at_us) for r in trial.requests] == [(QUERIES[1].name, None)]


def test_a_lead_in_waits_until_the_system_keeps_up():
    #   capacity   0 ─────────┐ 12 s
    #                         └──── a million rows/s
    world = World(1.0)
    original_sleep = world.sleep

    def sleep(seconds: float) -> None:
        world.capacity = 1.0 if world.now < 1_000_012 else 1_000_000.0
        original_sleep(seconds)

    TrialRunner(world, world, world, {}, world.clock, sleep).run_lead_in(1000.0)
    assert 1_000_012 <= world.now < 1_000_030
    assert world.rate == 0.0


def test_nodes_are_limited_after_the_lead_in_when_the_queue_is_empty():
    world = World(1_000.0)
    make_trial_runner(world).run_lead_in(5_000.0)
    assert world.limited_at is None
    make_trial_runner(world).run_lead_in(5_000.0, limit_nodes=True)
    assert (world.limited_at, world.produced, world.rate) == (world.now, world.read, 0.0)


def test_a_lead_in_ramps_up_to_the_trial_rate_and_drains():
    world = World(10_000_000.0)
    offered, start = [], world.start

    def record_start(script):
        offered.append(float(script.count_rows_at(1.0)) if script else 0.0)
        return start(script)

    world.start = record_start
    make_trial_runner(world).run_lead_in(1_000_000.0)
    assert [rate for rate in offered if rate] == [50_000.0, 200_000.0, 800_000.0, 1_000_000.0]
    assert offered[-1] == 0.0
    assert world.status().backlog == 0


def test_a_lead_in_stops_the_ramp_when_the_system_falls_behind():
    world = World(100_000.0)
    make_trial_runner(world).run_lead_in(100_000_000.0)
    assert world.status().produced < 3_000_000  # some seconds at 800,000 rows/s and no higher rate
    assert world.status().backlog == 0


def test_a_lead_in_without_reads_times_out():
    world = World(0.0)
    make_trial_runner(world).run_lead_in(1000.0)
    assert world.now == pytest.approx(1_000_075, abs=10)  # one minute plus the drain timeout


def test_data_throughput_is_measured_from_the_results_of_each_query_while_it_is_live():
    """One result every second comes from q1; the stream has 3,000 rows/s, whatever rate is offered and read."""
    step = ScenarioStep(10.0, (QUERIES[1],), ())
    trial = make_trial_runner(World(1000.0)).run_trial(make_load(800.0, steps=(step,)))
    assert trial.data_throughput is not None
    assert trial.data_throughput.rates == {QUERIES[0].name: pytest.approx(3_000.0, rel=0.05)}
    assert trial.data_throughput.silent == (QUERIES[1].name,)
    assert trial.data_throughput.overall == pytest.approx(3_000.0, rel=0.05)


def test_a_removed_query_counts_until_it_is_removed():
    step = ScenarioStep(25.0, (), (QUERIES[0].name,))
    trial = make_trial_runner(World(1000.0)).run_trial(make_load(800.0, steps=(step,)))
    assert trial.data_throughput is not None
    assert trial.data_throughput.overall == pytest.approx(3_000.0 / 2, rel=0.05)  # 15 of the 30 measured seconds


def test_the_work_of_a_trial_is_what_its_components_have_done_since_its_start():
    trial = make_trial_runner(World(1000.0)).run_trial(make_load(500.0))
    assert trial.component_seconds == {"join": pytest.approx(4.0, rel=0.02)}  # a tenth of 40 s


def test_a_system_that_does_not_answer_for_its_components_has_none():
    world = World(1000.0)

    def fail() -> dict[str, float]:
        raise HeadraceError("it is busy")

    world.read_component_seconds = fail
    trial = make_trial_runner(world).run_trial(make_load(500.0))
    assert (dict(trial.component_seconds), trial.verdict.sustainable) == ({}, True)
