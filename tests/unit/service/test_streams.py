"""Streams over HTTP: declare, append, inspect and sample; declarations survive a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.connectors.kafka import control
from headrace.errors import SchemaError
from headrace.service import declared_streams
from headrace.service.allowed_destinations import AllowedDestinations
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.problems import ForbiddenPathError
from support.in_process_service import COLUMNS, Service, timestamp, wait_until

RATE = {"source": "rate", "name": "ads", "rows_per_second": 1000, "generator": "ads", "time": "time"}


def test_a_stream_lists_its_columns(service: Service):
    stream = service.http.get("/v1/streams/purchases").json()
    assert [(column["name"], column["type"]) for column in stream["columns"]] == [
        ("user_id", "INT"), ("gem_pack", "INT"), ("price", "DOUBLE"), ("time", "TIMESTAMP"),
    ]  # fmt: skip
    assert (stream["time"], stream["rows"], stream["latest"], stream["lag_seconds"]) == ("time", 0, None, None)


def test_appended_rows_are_counted_and_sampled(service: Service):
    service.add()
    service.append(1.0, 2.5)
    service.wait_until(lambda: service.session.streams()["purchases"]["rows"] == 2)
    stream = service.http.get("/v1/streams/purchases").json()
    assert (stream["rows"], stream["latest"]) == (2, "2026-01-01T00:00:02.500000Z")
    sample = service.http.get("/v1/streams/purchases/sample", params={"rows": 1}).json()
    assert sample["rows"] == [[1, 1, 10.0, "2026-01-01T00:00:02.500000Z"]]


def test_a_request_with_an_invalid_row_is_refused_as_a_whole(service: Service):
    rows = [{"price": 1.0, "time": timestamp(1)}, {"price": "much", "time": timestamp(2)}]
    answer = service.http.post("/v1/streams/purchases/rows", json=rows)
    assert answer.status_code == 422
    assert "'much'" in answer.json()["error"]
    assert service.http.post("/v1/streams/purchases/rows", json={"price": 1.0}).status_code == 422
    assert service.http.post("/v1/streams/nowhere/rows", json=[]).status_code == 404
    service.http.post("/v1/streams", json=RATE)
    assert service.http.post("/v1/streams/ads/rows", json=[]).status_code == 409


def test_late_rows_are_reported_per_query(service: Service):
    # watermark:  0        →  5
    # windows:    [0, 1) is emitted when 5 is read; a later row of that window is late for `counts`, not for the stateless query
    service.add(name="counts")
    service.add("SELECT price FROM purchases", name="each")
    service.append_and_wait(0.5, 5, 6, 0.7)
    assert service.http.get("/v1/streams/purchases").json()["late"] == {"counts": 1}


def test_streams_survive_a_restart(service: Service):
    assert service.http.post("/v1/streams", json=RATE).status_code == 201
    before = service.http.get("/v1/streams").json()
    service.restart()
    after = service.http.get("/v1/streams").json()
    assert {stream["name"]: stream["source"] for stream in after} == {stream["name"]: stream["source"] for stream in before}


def test_rows_ahead_are_dropped_also_after_a_restart(service: Service):
    with hr.connect(service.url) as session:
        session.create_stream("early", hr.MemorySource(COLUMNS), time="time", max_ahead="1 hour")
        session.append("early", [{"user_id": 1, "time": "9999-01-01T00:00:00Z"}])
        service.wait_until(lambda: service.session.streams()["early"]["ahead"] == 1)
    service.restart()
    with hr.connect(service.url) as session:
        session.append("early", [{"user_id": 1, "time": "9999-01-01T00:00:00Z"}])
        service.wait_until(lambda: service.session.streams()["early"]["ahead"] == 2)
        assert session.streams()["early"]["max_ahead_seconds"] == 3600
        assert session.streams()["purchases"]["max_ahead_seconds"] is None


def test_an_invalid_stream_is_refused_and_not_saved(service: Service):
    invalid_declarations = [
        {"source": "memory", "name": "purchases", "columns": COLUMNS, "time": "time"},  # taken
        {"source": "memory", "name": "a", "columns": "x NOTYPE", "time": "x"},
        {"source": "memory", "name": "a", "columns": COLUMNS, "time": "nope"},
        {"source": "memory", "name": "a b", "columns": COLUMNS, "time": "time"},
        {"source": "memory", "name": "a", "columns": COLUMNS, "time": "time", "watermark": "soon"},
        {"source": "memory", "name": "a", "columns": COLUMNS, "time": "time", "max_ahead": "soon"},
        {"source": "memory", "name": "a", "columns": COLUMNS, "time": "time", "max_ahead": 5},
        {"source": "rate", "name": "a", "rows_per_second": 0, "time": "time"},
        {"source": "tcp", "name": "a", "address": "127.0.0.1:1", "stream": "s", "time": "time"},
        {"source": "kafka", "name": "a", "time": "time"},
    ]
    for declaration in invalid_declarations:
        answer = service.http.post("/v1/streams", json=declaration)
        assert answer.status_code in (409, 422), (declaration, answer.text)
        assert answer.json()["error"]
    assert [declaration["name"] for declaration in service.http.get("/v1/streams").json()] == ["purchases"]
    service.restart()
    assert [declaration["name"] for declaration in service.http.get("/v1/streams").json()] == ["purchases"]


def test_a_stream_is_saved_before_the_session_creates_it(service: Service, monkeypatch):
    path = service.session.checkpoint_path / "service-streams.json"
    file_texts, create = [path.read_text()], service.session.create_stream

    def record_and_create(*args, **options):
        file_texts.append(path.read_text())
        create(*args, **options)

    monkeypatch.setattr(service.session, "create_stream", record_and_create)
    service.declare("other")
    assert ['"other"' in text for text in file_texts] == [False, True]


def test_a_missing_source_does_not_keep_the_service_from_starting(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(declared_streams, "_FIRST_DELAY_SECONDS", 0.01)
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "one.csv").write_text("k,time\n1,2026-01-01T00:00:00Z\n")
    service = serve(allowed_roots=[tmp_path])
    declaration = {"source": "files", "name": "rows", "path": str(folder), "format": "csv", "time": "time"}
    answer = service.http.post("/v1/streams", json={**declaration, "columns": "k INT, time TIMESTAMP"})
    assert answer.status_code == 201, answer.text
    service.close()
    (folder / "one.csv").unlink()
    folder.rmdir()
    service.restart()
    stream = service.http.get("/v1/streams/rows").json()
    assert stream["status"] == "detached"
    assert "does not exist" in stream["error"]
    assert service.http.post("/v1/streams", json={**declaration, "columns": "k INT, time TIMESTAMP"}).status_code == 409
    folder.mkdir()
    wait_until(lambda: service.session.streams()["rows"]["status"] == "ok")
    assert service.http.get("/v1/streams/rows").json()["error"] is None


# Dropped and degraded streams

FILES = {"source": "files", "name": "rows", "format": "csv", "time": "time", "columns": "k INT, time TIMESTAMP"}


@pytest.fixture
def rows_folder(service: Service, tmp_path: Path) -> Path:
    """A folder that requests to the service may name."""
    (tmp_path / "rows").mkdir()
    service.allowed_roots = [tmp_path]
    service.restart()
    return tmp_path / "rows"


def write_bad_line(folder: Path) -> None:
    (folder / "1.csv").write_text("k,time\n1,2026-01-01T00:00:00Z\nx,2026-01-01T00:00:01Z\n")


def test_a_dropped_stream_stays_dropped_after_a_restart(service: Service):
    service.http.post("/v1/streams", json=RATE)
    service.add("SELECT ad_id FROM ads", name="reads_ads")
    refused = service.http.delete("/v1/streams/ads")
    assert refused.status_code == 409
    assert refused.json()["detail"] == "queries: reads_ads"
    assert service.http.delete("/v1/streams/ads", params={"cascade": True}).status_code == 204
    assert service.http.get("/v1/streams/ads").status_code == 404
    assert service.http.delete("/v1/streams/ads").status_code == 404
    service.wait_until(lambda: "ads" not in service.session._coordinator.state.streams)
    service.restart()
    assert [stream["name"] for stream in service.http.get("/v1/streams").json()] == ["purchases"]
    assert service.http.post("/v1/streams", json=RATE).status_code == 201


def test_a_detached_stream_can_be_dropped(service: Service, rows_folder: Path):
    assert service.http.post("/v1/streams", json={**FILES, "path": str(rows_folder)}).status_code == 201
    service.add("SELECT k FROM rows", name="of_rows")
    service.close()
    rows_folder.rmdir()
    service.restart()
    assert service.http.delete("/v1/streams/rows", params={"cascade": True}).status_code == 204
    assert service.http.get("/v1/streams/rows").status_code == 404
    service.restart()
    assert service.http.get("/v1/streams/rows").status_code == 404


def test_a_degraded_stream_is_reported_and_others_go_on(service: Service, rows_folder: Path):
    service.http.post("/v1/streams", json={**FILES, "path": str(rows_folder)})
    service.add("SELECT k FROM rows", name="of_rows")
    service.add("SELECT price FROM purchases", name="of_purchases")
    write_bad_line(rows_folder)
    wait_until(lambda: service.http.get("/v1/streams/rows").json()["status"] == "degraded")
    service.append_and_wait(1.0)
    assert "1.csv" in service.http.get("/v1/streams/rows").json()["error"]
    assert 'headrace_stream_degraded{stream="rows"} 1.0' in service.http.get("/metrics").text
    (rows_folder / "1.csv").unlink()
    wait_until(lambda: service.http.get("/v1/streams/rows").json()["status"] == "ok")
    events = [event for event in service.http.get("/v1/events").json() if event["kind"] in {"degraded", "recovered"}]
    assert [event["kind"] for event in events] == ["degraded", "recovered"]
    assert "stream rows is degraded" in events[0]["text"]


def test_skipped_lines_are_reported(service: Service, rows_folder: Path):
    declaration = {**FILES, "path": str(rows_folder), "on_error": "skip_row"}
    assert service.http.post("/v1/streams", json=declaration).status_code == 201
    service.add("SELECT k FROM rows", name="of_rows")
    write_bad_line(rows_folder)
    service.wait_until(lambda: service.session.streams()["rows"]["skipped_rows"] == 1)
    stream = service.http.get("/v1/streams/rows").json()
    assert (stream["status"], stream["rows"], stream["skipped_rows"]) == ("ok", 1, 1)
    assert [(row["line"], row["text"]) for row in stream["skipped_samples"]] == [(3, "x,2026-01-01T00:00:01Z")]
    metrics = service.http.get("/metrics").text
    assert 'headrace_stream_skipped_rows_total{stream="rows"} 1.0' in metrics
    assert 'headrace_stream_lost_messages_total{stream="rows"} 0.0' in metrics
    assert service.http.get("/v1/streams/rows/sample").json()["rows"] == [[1, "2026-01-01T00:00:00Z"]]


def test_files_of_messages_by_requests(service: Service, rows_folder: Path):
    options = {"format": "json", "format_options": {"field.k": "payload.k"}}
    declaration = {**FILES, **options, "path": str(rows_folder)}
    refused = service.http.post("/v1/streams", json={**declaration, "format_options": {"registry": "http://127.0.0.1:1"}})
    assert (refused.status_code, "unknown option 'registry' of json files" in refused.text) == (422, True)
    assert service.http.post("/v1/streams", json=declaration).status_code == 201
    service.restart()
    service.add("SELECT k FROM rows", name="of_rows")
    (rows_folder / "1.jsonl").write_text('{"payload": {"k": 7}, "time": "2026-01-01T00:00:00Z"}\n')
    page = service.http.get("/v1/queries/of_rows/results", params={"wait": 60}).json()
    assert page["rows"] == [[7]]


KAFKA = {
    "source": "kafka",
    "name": "k",
    "topic": "t",
    "brokers": "127.0.0.1:1",
    "columns": "v INT, time TIMESTAMP",
    "time": "time",
}


def test_statements_declare_and_drop_streams(service: Service):
    statement = (
        "CREATE STREAM ads (WATERMARK FOR time AS time - INTERVAL '1 second') WITH (connector = 'rate', rows_per_second = 10)"
    )
    assert service.http.post("/v1/statements", json={"sql": statement}).json()["stream"] == "ads"
    service.restart()
    stream = service.http.get("/v1/streams/ads").json()
    assert (stream["delay_seconds"], stream["watermark_by"], stream["partitions"]) == (1.0, "stream", [])
    assert service.http.post("/v1/statements", json={"sql": "DROP STREAM ads"}).status_code == 200
    for sql, message in (
        ("SHOW TABLES", "SHOW"),
        ("CREATE STREAM s (a INT) WITH ()", "stream 's' has no event time"),
        (
            "CREATE STREAM s (WATERMARK FOR t AS t) WITH (connector = 'rate', rows_per_second = -1)",
            "rows_per_second: Input should",
        ),
    ):
        answer = service.http.post("/v1/statements", json={"sql": sql})
        assert answer.status_code == 422
        assert message in answer.text


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.password": "env:AWS_SECRET_ACCESS_KEY"},
        {"sasl.password": "file:/etc/passwd"},
        {"sasl.password": "env:HEADRACE_SECRET_OF_ANOTHER_SERVER"},
        {"sasl.oauthbearer.token.endpoint.url": "https://evil.example.com"},
        {"ssl.ca.location": "/etc/passwd"},
        {"sasl.kerberos.kinit.cmd": "touch /tmp/x"},
    ],
)
def test_options_of_a_kafka_client_name_nothing_that_requests_may_not_read(service: Service, options: dict[str, str]):
    assert service.http.post("/v1/streams", json={**KAFKA, "options": options}).status_code == 403


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for Kafka's brokers, which do not exist, for a shorter time."""
    monkeypatch.setattr(control, "_TIMEOUT_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_registry_gets_no_password_unless_the_operator_allows_its_address(serve: Callable[..., Service]):
    service = serve(allowed_hosts=["registry.internal:8081"])
    for registry in ("http://evil.example.com", "http://registry.internal:8081@evil.example.com", "http://registry.internal:80"):
        declaration = {**KAFKA, "format": "avro", "format_options": {"registry": registry}}
        answer = service.http.post("/v1/streams", json=declaration)
        assert (answer.status_code, "is not allowed in a request" in answer.text) == (403, True)
    allowed = {**KAFKA, "format": "avro", "format_options": {"registry": "http://registry.internal:8081"}}
    assert "the brokers of Kafka topic 't' cannot be reached" in service.http.post("/v1/streams", json=allowed).text


def test_dead_letters_go_where_requests_may_write(tmp_path: Path):
    def open_stream(target: str, *hosts: str) -> str:
        stream = declared_streams.KafkaStream.model_validate({**KAFKA, "on_error": "skip_row", "dead_letter": target})
        allowed = AllowedDestinations(hosts, AllowedRoots([tmp_path], None))
        return stream.open_within(allowed)._range_options["dead_letter"]

    assert open_stream("kafka:letters", "127.0.0.1:1") == "kafka:letters"
    assert open_stream(f"jsonl:{tmp_path}/letters") == f"{tmp_path}/letters"
    with pytest.raises(ForbiddenPathError, match=r"destination '127\.0\.0\.1:1' is not allowed"):
        open_stream("kafka:letters")
    with pytest.raises(ForbiddenPathError, match="is not below an allowed root"):
        open_stream("jsonl:/etc/letters", "127.0.0.1:1")
    with pytest.raises(SchemaError, match="with another topic than that of the stream"):
        open_stream("kafka:t", "127.0.0.1:1")


@pytest.mark.usefixtures("impatient")
def test_a_kafka_stream_is_declared_by_a_request(serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch):
    service = serve(allowed_hosts=["127.0.0.1:1"])
    assert service.http.post("/v1/streams", json={**KAFKA, "options": {"sasl.password": "hunter2"}}).status_code == 422
    monkeypatch.setenv("HEADRACE_SECRET_KAFKA", "hunter2")
    answer = service.http.post("/v1/streams", json={**KAFKA, "options": {"sasl.password": "env:HEADRACE_SECRET_KAFKA"}})
    assert "the brokers of Kafka topic 't' cannot be reached" in answer.json()["error"]
