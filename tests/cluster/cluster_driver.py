"""A driver program on a standalone cluster; the tests run it as a process of its own, because a process has one Spark.

    python cluster_driver.py URL FOLDER PRIVATE ENVIRONMENT REPORT

PRIVATE is a folder that one of the workers sees as another one; ENVIRONMENT has a Python without headrace, and a tar file of one
with it. Every part of the program writes its findings to the REPORT, in JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import headrace as hr
from headrace.errors import HeadraceError
from headrace.storage.locations import open_store
from support.every_kind_runs import run_every_kind
from support.s3_server import BUCKET, run_s3_server

EXECUTOR = "CoarseGrainedExecutorBackend"
SETTINGS = {"spark.executor.memory": "512m", "spark.executorEnv.HEADRACE_FSYNC": "off"}
JOIN = "SELECT l.n AS a, r.n AS b FROM TUMBLE(l, '1 hour') l JOIN TUMBLE(r, '1 hour') r ON l.k = r.k WHERE l.n < r.n"
JOINED_ROWS, JOINED_KEYS = 120_000, 50_000


def run_large_join(folder: Path, exchange: str, spark: Any) -> dict[str, Any]:
    """Join streams whose shuffle blocks are large, in windows that stay open for a batch; check the result."""
    with hr.Session(folder / f"join-{exchange}", spark=spark, exchange=exchange) as session:
        sources = {name: hr.MemorySource("k INT, n INT, time TIMESTAMP") for name in "lr"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        query = session.add(JOIN, name="pairs")
        places = np.arange(JOINED_ROWS)
        times = pa.array(places + 1_700_000_000_000_000, pa.timestamp("us", tz="UTC"))
        rows = pa.table({"k": pa.array(places % JOINED_KEYS, pa.int32()), "n": pa.array(places, pa.int32()), "time": times})
        for source in sources.values():
            source.append(rows)
        session.advance()
        suffixes = sorted({path.suffix for path in (folder / f"join-{exchange}" / "state").iterdir()})
        session.drain()
        found = query.results()
    pairs = sorted(zip(found["a"].to_pylist(), found["b"].to_pylist(), strict=True))
    expected = sorted((a, b) for a in range(JOINED_ROWS) for b in range(a + JOINED_KEYS, JOINED_ROWS, JOINED_KEYS))
    left = [path.name for path in (folder / f"join-{exchange}").glob("shuffle/*")]
    return {"equal": pairs == expected, "rows": len(pairs), "suffixes": suffixes, "left": left}


def run_with_killed_executor(folder: Path, spark: Any) -> dict[str, Any]:
    """Kill an executor with SIGKILL while its task runs; return the results."""
    started = folder / "started"

    def linger(values: pa.Array) -> list[int]:
        started.touch()
        time.sleep(2)
        return values.to_pylist()

    with hr.Session(folder / "killed", spark=spark, exchange="shuffle", partitions=2) as session:
        session.register_function("linger", linger, "INT", arguments="INT")
        source = hr.MemorySource("k INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        query = session.add("SELECT k, SUM(linger(k)) AS total, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY k", name="q")
        source.append([{"k": number % 7, "time": "2026-01-01T00:00:00Z"} for number in range(700)])
        batch = threading.Thread(target=session.advance)
        batch.start()
        while not started.exists():
            time.sleep(0.02)
        killed = find_executors()[0]
        killed.kill()
        batch.join()
        session.drain()
        rows = sorted(tuple(row.values()) for row in query.results().to_pylist())
    return {"killed": killed.pid, "rows": rows, "batches": session.last_batch}


def find_executors() -> list[psutil.Process]:
    """The JVMs of the executors of this application."""
    application = hr_spark().sparkContext.applicationId
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if EXECUTOR in line and application in line and "java" in line.split(" ")[0]:
            found.append(process)
    return found


def hr_spark() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def catch_error(action: Callable[[], Any]) -> str:
    """Return the text of the HeadraceError that an action raises, or what it returns."""
    try:
        return f"no error: {action()!r}"
    except HeadraceError as error:
        return str(error)


def run_in_s3(spark: Any) -> dict[str, Any]:
    """Run with checkpoint, source and sink in S3, so that no folder is shared; return results, and the rows of the sink."""
    with run_s3_server() as options:
        root = f"s3://{BUCKET}/cluster"
        found = run_every_kind(root, "s3", spark=spark, storage_options=options)
        with hr.Session(f"{root}/sink-checkpoint", spark=spark, storage_options=options) as session:
            session.create_stream("f", hr.FileSource(f"{root}/files-s3"), time="time", watermark="1 second")
            query = session.add("SELECT k, COUNT(*) AS c FROM TUMBLE(f, '2 seconds') GROUP BY k", sink=f"jsonl:{root}/out")
            session.drain()
            found["exchange"], found["emitted"] = session._backend.exchange, query.emitted
        sink = open_store(f"{root}/out", options=options)
        found["sink rows"] = sum(len(sink.get(key).splitlines()) for key in sink.list(""))
        found["pending"] = sink.list("_pending")
        return found


def probe_hidden_folders(shared: Path, private: Path, spark: Any) -> dict[str, str]:
    """Use folders that a worker does not see: as checkpoint, as source and as sink."""
    errors = {"checkpoint": catch_error(lambda: hr.Session(private / "checkpoint", spark=spark))}
    with hr.Session(shared / "probed", spark=spark) as session:
        source = hr.FileSource(private / "in", schema="x INT, time TIMESTAMP")
        errors["source"] = catch_error(lambda: session.create_stream("s", source, time="time"))
        session.create_stream("t", hr.RateSource(10), time="time")
        errors["sink"] = catch_error(lambda: session.add("SELECT user_id FROM t", sink=f"jsonl:{private / 'out'}"))
        errors["seen"] = catch_error(lambda: session.add("SELECT user_id FROM t", sink=f"jsonl:{shared / 'out'}").name)
    return errors


def main(url: str, folder: Path, private: Path, environment: Path, report: Path) -> None:
    """Run all parts in turn."""
    findings: dict[str, Any] = {}
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def record(name: str, action: Callable[[], Any]) -> None:
        start = time.monotonic()
        findings[name] = action()
        findings.setdefault("seconds", {})[name] = round(time.monotonic() - start, 1)
        report.write_text(json.dumps(findings))

    source = {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}  # so that workers have headrace
    with hr.Session(folder / "first", master=url, spark_config=SETTINGS | source) as first:
        findings["start"] = round(time.monotonic() - began, 1)
        findings["exchange"], findings["partitions"] = first._backend.exchange, first.partitioning.next
        spark = hr_spark()
        record("files", lambda: run_every_kind(folder, "files", spark=spark, exchange="files"))
        record("shuffle", lambda: run_every_kind(folder, "shuffle", spark=spark, exchange="shuffle"))
        record("large files", lambda: run_large_join(folder, "files", spark))
        record("large shuffle", lambda: run_large_join(folder, "shuffle", spark))
        record("hidden", lambda: probe_hidden_folders(folder, private, spark))
        record("s3", lambda: run_in_s3(spark))
        record("killed", lambda: run_with_killed_executor(folder, spark))
    os.environ["PYSPARK_PYTHON"] = str(environment / "bare" / "bin" / "python")
    options = {"master": url, "spark_config": SETTINGS}
    record("bare", lambda: catch_error(lambda: hr.Session(folder / "bare", **options)))
    os.environ["PYSPARK_PYTHON"] = "./shipped/bin/python"
    archive = {**SETTINGS, "spark.archives": f"{environment / 'shipped.tar.gz'}#shipped"}
    record("archive", lambda: run_every_kind(folder, "archive", master=url, spark_config=archive))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
