"""A run of one system under one scenario: search for the sustainable rate unless it is given, then run the scenario below it.

The search offers constant rates to the peak number of live queries, one trial after the other; a system that crashed or did not
drain its queue is restarted before the next trial. The run itself, with its rate script and its query changes, uses a fresh
system at `load` times the rate found: its latencies are those of the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from headrace.bench.deployment import data_throughput
from headrace.bench.environment import commit, machine, versions
from headrace.bench.latency import Latencies
from headrace.bench.query import BenchQuery
from headrace.bench.rate import RateScript
from headrace.bench.result import Deployments, Failed, Latency, Measured, Origin, Run, Throughput
from headrace.bench.rig import Rig, rig
from headrace.bench.scenario import Scenario
from headrace.bench.search import Found, search
from headrace.bench.sustainable import Verdict, failed
from headrace.bench.trial import Offer, Tell, Trial
from headrace.errors import HeadraceError

_LONGEST = 3.0  # a doubtful trial of a search takes up to this many times its length
_DOUBTS, _CLAIM_LESS = 3, 0.92  # retries with a lower rate when the run does not confirm the search, and its factor


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks for progress: the start of a phase (text, rate), each status sample, and the verdict on a trial."""

    phase: Callable[[str, float | None], None]
    sample: Tell
    verdict: Callable[[Verdict], None]


class NotSustained(Failed):
    """The run completed, but the offered rate was not sustained."""


@dataclass(slots=True)
class Runner:
    """Runs one system under one scenario; with `rate`, in rows/s, there is no search."""

    sut: str
    scenario: Scenario
    watcher: Watcher
    rate: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    _versions: Mapping[str, str] = field(default_factory=dict)
    _settings: Mapping[str, Any] = field(default_factory=dict)
    _trials: tuple[Verdict, ...] = ()

    def run(self, repeat: int = 1) -> Run:
        """Return the run with its figures, or with the reason why there are none."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            outcome: Measured | Failed = self._outcome()
        except HeadraceError as error:
            outcome = Failed(str(error))
        origin = Origin(started, commit(), machine(), {**versions(), **self._versions}, self._settings)
        scenario = self.scenario
        return Run(self.sut, scenario.to_json(), scenario.queries, repeat, outcome, origin, self._trials)

    def _outcome(self) -> Measured | Failed:
        if self.sut not in self.scenario.systems:
            return Failed(f"scenario '{self.scenario.name}' does not list system '{self.sut}'")
        if self.rate is not None:
            return self._measure(self.rate, None)
        search_result = self._search()
        self._trials = search_result.trials
        if search_result.rate is None:
            return Failed(search_result.reason)
        return self._confirmed(search_result.rate)

    def _search(self) -> Found:
        scenario, bounds = self.scenario, self.scenario.search.bounds
        with _Tries(self, scenario.most_queries()) as trials:
            return search(trials.trial, scenario.search.start, bounds)

    def _confirmed(self, rate: float) -> Measured | Failed:
        """Run the scenario at `load` times the rate found; while the run is not sustained, lower the rate and run again."""
        outcome = self._measure(rate * self.scenario.load, rate)
        for _ in range(_DOUBTS):
            if not isinstance(outcome, NotSustained):
                break
            rate *= _CLAIM_LESS
            outcome = self._measure(rate * self.scenario.load, rate)
        return outcome

    def _measure(self, base: float, sustainable: float | None) -> Measured | Failed:
        """Run the scenario itself at a base rate, on a fresh system."""
        scenario = self.scenario
        with self.started(scenario.initial(), base) as running:
            self.watcher.phase(f"{self.sut}: {scenario.name}", base)
            offer = Offer(base, scenario.script(base), scenario.seconds, scenario.limits(), scenario.steps())
            trial = running.bench.trial(offer, self.watcher.sample)
        self.watcher.verdict(trial.verdict)
        if trial.failure:
            return Failed(trial.failure)
        if not trial.verdict.sustainable and (self.rate is not None or scenario.load <= 1):
            contrast = ""
            if sustainable is not None:
                self._trials = (*self._trials, trial.verdict)
                contrast = f", though {sustainable:,.0f} was in the shorter trials of the search"
            return NotSustained(f"{base:,.0f} rows/s was not sustained{contrast}: {trial.verdict.reason}")
        return _measured(trial, sustainable if self.rate is None else self.rate, scenario.queries)

    @contextlib.contextmanager
    def started(self, queries: tuple[BenchQuery, ...], rate: float) -> Iterator[Rig]:
        """Start driver, collector and system with these queries, and lead in to a rate."""
        self.watcher.phase(f"{self.sut}: starting with {len(queries)} queries", None)
        # removed queries may overlap with added ones
        query_limit = {"max_queries": 2 * self.scenario.queries} if self.scenario.ad_hoc else {}
        with rig(self.sut, self.scenario.used_streams(), queries, {**query_limit, **self.options}) as running:
            self._versions, self._settings = running.versions, running.settings
            running.bench.lead_in(rate)
            yield running


class _Tries:
    """The trials of a search, on one system as long as it can be reused."""

    def __init__(self, runner: Runner, queries: tuple[BenchQuery, ...]) -> None:
        self._runner, self._queries = runner, queries
        self._stack = contextlib.ExitStack()
        self._ready: Rig | None = None
        self._seconds = min(runner.scenario.search.seconds, runner.scenario.seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def trial(self, rate: float) -> Verdict:
        """Offer a constant rate and return the verdict."""
        runner, scenario = self._runner, self._runner.scenario
        try:
            if self._ready is None:
                self._ready = self._stack.enter_context(runner.started(self._queries, rate))
        except HeadraceError as error:  # starting fails for every other rate too
            return failed(rate, str(error), final=True)
        runner.watcher.phase(f"{runner.sut}: trial", rate)
        offer = Offer(rate, RateScript.constant(rate), self._seconds, scenario.limits(), longest=_LONGEST)
        trial = self._ready.bench.trial(offer, runner.watcher.sample)
        runner.watcher.verdict(trial.verdict)
        if trial.failure or not trial.drained or not trial.verdict.sustainable:  # it may still be processing rows it has read
            self._ready = None
            self._stack.close()
        return trial.verdict


def _measured(trial: Trial, sustainable: float | None, queries: int) -> Measured:
    latencies: Latencies = trial.latencies
    read_rate = trial.verdict.drained or 0.0
    first = trial.statuses[0]
    return Measured(
        trial.offered,
        read_rate,
        trial.verdict.sustainable,
        sustainable,
        Latency(latencies.event_time, latencies.event_time_series),
        Latency(latencies.processing_time, latencies.processing_time_series),
        Throughput(
            tuple((status.now - trial.begun_us) / 1e6 for status in trial.statuses),
            tuple(status.produced - first.produced for status in trial.statuses),
            tuple(status.read - first.read for status in trial.statuses),
        ),
        trial.samples,
        Deployments(trial.begun_us, trial.requests),
        data_throughput({f"query {number}": read_rate for number in range(1, queries + 1)}),
    )
