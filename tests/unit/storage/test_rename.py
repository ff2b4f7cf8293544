"""Objects of a store get new keys: durably, again and again, and never without one of the two."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.storage import posix
from headrace.storage.posix import PosixStore
from support.forgetful_disk import ForgetfulDisk, PowerCut


class DiskWithoutLinks(posix.FileOperations):
    """A file system that has no hard links, as some network file systems."""

    def link(self, path: Path, target: Path) -> None:
        raise OSError(errno.ENOTSUP, "no links")


@pytest.fixture(params=["links", "no links"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PosixStore:
    if request.param == "no links":
        monkeypatch.setattr(posix, "_files", DiskWithoutLinks())
    return PosixStore(tmp_path)


def test_objects_get_new_keys_and_replace_others(store: PosixStore) -> None:
    for key in ("hidden/a", "hidden/b", "b"):
        store.put(key, [key.encode()])
    for _ in range(2):
        store.rename({"hidden/a": "a", "hidden/b": "b"})
        assert (store.get("a"), store.get("b")) == (b"hidden/a", b"hidden/b")
        assert store.list("hidden") == []


def test_an_object_that_has_neither_key_is_refused(store: PosixStore) -> None:
    store.put("hidden/a", [b"x"])
    with pytest.raises(StorageError, match="cannot be written"):
        store.rename({"hidden/a": "a", "hidden/b": "b"})
    assert "hidden/a" in store.list("hidden") or store.get("a") == b"x"


def test_a_folder_of_that_name_is_refused(store: PosixStore) -> None:
    store.put("hidden/a", [b"x"])
    store.put("a/b", [b"y"])
    with pytest.raises(StorageError, match="cannot be written"):
        store.rename({"hidden/a": "a"})
    assert store.get("hidden/a") == b"x"


def test_a_loss_of_power_leaves_one_of_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ForgetfulDisk(tmp_path / "disk", monkeypatch)
    store = PosixStore(disk.root)
    store.put("hidden/a", [b"x"])
    disk.cut_at = disk.syncs + 1
    with pytest.raises(PowerCut):
        store.rename({"hidden/a": "a"})
    disk.cut_power()
    assert store.get("hidden/a") == b"x"
    store.rename({"hidden/a": "a"})
    disk.cut_power()
    assert store.get("a") == b"x"
