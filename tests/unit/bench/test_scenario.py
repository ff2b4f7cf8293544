"""Scenarios: parsing of files, queries and ad-hoc changes, and errors with their location."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import duckdb
import pytest

from headrace.bench.driver.rates import RateScript
from headrace.bench.queries.query import BenchQuery
from headrace.bench.scenarios.ad_hoc import (
    AddOnlySchedule,
    EventSchedule,
    QueryChange,
    RemoveOnlySchedule,
    Sc1Schedule,
    Sc2Schedule,
    ad_hoc_to_json,
    parse_ad_hoc,
)
from headrace.bench.scenarios.scenario import Scenario, list_scenarios, load_scenario, parse_scenario
from headrace.errors import HeadraceError
from headrace.model.stream import Stream
from headrace.sql import Catalog, bind_query

JOINS = {"join", "join-churn", "complex", "similar-joins", "hppa", "hot-category"}
PLAIN = """
title = "A title"
about = "What it is about."
[streams.fields]
generator = "fields"
[queries]
generator = "fields"
"""


def parse_text(text: str = PLAIN) -> Scenario:
    return parse_scenario("mine", text, "mine.toml")


def test_all_required_scenarios_exist():
    required = {
        "aggregation", "join", "large-windows", "skew-single", "skew-zipf", "fluctuation", "over-saturation", "many-queries",
        "sc1", "sc2", "add-only", "remove-only", "complex", "nexmark", "profit",
    }  # fmt: skip
    assert required <= set(list_scenarios())


@pytest.mark.parametrize("name", list_scenarios())
def test_a_scenario_round_trips_through_json(name):
    scenario = load_scenario(name)
    assert Scenario.from_json(json.loads(json.dumps(scenario.to_json()))) == scenario
    assert scenario.title
    assert scenario.about.endswith(".")


def list_all_queries(scenario: Scenario) -> list[BenchQuery]:
    """Return the queries of the search, of the start of a run, and those that it adds."""
    added = [query for step in scenario.build_steps() for query in step.add]
    return list({query.name: query for query in (*scenario.peak_queries(), *scenario.initial_queries(), *added)}.values())


@pytest.mark.parametrize("name", list_scenarios())
def test_headrace_binds_all_queries_of_a_scenario(name):
    scenario = load_scenario(name)
    catalog = Catalog.of(Stream(stream.name, stream.schema, stream.time_column, 0) for stream in scenario.used_streams())
    for query in list_all_queries(scenario):
        assert "window_end" in bind_query(query.sql["headrace"], catalog).schema.names


@pytest.mark.parametrize("name", [name for name in list_scenarios() if "duckdb" in load_scenario(name).systems])
def test_duckdb_binds_all_queries_of_a_scenario(name):
    scenario, connection = load_scenario(name), duckdb.connect()
    for stream in scenario.used_streams():
        connection.register(stream.name, stream.schema.to_arrow().empty_table())
    for query in list_all_queries(scenario):
        assert connection.execute(query.sql["duckdb"], [datetime(2026, 1, 1, tzinfo=UTC)]).description[0][0] == "window_end"


@pytest.mark.parametrize("name", sorted(set(list_scenarios()) - JOINS))
def test_every_listed_system_has_a_query(name):
    scenario = load_scenario(name)
    queries = [*scenario.initial_queries(), *(query for step in scenario.build_steps() for query in step.add)]
    assert len({query.name for query in queries}) == len(queries)
    listed = {system.partition("_")[0] for system in scenario.systems} - {"limit"}  # headrace_apart has the texts of headrace
    assert listed
    for query in queries:
        assert listed <= set(query.sql)
        assert query.shape is not None or "limit" not in scenario.systems


def test_the_parameters_of_the_aggregation_scenario():
    scenario = load_scenario("aggregation")
    (query,) = scenario.initial_queries()
    assert (query.size_us, query.slide_us) == (8_000_000, 4_000_000)
    assert scenario.scale_rate(1000.0) == RateScript.constant(1000.0)
    assert (scenario.warm_up, scenario.make_limits().warm_up, scenario.load) == (0.25, 0.25, 0.9)
    assert load_scenario("over-saturation").load == 1.2


def test_rates_scale_with_the_base_rate():
    script = load_scenario("fluctuation").scale_rate(840_000)
    assert [piece.first for piece in script.segments] == pytest.approx([840_000, 280_000, 840_000], rel=1e-6)


def test_the_number_of_queries_can_be_overridden():
    scenario = load_scenario("aggregation").with_overrides(queries=64)
    assert len(scenario.initial_queries()) == scenario.peak_query_count == 64
    assert scenario.initial_queries()[0] == load_scenario("aggregation").initial_queries()[0]
    assert load_scenario("sc1").with_overrides(queries=20).peak_query_count == 20
    assert load_scenario("sc2").with_overrides(queries=3).peak_query_count == 3
    assert load_scenario("effect").with_overrides(queries=7).peak_query_count == 107


def test_other_parameters_can_be_overridden():
    scenario = load_scenario("profit").with_overrides(keys=1_000_000, seconds=12, load=1.1)
    assert {stream.keys for stream in scenario.streams} == {1_000_000}
    assert (scenario.seconds, scenario.load) == (12, 1.1)
    with pytest.raises(HeadraceError, match="no stream whose keys can be chosen"):
        load_scenario("nexmark").with_overrides(keys=10)
    with pytest.raises(HeadraceError, match="0 queries requested"):
        load_scenario("aggregation").with_overrides(queries=0)


def test_unused_streams_are_omitted():
    assert [stream.name for stream in load_scenario("nexmark").with_overrides(queries=1).used_streams()] == ["bids"]
    assert len(load_scenario("nexmark").used_streams()) == 3


def test_the_peak_number_of_queries():
    assert [len(load_scenario(name).peak_queries()) for name in ("aggregation", "sc1", "sc2", "effect")] == [1, 100, 10, 200]
    assert load_scenario("sc1").peak_queries()[:1] == load_scenario("sc1").initial_queries()


def test_the_oldest_queries_are_removed_first():
    """q1 and q2 start at second 0; q3 and q4 replace them at 10; q5 and q6 follow at 20."""
    steps = load_scenario("sc2").with_overrides(queries=2, seconds=25).build_steps()
    assert [(step.at, [query.name for query in step.add], step.remove) for step in steps] == [
        (10, ["q3", "q4"], ("q1", "q2")),
        (20, ["q5", "q6"], ("q3", "q4")),
    ]


@pytest.mark.parametrize(
    ("schedule", "seconds", "expected"),
    [
        (Sc1Schedule(25, 10), 60, [(1, 10, 0), (2, 10, 0), (3, 4, 0)]),
        (Sc1Schedule(3, 0.5), 60, [(2, 1, 0), (4, 1, 0)]),
        (Sc1Schedule(100, 10), 2, [(1, 10, 0)]),
        (Sc2Schedule(5, 10), 30, [(10, 5, 5), (20, 5, 5)]),
        (AddOnlySchedule(4, 1, add=2), 60, [(1, 2, 0), (2, 1, 0)]),
        (RemoveOnlySchedule(4, 2, remove=2), 60, [(2, 0, 2), (4, 0, 1)]),
        (EventSchedule(1, ((5, 2, 0), (9, 0, 3), (70, 1, 0))), 60, [(5, 2, 0), (9, 0, 3)]),
    ],
)
def test_schedules_list_their_changes(schedule, seconds, expected):
    assert schedule.list_changes(seconds) == tuple(QueryChange(*change) for change in expected)
    assert parse_ad_hoc(json.loads(json.dumps(ad_hoc_to_json(schedule)))) == schedule


def test_a_schedule_is_parsed_from_a_file():
    scenario = parse_text(PLAIN + '[ad_hoc]\nkind = "events"\ninitial = 2\nevents = [[3, 1, 0], [4, 0, 2]]\n')
    assert (scenario.initial_count, scenario.peak_query_count) == (2, 3)
    assert [step.remove for step in scenario.build_steps()] == [(), ("q1", "q2")]


def test_a_handwritten_query_is_parsed():
    text = PLAIN.replace(
        '[queries]\ngenerator = "fields"', '[queries]\ngenerator = "written"\nstreams = ["fields"]\nsize = "2 s"'
    )
    scenario = parse_text(text + '[queries.sql]\nheadrace = "SELECT 1"\n')
    (query,) = scenario.initial_queries()
    assert (query.sql, query.size_us, query.slide_us) == ({"headrace": "SELECT 1"}, 2_000_000, 2_000_000)
    assert Scenario.from_json(json.loads(json.dumps(scenario.to_json()))) == scenario


def test_a_scenario_is_loaded_from_a_path(tmp_path):
    (tmp_path / "mine.toml").write_text(PLAIN)
    assert load_scenario(str(tmp_path / "mine.toml")) == parse_text()
    with pytest.raises(HeadraceError, match="cannot be read"):
        load_scenario(str(tmp_path / "other.toml"))
    with pytest.raises(HeadraceError, match="unknown scenario 'other'") as refusal:
        load_scenario("other")
    assert "aggregation" in refusal.value.detail


@pytest.mark.parametrize(
    ("text", "message", "help_"),
    [
        ("title = ", "'mine.toml' is not TOML", "Invalid value"),
        (PLAIN.replace("about", "abuot"), "unknown key 'abuot' in 'mine.toml'", "about"),
        (PLAIN.replace('about = "What it is about."', ""), "key 'about' is missing in 'mine.toml'", "required"),
        ("seconds = '9'" + PLAIN, "key 'seconds' in 'mine.toml' is a string, but must be a number", ""),
        ("seconds = 0" + PLAIN, "seconds = 0", "must be positive"),
        ("systems = ['flunk']" + PLAIN, "unknown system 'flunk'", "flink"),
        ("systems = []" + PLAIN, "no systems", "flink"),
        ("rate = { kind = 'saw' }" + PLAIN, "in [rate] of 'mine.toml': rate of kind 'saw'", "spikes"),
        (
            PLAIN.replace('"fields"', '"felds"', 1),
            "in [streams.fields] of 'mine.toml': stream 'fields' has unknown generator",
            "",
        ),
        (PLAIN.replace("[queries]", "keys = 'many'\n[queries]"), "key 'keys' is a string, but must be a number", ""),
        (PLAIN.replace("[queries]", "kyes = 1\n[queries]"), "unknown key 'kyes'", "keys"),
        (PLAIN.replace("[streams.fields]", "[streams]\nfields = 3\n[streams.x]"), "[streams.fields]", "write [streams.fields]"),
        (PLAIN + "count = 0", "in [queries] of 'mine.toml': 0 queries requested", ""),
        (PLAIN + "count = 'two'", "needs a generator", "count = 64"),
        (PLAIN + "seeds = 1", "no option 'seeds'", "divisible"),
        (PLAIN.replace("streams.fields", "streams.felds"), "over stream 'fields', which it does not declare", "felds"),
        (PLAIN + "[ad_hoc]\nkind = 'sc3'", "in [ad_hoc] of 'mine.toml': ad-hoc schedule of kind 'sc3'", "sc1, sc2"),
        (PLAIN + "[ad_hoc]\nkind = 'sc2'", "is invalid", "every"),
        (PLAIN + "[ad_hoc]\nkind = 'sc2'\nevery = 'x'\nqueries = 1", "is invalid", ""),
        (PLAIN + "[ad_hoc]\nkind = 'sc2'\nevery = 0\nqueries = 1", "every is 0", ""),
        (PLAIN + "[ad_hoc]\nkind = 'sc2'\nevery = 1\nqueries = 1.5", "must be an integer", ""),
        (PLAIN + "[ad_hoc]\nkind = 'sc1'\nper_second = 1\nqueries = 1\ninitial = 2", "initial is 2", ""),
        (PLAIN + "[ad_hoc]\nkind = 'events'\ninitial = 1\nevents = [[1, 0, 2]]", "events remove 1 more", "begin with more"),
        (PLAIN + "[ad_hoc]\nkind = 'events'\ninitial = 1\nevents = [[2, 1, 0], [1, 1, 0]]", "not in order", ""),
        (PLAIN + "[ad_hoc]\nkind = 'events'\ninitial = 1\nevents = [[2, 1]]", "event [2, 1]", "[second,"),
        (PLAIN + "[ad_hoc]\nkind = 'events'\ninitial = 1\nevents = [[2, 0, 0]]", "adds 0 and removes 0", ""),
        (PLAIN + "count = 2\n[ad_hoc]\nkind = 'sc2'\nevery = 1\nqueries = 1", "count has no meaning", "[ad_hoc]"),
        (PLAIN + "[search]\nprecision = 0.9", "in [search] of 'mine.toml': invalid search settings", "precision=0.9"),
        (PLAIN + "[search]\nstart = 1", "cannot begin at 1 rows/s", "floor"),
        (PLAIN + "[search]\ntrials = true", "key 'trials' is true or false", ""),
    ],
)
def test_invalid_files_are_refused_with_the_location(text, message, help_):
    with pytest.raises(HeadraceError) as refusal:
        parse_text(text)
    assert message in refusal.value.message
    assert "mine" in refusal.value.message
    assert help_ in str(refusal.value)


@pytest.mark.parametrize("per_second", [0.5, 3.0, 10.0, 37.0, 400.0])
def test_traffic_makes_its_requests_evenly_and_keeps_the_number_of_queries(per_second: float):
    changes = load_scenario("query-throughput").with_traffic(per_second, 40.0).ad_hoc.list_changes(40.0)
    assert all(change.add == change.remove for change in changes)
    assert sum(2 * change.add for change in changes) == pytest.approx(40 * per_second, abs=max(2.0, 0.11 * per_second))
    halfway = sum(2 * change.add for change in changes if change.at <= 20)
    assert halfway == pytest.approx(20 * per_second, abs=max(2.0, 0.11 * per_second))
    steps = load_scenario("query-throughput").with_traffic(per_second, 40.0).build_steps()
    removed = [name for step in steps for name in step.remove]
    assert removed == [f"q{number}" for number in range(6, len(removed) + 6)]  # the oldest first, except five
