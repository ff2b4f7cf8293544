"""What Flink is asked for: jobs, tables, settings. The side that has Flink is a stand-in."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.queries.dialects import BenchAggregate
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.flink import FlinkAdapter, FlinkSettings, build_table_ddl
from headrace.bench.systems.process import SutEventWriter
from headrace.errors import HeadraceError

SECOND = 1_000_000
BIDS = StreamSpec("bids", "bids", watermark=0.25, partitions=3)


def query(name: str, slide: int = SECOND) -> BenchQuery:
    return build_window_aggregation(name, "bids", ["auction"], [BenchAggregate("MAX", "price", "most")], None, 2 * SECOND, slide)


class Stand:
    """Runs every job but those of queries called bad."""

    def __init__(self, scratch: Path, settings: FlinkSettings) -> None:
        self.settings, self.asked, self.closed = settings, [], False

    def ask(self, **request):
        self.asked.append(request)
        return {"refused": {name: "it is bad" for name in request.get("queries", {}) if name.startswith("bad")}}

    def close(self):
        self.closed = True


class Bench:
    """An adapter, the sides it opened, and what it said."""

    def __init__(self, driver: str, scratch: Path) -> None:
        self.sides: list[Stand] = []
        self._out = io.StringIO()
        self.adapter = FlinkAdapter(self._open)
        self._config = (driver, "127.0.0.1:2", scratch, (SutStream(BIDS),))

    def _open(self, scratch: Path, settings: FlinkSettings) -> Stand:
        self.sides.append(Stand(scratch, settings))
        return self.sides[-1]

    def start(self, *queries: BenchQuery, **options: object) -> None:
        self.adapter.start(SutConfig(*self._config, queries, options), SutEventWriter(self._out))

    def said(self) -> list[tuple[str, str]]:
        return [(e["event"], e["query"]) for e in map(json.loads, self._out.getvalue().splitlines())]

    def jobs(self) -> list[tuple[str, list[str]]]:
        """Jobs as they were submitted (with their queries) and cancelled (without)."""
        asked = [request for side in self.sides for request in side.asked]
        return [(request["job"], sorted(request.get("queries", ()))) for request in asked if "job" in request]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with DriverProcess([BIDS], 1000) as driver:
        yield Bench(driver.address, tmp_path)


def test_a_set_is_one_job_and_changes_as_a_whole(bench):
    bench.start(query("a"), query("b"), max_queries=4)
    bench.adapter.change([query("c")], ["a"])
    assert bench.jobs() == [("flink-1", ["a", "b"]), ("flink-1", []), ("flink-2", ["b", "c"])]
    assert bench.said() == [("removed", "a"), ("live", "c")]


def test_a_set_that_has_grown_gets_a_larger_cluster(bench):
    bench.start(query("a"))
    bench.adapter.change([query("b"), query("c")], [])
    first, second = bench.sides
    assert first.closed
    assert not second.closed
    assert (first.settings.max_queries, second.settings.max_queries) == (1, 6)
    assert bench.jobs() == [("flink-1", ["a"]), ("flink-1", []), ("flink-2", ["a", "b", "c"])]


def test_separate_queries_are_separate_jobs(bench):
    bench.start(query("a"), query("b"), mode="separate")
    bench.adapter.change([query("c")], ["a"])
    assert bench.jobs() == [("flink-1", ["a"]), ("flink-2", ["b"]), ("flink-1", []), ("flink-3", ["c"])]
    assert bench.said() == [("removed", "a"), ("live", "c")]
    groups = {job["job"]: job["tables"]["bids"] for job in bench.sides[0].asked if "tables" in job}
    assert all(f"'group' = '{name}'" in ddl for name, ddl in groups.items())


@pytest.mark.parametrize("mode", ["statement_set", "separate"])
def test_what_flink_does_not_take_is_refused(bench, mode):
    bench.start(query("a"), query("uneven", 3 * SECOND // 2), query("bad"), mode=mode)
    assert sorted(bench.said()) == [("refused", "bad"), ("refused", "uneven")]
    bench.adapter.change([query("bad2"), query("b")], [])
    assert bench.said()[2:] == [("refused", "bad2"), ("live", "b")]


def test_more_jobs_than_slots_are_refused(bench):
    bench.start(query("a"), mode="separate", max_queries=1)
    bench.adapter.change([query("b")], [])
    assert bench.said() == [("refused", "b")]


def test_an_unknown_mode_is_named(bench):
    with pytest.raises(HeadraceError, match="unknown flink mode 'both'\ndetail: modes: statement_set, separate"):
        bench.start(query("a"), mode="both")


def test_slots_and_memory_follow_the_number_of_queries():
    few, many = (FlinkSettings.from_options({"parallelism": 2}, queries) for queries in (1, 64))
    assert few.cluster["taskmanager.numberOfTaskSlots"] == many.cluster["taskmanager.numberOfTaskSlots"] == "2"
    assert few.cluster["taskmanager.memory.managed.size"] == "64m"
    assert many.cluster["taskmanager.memory.managed.size"] == "640m"
    separate = FlinkSettings.from_options({"parallelism": 2, "mode": "separate", "max_queries": 10}, 1)
    assert separate.cluster["taskmanager.numberOfTaskSlots"] == "20"


def test_settings_given_find_their_place():
    given = {"taskmanager.memory.managed.size": "1g", "table.exec.mini-batch.enabled": True}
    found = FlinkSettings.from_options({"settings": given, "java": ["-XX:+UseParallelGC"]}, 1)
    assert found.cluster["taskmanager.memory.managed.size"] == "1g"
    assert found.table["table.exec.mini-batch.enabled"] == "True"
    assert found.java[-1] == "-XX:+UseParallelGC"
    assert found.describe()["table.exec.mini-batch.enabled"] == "True"


def test_a_stream_is_a_table():
    assert build_table_ddl(SutStream(BIDS), "127.0.0.1:7", "g") == (
        "CREATE TEMPORARY TABLE `bids` (`auction` BIGINT, `bidder` BIGINT, `price` BIGINT, `channel` STRING, "
        "`time` TIMESTAMP(3), WATERMARK FOR `time` AS `time` - INTERVAL '0.250' SECOND(4, 3)) WITH ('connector' = 'headrace', "
        "'address' = '127.0.0.1:7', 'stream' = 'bids', 'group' = 'g', 'partitions' = '3')"
    )
