"""Spark Connect, which has no SparkContext: the same stages by DataFrames. The client is a process of its own, as a user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from support.every_kind_runs import run_every_kind

pytestmark = pytest.mark.spark
LIMIT_SECONDS = 300
TESTS = Path(__file__).resolve().parents[1]
PROGRAM = """
import json, sys
from pathlib import Path
import headrace as hr
from headrace.errors import HeadraceError
from support.every_kind_runs import run_every_kind
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
folder = Path(sys.argv[1])
try:
    hr.Session(master="local[2]")
except HeadraceError as caught:
    error = caught
found = {
    "auto": run_every_kind(folder, "auto"),
    "files": run_every_kind(folder, "files", spark=spark, exchange="files"),
    "master": str(error),
    "rows": spark.range(3).count(),
}
print(json.dumps(found))
spark.stop()
"""


def test_queries_of_every_kind_equal_the_reference(tmp_path: Path) -> None:
    source = os.pathsep.join([str(TESTS), str(Path(headrace.__file__).parents[1])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment = {**kept, "PYTHONPATH": source, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-5000:]
    found = json.loads(completed.stdout.splitlines()[-1])
    expected = {"results": run_every_kind(tmp_path, "reference", backend="reference")["results"], "partitions": 2}
    assert found["auto"] == found["files"] == expected
    assert found["master"].startswith("the master and the settings of Spark Connect are those of its server")
    assert found["rows"] == 3  # the session is left to its owner
