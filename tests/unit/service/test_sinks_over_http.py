"""Sinks over HTTP: destinations that the operator allows, and no others; the state of each; changes of a live query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SinkError
from headrace.service.allowed_destinations import AllowedDestinations
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.problems import ForbiddenPathError
from support.in_process_service import Service, wait_until

KAFKA = {"kind": "kafka", "brokers": "kafka-1.internal:9092,kafka-2.internal:9092", "topic": "t"}


CATALOG_URI = "https://hooks.example.com/catalog"


def iceberg(**catalog: str) -> dict[str, Any]:
    return {"kind": "iceberg", "table": "a.t", "catalog": {"type": "sql", "uri": "postgresql://hooks.example.com/d", **catalog}}


def postgres(url: str) -> dict[str, Any]:
    return {"kind": "postgres", "url": url, "table": "t"}


def webhook(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    return {"kind": "webhook", "url": url, "headers": headers or {}}


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
    assert destinations.parse(iceberg(warehouse=f"{tmp_path}/results/w")).kind == "iceberg"
    assert destinations.parse(iceberg(uri="postgresql+psycopg2://me@hooks.example.com:5432/d", warehouse="s3://bucket/results"))
    assert destinations.parse(iceberg(type="rest", uri=CATALOG_URI, warehouse="prod", token="env:HEADRACE_SECRET_T"))
    assert destinations.parse(postgres("postgresql://me@hooks.example.com:5432/d?sslmode=require")).kind == "postgres"
    assert destinations.parse(webhook("https://hooks.example.com/a@b?c=%20", {"X-Team": "a"})).kind == "webhook"
    assert destinations.parse({**KAFKA, "brokers": "SSL://kafka-1.internal:9092, kafka-2.internal:9092"}).kind == "kafka"


def test_a_link_below_a_root_is_no_way_out(destinations: AllowedDestinations, tmp_path: Path):
    (tmp_path / "others" / "deep").mkdir(parents=True)
    (tmp_path / "results" / "link").symlink_to(tmp_path / "others" / "deep")
    (tmp_path / "results" / "a*").symlink_to(tmp_path / "others")
    for path in ("link/q", "link/../q", "../others", "a*/q"):
        with pytest.raises(ForbiddenPathError):
            destinations.parse(f"jsonl:{tmp_path}/results/{path}")


@pytest.mark.parametrize("table", ["../../etc.t", "a/b.t", "a.t?x", "a.%2e%2e", "a..t"])
def test_the_name_of_an_iceberg_table_is_no_path(table: str):
    with pytest.raises(SinkError, match="option 'table'"):
        hr.IcebergSink(table)


def test_the_table_of_marks_is_no_destination():
    with pytest.raises(SinkError, match="headrace_marks"):
        hr.PostgresSink("postgresql://h/d", "public.headrace_marks")


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
        (iceberg(warehouse="/etc/evil"), "not below an allowed root"),
        (iceberg(warehouse="file:/etc/evil"), "not below an allowed root"),
        (iceberg(warehouse="relative/evil"), "destination 'relative/evil'"),
        (iceberg(warehouse="file://etc/evil"), "destination 'file://etc/evil'"),
        (iceberg(warehouse="s3://evil/x"), "destination 's3://evil/x'"),
        (iceberg(warehouse="s3a://bucket/results"), "destination 's3a://bucket/results'"),
        (iceberg(warehouse="hdfs://evil/x"), "destination 'hdfs://evil/x'"),
        (iceberg(type="rest", uri=CATALOG_URI, warehouse="s3://evil/x"), "destination 's3://evil/x'"),
        (iceberg(uri="sqlite:///relative.db"), "destination 'relative.db'"),
        (iceberg(uri="sqlite://"), "address 'sqlite://'"),
        (iceberg(uri="sqlite+pysqlite:////etc/c.db"), "not below an allowed root"),
        (iceberg(uri="postgresql:///d"), "address 'postgresql:///d'"),
        (iceberg(uri="postgresql://hooks.example.com/d?host=evil"), "address 'postgresql://hooks.example.com/d?host=evil'"),
        (iceberg(uri="postgresql://hooks.example.com:x/y@evil/d"), "address 'postgresql://hooks.example.com:x/y@evil/d'"),
        (iceberg(uri="mysql://hooks.example.com/d"), "address 'mysql://hooks.example.com/d'"),
        (iceberg(type="rest", uri="https://evil.example.com/catalog"), "destination 'evil.example.com'"),
        (iceberg(type="rest", uri="http://hooks.example.com\\@evil/"), "address"),
        (iceberg(uri="env:HEADRACE_SECRET_URI"), "address 'env:HEADRACE_SECRET_URI'"),
        (iceberg(type="hive", uri="thrift://hooks.example.com:1"), "catalog 'hive'"),
        (iceberg(type="in-memory"), "catalog 'in-memory'"),
        ({"kind": "iceberg", "table": "a.t", "catalog": {"name": "prod"}}, "option 'name'"),
        ({"kind": "iceberg", "table": "a.t"}, "catalog 'none'"),
        (iceberg(**{"py-io-impl": "evil.FileIO"}), "option 'py-io-impl'"),
        (iceberg(**{"s3.endpoint": "http://evil"}), "option 's3.endpoint'"),
        ({"kind": "delta", "path": "s3://bucket/results/t", "storage_options": {"endpoint": "http://e"}}, "option 'endpoint'"),
        ("delta:s3://bucket/results/../others/t", "destination 's3://bucket/results/../others/t'"),
        ("delta:s3://bucket/results/%2e%2e/others/t", "destination 's3://bucket/results/%2e%2e/others/t'"),
        ("parquet:s3://bucket/RESULTS/q", "destination 's3://bucket/RESULTS/q'"),
        (postgres("postgresql:///d"), "address 'postgresql:///d'"),
        (postgres("postgresql://hooks.example.com,evil/d"), "destination 'evil'"),
        (postgres("postgresql://hooks.example.com?x@evil/d"), "option 'x@evil/d'"),
        (postgres("postgresql://hooks.example.com#@evil/d"), "address 'postgresql://hooks.example.com#@evil/d'"),
        (
            postgres("postgresql://hooks.example.com?sslmode=x@evil/d"),
            "address 'postgresql://hooks.example.com?sslmode=x@evil/d'",
        ),
        (postgres("postgresql://hooks.example.com/d?sslmode=a#@evil/d"), "address"),
        (postgres("postgresql://%2Fvar%2Frun/d"), "address 'postgresql://%2Fvar%2Frun/d'"),
        (postgres("postgresql://hooks.example.com/d?service=prod"), "option 'service'"),
        (postgres("postgresql://hooks.example.com/d?sslrootcert=/etc/shadow"), "option 'sslrootcert'"),
        (postgres("postgresql://hooks.example.com/d?ho%73t=evil"), "option 'host'"),
        (postgres("postgresql://hooks.example.com?@evil/d"), "option '@evil/d'"),
        (webhook("https://hooks.example.com/x", {"Host": "internal"}), "header 'Host'"),
        (webhook("https://hooks.example.com/x", {"Transfer-Encoding": "chunked"}), "header 'Transfer-Encoding'"),
        (webhook("https://hooks.example.com/x", {"X-Forwarded-For": "127.0.0.1"}), "header 'X-Forwarded-For'"),
        (webhook("http://hooks.example.com\\.evil/"), "destination 'hooks.example.com\\.evil'"),
        (
            {**KAFKA, "format": "avro", "format_options": {"registry": "http://hooks.example.com?x@evil"}},
            "address 'http://hooks.example.com?x@evil'",
        ),
        ({**KAFKA, "brokers": "kafka-1.internal:9092 evil:9092"}, "destination 'kafka-1.internal:9092 evil:9092'"),
        ({**KAFKA, "ssl.ca.location": "/etc/shadow"}, "option 'ssl.ca.location' of a kafka sink"),
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
    status, answer = run(f"ALTER QUERY q ADD SINK WITH (sink = 'jsonl', path = '{tmp_path}/results/b')")
    assert (status, answer["query"], answer["rows"]) == (200, "q", [{"number": 2}])
    assert run("SHOW SINKS")[1]["rows"][2]["sink"] == f"jsonl:{tmp_path}/results/b"
    assert run("ALTER QUERY q DROP SINK 2 DISCARD")[0] == 200
    wait_until(lambda: len(list_sinks()) == 2)
    assert run("ALTER QUERY q DROP SINK 0")[0] == 409
    assert run("ALTER QUERY q ADD SINK WITH (sink = 'jsonl', path = '/etc/r')")[0] == 403
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
