"""How-tos as a reader works through them, with real servers: the blocks of a section run as they are written.

Only addresses are replaced, by those of the servers of the tests. Results are read as other programs read them.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from project import ROOT, Document
from test_tutorial import Reader, read_blocks

from headrace.bench.driver.kafka_broker import KafkaBroker
from support.preloaded_process import PreloadedPopen

BROKER = "127.0.0.1:9092"
COMMAND = [sys.executable, "-c", "from headrace.cli import main; main()"]
SINKS = ROOT / "docs" / "sinks.md"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    assert shutil.which("curl"), "the how-tos use curl: apt-get install curl"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "examples" / "data")
    reader = Reader(tmp_path)
    yield reader
    if reader.service is not None:
        reader.service.kill()
        reader.service.wait()


def read_section(path: Path, heading: str, replaced: dict[str, str]) -> str:
    text = Document(path).get_section(heading)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return text


def find_block(section: str, language: str) -> str:
    (block,) = [block.text for block in read_blocks(section) if block.language == language]
    return block


def run_session(reader: Reader, toml: str) -> None:
    """Save a block as a session file, and run it over the existing input."""
    (reader.folder / "session.toml").write_text(toml, encoding="utf-8")
    command = [*COMMAND, "run", "session.toml", "--once", "--backend", "local"]
    with (reader.folder / "run.log").open("w") as log:
        run = PreloadedPopen(command, cwd=reader.folder, env=reader.environment, stdout=log, stderr=log, text=True)
        assert run.wait(60) == 0, (reader.folder / "run.log").read_text()


def list_purchases(where: str) -> list[tuple[Any, ...]]:
    """Return users and prices of the example, as DuckDB reads them."""
    file = ROOT / "examples" / "data" / "purchases-1.csv"
    return duckdb.sql(f"SELECT user_id, price FROM read_csv('{file}') WHERE {where} ORDER BY ALL").fetchall()


# --- kafka -----------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_kafka_to_a_live_chart(reader: Reader, kafka_broker: KafkaBroker):
    section = read_section(ROOT / "docs" / "kafka.md", "Kafka to a live chart in three minutes", {BROKER: kafka_broker.address})
    blocks = [block for block in read_blocks(section) if block.saved_as or block.language == "sh"]
    assert [block.saved_as or block.text.split()[0] for block in blocks] == [
        "produce.py", "python", "headrace", "live.sql", "headrace", "curl",
    ]  # fmt: skip
    for block in blocks:
        reader.work_through(block)
    rows = json.loads(reader.output or "")["rows"]
    assert len(rows) >= 3
    assert {gem_pack for _, gem_pack, _ in rows} <= {0, 1, 2}
    assert all(revenue > 0 for _, _, revenue in rows)
    reader.stop_service()


@pytest.mark.kafka
def test_kafka_to_kafka(reader: Reader, kafka_broker: KafkaBroker):
    """Each window is in the topic once, with the sum of its messages, for a plain consumer that reads committed messages."""
    names = {'topic = "purchases"': 'topic = "how-to-purchases"', 'topic = "revenue"': 'topic = "how-to-revenue"'}
    section = read_section(SINKS, "How to get from Kafka to Kafka, exactly once", {BROKER: kafka_broker.address, **names})
    kafka_broker.create_topic("how-to-purchases")
    kafka_broker.create_topic("how-to-revenue")
    expected: defaultdict[tuple[str, int], float] = defaultdict(float)
    producer = Producer({"bootstrap.servers": kafka_broker.address})
    for number in range(200):
        row = {"user_id": number, "gem_pack": number % 3, "price": 0.5, "time": f"2026-01-01T00:00:{number // 10:02}Z"}
        producer.produce("how-to-purchases", json.dumps(row), partition=number % 4)
        expected[f"2026-01-01T00:00:{number // 50 * 5:02}", number % 3] += 0.5
    assert producer.flush(30) == 0
    run_session(reader, find_block(section, "toml"))
    messages = read_committed(kafka_broker, "how-to-revenue")
    found = [((row["window_start"][:19].replace(" ", "T"), row["gem_pack"]), row["revenue"]) for row in messages]
    assert len(found) == len(dict(found))
    assert dict(found) == expected


def read_committed(broker: KafkaBroker, topic: str) -> list[dict[str, Any]]:
    settings = {"bootstrap.servers": broker.address, "group.id": "how-to", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    partitions = list(consumer.list_topics(topic, 10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    rows: list[dict[str, Any]] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(20)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            rows.append(json.loads(message.value()))
    consumer.close()
    return rows


# --- alerts ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """Return the host of an HTTP server, and the list of the requests that it gets."""
    requests: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_alerts(reader: Reader, receiver: tuple[str, list[tuple[dict[str, str], bytes]]]):
    address, requests = receiver
    section = read_section(SINKS, "How to send alerts", {"https://alerts.example.com": address})
    reader.environment["ALERT_SECRET"] = "s3cret"
    run_session(reader, find_block(section, "toml"))
    namespace: dict[str, Any] = {}
    exec(find_block(section, "python"), namespace)
    is_genuine = namespace["is_genuine"]
    assert requests
    for headers, body in requests:
        assert is_genuine(headers, body, b"s3cret")
        assert not is_genuine(headers, body, b"another")
        assert not is_genuine(headers, body + b" ", b"s3cret")
    rows = [row for _, body in requests for row in json.loads(body)["rows"]]
    assert sorted((row["user_id"], row["price"]) for row in rows) == list_purchases("price > 90 AND time IS NOT NULL")
    assert len({headers["Idempotency-Key"] for headers, _ in requests}) == len(requests)


# --- a lake ----------------------------------------------------------------------------------------------------------


def test_a_lake_table(reader: Reader):
    section = read_section(SINKS, "How to keep a lake table", {})
    run_session(reader, find_block(section, "toml"))
    namespace: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(find_block(section, "py"), namespace)
    delta, iceberg = namespace["delta"], namespace["iceberg"]
    order = [("window_start", "ascending"), ("gem_pack", "ascending")]
    rows = delta.sort_by(order).to_pylist()
    assert len(rows) > 20
    assert rows == iceberg.sort_by(order).to_pylist()
    assert len({(row["window_start"], row["gem_pack"]) for row in rows}) == len(rows)
