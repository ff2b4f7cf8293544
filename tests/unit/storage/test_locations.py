"""Locations: folders and URLs; what is neither is refused, and no folder is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import CheckpointError, SchemaError
from headrace.storage.locations import is_url, parse_location


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


@pytest.mark.parametrize("text", ["hdfs://node/x", "http://host/x", "s4://bucket", "ftp:x", "s3:bucket"])
def test_an_unknown_scheme_is_refused_and_leaves_no_folder(text: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"checkpoint '{text}' has the unsupported scheme"):
        hr.Session(text, backend="local")
    with pytest.raises(SchemaError, match="has the unsupported scheme"):
        hr.FileSource(text)
    assert list(tmp_path.iterdir()) == []
