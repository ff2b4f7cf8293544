"""The command line on Spark: `headrace run` of the example, killed and restarted; `headrace demo`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "purchases.toml"
COMMAND = [sys.executable, "-c", "from headrace.cli import main; main()"]
LIMIT_SECONDS = 600


def run_command(*words: object, cwd: Path) -> dict[str, Any]:
    completed = subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def read_rows(directory: str) -> list[str]:
    """Return the rows of the files of a directory as sorted texts, floats rounded."""
    read: list[dict[str, Any]] = []
    for path in Path(directory).glob("part-*"):
        lines = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else map(json.loads, path.read_text().splitlines())
        read += lines
    return sorted(
        str({name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}) for row in read
    )


def kill_when_log_entry_exists(log: Path, out: Path, cwd: Path) -> None:
    words = ["run", str(EXAMPLE), "--once", "--out", str(out)]
    process = subprocess.Popen([*COMMAND, *words], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + LIMIT_SECONDS
    while not log.exists() and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert process.poll() is None, "the process ended before it was killed"
    process.kill()
    process.wait()


def test_the_example_gives_the_same_results_after_a_kill_and_a_restart(tmp_path):
    """|--batches--✗|--other batches--| on Spark  ==  |--all batches--| on the local backend."""
    out = tmp_path / "spark"
    kill_when_log_entry_exists(out / ".checkpoint" / "log" / f"{1:010d}.json", out, tmp_path)
    options = ("--master", "local[2]", "--conf", "spark.driver.memory=4g")  # as in docs/deployment.md
    report = run_command("run", EXAMPLE, "--once", "--json", "--out", out, *options, cwd=tmp_path)
    expected = run_command("run", EXAMPLE, "--once", "--json", "--out", tmp_path / "local", "--backend", "local", cwd=tmp_path)
    assert report["batches"] == expected["batches"]
    assert report["streams"] == expected["streams"]
    for name, query in expected["queries"].items():
        restarted = report["queries"][name]
        assert (restarted["rows"], restarted["late"], restarted["status"]) == (query["rows"], query["late"], "live")
        assert read_rows(restarted["path"]) == read_rows(query["path"])


def test_demo_adds_and_removes_queries_on_spark(tmp_path):
    report = run_command("demo", "--seconds", 8, "--queries", 10, "--rate", 20_000, "--json", cwd=tmp_path)
    assert report["queries"] == {"added": 10, "removed": 3, "live": 7, "failed": 0}
    assert report["backend"] == "spark"
    assert report["rows"] > 0
    assert report["results"] > 0
