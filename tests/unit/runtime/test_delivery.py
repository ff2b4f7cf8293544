"""Callbacks and consoles: a sink that blocks, is slow or fails affects its own query only; a session closes whatever happens."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lives import SessionHarness, read_columns

import headrace as hr
from headrace.backends.local import LocalBackend
from headrace.errors import CheckpointError, SessionError
from headrace.runtime import delivery
from headrace.storage.documents import get_document


class BlockingCallback:
    """A callback that blocks until the test lets it go."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.rows: list[Any] = []

    def __call__(self, table: pa.Table) -> None:
        self.entered.set()
        assert self.released.wait(20)
        self.rows += table["n"].to_pylist()


@pytest.fixture
def blocking() -> Iterator[BlockingCallback]:
    callback = BlockingCallback()
    yield callback
    callback.released.set()


def test_a_callback_that_blocks_fails_its_query_alone(open_harness, blocking: BlockingCallback):
    harness: SessionHarness = open_harness(delivery_timeout=0.2)
    received: list[int] = []
    blocked = harness.session.add("SELECT n FROM s", name="blocked", sink=blocking)
    other = harness.session.add("SELECT n FROM s", name="other", sink=lambda table: received.extend(table["n"].to_pylist()))
    memory = harness.session.add("SELECT n FROM s", name="memory")
    for n in (1, 2, 3):
        harness.tick(n, n=n)
    assert (blocked.status, other.status, memory.status) == ("failed", "live", "live")
    assert "sink of query 'blocked' blocks: a call has not returned after 0.2 s" in str(blocked.error)
    assert received == read_columns(memory, "n") == [1, 2, 3]
    harness.session.advance()
    assert get_document(harness.session._checkpoint.store, "delivered.json") == {"batch": 2}
    blocking.released.set()
    harness.tick(4, n=4)
    assert (blocked.status, received) == ("failed", [1, 2, 3, 4])


def test_a_micro_batch_ends_after_the_failure_of_a_callback_is_reported(harness: SessionHarness, monkeypatch):
    def refuse(_: pa.Table) -> None:
        raise RuntimeError("full")

    query = harness.session.add("SELECT n FROM s", name="refused", sink=refuse)
    results = harness.session._delivery
    report = results._on_failure
    monkeypatch.setattr(results, "_on_failure", lambda number, reason: (time.sleep(0.2), report(number, reason)))
    harness.tick(1, n=1)
    harness.tick(2, n=2)
    assert query.status == "failed"


def test_a_slow_callback_delays_neither_batches_nor_other_callbacks(harness: SessionHarness, blocking: BlockingCallback):
    """The callback is within its time limit: nothing fails, and it gets all rows in order once it goes on."""
    received: list[int] = []
    arrived = threading.Event()

    def receive(table: pa.Table) -> None:
        received.extend(table["n"].to_pylist())
        if len(received) == 5:
            arrived.set()

    slow = harness.session.add("SELECT n FROM s", name="slow", sink=blocking)
    harness.session.add("SELECT n FROM s", name="other", sink=receive)
    harness.session.start()
    for n in range(5):
        batch = harness.session.last_batch
        harness.append_rows(n, n=n)
        assert harness.session.wait(lambda batch=batch: harness.session.last_batch > batch, 10)
    assert arrived.wait(10)
    assert received == [0, 1, 2, 3, 4]
    assert (slow.status, blocking.rows) == ("live", [])
    blocking.released.set()
    harness.session.close()
    assert blocking.rows == [0, 1, 2, 3, 4]


def test_a_callback_that_is_too_far_behind_fails_its_query_alone(
    harness: SessionHarness, blocking: BlockingCallback, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery, "MAX_QUEUED_DELIVERIES", 3)
    slow = harness.session.add("SELECT n FROM s", name="slow", sink=blocking)
    other = harness.session.add("SELECT n FROM s", name="other")
    harness.session.start()
    for n in range(8):
        batch = harness.session.last_batch
        harness.append_rows(n, n=n)
        assert harness.session.wait(lambda batch=batch: harness.session.last_batch > batch, 10)
    assert harness.session.wait(lambda: slow.status == "failed", 10)
    assert "is too slow: more than 3 deliveries wait for it" in str(slow.error)
    harness.session.stop()
    harness.session.advance()
    assert read_columns(other, "n") == list(range(8))


def test_a_callback_may_advance_its_session(harness: SessionHarness):
    received: list[int] = []

    def receive(table: pa.Table) -> None:
        received.extend(table["n"].to_pylist())
        if len(received) < 3:
            harness.append_rows(len(received), n=len(received))
            harness.session.advance()

    harness.session.add("SELECT n FROM s", sink=receive)
    harness.tick(0, n=0)
    harness.session._delivery.wait()
    assert received == [0, 1, 2]


def test_an_exception_that_is_no_error_reaches_the_caller(harness: SessionHarness):
    def leave(_: pa.Table) -> None:
        raise SystemExit(3)

    query = harness.session.add("SELECT n FROM s", sink=leave)
    harness.append_rows(1)
    with pytest.raises(SystemExit):
        harness.session.advance()
    assert query.status == "live"


def test_rows_that_were_not_delivered_are_delivered_after_a_restart(open_harness, blocking: BlockingCallback):
    harness: SessionHarness = open_harness(delivery_timeout=0.2)
    harness.session.add("SELECT n FROM s", name="q", sink=blocking)
    harness.session.start()
    harness.append_rows(1, n=7)
    assert blocking.entered.wait(10)
    harness.kill()
    received: list[int] = []
    session = harness.open_session()
    session.add("SELECT n FROM s", name="q", sink=lambda table: received.extend(table["n"].to_pylist()))
    assert received == [7]


@pytest.mark.parametrize("timeout", [0, -1])
def test_an_invalid_time_limit_is_refused(tmp_path: Path, timeout: float):
    with pytest.raises(SessionError, match="invalid delivery_timeout"):
        hr.Session(tmp_path, backend="local", delivery_timeout=timeout)


# Closing


@pytest.mark.parametrize("broken", ["source", "backend", "optimizer", "packer", "thread"])
def test_close_releases_the_checkpoint_even_if_a_part_cannot_be_closed(tmp_path: Path, broken: str, monkeypatch):
    def fail() -> None:
        raise ConnectionRefusedError(broken)

    with monkeypatch.context() as patch:
        if broken == "backend":
            patch.setattr(LocalBackend, "close", lambda _: fail())
        session = hr.Session(tmp_path, backend="local")
    source = hr.MemorySource("n INT, time TIMESTAMP")
    session.create_stream("s", source, time="time")
    optimizers, packer = session._coordinator.optimizers, session._coordinator.result_packer
    targets = {"source": source, "optimizer": optimizers.sliding_joins, "packer": packer}
    if broken in targets:
        monkeypatch.setattr(targets[broken], "close", fail, raising=False)
    if broken == "thread":
        session._loop.error = ConnectionRefusedError(broken)
    with pytest.raises(ConnectionRefusedError, match=broken):
        session.close()
    assert session.is_closed
    hr.Session(tmp_path, backend="local").close()


@pytest.mark.parametrize("options", [{"backend": "no such"}, {"backend": "local", "partitions": 0}])
def test_a_session_that_cannot_be_opened_leaves_no_temporary_folder(options: dict[str, Any], tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SessionError):
        hr.Session(**options)
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_cannot_recover_releases_its_checkpoint(tmp_path: Path):
    with hr.Session(tmp_path, backend="local") as session:
        session.create_stream("s", hr.MemorySource("n INT, time TIMESTAMP"), time="time")
        session.add("SELECT n FROM s")
        session.advance()
    content = (tmp_path / "delivered.json").read_bytes()
    (tmp_path / "delivered.json").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="damaged"):
        hr.Session(tmp_path, backend="local")
    (tmp_path / "delivered.json").write_bytes(content)
    hr.Session(tmp_path, backend="local").close()
