"""Locations: folders and URLs; what is neither is refused, and no folder is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import CheckpointError, HeadraceError, SchemaError, SinkError
from headrace.storage.local_cache import open_local_cache
from headrace.storage.locations import is_url, parse_local_path, parse_location, select_options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/path/", "s3://bucket/path"),
        ("s3a://bucket/path", "s3://bucket/path"),
        ("S3://Bucket/Path", "s3://Bucket/Path"),
        ("gs://bucket", "gs://bucket"),
        ("az://account/container/x", "az://account/container/x"),
        ("/data/checkpoint", "/data/checkpoint"),
        ("file:/data/checkpoint", "/data/checkpoint"),
        ("file:///data/checkpoint", "/data/checkpoint"),
    ],
)
def test_a_location_has_a_normal_form(text: str, expected: str):
    assert parse_location(text) == expected


def test_relative_paths_are_absolute(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_location("a/b") == str(tmp_path / "a/b")
    assert parse_location("file:a") == str(tmp_path / "a")
    assert parse_location(Path("s3:x")) == str(tmp_path / "s3:x")
    (tmp_path / "odd:name").mkdir()
    assert parse_location("odd:name") == str(tmp_path / "odd:name")
    assert not is_url("s3:x")


def test_a_relative_path_starts_at_the_base():
    assert parse_location("a/b", base="/data") == "/data/a/b"
    assert parse_location("file:a", base="/data") == "/data/a"
    assert parse_location("a/b", base="s3://bucket/out") == "s3://bucket/out/a/b"
    assert parse_location("/a", base="s3://bucket/out") == "/a"
    assert parse_location("gs://other/x", base="s3://bucket/out") == "gs://other/x"


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket", "memory://x", "s3://"])
def test_a_path_that_was_made_of_a_url_is_refused_and_leaves_no_folder(url: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="is a Path, which cannot be a URL"):
        hr.Session(Path(url), backend="local")
    with pytest.raises(SinkError, match="is a Path, which cannot be a URL"):
        hr.ParquetSink(Path(url))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="has the unsupported scheme 'hdfs'"):
        parse_location(Path("hdfs://node/x"))
    assert list(tmp_path.iterdir()) == []
    assert parse_location(Path("file:/data/x")) == "/data/x"


def test_a_folder_that_an_older_version_made_of_a_url_is_not_taken(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="has the unsupported scheme 's3'"):
        parse_location("s3:/bucket")
    with pytest.raises(CheckpointError, match="is a Path"):
        parse_location(Path("s3:/bucket"))


def test_what_is_on_this_machine_has_no_url(tmp_path: Path):
    assert parse_local_path(f"file:{tmp_path}", "--out") == tmp_path
    with pytest.raises(HeadraceError, match="--out 's3://bucket/x' is in an object store"):
        parse_local_path("s3://bucket/x", "--out")
    with pytest.raises(HeadraceError, match="has the unsupported scheme"):
        parse_local_path("hdfs://node/x", "--out")
    with pytest.raises(HeadraceError, match="HEADRACE_CACHE_DIR 's3://bucket/x' is in an object store"):
        open_local_cache("s3://bucket/x", 1)


@pytest.mark.parametrize("text", ["hdfs://node/x", "http://host/x", "s4://bucket", "ftp:x", "s3:bucket"])
def test_an_unknown_scheme_is_refused_and_leaves_no_folder(text: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"checkpoint '{text}' has the unsupported scheme"):
        hr.Session(text, backend="local")
    with pytest.raises(SchemaError, match="has the unsupported scheme"):
        hr.FileSource(text)
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_options_is_named_by_any_form_of_a_url():
    assert select_options({"a": "1", "s3a://bucket/": {"b": "2"}}, "s3://bucket/x") == {"a": "1", "b": "2"}
    assert select_options({"S3://bucket": {"b": "2"}}, "s3://bucketeer/x") == {}
