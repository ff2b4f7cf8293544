"""The command line on Spark, as a user starts it: the example, killed on the way; the demonstration."""

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
LIMIT_SECONDS = 240


def run(*words: object, cwd: Path) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rows(directory: str) -> list[str]:
    """Return the rows below a directory as text, floats rounded, in one order."""
    found: list[dict[str, Any]] = []
    for path in Path(directory).iterdir():
        lines = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else map(json.loads, path.read_text().splitlines())
        found += lines
    return sorted(
        str({name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}) for row in found
    )


def kill_when_logged(log: Path, out: Path, cwd: Path) -> None:
    words = ["run", str(EXAMPLE), "--once", "--out", str(out)]
    process = subprocess.Popen([*COMMAND, *words], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + LIMIT_SECONDS
    while not log.exists() and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert process.poll() is None, "it was over before it could be killed"
    process.kill()
    process.wait()


def test_the_example_killed_and_started_again(tmp_path):
    """|--batches--✗|--the rest--| on Spark  ==  |--all batches--| in one process."""
    out = tmp_path / "spark"
    kill_when_logged(out / ".checkpoint" / "log" / f"{1:010d}.json", out, tmp_path)
    found = run("run", EXAMPLE, "--once", "--json", "--out", out, cwd=tmp_path)
    expected = run("run", EXAMPLE, "--once", "--json", "--out", tmp_path / "local", "--backend", "local", cwd=tmp_path)
    assert found["batches"] == expected["batches"]
    assert found["streams"] == expected["streams"]
    for name, query in expected["queries"].items():
        again = found["queries"][name]
        assert (again["rows"], again["late"], again["status"]) == (query["rows"], query["late"], "live")
        assert rows(again["path"]) == rows(query["path"])


def test_the_demonstration(tmp_path):
    found = run("demo", "--seconds", 8, "--queries", 10, "--rate", 20_000, "--json", cwd=tmp_path)
    assert found["queries"] == {"added": 10, "removed": 3, "live": 7, "failed": 0}
    assert found["backend"] == "spark"
    assert found["rows"] > 0
    assert found["results"] > 0
