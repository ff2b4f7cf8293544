"""The consumer of workers: progress and stalls, errors between messages, and consumers that are not in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer

from headrace.connectors.kafka import librdkafka
from headrace.connectors.kafka.consumer_pool import ConsumerPool
from headrace.connectors.kafka.librdkafka import TopicConsumer
from headrace.engine.kernels import gather
from headrace.errors import SourceError
from support.kafka_feed import Feed

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


class ScriptEndedError(Exception):
    """The end of a script of events."""


@pytest.fixture
def consumer() -> Iterator[TopicConsumer]:
    made = TopicConsumer("t", NOWHERE, 10.0)
    yield made
    made.close()


def read_with_progress(
    consumer: TopicConsumer, monkeypatch: pytest.MonkeyPatch, moves: Callable[[int], bool], end: type[Exception]
) -> int:
    """Read while the clock advances by 4 s at each poll, and return the number of polls; `moves` tells which find progress."""
    polls, clock = count(1), count(0, 4)
    number = 0

    def poll_events() -> bool:
        nonlocal number
        number = next(polls)
        if number == 50:
            raise ScriptEndedError
        consumer._fetched[0] = consumer._fetched.get(0, 0) + moves(number)
        return False

    monkeypatch.setattr(consumer, "_poll_events", poll_events)
    monkeypatch.setattr(librdkafka, "_POLL_MILLISECONDS", 0)
    monkeypatch.setattr(librdkafka, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    with closing(consumer.read(0, 5, 10)) as chunks, pytest.raises(end):
        next(chunks)
    return number


def test_skipped_messages_are_progress(consumer: TopicConsumer, monkeypatch: pytest.MonkeyPatch):
    assert read_with_progress(consumer, monkeypatch, lambda number: number % 2 == 0, ScriptEndedError) == 50


def test_without_progress_a_partition_does_not_answer(consumer: TopicConsumer, monkeypatch: pytest.MonkeyPatch):
    assert read_with_progress(consumer, monkeypatch, lambda number: number < 10, SourceError) == 12


@pytest.mark.kafka
def test_the_client_reports_progress_in_aborted_messages(feed: Feed):
    producer = Producer({"bootstrap.servers": feed.broker.address, "transactional.id": feed.topic, "log_level": 0})
    producer.init_transactions(30)
    for commits in (True, False, True):
        producer.begin_transaction()
        for _ in range(1 if commits else 500):
            producer.produce(feed.topic, b"x", partition=0)
        producer.flush()
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    consumer = TopicConsumer(feed.topic, {"bootstrap.servers": feed.broker.address}, 1.0)
    with closing(consumer.read(0, 2, 504)) as chunks:
        sizes = [pointers.size for pointers in chunks]
    assert sum(sizes) == 1
    waiting = threading.Event()
    while consumer._fetched.get(0, 0) < 504 and not waiting.wait(0.02):
        consumer._poll_events()
    consumer.close()


@pytest.mark.kafka
def test_an_error_frees_the_messages_around_it(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    feed.send(20, partition=0)
    consumer = TopicConsumer(feed.topic, {"bootstrap.servers": feed.broker.address}, 10.0)
    fetched = consumer._fetch(0, consumer._seek(0, 0), 20)
    read_heads, destroy = gather.read_heads, gather.destroy_messages
    destroyed: list[int] = []

    def spoil(messages: Any, errors: Any, offsets: Any) -> None:
        read_heads(messages, errors, offsets)
        errors[3] = -1

    def record(messages: Any, function: int) -> None:
        destroyed.extend(messages.tolist())
        destroy(messages, function)

    monkeypatch.setattr(consumer, "_fetch", lambda *_: fetched)
    monkeypatch.setattr(gather, "read_heads", spoil)
    monkeypatch.setattr(gather, "destroy_messages", record)
    with pytest.raises(SourceError, match="cannot be read"):
        consumer._take(0, consumer._partitions[0], 20)
    consumer.close()
    assert sorted(destroyed) == sorted(fetched.tolist())
    assert np.unique(fetched).size == len(destroyed)


class FakeConsumer:
    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        assert not self.closed.is_set()
        self.closed.set()


def test_an_idle_consumer_is_closed_without_another_read():
    pool, made = ConsumerPool(idle_seconds=0.01), FakeConsumer()
    with pool.borrow(("k",), lambda: made):
        pass
    assert made.closed.wait(30)
    assert len(pool) == 0
    with pool.borrow(("k",), FakeConsumer) as other:  # the thread has ended, or sees the new one
        pass
    assert other.closed.wait(30)


def fail_with(borrowed: AbstractContextManager[Any]) -> None:
    with borrowed:
        raise ScriptEndedError


def test_a_consumer_is_borrowed_by_one_at_a_time():
    pool, made = ConsumerPool(), []

    def make() -> Any:
        made.append(FakeConsumer())
        return made[-1]

    with pool.borrow(("k",), make) as first, pool.borrow(("k",), make) as second, pool.borrow(("other",), make) as third:
        assert len({id(first), id(second), id(third)}) == 3
    with pool.borrow(("k",), make) as again:
        assert again in (first, second)
        with pytest.raises(ScriptEndedError):
            fail_with(pool.borrow(("other",), make))
    assert third.closed.is_set()
    assert len(pool) == 2
    pool.close_idle()
    assert all(consumer.closed.is_set() for consumer in made)
    assert all(a is not b for a, b in pairwise(made))
