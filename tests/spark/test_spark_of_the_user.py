"""Spark as the user has it: running sessions, spark-submit, spark-defaults.conf; headrace sets only what nobody has set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SessionError
from support.standalone_cluster import SPARK_HOME

pytestmark = pytest.mark.spark
LIMIT_SECONDS = 600
SCRIPT = """
import json, sys
import headrace as hr
names = sys.argv[2:]
with hr.Session(**json.loads(sys.argv[1])) as session:
    source = hr.MemorySource("x INT, time TIMESTAMP")
    session.create_stream("s", source, time="time")
    query = session.add("SELECT SUM(x) AS total FROM TUMBLE(s, '1 second')")
    source.append([{"x": x, "time": "2026-01-01T00:00:00Z"} for x in range(5)])
    session.drain()
    context = session._backend._spark.sparkContext
    java = context._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    settings = {name: context.getConf().get(name) for name in names}
    rows = query.results().to_pylist()
print(json.dumps({"rows": rows, "master": context.master, "settings": settings, "java": list(java),
                  "partitions": session._coordinator.state.partitions, "stopped": context._jsc is None}))
"""
NAMES = ("spark.app.name", "spark.driver.host", "spark.shuffle.compress", "spark.sql.adaptive.enabled", "spark.ui.port",
         "spark.executorEnv.MALLOC_TOP_PAD_", "spark.ui.enabled")  # fmt: skip


def run_script(folder: Path, command: list[str], arguments: dict[str, Any], **variables: str) -> dict[str, Any]:
    (folder / "script.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    completed = subprocess.run(
        [*command, str(folder / "script.py"), json.dumps(arguments), *NAMES],
        cwd=folder, env={**environment, **variables}, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout.splitlines()[-1])
    assert report["rows"] == [{"total": 10}]
    return report


def write_defaults(folder: Path) -> str:
    (folder / "conf").mkdir()
    lines = ("spark.master local[3]", "spark.shuffle.compress true", "spark.driver.host localhost",
             "spark.executorEnv.MALLOC_TOP_PAD_ 4096", "spark.driver.extraJavaOptions -Dof.user=1")  # fmt: skip
    (folder / "conf" / "spark-defaults.conf").write_text("\n".join(lines))
    return str(folder / "conf")


def test_settings_of_files_come_before_those_of_headrace_and_arguments_before_both(tmp_path: Path) -> None:
    arguments = {"spark_config": {"spark.shuffle.compress": False, "spark.ui.port": 4999}}
    report = run_script(tmp_path, [sys.executable], arguments, SPARK_CONF_DIR=write_defaults(tmp_path))
    assert (report["master"], report["partitions"], report["stopped"]) == ("local[3]", 3, True)
    assert report["settings"] == {
        "spark.app.name": "headrace",
        "spark.driver.host": "localhost",  # of the file
        "spark.shuffle.compress": "false",  # of the argument
        "spark.sql.adaptive.enabled": "false",  # of headrace
        "spark.ui.port": "4999",
        "spark.executorEnv.MALLOC_TOP_PAD_": "4096",
        "spark.ui.enabled": "false",
    }
    assert report["java"].index("-Dof.user=1") > report["java"].index("-XX:TieredStopAtLevel=1")  # the last one wins


def test_spark_submit_gives_master_and_settings(tmp_path: Path) -> None:
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]", "--name", "mine",
              "--conf", "spark.sql.adaptive.enabled=true"]  # fmt: skip
    variables = {"SPARK_CONF_DIR": write_defaults(tmp_path), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK_HOME)}
    report = run_script(tmp_path, submit, {}, **variables)
    assert (report["master"], report["partitions"]) == ("local[1]", 1)
    settings = report["settings"]
    assert (settings["spark.app.name"], settings["spark.sql.adaptive.enabled"]) == ("mine", "true")
    assert (settings["spark.shuffle.compress"], settings["spark.driver.host"]) == ("true", "localhost")
    assert "-XX:TieredStopAtLevel=1" not in report["java"]  # the driver is that of spark-submit


def test_a_session_uses_the_running_spark_and_does_not_stop_it(spark: Any) -> None:
    with hr.Session() as session, hr.Session(master="local[2]") as other:
        assert session._backend._spark.sparkContext is other._backend._spark.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("given", [True, False])
def test_a_running_spark_that_differs_is_an_error(spark: Any, given: bool) -> None:
    options = {"spark": spark} if given else {}
    with pytest.raises(SessionError, match=r"Spark is running with master 'local\[2\]', not 'local\[5\]'\nhint: leave out"):
        hr.Session(master="local[5]", **options)
    with pytest.raises(SessionError, match=r"Spark is running with spark.shuffle.compress = false, not true\nhint: set it where"):
        hr.Session(spark_config={"spark.shuffle.compress": True}, **options)
    hr.Session(spark_config={"spark.shuffle.compress": False}, **options).close()


def test_spark_that_headrace_started_ends_with_its_last_session(tmp_path: Path) -> None:
    lines = (
        "import headrace as hr", "from pyspark import SparkContext",
        "first, second = hr.Session(master='local[1]'), hr.Session()",
        "first.close()", "assert SparkContext._active_spark_context is not None",
        "second.advance(); second.close()", "assert SparkContext._active_spark_context is None",
        "third = hr.Session()", "print(third._backend._spark.sparkContext.master)", "third.close()",
    )  # fmt: skip
    completed = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.split() == ["local[*]"]
