"""Spark Connect, where there are no RDDs: a sample of the scenarios of all back-ends, and what only Connect has.

The client is a process of its own, as a user's; `make conformance` runs all scenarios.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from conformance.scenarios import SAMPLE_EXAMPLES, list_scenarios
from support.every_kind_runs import run_every_kind

pytestmark = pytest.mark.spark
LIMIT_SECONDS = 600
TESTS = Path(__file__).resolve().parents[1]
PROGRAM = """
import json, sys
from pathlib import Path
import headrace as hr
from conformance.engines import open_connect
from conformance.run import run_scenarios
from conformance.scenarios import SAMPLE_EXAMPLES
from headrace.errors import HeadraceError
from support.every_kind_runs import run_every_kind
folder = Path(sys.argv[1])
with open_connect(folder) as engine:
    try:
        hr.Session(master="local[2]")
    except HeadraceError as caught:
        error = caught
    found = {
        "scenarios": run_scenarios(engine, sample=True, examples=SAMPLE_EXAMPLES),
        "files": run_every_kind(folder, "files", exchange="files", **engine.options),
        "master": str(error),
        "rows": engine.options["spark"].range(3).count(),
    }
(folder / "report.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The findings of a client."""
    folder = tmp_path_factory.mktemp("connect")
    source = os.pathsep.join([str(TESTS), str(Path(headrace.__file__).parents[1])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment = {**kept, "PYTHONPATH": source, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-5000:]
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("name", [scenario.name for scenario in list_scenarios(SAMPLE_EXAMPLES, sample_of="connect")])
def test_scenario(report: dict[str, Any], name: str) -> None:
    error = report["scenarios"][name]["error"]
    assert not error, error


def test_blocks_pass_as_files(report: dict[str, Any], tmp_path: Path) -> None:
    reference = run_every_kind(tmp_path, "reference", backend="reference")
    assert report["files"] == {"results": reference["results"], "partitions": 2}


def test_the_server_has_the_settings_and_keeps_running(report: dict[str, Any]) -> None:
    assert report["master"].startswith("the master and the settings of Spark Connect are those of its server")
    assert report["rows"] == 3  # the session is left to its owner
