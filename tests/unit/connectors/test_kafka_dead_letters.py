"""Messages that are no rows: dead letters in files and topics have all of their bytes, and come once."""

from __future__ import annotations

import base64
import json
import threading
import time
from functools import partial

import pytest

import headrace as hr
from headrace.errors import SchemaError
from headrace.storage.fault_points import install_fault_hook
from support.kafka_feed import COLUMNS, Feed, finish_letters, read_all, read_topic

BROKEN = b"\xff\x00{"


def send_broken(feed: Feed, number: int = 0) -> None:
    feed.put(BROKEN, key=b"\xfe\x01", timestamp=1_767_225_600_123, headers=[("h", b"\xfd"), ("n", None), ("t", str(number))])
    feed.producer.flush()


@pytest.mark.kafka
def test_a_dead_letter_in_a_file_has_all_bytes(feed: Feed):
    send_broken(feed)
    feed.put("{text", key="k")
    feed.send(2)
    letters = feed.folder / "letters"
    with feed.open(on_error="skip_row", dead_letter=f"jsonl:{letters}") as session:
        session.advance()
    first, second = (json.loads(line) for path in letters.glob("*.jsonl") for line in path.read_text().splitlines())
    assert base64.b64decode(first["value_base64"]) == BROKEN
    assert (base64.b64decode(first["key_base64"]), first["value"], first["key"]) == (b"\xfe\x01", None, None)
    assert first["headers"] == [
        {"name": "h", "value": None, "value_base64": "/Q=="},
        {"name": "n", "value": None, "value_base64": None},
        {"name": "t", "value": "0", "value_base64": None},
    ]
    assert first["timestamp"] == "2026-01-01T00:00:00.123000Z"
    assert (first["topic"], first["partition"], first["offset"]) == (feed.topic, 0, 0)
    assert (second["value"], second["value_base64"], second["key"], second["offset"]) == ("{text", None, "k", 1)


@pytest.mark.kafka
def test_a_dead_letter_in_a_topic_is_the_message_and_comes_once(feed: Feed):
    letters = f"{feed.topic}-letters"
    feed.broker.create_topic(letters, 1, retention_ms="-1")
    options = {"on_error": "skip_row", "dead_letter": f"kafka:{letters}"}
    send_broken(feed)
    feed.send(4)
    sent = threading.Event()
    install_fault_hook(feed.folder / "state", partial(crash_at_sent_letters, sent))
    with feed.open(**options) as session:
        query = session.add("SELECT v FROM s", name="q")
        session.advance()  # the messages are sent, but not their files deleted
        assert sent.wait(30)
        assert len(read_topic(feed.broker, letters)) == 1
    install_fault_hook(feed.folder / "state", None)
    send_broken(feed, 1)
    with feed.open(**options) as session:
        assert session.has_work()
        assert read_all(session, session.query("q")) == list(range(4))
        finish_letters(session)
        assert session.streams()["s"]["skipped_rows"] == 2
        assert session.streams()["s"]["status"] == "ok"
    first, second = read_topic(feed.broker, letters)
    assert (first.value(), first.key(), first.timestamp()[1]) == (BROKEN, b"\xfe\x01", 1_767_225_600_123)
    headers = first.headers()
    assert headers[:3] == [("h", b"\xfd"), ("n", None), ("t", b"0")]
    added = {name.removeprefix("headrace.error."): value.decode() for name, value in headers[3:]}
    assert added.pop("reason")
    assert added == {"stream": "s", "topic": feed.topic, "partition": "0", "offset": "0"}
    assert dict(second.headers())["t"] == b"1"
    assert not list((feed.folder / "state" / "dead-letters").rglob("*.arrow"))
    assert query.name == "q"


def crash_at_sent_letters(sent: threading.Event, step: str) -> None:
    if step == "letters-sent":
        sent.set()
        raise OSError("the disk is gone")


@pytest.mark.kafka
def test_dead_letters_wait_for_a_topic_that_refuses_them(feed: Feed):
    letters = f"{feed.topic}-letters"
    feed.broker.create_topic(letters, 1, retention_ms="-1", max_message_bytes="100")
    feed.send(4)
    send_broken(feed)
    with feed.open(on_error="skip_row", dead_letter=f"kafka:{letters}") as session:
        query = session.add("SELECT v FROM s", name="q")
        deadline = time.monotonic() + 30
        while session.streams()["s"]["status"] == "ok" and time.monotonic() < deadline:
            session.advance()
        assert "dead letters of stream 's' cannot be sent" in session.streams()["s"]["error"]
        assert query.results().num_rows == 4
        feed.broker.configure_topic(letters, max_message_bytes="100000")
        finish_letters(session)
    assert [message.value() for message in read_topic(feed.broker, letters)] == [BROKEN]


def test_targets_of_dead_letters_are_checked():
    def make(target: str, on_error: str = "skip_row") -> hr.KafkaSource:
        return hr.KafkaSource("t", brokers="127.0.0.1:1", schema=COLUMNS, on_error=on_error, dead_letter=target)

    assert make("kafka:letters")._range_options["dead_letter"] == "kafka:letters"
    for target in ("kafka:", "kafka:t", "letters"):
        with pytest.raises(SchemaError, match=f"invalid dead_letter '{target}'"):
            make(target)
    with pytest.raises(SchemaError, match="dead_letter needs on_error='skip_row'"):
        make("kafka:letters", "fail")
