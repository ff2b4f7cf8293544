"""Stores of every kind.

HEADRACE_TEST_STORES adds stores of servers or emulators that were started by hand: a JSON object of storage options by URL.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage.locations import open_store
from headrace.storage.store import Store
from support.s3_server import BUCKET, run_s3_server

FURTHER_STORES: dict[str, dict[str, str]] = json.loads(os.environ.get("HEADRACE_TEST_STORES", "{}"))


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """The storage options of a running S3 server."""
    with run_s3_server() as options:
        yield options


@pytest.fixture(params=["folder", "memory", "s3", *FURTHER_STORES])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store of each kind."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    if request.param == "folder":
        return open_store(str(tmp_path / "store"), "id")
    if request.param in FURTHER_STORES:
        return open_store(f"{request.param}/{uuid.uuid4().hex}", "id", FURTHER_STORES[request.param])
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}", "id")
    return open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", "id", request.getfixturevalue("s3_options"))
