"""Stores: one contract for folders, memory and S3."""

from __future__ import annotations

import pickle

import pytest

import headrace.storage.object_store as object_store_module
from headrace.errors import SessionError, StorageError
from headrace.storage import container, documents
from headrace.storage.append_log import AppendLog
from headrace.storage.local_cache import get_local_cache
from headrace.storage.locations import open_store
from headrace.storage.object_store import ObjectStore, VersionConflictError
from headrace.storage.store import Store


def test_an_object_is_stored_read_listed_and_deleted(store: Store):
    store.put("a/one", [b"hel", b"lo"])
    store.put("a/two", [b""])
    store.put("a/b/three", [b"3"])
    store.put("top", [b"t"])
    assert store.get("a/one") == b"hello"
    assert bytes(store.open_local("a/one")) == b"hello"
    assert bytes(store.open_local("a/two")) == b""
    assert (store.find_size("a/one"), store.find_size("a/two"), store.find_size("a")) == (5, 0, store.find_size("a"))
    assert store.list("a") == ["a/one", "a/two"]
    assert store.list("") == ["top"]
    assert store.list("missing") == []
    assert list(store.list_folders("")) == ["a"]
    assert list(store.list_folders("a")) == ["a/b"]
    store.delete("a/one")
    store.delete("a/one")
    assert store.find_size("a/one") is None
    for read in (store.get, store.open_local):
        with pytest.raises(FileNotFoundError):
            read("a/one")
    store.delete_many(["a/two", "a/missing", "top"])
    assert (store.list("a"), store.list("")) == ([], [])
    store.delete_folder("a")
    assert list(store.list_folders("")) == []


def test_a_folder_is_deleted_without_its_neighbours(store: Store):
    for key in ("a/x", "a/deep/y", "ab/z"):
        store.put(key, [b"1"])
    store.delete_folder("a")
    assert (store.list("a"), store.list("a/deep"), store.list("ab")) == ([], [], ["ab/z"])


def test_a_taken_key_is_replaced_only_without_if_absent(store: Store):
    store.put("key", [b"1"], if_absent=True)
    with pytest.raises(FileExistsError):
        store.put("key", [b"2"], if_absent=True)
    assert store.get("key") == b"1"
    store.put("key", [b"3"])
    assert store.get("key") == b"3"


def test_an_object_has_a_second_key(store: Store):
    store.put("shuffle/x", [b"rows"])
    store.link("shuffle/x", "state/y")
    store.link("shuffle/x", "state/y")
    store.delete("shuffle/x")
    assert store.get("state/y") == b"rows"


def test_the_store_of_a_folder_names_keys_as_its_parent_does(store: Store):
    inner = store.scope("sources").scope("s")
    inner.put("log", [b"1"])
    assert store.get("sources/s/log") == b"1"
    assert inner.list("") == ["log"]
    assert inner.place_of("log") == store.place_of("sources/s/log") == "id/sources/s/log"
    assert inner.name_of("log") == store.name_of("sources/s/log")
    inner.delete("log")
    assert store.list("sources/s") == []


def test_a_log_grows_and_is_read_again(store: Store):
    log = AppendLog(store, "log")
    assert log.read() == []
    log.append(1, 2)
    log.append({"three": 3})
    again = AppendLog(store, "log")
    assert again.read() == [1, 2, {"three": 3}]
    again.append(4)
    again.replace([5])
    again.append(6)
    assert AppendLog(store, "log").read() == [5, 6]


def test_an_append_replaces_what_a_failed_one_has_left(store: Store):
    store.put("log", [b"12345"])
    store.append("log", b"ab", 3)
    store.append("log", b"c", 5)
    assert store.get_appended("log") == b"123abc"


def test_a_large_object_is_uploaded_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(object_store_module, "_MULTIPART_BYTES", 10 << 20)
    content = bytes(range(256)) * (11 << 12)
    store.put("state/large", [content[: 5 << 20], content[5 << 20 :]])
    assert store.get("state/large") == content
    store.put("once", [content], if_absent=True)
    with pytest.raises(FileExistsError):
        store.put("once", [content], if_absent=True)


def test_documents_and_containers_are_stored(store: Store):
    documents.put_document(store, "d", {"x": 1})
    container.write(store, "state/c", [1, "two"])
    assert documents.get_document(store, "d") == {"x": 1}
    assert container.read(store, "state/c") == [1, "two"]


def test_an_object_that_is_replaced_by_a_worker_is_read_from_its_own_disk(s3_options: dict[str, str], tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "one"))
    store = open_store("s3://headrace-test/cached", "id", s3_options)
    container.write(store, "state/c", [7])
    fetched: list[str] = []
    get = ObjectStore.get
    monkeypatch.setattr(ObjectStore, "get", lambda self, key: fetched.append(key) or get(self, key))
    assert container.read(store, "state/c") == [7]
    assert fetched == []
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "two"))  # as on another machine
    assert [container.read(store, "state/c") for _ in range(2)] == [[7], [7]]
    assert fetched == ["state/c"]
    store.delete("state/c")
    assert get_local_cache().find(store._cached_name("state/c")) is None


def test_a_store_travels_to_other_processes(store: Store):
    store.put("a", [b"1"])
    assert pickle.loads(pickle.dumps(store)).get("a") == b"1"


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_only_the_known_version_is_replaced(kind: str, s3_options: dict[str, str]):
    store = open_store(f"{kind}://headrace-test/versions", options=s3_options if kind == "s3" else {})
    assert isinstance(store, ObjectStore)
    assert store.get_version("lease") is None
    first = store.replace_version("lease", b"1", None)
    with pytest.raises(VersionConflictError):
        store.replace_version("lease", b"x", None)
    second = store.replace_version("lease", b"2", first)
    with pytest.raises(VersionConflictError):
        store.replace_version("lease", b"x", first)
    assert store.get_version("lease") == (b"2", second)


def test_a_missing_bucket_and_a_silent_server_are_reported(s3_options: dict[str, str]):
    with pytest.raises(StorageError, match=r"object 's3://no-such-bucket/a' cannot be written(.|\n)*NoSuchBucket"):
        open_store("s3://no-such-bucket", options=s3_options).put("a", [b"1"])
    with pytest.raises(SessionError, match="cannot be opened"):
        open_store("s3://bucket", options={**s3_options, "no_such_option": "1"})


def test_an_endpoint_without_tls_is_allowed_by_naming_it(monkeypatch, s3_options: dict[str, str]):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_options["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    object_store_module._open_client.cache_clear()
    store = open_store("s3://headrace-test/by-environment")
    store.put("a", [b"1"])
    assert store.get("a") == b"1"
