"""`headrace demo`: ends by itself, tells the truth, and its queries are all good."""

from __future__ import annotations

import pytest

from headrace.cli.demo import generate_queries, schedule_events
from headrace.connectors import GENERATORS
from headrace.model.stream import Stream
from headrace.sql import Catalog, bind_query

STREAMS = [Stream(name, GENERATORS[name].schema, "time") for name in ("purchases", "ads")]


def test_it_ends_by_itself(headrace):
    said = headrace("demo", "--seconds", 3, "--queries", 10, "--rate", 5000, "--json", "--backend", "local")
    assert said.code == 0, said.err
    found = said.document
    assert found["queries"] == {"added": 10, "removed": 3, "live": 7, "failed": 0}
    assert found["restarts"] == 0
    assert found["rows"] > 0
    assert found["results"] > 0
    assert 0 < found["shared_operators"] < 10
    assert 0 < found["deployment_seconds"]["median"] <= found["deployment_seconds"]["max"]
    assert "live queries" in said.err


def test_summary_for_people(headrace):
    said = headrace("demo", "--seconds", 1, "--queries", 2, "--rate", 1000, "--backend", "local")
    assert said.code == 0, said.err
    assert "2 queries, one pipeline, 0 restarts" in said.out
    assert "one shared pipeline" in said.out


def test_all_queries_bind_and_have_names_of_their_own():
    queries = list(generate_queries(200))
    for query in queries:
        bind_query(query.sql, Catalog.of(STREAMS))
    assert len({query.name for query in queries}) == 200
    assert queries == list(generate_queries(200))


@pytest.mark.parametrize("number", [1, 2, 3, 20, 100])
def test_the_timetable_removes_only_what_is_there(number):
    there = set()
    for event in schedule_events(number, 30):
        assert 0 <= event.at <= 0.9 * 30 + 1e-9
        assert (event.query.name in there) != event.add
        (there.add if event.add else there.remove)(event.query.name)
    assert len(there) >= number / 2
