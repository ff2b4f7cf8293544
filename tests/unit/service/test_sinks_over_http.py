"""Sinks over HTTP: destinations that the operator allows, and no others; the state of each; changes of a live query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SinkError
from headrace.service.allowed_destinations import AllowedDestinations
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.problems import ForbiddenPathError
from support.in_process_service import Service, wait_until

KAFKA = {"kind": "kafka", "brokers": "kafka-1.internal:9092,kafka-2.internal:9092", "topic": "t"}


@pytest.fixture
def destinations(tmp_path: Path) -> AllowedDestinations:
    (tmp_path / "results").mkdir()
    patterns = ["kafka-*.internal:9092", "hooks.example.com", "s3://bucket/results"]
    return AllowedDestinations(patterns, AllowedRoots([tmp_path / "results"], tmp_path / "checkpoint"))


def test_allowed_destinations(destinations: AllowedDestinations, tmp_path: Path):
    assert destinations.parse({**KAFKA, "sasl.password": "env:HEADRACE_SECRET_KAFKA"}).kind == "kafka"
    assert destinations.parse({"kind": "webhook", "url": "https://hooks.example.com:8443/x"}).kind == "webhook"
    assert destinations.parse(f"delta:{tmp_path / 'results' / 'table'}").kind == "delta"
    assert destinations.parse("parquet:s3://bucket/results/q").kind == "parquet"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/results/c.db", "warehouse": f"file://{tmp_path}/results/w"}
    assert destinations.parse({"kind": "iceberg", "table": "a.t", "catalog": catalog}).kind == "iceberg"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**KAFKA, "brokers": "kafka-1.internal:9092,evil.example.com:9092"}, "destination 'evil.example.com:9092'"),
        ({**KAFKA, "brokers": "kafka-1.internal:9093"}, "destination 'kafka-1.internal:9093'"),
        ({**KAFKA, "sasl.password": "env:AWS_SECRET_ACCESS_KEY"}, "reference 'env:AWS_SECRET_ACCESS_KEY'"),
        ({**KAFKA, "sasl.password": "file:/etc/shadow"}, "reference 'file:/etc/shadow'"),
        ({**KAFKA, "sasl.password": "file:///etc/shadow"}, "reference 'file:///etc/shadow'"),
        (
            {"kind": "webhook", "url": "https://hooks.example.com/x", "headers": {"warehouse": "file:///etc/shadow"}},
            "reference 'file:///etc/shadow'",
        ),
        (
            {**KAFKA, "format": "avro", "format_options": {"registry": "http://evil.example.com"}},
            "destination 'evil.example.com'",
        ),
        ({**KAFKA, "sasl.kerberos.kinit.cmd": "touch /tmp/x"}, "option 'sasl.kerberos.kinit.cmd' of a kafka sink"),
        ({**KAFKA, "plugin.library.paths": "/tmp/evil.so"}, "option 'plugin.library.paths' of a kafka sink"),
        ({"kind": "webhook", "url": "http://169.254.169.254/latest"}, "destination '169.254.169.254'"),
        ({"kind": "postgres", "url": "postgresql://hooks.example.com/d?host=10.0.0.1", "table": "t"}, "option 'host'"),
        ({"kind": "postgres", "url": "postgresql:///d?hostaddr=10.0.0.1", "table": "t"}, "option 'hostaddr'"),
        (
            {"kind": "iceberg", "table": "a.t", "catalog": {"type": "sql", "py-catalog-impl": "evil.Catalog"}},
            "option 'py-catalog-impl'",
        ),
        (
            {"kind": "iceberg", "table": "a.t", "catalog": {"type": "sql", "uri": "sqlite:////etc/c.db"}},
            "not below an allowed root",
        ),
        ("delta:/etc/table", "not below an allowed root"),
        ("jsonl:s3://bucket/results-of-others/q", "destination 's3://bucket/results-of-others/q'"),
        ("delta:s3://other/t", "destination 's3://other/t'"),
        ("console", "sink 'console'"),
    ],
)
def test_other_destinations_are_forbidden(destinations: AllowedDestinations, spec, message: str):
    with pytest.raises(ForbiddenPathError) as raised:
        destinations.parse(spec)
    assert message in str(raised.value)


def test_a_service_without_allowed_hosts_takes_none(tmp_path: Path):
    with pytest.raises(ForbiddenPathError, match=r"start the service with --allow-host kafka-1\.internal:9092"):
        AllowedDestinations([], AllowedRoots([], tmp_path)).parse(KAFKA)
    with pytest.raises(SinkError, match="unknown sink"):
        AllowedDestinations([], AllowedRoots([], tmp_path)).parse("nonsense")


def test_a_destination_that_is_down_is_in_the_metrics(serve: Callable[..., Service]):
    service = serve(allowed_hosts=["127.0.0.1:1"])
    service.declare()
    service.add("SELECT price FROM purchases", name="q", sinks=[{"kind": "webhook", "url": "http://127.0.0.1:1/"}])
    rows = [{"user_id": 1, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"}]
    assert service.http.post("/v1/streams/purchases/rows", json=rows).status_code == 202
    labels = '{query="q",sink="1",to="webhook:127.0.0.1:1"}'
    wait_until(lambda: f"headrace_sink_degraded{labels} 1.0" in service.http.get("/metrics").text)
    assert f"headrace_sink_waiting_batches{labels} 1.0" in service.http.get("/metrics").text


def test_statements_make_queries_with_sinks(serve: Callable[..., Service], tmp_path: Path):
    (tmp_path / "results").mkdir()
    service = serve(allowed_roots=[tmp_path / "results"])
    service.declare()

    def run(sql: str) -> tuple[int, dict[str, Any]]:
        answer = service.http.post("/v1/statements", json={"sql": sql})
        return answer.status_code, answer.json()

    def list_sinks() -> list[str]:
        return [sink["kind"] for sink in service.http.get("/v1/queries/q").json()["sinks"] if sink["end_batch"] is None]

    sink = f"WITH (sink = 'parquet', path = '{tmp_path}/results/a')"
    for number in range(2):
        status, answer = run(f"CREATE OR REPLACE QUERY q {sink} AS SELECT price + {number} AS p FROM purchases")
        assert (status, answer["query"], list_sinks()) == (200, "q", ["memory", "parquet"])
    assert service.http.put("/v1/queries/q", json={"sql": "SELECT price FROM purchases"}).status_code in {200, 202}
    assert list_sinks() == ["memory", "parquet"]
    assert run("SHOW QUERIES")[1]["rows"] == [{"name": "q", "sql": "SELECT price FROM purchases"}]
    assert run("DESCRIBE q")[1]["rows"] == [{"column": "price", "type": "DOUBLE"}]
    assert run("CREATE QUERY r WITH (sink = 'jsonl', path = '/etc/r') AS SELECT price FROM purchases")[0] == 403
    assert run("DROP QUERY q")[1]["query"] == "q"
    assert run("SHOW QUERIES")[1]["rows"] == []


def test_sinks_are_added_and_taken_away_over_http(serve: Callable[..., Service], tmp_path: Path):
    results = tmp_path / "results"
    results.mkdir()
    service = serve(allowed_roots=[results])
    service.declare()
    added = service.add("SELECT price FROM purchases", name="q", sinks=[f"jsonl:{results / 'a'}"])
    assert added.status_code == 201, added.text
    assert [(sink["kind"], sink["state"]) for sink in added.json()["sinks"]] == [("memory", "ok"), ("jsonl", "ok")]
    answer = service.http.post("/v1/queries/q/sinks", json={"sink": f"jsonl:{results / 'b'}"})
    assert (answer.status_code, answer.json()) == (201, {"number": 2})
    rows = [{"user_id": 1, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"}]
    assert service.http.post("/v1/streams/purchases/rows", json=rows).status_code == 202
    wait_until(lambda: list((results / "b").glob("part-*")))
    assert service.http.delete("/v1/queries/q/sinks/1").status_code == 204
    wait_until(lambda: [sink["number"] for sink in service.http.get("/v1/queries/q").json()["sinks"]] in ([0, 2], [0, 1, 2]))
    assert service.http.delete("/v1/queries/q/sinks/0").status_code == 409
    forbidden = service.http.post("/v1/queries/q/sinks", json={"sink": KAFKA})
    assert forbidden.status_code == 403
    assert "--allow-host" in forbidden.text
    assert service.http.post("/v1/queries/q/sinks", json={"sink": "nonsense"}).status_code == 422
    assert service.http.delete("/v1/queries/q/sinks/7").status_code == 422
