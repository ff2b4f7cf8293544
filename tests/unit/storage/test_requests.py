"""Requests that run at the same time, and deletions that nothing waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextvars import ContextVar

import pytest

from headrace.errors import StorageError
from headrace.storage.posix import PosixStore
from headrace.storage.requests import DeferredDeletion, run_requests


class SlowStore:
    """A remote store whose deletions wait until they are allowed."""

    is_remote = True

    def __init__(self) -> None:
        self.deleted: list[list[str]] = []
        self.allowed = threading.Event()
        self.refuses = False

    def delete_many(self, keys: Iterable[str]) -> None:
        assert self.allowed.wait(30)
        if self.refuses:
            raise StorageError("refused")
        self.deleted.append(list(keys))


def test_nothing_waits_for_a_deletion_and_those_of_meanwhile_go_together():
    store = SlowStore()
    deletion = DeferredDeletion(store)
    for key in "abc":
        deletion.submit([key])
    assert store.deleted == []
    store.allowed.set()
    deletion._running.result(30)
    deletion.submit(["d"])
    deletion.close()
    assert store.deleted == [["a"], ["b", "c", "d"]]


def test_a_refused_deletion_is_reported_by_the_next_one():
    store = SlowStore()
    store.allowed.set()
    store.refuses = True
    deletion = DeferredDeletion(store)
    deletion.submit(["a"])
    deletion._running.exception(30)
    with pytest.raises(StorageError, match="refused"):
        deletion.submit(["b"])
    deletion.close()


def test_a_folder_is_deleted_from_at_once(tmp_path):
    (tmp_path / "a").touch()
    DeferredDeletion(PosixStore(tmp_path)).submit(["a"])
    assert not (tmp_path / "a").exists()


def test_requests_run_together_keep_their_order_and_the_context_of_the_caller():
    setting = ContextVar("setting", default=0)
    together = threading.Barrier(4)

    def request(number: int) -> tuple[int, int]:
        together.wait(30)
        return number, setting.get()

    setting.set(7)
    assert run_requests(request, range(4)) == [(number, 7) for number in range(4)]


def test_the_first_error_is_raised_when_all_requests_have_ended():
    ended = []

    def request(number: int) -> None:
        if number in {1, 2}:
            raise StorageError(str(number))
        ended.append(number)

    with pytest.raises(StorageError, match="1"):
        run_requests(request, range(6))
    assert sorted(ended) == [0, 3, 4, 5]
