"""The back-end for Spark Connect without a server: its parallelism, and how headrace reaches the workers."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from headrace.backends.spark import connect, worker_probe
from headrace.engine.batch_job import BatchJob
from headrace.errors import SessionError
from headrace.model.partition_map import PartitionMap


class StubSpark:
    """A session of Spark Connect with one worker, whose Python has headrace once it was sent."""

    def __init__(self, *, has_headrace: bool) -> None:
        self.splits, self.has_headrace = "splits=2", has_headrace
        self.artifacts: list[str] = []
        self.probes = 0

    def sql(self, text: str) -> Any:
        assert text.startswith("EXPLAIN")
        if not self.splits:
            raise PySparkException("the server has ended")
        plan = f"== Physical Plan ==\n*(1) Range (0, 10000, step=1, {self.splits})"
        return SimpleNamespace(collect=lambda: [(plan,)])

    def range(self, *_: int) -> StubSpark:
        return self

    def mapInArrow(self, function: Any, _: str) -> StubSpark:  # noqa: N802  Spark's name
        self.probes += 1
        self.function = function
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.Table.from_batches(list(self.function(())))

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802
        assert pyfile
        self.artifacts.append(Path(path).name)
        self.has_headrace = "headrace/__init__.py" in zipfile.ZipFile(path).namelist()


@pytest.fixture
def make_backend(monkeypatch: pytest.MonkeyPatch):
    def make(*, has_headrace: bool) -> tuple[connect.ConnectBackend, StubSpark]:
        spark = StubSpark(has_headrace=has_headrace)
        own = worker_probe.import_packages

        def import_packages(names: Any) -> Any:
            return own(names) if spark.has_headrace else ({}, dict.fromkeys(names, "ModuleNotFoundError"))

        monkeypatch.setattr(worker_probe, "import_packages", import_packages)
        return connect.ConnectBackend(spark), spark

    return make


def make_job(folder: Path) -> BatchJob:
    return BatchJob(-1, PartitionMap(1), PartitionMap(1), str(folder), {}, ())


def test_headrace_is_sent_to_workers_that_lack_it_once(make_backend, tmp_path):
    used, spark = make_backend(has_headrace=False)
    used.probe(make_job(tmp_path))
    assert len(spark.artifacts) == 1
    assert spark.artifacts[0].startswith("headrace-")
    used.probe(make_job(tmp_path))
    assert len(spark.artifacts) == 1


def test_workers_that_have_headrace_get_nothing(make_backend, tmp_path):
    used, spark = make_backend(has_headrace=True)
    used.probe(make_job(tmp_path))
    assert (spark.artifacts, spark.probes) == ([], 2)


def test_the_parallelism_follows_the_server(make_backend, monkeypatch):
    used, spark = make_backend(has_headrace=True)
    now = 0.0
    monkeypatch.setattr(connect, "time", SimpleNamespace(monotonic=lambda: now))
    used._refresh_at = 5.0
    spark.splits = "splits=8"
    assert used.parallelism == 2
    now = 5.0
    assert used.parallelism == 8
    spark.splits, now = "", 10.0
    assert used.parallelism == 8  # a batch says that the server is gone
    spark.splits, now = "splits=4", 15.0
    assert used.parallelism == 4


def test_a_server_that_does_not_tell_its_parallelism_is_an_error():
    spark = StubSpark(has_headrace=True)
    spark.splits = "something else"
    with pytest.raises(SessionError, match="does not tell its parallelism"):
        connect.ConnectBackend(spark)
