"""Budgets over HTTP: of a request, bounded by those of its user and of the service; they survive replacement and restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SessionError
from headrace.service.auth import Identity, Role, TokenRegistry
from support.in_process_service import COLUMNS, Service

ANN, BEN, ADMIN = "n" * 20, "b" * 20, "a" * 20
ALL_ROWS = "SELECT user_id FROM purchases"
TOKENS = TokenRegistry([
    (ANN, Identity("ann", Role.write, (("output_rows", 5),))),
    (BEN, Identity("ben", Role.write)),
    (ADMIN, Identity("ada", Role.admin)),
])  # fmt: skip


@pytest.fixture
def guarded(serve: Callable[..., Service]) -> Service:
    """A service whose queries may emit 9 rows, those of ann 5; with a stream."""
    service = serve(tokens=TOKENS, budget={"output_rows": 9, "state_bytes": 1 << 20})
    stream = {"source": "memory", "name": "purchases", "columns": COLUMNS, "time": "time"}
    assert request(service, "POST", "/v1/streams", ADMIN, json=stream).status_code == 201
    return service


def request(service: Service, method: str, path: str, token: str, **options: Any) -> Any:
    return service.http.request(method, path, headers={"Authorization": f"Bearer {token}"}, **options)


def add(service: Service, name: str, token: str, **budget: int) -> Any:
    body = {"sql": ALL_ROWS, "name": name} | ({"budget": budget} if budget else {})
    return request(service, "POST", "/v1/queries", token, json=body)


def append_rows(service: Service, count: int) -> None:
    rows = [{"user_id": n, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"} for n in range(count)]
    assert request(service, "POST", "/v1/streams/purchases/rows", ADMIN, json=rows).status_code == 202


def find_query(service: Service, name: str) -> dict[str, Any]:
    return request(service, "GET", f"/v1/queries/{name}", ADMIN).json()


def test_each_query_has_the_budget_of_its_user_or_a_lower_one(guarded: Service):
    for name, token, budget in (("of_ann", ANN, {}), ("of_ben", BEN, {}), ("low", BEN, {"output_rows": 3})):
        assert add(guarded, name, token, **budget).status_code == 201
    assert [find_query(guarded, name)["budget"]["output_rows"] for name in ("of_ann", "of_ben", "low")] == [5, 9, 3]
    assert find_query(guarded, "low")["budget"]["state_bytes"] == 1 << 20
    append_rows(guarded, 4)
    guarded.wait_until(lambda: guarded.session.find("low").status == "failed")
    assert find_query(guarded, "low")["error"] == "query emits 4 rows in a micro-batch, more than 3 (output_rows)"
    append_rows(guarded, 6)
    guarded.wait_until(lambda: guarded.session.find("of_ann").status == "failed")
    assert find_query(guarded, "of_ann")["error"] == "query emits 6 rows in a micro-batch, more than 5 (output_rows)"
    assert find_query(guarded, "of_ben")["status"] == "live"


@pytest.mark.parametrize(
    ("token", "budget", "message"),
    [
        (ANN, {"output_rows": 6}, "budget output_rows of 6 is above the 5 of user 'ann'"),
        (BEN, {"output_rows": 10}, "budget output_rows of 10 is above the 9 of the service"),
        (
            ANN,
            {"output_rows": 5, "state_bytes": 2_000_000},
            "budget state_bytes of 2,000,000 is above the 1,048,576 of the service",
        ),
    ],
)
def test_only_an_admin_raises_a_budget(guarded: Service, token: str, budget: dict[str, int], message: str):
    refused = add(guarded, "q", token, **budget)
    assert (refused.status_code, refused.json()["error"]) == (403, message)
    assert add(guarded, "q", ADMIN, **budget).status_code == 201
    assert {name: find_query(guarded, "q")["budget"][name] for name in budget} == budget


def test_an_invalid_budget_is_refused(guarded: Service):
    for budget in ({"output_rows": 0}, {"output_rows": "5"}, {"output_rows": 5.5}, {"rows": 5}, 5, [5]):
        new, text = {"sql": ALL_ROWS, "name": "q", "budget": budget}, {"sql": ALL_ROWS, "budget": budget}
        for method, path, body in (("POST", "/v1/queries", new), ("PUT", "/v1/queries/q", text)):
            assert request(guarded, method, path, ADMIN, json=body).status_code == 422, budget


def test_a_replaced_query_keeps_its_budget_unless_the_user_has_a_lower_one_by_now(guarded: Service):
    assert add(guarded, "q", BEN, output_rows=8).status_code == 201
    replaced = request(guarded, "PUT", "/v1/queries/q", BEN, json={"sql": ALL_ROWS + " WHERE user_id > 0"})
    assert replaced.json()["budget"]["output_rows"] == 8
    refused = request(guarded, "PUT", "/v1/queries/q", BEN, json={"sql": ALL_ROWS, "budget": {"output_rows": 10}})
    assert refused.status_code == 403
    lowered = request(guarded, "PUT", "/v1/queries/q", BEN, json={"sql": ALL_ROWS, "budget": {"output_rows": 7}})
    assert lowered.json()["budget"]["output_rows"] == 7
    guarded.restart(tokens=TokenRegistry([(BEN, Identity("ben", Role.write, (("output_rows", 2),)))]))
    assert request(guarded, "GET", "/v1/queries/q", BEN).json()["budget"]["output_rows"] == 7
    capped = request(guarded, "PUT", "/v1/queries/q", BEN, json={"sql": ALL_ROWS + " WHERE user_id > 1"})
    assert capped.json()["budget"]["output_rows"] == 2


def test_the_client_sends_budgets(guarded: Service):
    with hr.connect(guarded.url, token=ANN) as session:
        query = session.add(ALL_ROWS, name="q", budget={"output_rows": 4})
        assert query.info["budget"]["output_rows"] == 4
        assert session.replace("q", ALL_ROWS, budget={"output_rows": 2}).info["budget"]["output_rows"] == 2
        with pytest.raises(SessionError, match="budget output_rows of 100,000,000 is above the 5 of user 'ann'"):
            session.add(ALL_ROWS, budget=hr.QueryBudget())
