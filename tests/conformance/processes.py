"""A back-end in a process of its own: a process has one Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import headrace

TESTS = Path(__file__).resolve().parents[1]


def run_process(engine: str, folder: Path, *, sample: bool, examples: int | None = None, only: str = "") -> dict[str, Any]:
    """Run the scenarios on a back-end in another process; return seconds and error of each. Progress goes to stderr."""
    source = os.pathsep.join([str(TESTS), str(Path(headrace.__file__).parents[1])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH"))}
    environment = {"HEADRACE_FSYNC": "off", **kept, "PYTHONPATH": source, "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    report = folder / f"{engine}.json"
    words = [engine, "--report", str(report), "--only", only, *(["--sample"] if sample else [])]
    words += ["--examples", str(examples)] if examples else []
    with subprocess.Popen([sys.executable, "-m", "conformance", *words], cwd=folder, env=environment) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()  # it ends its cluster
            raise
    if not report.exists():
        raise RuntimeError(f"the process of {engine} ended with {code}, without a report")
    return json.loads(report.read_text())  # type: ignore[no-any-return]
