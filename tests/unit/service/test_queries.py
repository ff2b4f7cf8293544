"""Queries over HTTP: add, list, check, replace, remove, refuse."""

from __future__ import annotations

import pytest

from support.in_process_service import COUNT_QUERY, Service


def test_an_added_query_is_live_in_the_response(service: Service):
    answer = service.add(name="counts")
    assert answer.status_code == 201
    query = answer.json()
    assert (query["name"], query["status"], query["emitted"]) == ("counts", "live", 0)
    assert [item["name"] for item in query["columns"]] == ["window_start", "n", "total"]
    assert query["deployment_seconds"] > 0
    assert [item["name"] for item in service.http.get("/v1/queries").json()] == ["counts"]


def test_a_query_without_a_name_gets_a_generated_name(service: Service):
    assert service.add().json()["name"] == "q1"


def test_a_name_that_is_taken_is_refused(service: Service):
    service.add(name="counts")
    answer = service.add(name="counts", sql="SELECT price FROM purchases")
    assert answer.status_code == 409
    assert "already exists" in answer.json()["error"]


@pytest.mark.parametrize("name", ["..", " a", "a\u202eb", "a\x1b", "a/b", "n" * 201, ""])
def test_an_invalid_name_is_refused(service: Service, name: str):
    answer = service.add(name=name)
    assert answer.status_code == 422
    assert "name" in answer.text
    assert service.http.get("/v1/queries").json() == []


def test_invalid_sql_is_refused_with_line_and_column(service: Service):
    answer = service.add("SELECT nope\nFROM purchases WHERE pric > 10")
    error = answer.json()
    assert answer.status_code == 422
    assert error["error"]
    assert error["line"] in (1, 2)
    assert error["column"] > 0
    assert "^" in error["place"]
    assert service.http.get("/v1/queries").json() == []


def test_sql_can_be_checked_without_adding_a_query(service: Service):
    assert service.http.post("/v1/check", json={"sql": "SELECT price * 2 AS p FROM purchases"}).json() == {
        "columns": [{"name": "p", "type": "DOUBLE"}]
    }
    assert service.http.post("/v1/check", json={"sql": "SELECT price FROM nowhere"}).status_code == 422
    assert service.http.get("/v1/queries").json() == []


def test_results_of_a_removed_query_can_be_read(service: Service):
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
    assert service.http.get("/v1/queries/counts").json()["id"] == first["id"]  # invalid SQL leaves the old query unchanged
    answer = service.http.put("/v1/queries/counts", json={"sql": "SELECT price FROM purchases"})
    replaced = answer.json()
    assert (answer.status_code, replaced["status"], replaced["sql"]) == (200, "live", "SELECT price FROM purchases")
    assert replaced["id"] != first["id"]
    assert service.http.put("/v1/queries/nobody", json={"sql": COUNT_QUERY}).status_code == 404


def test_queries_report_their_cost(service: Service):
    service.add(name="one")
    service.add("SELECT COUNT(*) AS n FROM TUMBLE(purchases, '1 second') WHERE price > 5", name="two")
    service.append_and_wait(0, 1, 2, 3)
    costs = {item["name"]: item["cost"] for item in service.http.get("/v1/queries").json()}
    assert sum(item["share"] for item in costs.values()) == pytest.approx(1)
    assert all(0 < item["shared"] <= item["alone"] for item in costs.values())


def test_malformed_requests_are_refused(service: Service):
    assert service.http.post("/v1/queries", content=b"{").status_code == 422
    assert service.http.post("/v1/queries", json={"sql": "", "name": "x"}).status_code == 422
    assert service.http.post("/v1/queries", json={"sql": COUNT_QUERY, "nmae": "x"}).status_code == 422
    assert service.http.post("/v1/queries", json={"sql": COUNT_QUERY, "name": "a/b"}).status_code == 422
    assert service.http.get("/v1/nothing").status_code == 404
    assert service.http.request("PATCH", "/v1/queries").status_code == 405
