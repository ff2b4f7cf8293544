"""The back-ends under test: how their sessions are opened, and where their checkpoints and files are."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace as hr
from headrace.backends.spark import backend
from headrace.backends.spark.environment import start_spark
from support.s3_server import BUCKET, run_s3_server
from support.standalone_cluster import StandaloneCluster

CLUSTER_SETTINGS = {"spark.executor.memory": "512m", "spark.executorEnv.HEADRACE_FSYNC": "off"}


@dataclass(frozen=True, slots=True)
class Engine:
    """A running back-end. `options` are those of its sessions; `root` is the folder or URL of all that they store.

    `folder` is a folder of this machine, for what has to be one.
    """

    name: str
    options: Mapping[str, Any]
    root: str
    folder: Path

    def open_session(self, checkpoint: str, **options: Any) -> hr.Session:
        """Open a session of this back-end on a checkpoint."""
        return hr.Session(checkpoint, **{**self.options, **options})

    def clear(self, place: str) -> None:
        """Delete a folder of `root`; what is in an object store ends with its server."""
        if "://" not in place:
            shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def open_local(folder: Path) -> Iterator[Engine]:
    """Run all stages in this process."""
    yield Engine("local", {"backend": "local"}, str(folder), folder)


@contextlib.contextmanager
def open_rdd(folder: Path) -> Iterator[Engine]:
    """Run micro-batches as RDD jobs of a local Spark, each with all stages."""
    small_rows, backend.SMALL_BATCH_ROWS = backend.SMALL_BATCH_ROWS, -1
    try:
        with open_rdd_task(folder) as engine:
            yield replace(engine, name="rdd")
    finally:
        backend.SMALL_BATCH_ROWS = small_rows


@contextlib.contextmanager
def open_rdd_task(folder: Path) -> Iterator[Engine]:
    """Run micro-batches as RDD jobs of a local Spark, the small ones in one task."""
    spark = start_spark("local[2]")
    try:
        yield Engine("rdd_task", {"spark": spark}, str(folder), folder)
    finally:
        spark.stop()


@contextlib.contextmanager
def open_connect(folder: Path) -> Iterator[Engine]:
    """Run micro-batches as DataFrame queries of Spark Connect, with a server that pyspark starts."""
    os.environ["SPARK_TESTING"] = "1"  # a free port for the server instead of a fixed one
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        yield Engine("connect", {"spark": spark}, str(folder), folder)
    finally:
        spark.stop()


@contextlib.contextmanager
def open_cluster(folder: Path) -> Iterator[Engine]:
    """Run micro-batches on a standalone cluster of two workers, with checkpoints and files in S3: nothing but S3 is shared."""
    cluster = StandaloneCluster(folder / "processes", environment={"HEADRACE_CACHE_DIR": str(folder / "cache")})
    try:
        settings = {**CLUSTER_SETTINGS, "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
        with hr.Session(folder / "first", master=cluster.url, spark_config=settings), use_object_store(folder) as engine:
            yield engine
    finally:
        cluster.close()


@contextlib.contextmanager
def use_object_store(folder: Path) -> Iterator[Engine]:
    """Use the running Spark, a cluster, with everything in S3."""
    with run_s3_server() as storage:
        for name in ("access_key_id", "secret_access_key", "region"):  # for files that are written without a session
            os.environ[f"AWS_{name.upper()}"] = storage[name]
        os.environ["AWS_ENDPOINT_URL"] = storage["endpoint"]
        options = {"spark": SparkSession.getActiveSession(), "storage_options": storage}
        yield Engine("cluster", options, f"s3://{BUCKET}/conformance", folder)


ENGINES: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[Engine]]] = {
    "local": open_local,
    "rdd": open_rdd,
    "rdd_task": open_rdd_task,
    "connect": open_connect,
    "cluster": open_cluster,
}
