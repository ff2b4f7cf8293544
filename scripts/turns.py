# ruff: noqa: S603, S608, INP001  our own command and queries; a module of the scripts in this folder
"""Sessions that take turns: each in a process of its own, which waits while another one works.

So all of them meet the same noise of a shared machine. `compare-speed` and `compare-stores` use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil


def run_worker() -> None:
    """Serve the requests of the parent, one JSON line each, by one line; by the public API, which any version has."""
    import headrace as hr  # noqa: PLC0415  the version of PYTHONPATH
    from headrace.connectors import GENERATORS  # noqa: PLC0415

    session: Any = None
    inbox = Path(tempfile.mkdtemp(prefix="headrace-compare-"))
    source: Any = None
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any = None
        if "queries" in request:
            earlier = session
            shutil.rmtree(inbox)
            inbox.mkdir()
            session = hr.Session(rows_per_batch=request["rows"], **request.get("session", {}))
            for stream in request["streams"]:
                (inbox / stream).mkdir()
                session.create_stream(stream, hr.FileSource(inbox / stream, schema=GENERATORS["fields"].schema), time="time")
            if earlier is not None:
                earlier.close()  # not before: Spark ends with its last session
            source = hr.MemorySource("k INT, v DOUBLE, time TIMESTAMP")
            session.create_stream("small", source, time="time", watermark="1 second")
            for text in request["queries"]:
                session.add(text, sink=request.get("sink", "noop"))
        for stream, file in request.get("files", []):
            (inbox / stream / f"{Path(file).parent.name}-{Path(file).name}").hardlink_to(file)
        if "second" in request:
            source.append(
                [{"k": 1, "v": 1.0, "time": f"2026-01-01T{request['second'] // 60:02d}:{request['second'] % 60:02d}:00Z"}]
            )
        if "advance" in request:
            begun, cpu = time.perf_counter(), measure_cpu()
            report = session.advance()
            answer = [time.perf_counter() - begun, measure_cpu() - cpu, report.rows, list_steps(report)]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    session.close()
    shutil.rmtree(inbox)


def list_steps(report: Any) -> dict[str, float]:
    """Return the seconds of the steps of a micro-batch; "map" and "reduce" are those of the slowest tasks, a part of "run"."""
    steps = getattr(getattr(report, "figures", None), "steps", {})
    return {**steps, "map": report.stage_one_seconds, "reduce": report.stage_two_seconds}


def measure_cpu() -> float:
    """Return the CPU seconds of this process and its children: the JVM and the Python workers."""
    seconds = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def write_join_queries(count: int) -> list[str]:
    """Return window joins and, for every fourth query, a sliding join of two streams, each with its own selections."""
    texts = []
    for number in range(count):
        where = f"l.f1 >= {number * 29 % 900} AND r.f2 < {100 + number * 31 % 900}"
        window = "SLIDING" if number % 4 == 3 else "TUMBLE"
        sides = f"{window}(a, '1 second') l JOIN {window}(b, '1 second') r"
        texts.append(f"SELECT l.key, l.f3, r.f4 FROM {sides} ON l.key = r.key AND l.f5 = r.f5 WHERE {where}")
    return texts


class Worker:
    """A process that runs one version."""

    def __init__(self, checkout: Path) -> None:
        """Start it."""
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TZ": "UTC"}
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> Any:
        """Send a request, and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a worker has failed, see above")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


if __name__ == "__main__":
    run_worker()
