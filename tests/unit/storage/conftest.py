"""Stores of every kind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage.locations import open_store
from headrace.storage.store import Store
from support.s3_server import BUCKET, run_s3_server


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """The storage options of a running S3 server."""
    with run_s3_server() as options:
        yield options


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store of each kind."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    if request.param == "folder":
        return open_store(str(tmp_path / "store"), "id")
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}", "id")
    return open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", "id", request.getfixturevalue("s3_options"))
