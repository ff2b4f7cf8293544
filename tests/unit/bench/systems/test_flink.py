"""Flink adapter: jobs, tables and settings. A stub replaces the Flink process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.bench.cluster import BenchCluster
from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.driver.topic import TopicAddress
from headrace.bench.queries.dialects import BenchAggregate
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.flink import FlinkAdapter, FlinkSettings, build_table_ddl, build_topic_ddl
from headrace.bench.systems.flink_nodes import find_free_ports
from headrace.bench.systems.process import SutEventWriter
from headrace.errors import HeadraceError

pytestmark = pytest.mark.usefixtures("preloaded")

SECOND = 1_000_000
BIDS = StreamSpec("bids", "bids", watermark=0.25, partitions=3, pool_rows=1000)


def make_query(name: str, slide: int = SECOND) -> BenchQuery:
    return build_window_aggregation(name, "bids", ["auction"], [BenchAggregate("MAX", "price", "most")], None, 2 * SECOND, slide)


def test_a_topic_is_read_by_the_connector_of_flink_and_commits_with_checkpoints():
    ads = SutStream(StreamSpec("ads", "ads", watermark=0.5, pool_rows=1000))
    ddl = build_topic_ddl(ads, TopicAddress("host:9092", "events", "group-1"))
    assert ddl.startswith(
        "CREATE TEMPORARY TABLE `ads` (`ad_id` INT, `user_id` INT, `gem_pack` INT, `cost` DOUBLE, `at` BIGINT, "
    )
    assert "`time` AS TO_TIMESTAMP_LTZ(`at`, 3), WATERMARK FOR `time` AS `time` - INTERVAL '0.500' SECOND(4, 3)) WITH (" in ddl
    for option in ("'connector' = 'kafka'", "'topic' = 'events'", "'properties.group.id' = 'group-1'", "'format' = 'json'"):
        assert option in ddl
    settings = FlinkSettings.from_options({}, 1, reads_topic=True)
    assert settings.table["execution.checkpointing.interval"] == "1 s"
    assert settings.describe()["checkpoints"] == "every 1 s, in memory"
    assert "execution.checkpointing.interval" not in FlinkSettings.from_options({}, 1).table


class StubFlink:
    """Accepts every job and refuses queries whose names start with bad."""

    def __init__(self, scratch: Path, settings: FlinkSettings) -> None:
        self.settings, self.requests, self.closed, self.limited = settings, [], False, 0

    def ask(self, **request):
        self.requests.append(request)
        return {"refused": {name: "it is bad" for name in request.get("queries", {}) if name.startswith("bad")}}

    def limit_nodes(self):
        self.limited += 1

    def describe(self):
        return {"node_limit": "none"}

    def close(self):
        self.closed = True


class FlinkBench:
    """An adapter, the stubs it opened and the events it wrote."""

    def __init__(self, driver: str, scratch: Path) -> None:
        self.stubs: list[StubFlink] = []
        self._out = io.StringIO()
        self.adapter = FlinkAdapter(self._open)
        self._config = (driver, "127.0.0.1:2", scratch, (SutStream(BIDS),))

    def _open(self, scratch: Path, settings: FlinkSettings) -> StubFlink:
        self.stubs.append(StubFlink(scratch, settings))
        return self.stubs[-1]

    def start(self, *queries: BenchQuery, **options: object) -> None:
        self.adapter.start(SutConfig(*self._config, queries, options), SutEventWriter(self._out))

    def list_events(self) -> list[tuple[str, str]]:
        return [(e["event"], e["query"]) for e in map(json.loads, self._out.getvalue().splitlines())]

    def list_jobs(self) -> list[tuple[str, list[str]]]:
        """Return submitted jobs with their queries and cancelled jobs without."""
        requests = [request for stub in self.stubs for request in stub.requests]
        return [(request["job"], sorted(request.get("queries", ()))) for request in requests if "job" in request]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[FlinkBench]:
    with DriverProcess([BIDS], 1000) as driver:
        yield FlinkBench(driver.address, tmp_path)


def test_a_statement_set_is_one_job_that_is_replaced_on_change(bench):
    bench.start(make_query("a"), make_query("b"), max_queries=4)
    bench.adapter.change([make_query("c")], ["a"])
    assert bench.list_jobs() == [("flink-1", ["a", "b"]), ("flink-1", []), ("flink-2", ["b", "c"])]
    assert bench.list_events() == [("removed", "a"), ("live", "c")]


def test_a_grown_statement_set_gets_a_larger_cluster(bench):
    bench.start(make_query("a"))
    bench.adapter.change([make_query("b"), make_query("c")], [])
    first, second = bench.stubs
    assert first.closed
    assert not second.closed
    assert (first.settings.max_queries, second.settings.max_queries) == (1, 6)
    assert bench.list_jobs() == [("flink-1", ["a"]), ("flink-1", []), ("flink-2", ["a", "b", "c"])]


def test_the_nodes_of_a_larger_cluster_are_limited_as_those_before(bench):
    bench.start(make_query("a"))
    bench.adapter.limit_nodes()
    bench.adapter.change([make_query("b"), make_query("c")], [])
    assert [stub.limited for stub in bench.stubs] == [1, 1]


def test_separate_mode_runs_one_job_per_query(bench):
    bench.start(make_query("a"), make_query("b"), mode="separate")
    bench.adapter.change([make_query("c")], ["a"])
    assert bench.list_jobs() == [("flink-1", ["a"]), ("flink-2", ["b"]), ("flink-1", []), ("flink-3", ["c"])]
    assert bench.list_events() == [("removed", "a"), ("live", "c")]
    groups = {job["job"]: job["tables"]["bids"] for job in bench.stubs[0].requests if "tables" in job}
    assert all(f"'group' = '{name}'" in ddl for name, ddl in groups.items())


@pytest.mark.parametrize("mode", ["statement_set", "separate"])
def test_unsupported_queries_are_refused(bench, mode):
    bench.start(make_query("a"), make_query("uneven", 3 * SECOND // 2), make_query("bad"), mode=mode)
    assert sorted(bench.list_events()) == [("refused", "bad"), ("refused", "uneven")]
    bench.adapter.change([make_query("bad2"), make_query("b")], [])
    assert bench.list_events()[2:] == [("refused", "bad2"), ("live", "b")]


def test_more_jobs_than_slots_are_refused(bench):
    bench.start(make_query("a"), mode="separate", max_queries=1)
    bench.adapter.change([make_query("b")], [])
    assert bench.list_events() == [("refused", "b")]


def test_an_unknown_mode_is_refused(bench):
    with pytest.raises(HeadraceError, match="unknown flink mode 'both'\ndetail: modes: statement_set, separate"):
        bench.start(make_query("a"), mode="both")


def test_slots_and_memory_scale_with_the_number_of_queries():
    few, many = (FlinkSettings.from_options({"parallelism": 2}, queries) for queries in (1, 64))
    assert few.cluster["taskmanager.numberOfTaskSlots"] == many.cluster["taskmanager.numberOfTaskSlots"] == "2"
    assert few.cluster["taskmanager.memory.managed.size"] == "64m"
    assert many.cluster["taskmanager.memory.managed.size"] == "640m"
    separate = FlinkSettings.from_options({"parallelism": 2, "mode": "separate", "max_queries": 10}, 1)
    assert separate.cluster["taskmanager.numberOfTaskSlots"] == "20"


def test_nodes_have_the_slots_of_their_cores_and_a_cluster_of_the_user_keeps_its_settings():
    nodes = FlinkSettings.from_options({}, 1, BenchCluster(4, 1.5, 512))
    assert (nodes.table["parallelism.default"], nodes.cluster["taskmanager.numberOfTaskSlots"]) == ("8", "2")
    assert nodes.cluster["taskmanager.memory.task.heap.size"] == "512m"
    own = FlinkSettings.from_options({"parallelism": 3}, 1, BenchCluster(master="http://127.0.0.1:8081"))
    assert (own.table["parallelism.default"], own.cluster) == ("3", {})


def test_a_flink_cluster_that_does_not_answer_is_an_error():
    (port,) = find_free_ports(1)
    with pytest.raises(HeadraceError, match=f"the Flink cluster at 'http://127.0.0.1:{port}' does not answer"):
        FlinkSettings.from_options({}, 1, BenchCluster(master=f"http://127.0.0.1:{port}"))


def test_custom_settings_override_defaults():
    overrides = {"taskmanager.memory.managed.size": "1g", "table.exec.mini-batch.enabled": True}
    settings = FlinkSettings.from_options({"settings": overrides, "java": ["-XX:+UseParallelGC"]}, 1)
    assert settings.cluster["taskmanager.memory.managed.size"] == "1g"
    assert settings.table["table.exec.mini-batch.enabled"] == "True"
    assert settings.java[-1] == "-XX:+UseParallelGC"
    assert settings.describe()["table.exec.mini-batch.enabled"] == "True"


def test_a_stream_is_declared_as_a_table():
    assert build_table_ddl(SutStream(BIDS), "127.0.0.1:7", "g") == (
        "CREATE TEMPORARY TABLE `bids` (`auction` BIGINT, `bidder` BIGINT, `price` BIGINT, `channel` STRING, "
        "`time` TIMESTAMP(3), WATERMARK FOR `time` AS `time` - INTERVAL '0.250' SECOND(4, 3)) WITH ('connector' = 'headrace', "
        "'address' = '127.0.0.1:7', 'stream' = 'bids', 'group' = 'g', 'partitions' = '3')"
    )
