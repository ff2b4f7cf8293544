"""Synthetic results: several systems, 1 to 64 queries, repeats, a failure, ad-hoc queries."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np

from headrace.bench.cluster import BenchCluster
from headrace.bench.measure.data_throughput import DataThroughput
from headrace.bench.measure.latency import DeploymentRequest, build_series
from headrace.bench.measure.resources import ResourceSample
from headrace.bench.measure.statistics import Histogram
from headrace.bench.measure.sustainable import TrialVerdict
from headrace.bench.result import (
    BenchRun,
    DeploymentLog,
    FailedRun,
    LatencyFigures,
    MeasuredRun,
    RunOrigin,
    ThroughputSeries,
    append_run,
)
from headrace.bench.scenarios.scenario import Scenario, load_scenario

START = 1_790_000_000_000_000
RATES = {"headrace": 7.1e6, "limit": 15e6, "flink": 1.1e6, "spark": 0.62e6, "duckdb": 2.9e6}
SLOWER = {"headrace": 1.02, "limit": 1.0, "flink": 60, "spark": 40, "duckdb": 52}  # at 64 queries
DELAYS = {"headrace": 0.7, "limit": 0.15, "flink": 0.35, "spark": 2.6, "duckdb": 0.9}
VERSIONS = {
    "headrace": {"headrace": "0.1.0", "pyspark": "4.3.0"},
    "spark": {"pyspark": "4.3.0"},
    "flink": {"apache-flink": "2.3.0"},
    "duckdb": {"duckdb": "2.0.0"},
    "limit": {"numba": "0.68.1"},
}
MACHINE = {"cores": 2, "memory_gib": 7.6, "system": "Linux-6.1-x86_64", "processor": "x86_64"}


def make_latency(typical: float, seconds: int, rng: np.random.Generator) -> LatencyFigures:
    """Draw latencies from a log-normal distribution around a typical value."""
    count = seconds * 20
    when = np.sort(rng.integers(0, seconds, count))
    values = (typical * np.exp(rng.normal(0, 0.35, count)) * 1e6).astype(np.int64)
    rows = rng.integers(1, 200, count)
    return LatencyFigures(
        Histogram.from_values(values[when >= seconds / 4], rows[when >= seconds / 4]), build_series(when, values, rows)
    )


def make_measured_run(scenario: Scenario, sut: str, rate: float, seed: int) -> MeasuredRun:
    rng, seconds = np.random.default_rng(seed), int(scenario.seconds)
    offered = rate * scenario.load
    moments = np.arange(0, seconds, 0.5)
    produced = offered * moments
    lag = offered * DELAYS[sut] * (1 + 0.4 * np.sin(moments * 2.1)) / 2
    samples = [
        ResourceSample(
            float(second), min(1.98, 0.6 + 0.9 * rng.random()), int((0.9 + len(sut) / 4) * 2**30), None, 40, 3,
            offered * 32, offered * 40,
        )
        for second in range(1, seconds)
    ]  # fmt: skip
    return MeasuredRun(
        offered,
        offered * 0.998,
        sustained=scenario.load <= 1,
        sustainable_rate=rate,
        event_time_latency=make_latency(DELAYS[sut], seconds, rng),
        processing_time_latency=make_latency(DELAYS[sut] * 0.7, seconds, rng),
        throughput=ThroughputSeries(
            tuple(moments.tolist()),
            tuple(produced.astype(int).tolist()),
            tuple(np.maximum(produced - lag, 0).astype(int).tolist()),
        ),
        resources=tuple(samples),
        deployments=make_deployments(scenario, sut, seed),
        data_throughput=make_data_throughput(scenario, offered),
        component_seconds={"join": 6.0, "selection": 3.0, "other": 1.0} if sut == "headrace" else {},
    )


def make_data_throughput(scenario: Scenario, offered: float) -> DataThroughput:
    """The last query is the slowest, and a query in sixteen is silent."""
    names = [query.name for query in scenario.peak_queries()]
    rates = {name: offered * (1 - 0.3 * number / len(names)) for number, name in enumerate(names) if number % 16 != 15}
    return DataThroughput(rates, sum(rates.values()), tuple(name for name in names if name not in rates))


def make_deployments(scenario: Scenario, sut: str, seed: int) -> DeploymentLog:
    rng = random.Random(seed)
    requests = []
    for step in scenario.build_steps():
        requested_at = START + int(step.at * 1e6)
        for number, name in enumerate([*(query.name for query in step.add), *step.remove]):
            wait = int((0.4 + rng.random() * 0.7 if sut == "headrace" else 2.0 + 0.3 * number + step.at * 0.4) * 1e6)
            requests.append(DeploymentRequest(name, requested_at, requested_at + wait, requested_at + wait + 30_000))
    return DeploymentLog(START, tuple(requests)) if requests else DeploymentLog()


def make_trials(rate: float) -> tuple[TrialVerdict, ...]:
    rates = [10e6, rate * 1.9, rate * 0.93, rate * 1.05, rate]
    return tuple(
        TrialVerdict(
            offered,
            offered <= rate,
            "" if offered <= rate else "the queue held 6.1 s of input, more than the tolerated 5 s",
            offered * 0.9,
        )
        for offered in rates
    )


def run(scenario: Scenario, sut: str, repeat: int = 1, *, failed: str = "", factor: float = 1.0) -> BenchRun:
    queries = scenario.peak_query_count
    rng = random.Random(f"{sut} {queries} {repeat}")
    slower = math.exp(math.log(SLOWER[sut]) * math.log(queries, 64)) if queries > 1 else 1.0
    rate = RATES[sut] / slower * factor * (1 + rng.uniform(-0.03, 0.03))
    outcome = FailedRun(failed) if failed else make_measured_run(scenario, sut, rate, rng.randrange(1000))
    origin = RunOrigin(f"2026-11-16T10:{repeat:02d}:00+00:00", "0ab491a", MACHINE, VERSIONS[sut], {"parallelism": 2})
    return BenchRun(sut, scenario.to_json(), queries, repeat, outcome, origin, make_trials(rate))


def runs() -> list[BenchRun]:
    aggregation, sc1, profit = (load_scenario(name) for name in ("aggregation", "sc1", "profit"))
    all_runs = []
    for queries in (1, 8, 64):
        for sut in RATES:
            if sut == "limit" and queries > 1:
                continue
            reason = "the job failed: Insufficient number of network buffers" if (sut, queries) == ("flink", 64) else ""
            all_runs += [run(aggregation.with_overrides(queries=queries), sut, repeat, failed=reason) for repeat in (1, 2, 3)]
    all_runs += [run(sc1, sut) for sut in ("headrace", "spark")]
    all_runs.append(run(sc1, "flink", failed="a query took longer than 120 s to be deployed"))
    for keys in (10, 1000, 1_000_000):
        for sut in ("headrace", "limit"):
            all_runs.append(run(profit.with_overrides(keys=keys), sut, factor=1 / (1 + math.log10(keys) / 4)))
    all_runs += [
        run(load_scenario("join"), "flink"),
        run(load_scenario("join"), "headrace", failed="joins are not supported yet"),
    ]
    by_nodes = load_scenario("by-nodes-join")
    for nodes, factor in ((1, 1.0), (2, 1.8), (4, 2.8)):
        scenario = by_nodes.with_overrides(cluster=BenchCluster(nodes))
        all_runs.append(run(scenario, "headrace", factor=factor))
        all_runs.append(run(scenario, "flink", factor=factor, failed="4 nodes do not fit" if nodes == 4 else ""))
    all_runs.append(run(by_nodes, "spark"))
    return all_runs


def write_runs(folder: Path) -> Path:
    for bench_run in runs():
        append_run(folder, bench_run)
    return folder
