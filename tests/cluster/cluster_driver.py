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
from conformance.engines import use_object_store
from conformance.run import run_scenarios
from conformance.scenarios import SAMPLE_EXAMPLES
from headrace.backends.spark import backend
from headrace.errors import HeadraceError
from support.every_kind_runs import run_every_kind

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


def run_with_killed_reduce_task(folder: Path, spark: Any) -> list[tuple[Any, ...]]:
    """Kill an executor with SIGKILL while its reduce task runs; return the results."""
    started = folder / "reducing"

    def linger(values: pa.Array) -> list[int]:
        started.touch()
        time.sleep(1)
        return values.to_pylist()

    with hr.Session(folder / "killed-reduce", spark=spark, exchange="shuffle", partitions=2) as session:
        session.register_function("linger", linger, "BIGINT", arguments="BIGINT")
        source = hr.MemorySource("k INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        query = session.add("SELECT k, linger(SUM(k)) AS total, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY k", name="q")
        source.append([{"k": number % 7, "time": "2026-01-01T00:00:00Z"} for number in range(700)])
        session.advance()
        closing = threading.Thread(target=session.drain)
        closing.start()
        while not started.exists():
            time.sleep(0.02)
        find_executors()[0].kill()
        closing.join()
        return sorted(tuple(row.values()) for row in query.results().to_pylist())


ELASTIC = {
    "spark.dynamicAllocation.enabled": True,
    "spark.dynamicAllocation.shuffleTracking.enabled": True,
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.speculation": True,
    "spark.speculation.quantile": 0.5,
    "spark.speculation.minTaskRuntime": "500ms",
}


def run_elastic(url: str, folder: Path) -> dict[str, Any]:
    """Executors go away between batches and come back; one is paused in a batch, and goes on after Spark has given it up."""
    probes, markers = [], folder / "markers"
    probe = backend.probe_workers
    backend.probe_workers = lambda *arguments: probes.append(arguments) or probe(*arguments)
    markers.mkdir()

    def linger(values: pa.Array) -> list[int]:
        (markers / str(os.getpid())).touch()
        time.sleep(2)
        return values.to_pylist()

    found: dict[str, Any] = {}
    checkpoint = folder / "elastic"
    with hr.Session(checkpoint, master=url, spark_config=SETTINGS | ELASTIC, exchange="shuffle", partitions=2) as session:
        session.register_function("linger", linger, "INT", arguments="INT")
        source = hr.MemorySource("k INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        query = session.add("SELECT k, SUM(k) AS total, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY k", name="q")

        def run_batch() -> None:
            minute = session.last_batch + 11
            for _ in range(2):  # of which each is a task
                source.append([{"k": number % 7, "time": f"2026-01-01T00:{minute}:00Z"} for number in range(700)])
            session.advance()

        run_batch()
        found["executors"] = [len(find_executors())]
        wait_until(lambda: not find_executors())
        slow = session.add("SELECT linger(k) AS k FROM s", name="slow")
        batch = threading.Thread(target=run_batch)
        batch.start()
        wait_until(lambda: any(markers.iterdir()))
        found["executors"].append(len(find_executors()))
        worker = psutil.Process(int(next(markers.iterdir()).name))
        executor = next(parent for parent in worker.parents() if EXECUTOR in " ".join(parent.cmdline()))
        for process in (executor, worker):  # Spark starts another one for the second task, which then repeats the first
            process.suspend()
        batch.join()
        found["speculated"] = worker.is_running() and worker.status() == psutil.STATUS_STOPPED
        worker.resume()  # its task goes on, and nobody wants its files
        time.sleep(1)
        executor.resume()
        session.remove("slow")
        run_batch()
        session.drain()
        found["rows"] = sorted(tuple(row.values()) for row in query.results().to_pylist())
        found["slow"] = slow.results().num_rows
        found["probes"] = len(probes)
    with hr.Session(checkpoint, backend="local") as session:
        state = session._coordinator.state
        files = {key for name in ("state", "results") for key in session._checkpoint.store.list(name)}
        found["unreferenced"] = sorted(files - state.referenced_files())
    backend.probe_workers = probe
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError
        time.sleep(0.05)


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


def run_conformance(folder: Path) -> dict[str, Any]:
    """Run a sample of the scenarios of all back-ends, with checkpoints, sources and sinks in S3, so that no folder is shared."""
    with use_object_store(folder) as engine:
        with engine.open_session(f"{engine.root}/first") as session:
            exchange = session._backend.exchange
        return {"exchange": exchange, "scenarios": run_scenarios(engine, sample=True, examples=SAMPLE_EXAMPLES)}


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
        record("large files", lambda: run_large_join(folder, "files", spark))
        record("large shuffle", lambda: run_large_join(folder, "shuffle", spark))
        record("hidden", lambda: probe_hidden_folders(folder, private, spark))
        record("conformance", lambda: run_conformance(folder))
        record("killed", lambda: run_with_killed_executor(folder, spark))
        record("killed reduce", lambda: run_with_killed_reduce_task(folder, spark))
    SETTINGS.update(source)
    record("elastic", lambda: run_elastic(url, folder))
    for name in source:
        del SETTINGS[name]
    os.environ["PYSPARK_PYTHON"] = str(environment / "bare" / "bin" / "python")
    options = {"master": url, "spark_config": SETTINGS}
    record("bare", lambda: catch_error(lambda: hr.Session(folder / "bare", **options)))
    os.environ["PYSPARK_PYTHON"] = "./shipped/bin/python"
    archive = {**SETTINGS, "spark.archives": f"{environment / 'shipped.tar.gz'}#shipped"}
    record("archive", lambda: run_every_kind(folder, "archive", master=url, spark_config=archive))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
