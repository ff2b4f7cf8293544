"""Admission control: the latency forecast, and the response to a refused query."""

from __future__ import annotations

from collections.abc import Callable

from headrace.service.admission import ServiceLimits, forecast_latency
from support.in_process_service import COUNT_QUERY, Service

OTHER = "SELECT user_id, gem_pack, AVG(price) AS a FROM HOP(purchases, '10 seconds', '1 second') GROUP BY user_id, gem_pack"


def add_query_and_rows(service: Service) -> None:
    service.declare()
    service.add(name="first")
    for second in range(8):
        service.append(*(second + place / 100 for place in range(100)))
        service.wait_until(lambda rows=100 * (second + 1): service.session.streams()["purchases"]["rows"] == rows)


def test_an_equal_query_adds_no_cost(serve: Callable[..., Service]):
    service = serve()
    add_query_and_rows(service)
    same, other = (service.session.statistics.estimate_growth(sql) for sql in (COUNT_QUERY, OTHER))
    assert same.after == same.before > 0
    assert other.after > other.before
    assert other.after <= other.before + other.standalone
    expected = forecast_latency(service.session, OTHER)
    assert expected is not None
    assert expected.growth > 1
    assert expected.expected_s >= expected.current_s


def test_a_query_above_the_latency_bound_is_refused_with_the_forecast(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(latency_s=1e-6))
    add_query_and_rows(service)
    answer = service.add(OTHER)
    assert answer.status_code == 429
    assert "above the bound of 0.00 s" in answer.json()["error"]
    assert "would grow by" in answer.json()["detail"]
    assert answer.headers["Retry-After"] == "60"
    assert service.http.put("/v1/queries/first", json={"sql": OTHER}).status_code == 429
    assert service.add(COUNT_QUERY, name="same").status_code == 201  # adds no cost


def test_queries_are_admitted_before_a_forecast_exists(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(latency_s=1e-6))
    service.declare()
    assert service.add(OTHER).status_code == 201


def test_live_queries_do_not_count_as_waiting(serve):
    service = serve(limits=ServiceLimits(waiting=1))
    service.declare()
    for name in ("first", "second"):
        assert service.add(name=name).status_code == 201
        service.wait_until(lambda name=name: service.session.query(name).status == "live")
