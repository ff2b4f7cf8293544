"""Spark's standalone cluster manager with two workers, as processes: shared folders, exchanges, a killed executor, shipped code.

driver ── spark://127.0.0.1 ─┬─ worker 127.0.0.1, one core
                             └─ worker 127.0.0.2, one core, which sees another folder in the place of `private`
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from conformance.scenarios import SAMPLE_EXAMPLES, list_scenarios
from headrace.package_zip import write_zip
from support.every_kind_runs import run_every_kind
from support.service_process import wait_until
from support.standalone_cluster import SPARK_HOME, StandaloneCluster
from support.unpacked_kernels import unpack_compiled_kernels

pytestmark = pytest.mark.spark
LIMIT_SECONDS = 900  # of a busy machine; on a quiet one, a minute
ROOT, PACKAGE = Path(__file__).resolve().parents[2], Path(headrace.__file__).parent
OTHER = "127.0.0.2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("cluster")
    (base / "private" / "in").mkdir(parents=True)
    return base


@pytest.fixture(scope="module")
def cluster(folder: Path, temporary: Path) -> Iterator[StandaloneCluster]:
    """A cluster whose second worker has a file system of its own in the place of a folder; that needs the rights of root."""
    hide = ["unshare", "-m", "bash", "-c", f'mount -t tmpfs none {folder / "private"} && exec "$@"', "worker"]
    prefixes, environment = {OTHER: hide} if can_hide_folders() else {}, {"TMPDIR": str(temporary)}
    running = StandaloneCluster(folder / "processes", ("127.0.0.1", OTHER), prefixes=prefixes, environment=environment)
    try:
        yield running
        executors = running.list_executors()
    finally:
        running.close()
    assert not any(process.is_running() for process in executors)


def can_hide_folders() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def environments(folder: Path) -> Path:
    """Environments of Python with all libraries: `bare` without headrace, and `shipped.tar.gz` with headrace."""
    place = folder / "environments"
    venv.create(place / "bare", symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place / "bare")}))
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")  # without what is editable there
    write_zip(place / "headrace.zip")
    with tarfile.open(place / "shipped.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(place / "bare", ".")
        archive.add(PACKAGE, packages.relative_to(place / "bare") / "headrace")
    return place


def make_environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH"))}
    return {**kept, "HEADRACE_FSYNC": "off", "SPARK_LOCAL_IP": "127.0.0.1", **variables}


@pytest.fixture(scope="module")
def report(cluster: StandaloneCluster, folder: Path, environments: Path) -> dict[str, Any]:
    """The findings of a driver program on the cluster."""
    words = [cluster.url, folder / "shared", folder / "private", environments, folder / "report.json"]
    source = os.pathsep.join([str(ROOT / "tests"), str(PACKAGE.parent)])
    completed = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cluster_driver.py")), *map(str, words)],
        env=make_environment(PYTHONPATH=source), cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_every_kind(tmp_path_factory.mktemp("reference"), "reference", backend="reference")["results"]


def test_partitions_are_the_cores_of_the_executors_that_registered(report: dict[str, Any]) -> None:
    assert (report["partitions"], report["exchange"]) == (2, "files")


def test_workers_run_with_a_shipped_environment(report: dict[str, Any], expected: dict[str, Any]) -> None:
    assert report["archive"] == {"results": expected, "partitions": 2}
    assert all(expected.values())


@pytest.mark.parametrize("name", [scenario.name for scenario in list_scenarios(SAMPLE_EXAMPLES, sample_of="cluster")])
def test_scenario_in_an_object_store(report: dict[str, Any], name: str) -> None:
    assert report["conformance"]["exchange"] == "shuffle"
    found = report["conformance"]["scenarios"][name]
    assert not found["error"], found["error"]


def test_large_blocks_pass_by_name_or_through_the_shuffle(report: dict[str, Any]) -> None:
    assert report["large files"] == {"equal": True, "rows": 90_000, "suffixes": [".block"], "left": []}
    assert report["large shuffle"] == {"equal": True, "rows": 90_000, "suffixes": [".part"], "left": []}


def test_an_executor_dies_and_no_row_is_lost_or_counted_twice(report: dict[str, Any]) -> None:
    assert report["killed"]["killed"]
    assert report["killed"]["rows"] == [[key, key * 100, 100] for key in range(7)]


def test_an_executor_dies_in_the_reduce_stage(report: dict[str, Any]) -> None:
    assert report["killed reduce"] == [[key, key * 100, 100] for key in range(7)]


def test_executors_go_and_come_and_a_paused_one_that_wakes_up_changes_nothing(report: dict[str, Any]) -> None:
    """Dynamic allocation and speculation: three batches, of which one has a task that was run twice."""
    found = report["elastic"]
    assert min(found["executors"]) >= 1
    assert found["speculated"]
    assert found["rows"] == [[key, key * 600, 600] for key in range(7)]
    assert found["slow"] == 1400
    assert found["probes"] >= 2  # at the start, and when executors came back
    assert found["unreferenced"] == []


def test_folders_that_a_worker_does_not_see_are_errors(report: dict[str, Any]) -> None:
    errors = report["hidden"]
    assert errors["seen"].startswith("no error")
    if not can_hide_folders():
        pytest.skip("a worker with another file system needs the rights of root")
    assert re.match(rf"worker on .* \({OTHER}\).* cannot use the checkpoint .*FileNotFoundError", errors["checkpoint"])
    assert errors["checkpoint"].endswith("share, or by the URL of an object store; see docs/deployment.md")
    assert re.match(r"workers do not see the folder of the stream '.*private/in'\ndetail: not seen on ", errors["source"])
    assert re.match(r"workers do not see the folder of the sink '.*private/out'\ndetail: not seen on ", errors["sink"])


def test_workers_without_headrace_are_named(report: dict[str, Any]) -> None:
    assert report["bare"].startswith("2 workers cannot run micro-batches\ndetail: worker on ")
    assert "has no headrace (ModuleNotFoundError: No module named 'headrace')" in report["bare"]
    assert report["bare"].endswith("hint: install it there or ship it, see docs/deployment.md")


def read_example() -> str:
    """Return the first program of the README."""
    return next(iter(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)))


SHELL_INPUT = """
import headrace as hr
with hr.Session() as session: print("same session:", session._backend._spark is spark, spark.sparkContext.master)

exec(open("example.py").read())
print("still runs:", spark.range(3).count())
"""


@pytest.fixture(scope="module")
def shell(cluster: StandaloneCluster, folder: Path) -> subprocess.CompletedProcess[str]:
    """A pyspark shell on the cluster that has run the example of the README; workers have headrace by their PYTHONPATH."""
    words = [
        str(SPARK_HOME / "bin" / "pyspark"), "--master", cluster.url, "--conf", "spark.executor.memory=512m",
        "--conf", f"spark.executorEnv.PYTHONPATH={PACKAGE.parent}",
    ]  # fmt: skip
    (folder / "shell").mkdir()
    (folder / "shell" / "example.py").write_text(read_example())
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON_OPTS": "-i"}
    environment = make_environment(SPARK_HOME=str(SPARK_HOME), PYTHONPATH=str(PACKAGE.parent), TMPDIR=str(folder), **python)
    return subprocess.run(
        words, input=SHELL_INPUT, cwd=folder / "shell", env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS,
        check=False,
    )  # fmt: skip


def test_a_session_takes_the_spark_of_a_pyspark_shell(
    cluster: StandaloneCluster, shell: subprocess.CompletedProcess[str]
) -> None:
    assert shell.returncode == 0, shell.stderr
    for line in (f"same session: True {cluster.url}", "42.5", "still runs: 3"):
        assert line in shell.stdout, shell.stderr


def list_compiled(folder: Path) -> dict[Path, int]:
    """Return the files of compiled kernels with the times at which they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb?")}


@pytest.mark.usefixtures("shell")  # which compiles the kernels of the example
def test_spark_submit_runs_the_example_with_a_shipped_zip(cluster: StandaloneCluster, folder: Path, environments: Path) -> None:
    """Neither driver nor workers have headrace: it comes with --py-files, and its kernels are unpacked to a folder."""
    zip_file = environments / "headrace.zip"
    kernels = unpack_compiled_kernels(zip_file, folder / "tmp")
    compiled = list_compiled(folder / "tmp")
    assert compiled
    place = "print('kernels', __import__('headrace.engine.kernels.group', fromlist=['x']).__file__)\n"
    (folder / "example.py").write_text(read_example() + place)
    submit = [
        str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url, "--py-files", str(zip_file),
        "--executor-memory", "512m", "--conf", f"spark.executorEnv.TMPDIR={folder / 'tmp'}", str(folder / "example.py"),
    ]  # fmt: skip
    python, temporary = str(environments / "bare" / "bin" / "python"), str(folder / "tmp")
    variables = {"PYSPARK_PYTHON": python, "SPARK_HOME": str(SPARK_HOME), "TMPDIR": temporary}
    completed = subprocess.run(
        submit, cwd=folder, env=make_environment(**variables), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert "42.5" in completed.stdout
    assert f"kernels {kernels / 'group.py'}" in completed.stdout
    assert list_compiled(folder / "tmp") == compiled  # driver and workers found what was compiled before


def test_spark_submit_runs_the_example_with_a_shipped_environment(
    cluster: StandaloneCluster, folder: Path, environments: Path
) -> None:
    """Only the driver has headrace; the workers get a Python with it by --archives."""
    (folder / "with-archive.py").write_text(read_example())
    submit = [
        str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url, "--executor-memory", "512m",
        "--archives", f"{environments / 'shipped.tar.gz'}#shipped", str(folder / "with-archive.py"),
    ]  # fmt: skip
    python = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "./shipped/bin/python"}
    environment = make_environment(SPARK_HOME=str(SPARK_HOME), PYTHONPATH=str(PACKAGE.parent), **python)
    completed = subprocess.run(
        submit, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert "42.5" in completed.stdout


CONNECT_CLIENT = """
import json, sys
from pathlib import Path
import headrace
from pyspark.sql import SparkSession
from support.every_kind_runs import run_every_kind
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(json.dumps(run_every_kind(Path(sys.argv[2]), "connect", spark=spark)))
"""


@contextlib.contextmanager
def run_connect_server(url: str, folder: Path, python: Path) -> Iterator[str]:
    """Run a server of Spark Connect on a cluster whose workers use this Python; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        str(SPARK_HOME / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", url, "--executor-memory", "512m",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--conf", f"spark.connect.grpc.binding.port={port}",
    ]  # fmt: skip
    environment = make_environment(SPARK_HOME=str(SPARK_HOME), PYSPARK_PYTHON=str(python))
    with (folder / "connect-server.log").open("wb") as log:
        server = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: server.poll() is None and accepts_connections(port))
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_spark_connect_sends_headrace_to_workers_that_have_only_its_libraries(
    cluster: StandaloneCluster, folder: Path, environments: Path, expected: dict[str, Any]
) -> None:
    source = os.pathsep.join([str(ROOT / "tests"), str(PACKAGE.parent)])
    with run_connect_server(cluster.url, folder, environments / "bare" / "bin" / "python") as address:
        completed = subprocess.run(
            [sys.executable, "-c", CONNECT_CLIENT, address, str(folder)],
            env=make_environment(PYTHONPATH=source), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["results"] == expected
