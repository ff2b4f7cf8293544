"""Plans stored as differences: an added query writes and loads what one query needs, and recovery has every file or names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lives import SessionHarness, read_columns

from headrace.engine.worker_cache import _CACHES
from headrace.errors import CheckpointError
from headrace.storage import documents

OpenHarness = Callable[..., SessionHarness]
STEPS = ["log", "logged", "planned", "stage one", "stage two", "commit", "committed", "published"]


def add_query(harness: SessionHarness, number: int) -> None:
    text = f"SELECT window_start, COUNT(*) AS c FROM TUMBLE(s, '5 seconds') WHERE n > {number}"
    harness.session.add(text, name=f"q{number}")


def open_with_queries(open_harness: OpenHarness, count: int, **options: Any) -> SessionHarness:
    """Return a session with live queries that select rows with n above 0, 1, … ."""
    harness = open_harness(**options)
    for number in range(count):
        add_query(harness, number)
    harness.tick(1, n=1_000_000)
    return harness


class Traffic:
    """The bytes of documents that are written and read, by folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: dict[str, int] = {}
        self.read: dict[str, int] = {}
        encode, decode = documents.encode_record, documents.decode_record

        def count_written(store: Any, key: str, value: object) -> list[bytes]:
            parts = encode(store, key, value)
            self.written[key.partition("/")[0]] = self.written.get(key.partition("/")[0], 0) + sum(map(len, parts))
            return parts

        def count_read(store: Any, key: str, content: bytes) -> Any:
            self.read[key.partition("/")[0]] = self.read.get(key.partition("/")[0], 0) + len(content)
            return decode(store, key, content)

        monkeypatch.setattr(documents, "encode_record", count_written)
        monkeypatch.setattr(documents, "decode_record", count_read)

    def clear(self) -> None:
        self.written.clear()
        self.read.clear()


def measure_one_addition(open_harness: OpenHarness, traffic: Traffic, live: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes written, without manifests, and read when a query is added to so many, and one is removed."""
    harness = open_with_queries(open_harness, live, name=f"with-{live}")
    add_query(harness, live)
    harness.tick(2, n=1_000_000)
    traffic.clear()
    add_query(harness, live + 1)
    harness.session.remove("q3")
    harness.tick(3, n=1_000_000)
    del traffic.written["manifest"]
    return dict(traffic.written), dict(traffic.read)


def test_what_an_added_query_writes_and_loads_does_not_grow(open_harness: OpenHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    few_written, few_read = measure_one_addition(open_harness, traffic, 20)
    many_written, many_read = measure_one_addition(open_harness, traffic, 400)
    assert few_written.keys() == many_written.keys() == {"log", "plans", "queries"}
    assert few_read.keys() == many_read.keys() == {"plans", "queries"}
    for few, many in ((few_written, many_written), (few_read, many_read)):
        assert all(many[folder] < few[folder] + 100 for folder in few), "numbers with more digits"


@pytest.mark.parametrize("step", STEPS)
def test_plans_by_difference_survive_a_crash_at_any_step(open_harness: OpenHarness, step: str) -> None:
    harness = open_with_queries(open_harness, 12)
    for number in range(12, 15):
        add_query(harness, number)
        harness.tick(number - 10, n=number)
    assert harness.session._coordinator.state.plan_bases, "no plan is stored as a difference"
    add_query(harness, 15)
    harness.session.remove("q2")
    harness.append_rows(6, n=14)
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    harness.tick(7, n=10)
    add_query(harness, 16)
    harness.tick(11, n=1_000_000)
    harness.restart()
    harness.session.drain()
    for number in (0, 1, 9, 11):
        early = 1 + sum(n > number for n in (12, 13, 14))
        late = sum(n > number for n in (14, 10))
        assert read_columns(harness.session.query(f"q{number}"), "c") == sorted([early, late, 1])


def test_recovery_reads_a_chain_of_differences(open_harness: OpenHarness) -> None:
    harness = open_with_queries(open_harness, 40)
    for number in range(40, 46):
        add_query(harness, number)
        harness.tick(1 + (number - 39) / 10, n=number)
    state = harness.session._coordinator.state
    plans, depth = dict(state.plans), max(base.depth for base in state.plan_bases.values())
    assert depth >= 4
    assert set(harness.list_files("plans")) == {Path(file).name for file in state.referenced_files() if file.startswith("plans/")}
    _CACHES.clear()  # as in new workers
    harness.restart()
    assert harness.session._coordinator.state.plans == plans
    harness.tick(6, n=1)
    assert read_columns(harness.session.query("q0"), "c") == [7]
    assert read_columns(harness.session.query("q41"), "c") == []
    harness.tick(11, n=1_000_000)
    harness.tick(16, n=1_000_000)
    assert read_columns(harness.session.query("q45"), "c") == [1]


def test_a_missing_or_damaged_base_is_named(open_harness: OpenHarness) -> None:
    harness = open_with_queries(open_harness, 40)
    for number in range(40, 43):
        add_query(harness, number)
        harness.tick(2, n=number)
    state = harness.session._coordinator.state
    base = next(base.file for base in state.plan_bases.values() if base.file not in state.plan_files())
    file = harness.directory / base
    content = file.read_bytes()
    file.write_bytes(content[:-40] + content[-39:])
    with pytest.raises(CheckpointError, match=f"{file.name}.*damaged"):
        harness.restart()
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name}.*missing"):
        harness.open_session()
    file.write_bytes(content)
    harness.open_session()
    harness.tick(6, n=1)
    assert read_columns(harness.session.query("q0"), "c") == [4]


def test_files_of_plans_are_deleted_with_the_plans_that_need_them(open_harness: OpenHarness) -> None:
    harness = open_with_queries(open_harness, 400)
    for number in range(400, 450):
        add_query(harness, number)
        harness.tick(5 * number, n=number)
    referenced = {Path(file).name for file in harness.session._coordinator.state.referenced_files() if file.startswith("plans/")}
    assert set(harness.list_files("plans")) == referenced
    assert len(referenced) <= 34, "one epoch is open: at most 32 differences, a full form, and the plan itself"
