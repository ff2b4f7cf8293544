"""Stored input: what counts as the rate of a run over a topic, and when there is none; on a real broker, the whole way."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.bench.driver.kafka_broker import KafkaBroker
from headrace.bench.driver.topic import CommittedOffsets, TopicAddress
from headrace.bench.measure.data_throughput import DataThroughput
from headrace.bench.measure.resources import ResourceSample
from headrace.bench.report.groups import group_runs
from headrace.bench.report.page import render_page
from headrace.bench.report.summary import write_headlines
from headrace.bench.result import BenchRun, FailedRun, MeasuredRun, RunOrigin, append_run, read_runs
from headrace.bench.run import RunWatcher, ScenarioRunner
from headrace.bench.scenarios.scenario import Scenario, load_scenario, parse_scenario
from headrace.bench.topic_run import ObservedProgress, StoredTopic, judge_progress, open_topic
from headrace.errors import HeadraceError

SCENARIO = load_scenario("kafka").with_overrides(rows=1000, seconds=100)  # warm-up: 200 rows or 20 seconds
SMALL = """
title = "Small"
about = "A few messages."
seconds = 60
systems = ["headrace_local"]
[topic]
rows = 40_001
rows_per_second = 1_000
[streams.ads]
generator = "ads"
keys = 10
partitions = 4
pool_rows = 4096
[queries]
generator = "purchases"
stream = "ads"
column = "cost"
size = "2 seconds"
slide = "1 second"
"""


def observe(*points: tuple[float, int]) -> ObservedProgress:
    observed = ObservedProgress()
    for second, read in points:
        observed.add(second, read)
    return observed


def judge(*points: tuple[float, int], silent: set[str] = frozenset()) -> MeasuredRun | FailedRun:
    samples = [ResourceSample(second, 1.5, 0, None, 1, 1, 0.0, 0.0, 0) for second in (0.5, 3.5, 4.5, 9.5)]
    return judge_progress(
        observe(*points), SCENARIO, 1000, samples, silent, lambda start, stop: DataThroughput({"q1": stop - start})
    )


def test_the_rate_is_that_between_the_first_and_the_last_commit_after_the_warm_up():
    """
    rows      0      150 | 300   600   1000
    second    0       2  |  3     5     7       → 700 rows in 4 s
    """
    run = judge((0, 0), (2, 150), (2.5, 150), (3, 300), (5, 600), (7, 1000))
    assert isinstance(run, MeasuredRun)
    assert (run.read_rate, run.sustainable_rate) == (175, 175)
    assert run.throughput.second == (0, 2, 3, 5, 7)  # a commit of nothing new is none
    assert [sample.second for sample in run.resources] == [3.5, 4.5]


def test_the_warm_up_of_a_slow_system_ends_with_its_share_of_the_time():
    run = judge((0, 0), (10, 10), (30, 30), (60, 90), (100, 170))
    assert isinstance(run, MeasuredRun)
    assert run.read_rate == 2


def test_a_run_with_few_commits_or_without_results_has_no_number():
    few = judge((0, 0), (3, 500), (4, 1000))
    assert isinstance(few, FailedRun)
    assert few.reason.startswith("only 2 commits after the warm-up")
    silent = judge((0, 0), (3, 300), (4, 600), (5, 1000), silent={"q7", "q2"})
    assert isinstance(silent, FailedRun)
    assert silent.reason == "2 of 1 queries had no result, such as q2"


def test_a_topic_takes_one_stream_and_no_changes_of_queries():
    with pytest.raises(HeadraceError, match="must have one stream"):
        parse_scenario(
            "bad", SMALL.replace("[queries]", '[ad_hoc]\nkind = "sc1"\nqueries = 9\nper_second = 1\n[queries]'), "bad.toml"
        )
    with pytest.raises(HeadraceError, match="must be positive"):
        load_scenario("kafka").with_overrides(rows=0)
    with pytest.raises(HeadraceError, match="has no topic"):
        load_scenario("aggregation").with_overrides(rows=10)
    assert Scenario.from_json(json.loads(json.dumps(SCENARIO.to_json()))) == SCENARIO


def test_a_report_compares_the_systems_that_read_a_topic():
    def make_run(sut: str, *points: tuple[float, int]) -> BenchRun:
        return BenchRun(sut, SCENARIO.to_json(), 1, 1, judge((0, 0), *points), RunOrigin("2026-01-01T00:00:00+00:00", "abc"))

    runs = [make_run("headrace", (3, 300), (5, 600), (7, 1000)), make_run("flink", (10, 10), (30, 30), (60, 90), (100, 240))]
    (group,) = group_runs(runs)
    assert write_headlines(group) == ["With 1 query, headrace reads 175 rows/s: 58.3 × flink."]
    text = render_page(runs)
    assert "stored input, as fast as the system reads" in text
    assert "Backlog over time" not in text


def test_a_scenario_without_a_topic_starts_no_broker():
    with open_topic(load_scenario("aggregation"), "", pytest.fail) as topic:
        assert topic is None


@pytest.fixture(scope="module")
def stored_topic(kafka_broker: KafkaBroker) -> Iterator[StoredTopic]:
    steps: list[str] = []
    with open_topic(parse_scenario("small", SMALL, "small.toml"), kafka_broker.address, steps.append) as topic:
        assert steps
        assert topic is not None
        yield topic


@pytest.mark.kafka
def test_messages_are_rows_of_the_stream_and_time_goes_on_over_all_partitions(stored_topic: StoredTopic):
    consumer = Consumer({"bootstrap.servers": stored_topic.brokers, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(stored_topic.name, 1, 0)])
    rows = [json.loads(message.value()) for message in consumer.consume(10_000, 30)]
    consumer.close()
    assert stored_topic.rows == 40_000
    assert 70 <= stored_topic.message_bytes <= 90
    assert len(rows) == 10_000
    assert set(rows[0]) == {"ad_id", "user_id", "gem_pack", "cost", "at"}
    assert [row["at"] - rows[0]["at"] for row in rows[:3]] == [0, 4, 8]
    assert [row["gem_pack"] for row in rows[1024:1124]] == [row["gem_pack"] for row in rows[:100]]


@pytest.mark.kafka
def test_a_system_reads_the_topic_and_its_offsets_are_its_progress(stored_topic: StoredTopic, tmp_path: Path):
    read: list[int] = []
    watcher = RunWatcher(lambda *_: None, lambda *_: None, lambda *_: None, lambda now, *_: read.append(now))
    scenario = parse_scenario("small", SMALL, "small.toml").with_overrides(queries=3)
    options = {"rows_per_batch": 4_000}
    run = ScenarioRunner("headrace_local", scenario, watcher, options=options, topic=stored_topic).run()
    assert run.failure is None
    assert read == sorted(read)
    assert read[-1] == stored_topic.rows
    assert run.figures is not None
    assert run.figures.read_rate > 0
    assert run.origin.settings["messages"] == 40_000
    append_run(tmp_path, run)
    assert read_runs(tmp_path) == (run,)
    offered = ScenarioRunner("headrace_local", scenario, watcher, 1000.0, topic=stored_topic).run()
    assert offered.failure == "a topic is stored input, to which no rate can be offered"


RUNNER = """
import sys
from pathlib import Path
from headrace.bench.driver.kafka_broker import run_kafka_broker
with run_kafka_broker(Path(sys.argv[1])) as broker, broker.end_with_this_process():
    print(broker.address, flush=True)
    sys.stdin.read()
"""


def accepts_connections(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 10).close()
    except ConnectionError:
        return False
    return True


@pytest.mark.kafka
def test_a_broker_ends_with_a_runner_that_is_killed(tmp_path: Path):
    folder = tmp_path / "broker"
    with subprocess.Popen([sys.executable, "-c", RUNNER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as runner:
        host, _, port = runner.stdout.readline().decode().strip().rpartition(":")
        assert accepts_connections(host, int(port))
        runner.kill()
    deadline = time.monotonic() + 60
    while (folder.exists() or accepts_connections(host, int(port))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()
    assert not accepts_connections(host, int(port))


@pytest.mark.kafka
def test_nothing_is_committed_before_a_group_reads(stored_topic: StoredTopic):
    progress = CommittedOffsets(TopicAddress(stored_topic.brokers, stored_topic.name, "nobody"), 4)
    assert progress.count() == 0
    progress.close()
