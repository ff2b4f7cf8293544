"""Queries over HTTP: added, looked at, replaced, removed, refused."""

from __future__ import annotations

import time

import pytest

from support.in_process_service import COUNT_QUERY, Service


def test_a_query_is_live_when_it_is_answered(service: Service):
    answer = service.add(name="counts")
    assert answer.status_code == 201
    found = answer.json()
    assert (found["name"], found["status"], found["emitted"]) == ("counts", "live", 0)
    assert [one["name"] for one in found["columns"]] == ["window_start", "n", "total"]
    assert found["deployment_seconds"] > 0
    assert [one["name"] for one in service.http.get("/v1/queries").json()] == ["counts"]


def test_names_are_chosen_where_none_is_given(service: Service):
    assert service.add().json()["name"] == "q1"


def test_a_name_that_is_taken_is_refused(service: Service):
    service.add(name="counts")
    answer = service.add(name="counts", sql="SELECT price FROM purchases")
    assert answer.status_code == 409
    assert "already exists" in answer.json()["error"]


def test_bad_sql_is_refused_with_its_place(service: Service):
    answer = service.add("SELECT nope\nFROM purchases WHERE pric > 10")
    found = answer.json()
    assert answer.status_code == 422
    assert found["error"]
    assert found["line"] in (1, 2)
    assert found["column"] > 0
    assert "^" in found["place"]
    assert service.http.get("/v1/queries").json() == []


def test_a_text_can_be_checked_without_adding_it(service: Service):
    assert service.http.post("/v1/check", json={"sql": "SELECT price * 2 AS p FROM purchases"}).json() == {
        "columns": [{"name": "p", "type": "DOUBLE"}]
    }
    assert service.http.post("/v1/check", json={"sql": "SELECT price FROM nowhere"}).status_code == 422
    assert service.http.get("/v1/queries").json() == []


def test_a_query_that_is_removed_can_still_be_read(service: Service):
    service.add(name="counts")
    assert service.http.delete("/v1/queries/counts").status_code == 204
    assert service.http.get("/v1/queries").json() == []
    assert service.http.delete("/v1/queries/counts").status_code == 404
    assert service.http.get("/v1/queries/counts/results").json()["rows"] == []
    answer = service.http.get("/v1/queries/other")
    assert (answer.status_code, answer.json()["error"]) == (404, "query 'other' does not exist")


def test_a_query_is_replaced_in_one_step(service: Service):
    service.add(name="counts")
    service.append(0.5, 1.5)
    first = service.http.get("/v1/queries/counts").json()
    bad = service.http.put("/v1/queries/counts", json={"sql": "SELECT"})
    assert bad.status_code == 422
    assert service.http.get("/v1/queries/counts").json()["id"] == first["id"]  # a bad text leaves the old one alone
    answer = service.http.put("/v1/queries/counts", json={"sql": "SELECT price FROM purchases"})
    found = answer.json()
    assert (answer.status_code, found["status"], found["sql"]) == (200, "live", "SELECT price FROM purchases")
    assert found["id"] != first["id"]
    assert service.http.put("/v1/queries/nobody", json={"sql": COUNT_QUERY}).status_code == 404


def test_queries_say_what_they_cost(service: Service):
    service.add(name="one")
    service.add("SELECT COUNT(*) AS n FROM TUMBLE(purchases, '1 second') WHERE price > 5", name="two")
    service.append_and_wait(0, 1, 2, 3)
    until = time.monotonic() + 20
    while not all((found := {one["name"]: one["cost"] for one in service.http.get("/v1/queries").json()}).values()):
        assert time.monotonic() < until  # it is reckoned anew every other second
        time.sleep(0.1)
    assert sum(one["share"] for one in found.values()) == pytest.approx(1)
    assert all(0 < one["shared"] <= one["alone"] for one in found.values())


def test_what_is_not_understood_is_refused(service: Service):
    assert service.http.post("/v1/queries", content=b"{").status_code == 422
    assert service.http.post("/v1/queries", json={"sql": "", "name": "x"}).status_code == 422
    assert service.http.post("/v1/queries", json={"sql": COUNT_QUERY, "nmae": "x"}).status_code == 422
    assert service.http.post("/v1/queries", json={"sql": COUNT_QUERY, "name": "a/b"}).status_code == 422
    assert service.http.get("/v1/nothing").status_code == 404
    assert service.http.request("PATCH", "/v1/queries").status_code == 405
