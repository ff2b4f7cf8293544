"""What a destination answers, and what leads to it: refusals are final, anything that may pass degrades the sink."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.message_formats import make_message_format
from headrace.connectors.message_formats.registry import RegisteredSchema, SchemaRegistry
from headrace.connectors.sinks.webhook_destination import WebhookDestination
from headrace.errors import DestinationUnavailableError, SinkError
from headrace.model.types import Schema
from support.schema_registry import run_registry

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
RECORD = RegisteredSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}))
WIDER = RegisteredSchema("AVRO", RECORD.text.replace("]", ', {"name": "m", "type": "int"}]'))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@dataclass
class Receiver:
    """A server that takes requests; the first ones get other answers, each a status and the place of a redirect."""

    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answers: list[tuple[int, str]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.requests.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            status, place = receiver.answers.pop(0) if receiver.answers else (204, "")
            self.send_response(status)
            self.send_header("Location", place)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


# --- the registry ----------------------------------------------------------------------------------------------------


def test_a_registry_that_fails_is_tried_again_and_a_refused_schema_is_final(monkeypatch: pytest.MonkeyPatch):
    with run_registry(password="secret") as server:
        registry = SchemaRegistry(server.url)
        with pytest.raises(DestinationUnavailableError, match="with 401"):
            registry.register("s", RECORD)
        monkeypatch.setenv("HEADRACE_REGISTRY_USER", "user")
        monkeypatch.setenv("HEADRACE_REGISTRY_PASSWORD", "secret")
        server.failing = True
        with pytest.raises(DestinationUnavailableError, match="with 500"):
            registry.register("s", RECORD)
        server.failing = False
        assert registry.register("s", RECORD) == 1
        with pytest.raises(SinkError, match="with 409") as incompatible:
            registry.register("s", WIDER)
        with pytest.raises(SinkError, match="with 422") as invalid:
            registry.register("s", RegisteredSchema("AVRO", "{"))
        assert not isinstance(incompatible.value, DestinationUnavailableError)
        assert not isinstance(invalid.value, DestinationUnavailableError)
    with pytest.raises(DestinationUnavailableError, match="does not answer"):
        registry.register("s", WIDER)


def test_a_registry_outage_degrades_the_sink_and_loses_no_rows(harness, monkeypatch: pytest.MonkeyPatch):
    """The rows are published when the registry answers again."""
    published: list[int] = []

    class RegisteringDestination:
        def __init__(self, sink: hr.KafkaSink, _writer: str) -> None:
            self.format = make_message_format("avro", Schema.parse("n BIGINT"), sink.format_options)

        def check_columns(self, schema: pa.Schema) -> None:
            pass

        def read_mark(self) -> None:
            return None

        def publish(self, _batch: int, rows: pa.Table) -> None:
            self.format.encode(rows)
            published.extend(rows["n"].to_pylist())

        def close(self) -> None:
            pass

    monkeypatch.setattr("headrace.connectors.sinks.kafka_destination.KafkaDestination", RegisteringDestination)
    monkeypatch.setattr("headrace.runtime.delivery._FIRST_RETRY_SECONDS", 0.01)
    with run_registry() as server:
        server.failing = True
        options = {"registry": server.url, "subject": "t-value"}
        query = harness.session.add(
            "SELECT n FROM s", sink=hr.KafkaSink("127.0.0.1:1", "t", format="avro", format_options=options)
        )
        harness.tick(1, n=1)
        assert (query.status, query.sinks[0].state, query.sinks[0].waiting_batches) == ("live", "degraded", 1)
        assert f"registry '{server.url}' refuses '/subjects/t-value/versions' with 500" in query.sinks[0].problem
        server.failing = False
        harness.tick(2, n=2)
        wait_until(lambda: not query.sinks[0].waiting_batches)
    assert published == [1, 2]


def test_a_secret_that_is_not_there_degrades_the_sink(harness, receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.runtime.delivery._FIRST_RETRY_SECONDS", 0.01)
    query = harness.session.add("SELECT n FROM s", sink=hr.WebhookSink(receiver.url, secret="env:HOOK_SECRET"))
    harness.tick(1, n=1)
    assert (query.status, query.sinks[0].state) == ("live", "degraded")
    assert "environment variable 'HOOK_SECRET' with the option 'secret' cannot be read" in query.sinks[0].problem
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    wait_until(lambda: not query.sinks[0].waiting_batches)
    assert [json.loads(body)["rows"] for _, body in receiver.requests] == [[{"n": 1}]]


def test_a_missing_secret_is_an_error_when_the_query_is_added(harness, tmp_path: Path):
    sink = hr.KafkaSink("127.0.0.1:1", "t", options={"sasl.password": f"file:{tmp_path / 'none'}"})
    with pytest.raises(SinkError, match=r"with the option .sasl\.password. cannot be read"):
        harness.session.add("SELECT n FROM s", sink=sink)


# --- redirects -------------------------------------------------------------------------------------------------------


def test_redirects_lead_nowhere(receiver: Receiver):
    receiver.answers = [(307, "http://127.0.0.1:1/other"), (308, receiver.url), (307, receiver.url)]
    webhook = WebhookDestination(hr.WebhookSink(receiver.url), "w")
    webhook.read_mark()
    for status in (307, 308):
        with pytest.raises(ConnectionError, match=f"status {status}"):
            webhook.publish(0, ROWS)
    webhook.close()
    with pytest.raises(DestinationUnavailableError, match="with 307"):
        SchemaRegistry(receiver.url).register("s", RECORD)
    assert len(receiver.requests) == 3


# --- the process -----------------------------------------------------------------------------------------------------


def test_a_library_that_is_missing_after_a_restart_drops_no_rows(harness, receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.runtime.delivery._FIRST_RETRY_SECONDS", 0.01)
    harness.session.add("SELECT n FROM s", name="q", sink=hr.WebhookSink(receiver.url))
    harness.tick(1, n=1)
    with monkeypatch.context() as patch:
        patch.setattr(hr.WebhookSink, "destination_class", ("headrace.no_such_module", "X"))
        harness.restart()
        harness.tick(2, n=2)
        query = harness.session.query("q")
        assert (query.status, query.sinks[0].state, query.sinks[0].waiting_batches) == ("live", "degraded", 1)
        assert "needs a library that is not installed" in query.sinks[0].problem
    wait_until(lambda: not query.sinks[0].waiting_batches)
    assert [json.loads(body)["rows"] for _, body in receiver.requests] == [[{"n": 1}], [{"n": 2}]]
