"""Dead letters for a topic: in order and once, also after a crash, and without waiting for brokers.

workers write files ─ commit ─ a thread sends them with a mark ─ and deletes them
                             └─ crash ─ the next session reads the mark
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors import OutputPlace, PendingFile, Range
from headrace.connectors.kafka.rejected import REJECTED_SCHEMA
from headrace.connectors.letter_topic import LetterSink, write_letters
from headrace.runtime import letter_publication
from headrace.runtime.letter_publication import LetterPublisher

CLIENT = '{"bootstrap.servers": "old:1", "isolation.level": "read_uncommitted", "linger.ms": 5, "check.crcs": true}'


class FakeTopic:
    """A topic that keeps its mark; `before` is called with each publication."""

    def __init__(self) -> None:
        self.mark: int | None = None
        self.offsets: list[int] = []
        self.connections: list[tuple[LetterSink, str]] = []
        self.closed = 0
        self.before: Callable[[], object] = lambda: None

    def connect(self, sink: LetterSink, writer: str) -> FakeTopic:
        self.connections.append((sink, writer))
        return self

    def read_mark(self) -> int | None:
        return self.mark

    def publish(self, batch: int, rows: pa.Table) -> None:
        self.before()
        assert rows["stream"].unique().to_pylist() == ["s"]
        self.mark = batch
        self.offsets += rows["offset"].to_pylist()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> FakeTopic:
    fake = FakeTopic()
    monkeypatch.setattr(LetterSink, "connect", lambda sink, writer: fake.connect(sink, writer))  # noqa: PLW0108  bound
    monkeypatch.setattr(letter_publication, "_PATIENCE_SECONDS", 30.0)
    return fake


@pytest.fixture
def publisher(tmp_path: Path) -> LetterPublisher:
    checkpoint: Any = SimpleNamespace(location=str(tmp_path), identity="0123456789abcdefxyz", check_owner=lambda: None)
    return LetterPublisher(checkpoint)


def write(folder: Path, batch: int) -> PendingFile:
    """Write a dead letter whose offset is the batch."""
    rows = {name: [[] if name == "headers" else None] for name in REJECTED_SCHEMA.names} | {"offset": [batch]}
    split = Range("s", "kafka", "t", 0, 1, 1, {"dead_letter": "kafka:letters", "client": CLIENT})
    return write_letters(str(folder), split, OutputPlace(batch, 0, 0, "c"), pa.table(rows, schema=REJECTED_SCHEMA))


def list_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.arrow"))


def test_batches_are_sent_once(topic: FakeTopic, publisher: LetterPublisher, tmp_path: Path):
    files = [write(tmp_path, batch) for batch in (3, 4)]
    assert publisher.publish("s", files) == ((), None)
    assert publisher.publish("s", [write(tmp_path, 5)]) == ((), None)
    assert (topic.mark, topic.offsets, list_files(tmp_path)) == (5, [3, 4, 5], [])
    ((sink, writer),) = topic.connections
    assert (sink.brokers, sink.topic, sink.options, writer) == (
        "old:1",
        "letters",
        {"linger.ms": "5", "check.crcs": "true"},
        "0123456789abcdef-letters-s",
    )
    publisher.close()
    assert topic.closed == 1


def test_what_was_sent_before_a_crash_is_not_sent_again(topic: FakeTopic, publisher: LetterPublisher, tmp_path: Path):
    deleted, sent, waiting = (write(tmp_path, batch) for batch in (6, 7, 8))
    Path(deleted.folder, deleted.key).unlink()
    topic.mark = 7
    publisher.recover([deleted, sent, waiting])
    assert publisher.publish("s", [deleted, sent, waiting]) == ((), None)
    assert (topic.offsets, list_files(tmp_path)) == ([8], [])


def test_brokers_may_have_moved(topic: FakeTopic, publisher: LetterPublisher, tmp_path: Path):
    publisher.publish("s", [write(tmp_path, 1)], {"bootstrap.servers": "new:1"})
    assert [sink.brokers for sink, _ in topic.connections] == ["new:1"]


def test_a_file_that_is_gone_is_an_error(topic: FakeTopic, publisher: LetterPublisher, tmp_path: Path):
    file = write(tmp_path, 1)
    Path(file.folder, file.key).unlink()
    left, error = publisher.publish("s", [file])
    assert left == (file,)
    assert "dead letters of stream 's' cannot be sent" in str(error)
    assert "is gone" in str(error)
    assert not topic.connections


def test_a_slow_topic_holds_no_batch_up(
    topic: FakeTopic, publisher: LetterPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(letter_publication, "_PATIENCE_SECONDS", 0.0)
    release = threading.Event()
    topic.before = lambda: release.wait(30)
    first = write(tmp_path, 1)
    assert publisher.publish("s", [first]) == ((first,), None)
    assert not publisher.is_due("s")
    second = write(tmp_path, 2)
    assert publisher.publish("s", [first, second]) == ((first, second), None)
    release.set()
    running = publisher._senders["s"].running
    assert running is not None
    assert running.ended.wait(30)
    assert publisher.is_due("s")
    monkeypatch.setattr(letter_publication, "_PATIENCE_SECONDS", 30.0)
    assert publisher.publish("s", [first, second]) == ((), None)
    assert topic.offsets == [1, 2]


def test_a_failure_is_repeated_after_a_growing_delay(
    topic: FakeTopic, publisher: LetterPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = 100.0
    monkeypatch.setattr(letter_publication, "time", SimpleNamespace(monotonic=lambda: now))
    failures = [ConnectionError("no brokers"), ConnectionError("no brokers")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    topic.before = fail
    file = write(tmp_path, 1)
    for delay in (0.25, 0.5):
        left, error = publisher.publish("s", [file])
        assert (left, "ConnectionError: no brokers" in str(error), publisher.is_due("s")) == ((file,), True, False)
        attempts = len(topic.connections)
        assert publisher.publish("s", [file]) == ((file,), error)
        assert len(topic.connections) == attempts
        now += delay
        assert publisher.is_due("s")
    assert publisher.publish("s", [file]) == ((), None)
    assert (topic.offsets, topic.closed, len(topic.connections)) == ([1], 2, 3)
