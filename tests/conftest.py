"""Settings of all tests: random examples, files in memory that are not synced, and processes that start fast.

Hypothesis profiles set how many random examples a test draws; a test that wants its own number scales it with `scale_examples`:

    default   a tenth of the base counts, other examples in every run
    ci        a fifth, the same in every run: a failure comes from the change under test; used if CI is set
    full      the base counts (--hypothesis-profile=full)
    soak      50 times the base counts, and all cases of tests that choose some (`make soak`)

No profile has a deadline: a busy machine must not fail a test.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from headrace.bench.driver.kafka_broker import KafkaBroker, run_kafka_broker
from support.postgres_server import PostgresServer, run_postgres
from support.preloaded_process import PreloadedPopen

_ALLOCATIONS_PER_COLLECTION = 20_000  # Python: 700

settings.register_profile("default", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, max_examples=20, derandomize=True, database=None)
settings.register_profile("full", deadline=None, max_examples=100)
settings.register_profile("soak", deadline=None, max_examples=5000)
settings.load_profile("ci" if os.environ.get("CI") else "default")

os.environ.setdefault("HEADRACE_FSYNC", "off")  # also for subprocesses; files of tests need not survive a loss of power

_MEMORY_FOLDER, _MEMORY_BYTES = Path("/dev/shm"), 4 << 30
if "TMPDIR" not in os.environ and _MEMORY_FOLDER.is_dir() and shutil.disk_usage(_MEMORY_FOLDER).free > _MEMORY_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY_FOLDER)  # creating and deleting files is half of the system's time


gc.disable()  # while modules are imported and tests collected: next to nothing of that is garbage
atexit.register(gc.unfreeze)  # some libraries report objects that are left at the end of the process


def pytest_collection_finish() -> None:
    """Exempt what is loaded by now from garbage collection, and collect less often, which saves a tenth of the processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION)
    gc.enable()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Run a broker for the tests of this process; each of them has topics of its own. Tests that use it are marked `kafka`."""
    with run_kafka_broker(tmp_path_factory.mktemp("kafka-broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Run a server for the tests of this process; each of them has tables of its own. Tests that use it are marked `postgres`."""
    with run_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Python commands in children of a process that has imported the libraries."""
    monkeypatch.setattr(subprocess, "Popen", PreloadedPopen)
