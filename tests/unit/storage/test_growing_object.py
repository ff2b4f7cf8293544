"""Growing objects: an append to an object in an object store is one small request, whatever happens between two of them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.storage import growing_object
from headrace.storage.append_log import AppendLog
from headrace.storage.object_store import ObjectStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    return ObjectStore(f"memory://{uuid.uuid4().hex}", {}, "id")


class Traffic:
    """Counts the puts and their bytes; refuses the put number `refused`, before or after it takes effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int = -1, *, is_stored: bool = False) -> None:
        self.puts, self.bytes = 0, 0
        put = ObjectStore._put

        def count(store: ObjectStore, key: str, content: bytes, mode: object) -> object:
            self.puts, self.bytes = self.puts + 1, self.bytes + len(content)
            if self.puts - 1 != refused:
                return put(store, key, content, mode)
            if is_stored:
                put(store, key, content, mode)
            raise OSError("refused")

        monkeypatch.setattr(ObjectStore, "_put", count)


def test_the_bytes_of_an_append_do_not_depend_on_the_length_of_the_log(store: ObjectStore, monkeypatch: pytest.MonkeyPatch):
    log = AppendLog(store, "log")
    log.read()
    log.replace(range(100_000))
    traffic = Traffic(monkeypatch)
    for number in range(100):
        log.append(number)
    assert (traffic.puts, traffic.bytes) == (100, pytest.approx(2_000, abs=200))
    assert AppendLog(store, "log").read() == [*range(100_000), *range(100)]


def test_tails_become_a_part_of_the_base(store: ObjectStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(growing_object, "_MIN_TAILS", 4)
    log = AppendLog(store, "log")
    log.read()
    for number in range(23):
        log.append(number)
        assert len(store.list("log.tail")) <= 4
    assert AppendLog(store, "log").read() == list(range(23))
    assert store.list("log.tail") == []


def test_what_was_replaced_does_not_come_back_with_an_equal_base(store: ObjectStore):
    log = AppendLog(store, "log")
    log.read()
    log.append("old")
    log.replace([])
    assert AppendLog(store, "log").read() == []
    log.append("new")
    assert AppendLog(store, "log").read() == ["new"]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("refused", range(14))
def test_an_append_that_failed_is_there_or_not_until_another_one_follows(
    refused: int, is_stored: bool, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(growing_object, "_MIN_TAILS", 3)
    log = AppendLog(store, "log")
    log.read()
    Traffic(monkeypatch, refused, is_stored=is_stored)
    expected: list[str] = []
    for number in range(12):
        try:
            log.append(f"{number}-first", f"{number}-second")
            expected += [f"{number}-first", f"{number}-second"]
        except StorageError:
            other = ObjectStore(store._url, {}, "id")
            assert log_values(other) in (expected, [*expected, f"{number}-first", f"{number}-second"])
            log.append(f"{number}-again")
            expected.append(f"{number}-again")
    assert log_values(store) == expected


def log_values(store: ObjectStore) -> list[str]:
    """The values in the log, without the replacement of it by a reader."""
    log = AppendLog(store, "log")
    content = store.get("log") + b"".join(store.get(key) for key in tail_chain(store))
    return [log._decode_line(number, line) for number, line in enumerate(content.splitlines())]


def tail_chain(store: ObjectStore) -> list[str]:
    content = store.get("log")
    digest, end, chain = growing_object.compute_checksum(content), len(content), []
    while (key := f"log.tail/{digest}-{end:012d}") in store.list("log.tail"):
        chain.append(key)
        end += len(store.get(key))
    return chain


def test_a_lost_tail_cuts_the_log_off(store: ObjectStore):
    log = AppendLog(store, "log")
    log.read()
    for number in range(5):
        log.append(number)
    store.delete(store.list("log.tail")[2])
    assert AppendLog(store, "log").read() == [0, 1]
    assert store.list("log.tail") == []
