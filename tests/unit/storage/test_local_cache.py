"""The local cache: complete files, bounded by bytes, least recently used first."""

from __future__ import annotations

import os
import time
from pathlib import Path

import headrace.storage.local_cache as local_cache_module
from headrace.storage.local_cache import LocalCache, get_local_cache


def test_an_object_is_found_until_it_is_removed(tmp_path: Path):
    cache = LocalCache(tmp_path / "c", 1 << 20)
    assert cache.find("x") is None
    added = cache.add("x", [b"ab", b"c"])
    assert added is not None
    assert bytes(added) == bytes(LocalCache(tmp_path / "c", 1 << 20).find("x")) == b"abc"
    assert bytes(cache.add("empty", [b""])) == b""
    cache.remove("x")
    cache.remove("x")
    assert cache.find("x") is None
    assert bytes(added) == b"abc"  # a mapped file stays readable


def test_the_files_that_were_not_used_for_the_longest_time_are_evicted(tmp_path: Path):
    cache, long_ago = LocalCache(tmp_path, 1000), time.time() - 1000
    for number in range(9):
        cache.add(f"{number}", [bytes(100)])
        os.utime(cache._path_of(f"{number}"), (0, long_ago + number))
    assert cache.find("0") is not None  # its use counts
    cache.add("9", [bytes(200)])
    assert [n for n in range(10) if cache._path_of(f"{n}").exists()] == [0, 4, 5, 6, 7, 8, 9]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 800


def test_what_sessions_have_left_is_deleted_by_a_later_one_after_a_day(tmp_path: Path):
    earlier = LocalCache(tmp_path, 1 << 20)
    for name, hours in (("old", 25), ("recent", 23)):
        earlier.add(name, [b"1"])
        os.utime(earlier._path_of(name), (0, time.time() - 3600 * hours))
    (tmp_path / ".abc.tmp").touch()
    os.utime(tmp_path / ".abc.tmp", (0, 0))
    LocalCache(tmp_path, 1 << 20).add("new", [b"1"])
    assert [name for name in ("old", "recent", "new") if earlier._path_of(name).exists()] == ["recent", "new"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_refuses_is_not_an_error(tmp_path: Path):
    cache = LocalCache(tmp_path / "c", 1000)
    (tmp_path / "c").rmdir()
    assert cache.add("x", [b"1"]) is None
    assert cache.find("x") is None


def test_the_folder_is_private_and_near_the_files_of_spark(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("HEADRACE_CACHE_DIR", raising=False)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'a'},{tmp_path / 'b'}")
    get_local_cache()
    (folder,) = (tmp_path / "a").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(local_cache_module.os, "getuid", lambda: 4242)
    (tmp_path / "a" / "headrace-cache-4242").mkdir()
    assert not local_cache_module._find_folder().startswith(str(tmp_path / "a"))  # the folder of somebody else
