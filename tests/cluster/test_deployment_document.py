"""The commands of docs/deployment.md, as they are written there, on a standalone cluster with S3: package, submit, run.

Only the address of the master, the bucket and the memory of executors are others; `--once` ends a run that would wait for files.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.s3_server import BUCKET, run_s3_server
from support.standalone_cluster import SPARK_HOME, StandaloneCluster

pytestmark = pytest.mark.spark
LIMIT_SECONDS = 600
ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8").partition("### Standalone")[2].partition("### YARN")[0]
PROGRAMS = {
    "headrace": [sys.executable, "-c", "from headrace.cli import main; main()"],
    "spark-submit": [str(SPARK_HOME / "bin" / "spark-submit")],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, temporary: Path) -> Iterator[StandaloneCluster]:
    environment = {"TMPDIR": str(temporary)}
    running = StandaloneCluster(tmp_path_factory.mktemp("cluster") / "processes", environment=environment)
    yield running
    running.close()


@pytest.fixture(scope="module")
def variables(temporary: Path) -> Iterator[dict[str, str]]:
    """The environment of a user: credentials of S3, and Spark's folder."""
    with run_s3_server() as options:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "AWS_"))}
        yield {
            **kept,
            "AWS_ENDPOINT_URL": options["endpoint"],
            "AWS_ACCESS_KEY_ID": options["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
            "AWS_REGION": options["region"],
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(temporary),
        }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the examples, where the commands run."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns(".headrace", "out"))
    return tmp_path


def find_commands(program: str) -> list[str]:
    """Return the commands of a program in the blocks of shell of the section."""
    lines = [line for block in TEXT.split("```sh\n")[1:] for line in block.partition("```")[0].splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


def adapt(text: str, cluster: StandaloneCluster, name: str) -> str:
    """Replace the addresses and sizes of the document by those of the test."""
    small = text.replace("spark://10.0.0.1:7077", cluster.url).replace("8g", "512m").replace("10.0.0.7", "127.0.0.1")
    return small.replace("s3://bucket/", f"s3://{BUCKET}/{name}-")


def run_command(line: str, place: Path, variables: dict[str, str], more: Sequence[str] = ()) -> str:
    program, *words = shlex.split(line, comments=True)
    completed = subprocess.run(
        [*PROGRAMS[program], *words, *more],
        cwd=place,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_the_cluster_is_started_by_the_commands_of_the_document():
    """The cluster of this test runs the same classes."""
    assert [line.split(" ")[1].rpartition(".")[2] for line in find_commands("spark-class")] == ["Master", "Worker"]


def test_the_zip_is_packed_and_submitted_with_the_example(cluster, variables, place):
    (package,), (submit,) = find_commands("headrace package"), find_commands("spark-submit")
    run_command(package, place, variables)
    assert (place / "headrace.zip").exists()
    out = run_command(adapt(submit, cluster, "submit"), place, variables)
    assert "gem_pack" in out
    assert "revenue" in out


def test_the_command_line_and_the_session_file_run_on_the_cluster(cluster, variables, place):
    (command,) = find_commands("headrace run")
    report = json.loads(run_command(adapt(command, cluster, "command"), place, variables, ["--once", "--json"]))
    assert {query["status"] for query in report["queries"].values()} == {"live"}
    assert report["queries"]["revenue"]["rows"] > 0
    session = adapt(TEXT.partition("```toml\n")[2].partition("```")[0], cluster, "file")
    (place / "examples" / "session.toml").write_text(session)
    words = ["examples/session.toml", "--once", "--json"]
    document = json.loads(run_command("headrace run", place, variables, words))
    assert document["queries"]["revenue"]["rows"] > 0
    assert document["streams"]["purchases"]["rows"] == report["streams"]["purchases"]["rows"]
