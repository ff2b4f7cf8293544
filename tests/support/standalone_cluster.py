"""A standalone Spark cluster on the loopback interface: a master and workers as processes of their own, from the pip package."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyspark

START_SECONDS = 180.0
SPARK_HOME = Path(pyspark.__file__).parent
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


class StandaloneCluster:
    """A master and one worker for each host, with one core unless given otherwise; `close` ends all their processes.

    `python_path` is the PYTHONPATH of the workers, and `prefix` a command that starts a worker, such as `unshare`.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Sequence[str] = ("127.0.0.1", "127.0.0.2"),
        *,
        environment: Mapping[str, str] | None = None,
        prefixes: Mapping[str, Sequence[str]] | None = None,
        cores: int = 1,
    ) -> None:
        self.folder, self._environment, self._prefixes = folder, dict(environment or {}), prefixes or {}
        self._cores = str(cores)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start("master", "127.0.0.1", _MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = self._wait_for_text("master", r"Starting Spark master at (spark://\S+)")
            for host in hosts:
                self._start_worker(host)
            for host in hosts:
                self._wait_for_text(f"worker-{host}", r"(Successfully registered) with master")
        except BaseException:
            self.close()
            raise

    def _start_worker(self, host: str) -> None:
        options = ("--host", host, "--cores", self._cores, "--memory", "1g", "--webui-port", "0")
        work = ("--work-dir", str(self.folder / f"work-{host}"))
        self._start(f"worker-{host}", host, _WORKER, *options, *work, self.url, prefix=self._prefixes.get(host, ()))

    def restart_worker(self, host: str) -> None:
        """Kill a worker with its executors, and start another one on the same host."""
        process = self._processes[f"worker-{host}"]
        children = _list_children(process)
        process.kill()
        process.wait()
        _kill_all(children)
        self._start_worker(host)

    def _start(self, name: str, host: str, *words: str, prefix: Sequence[str] = ()) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH"))},
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PYSPARK_PYTHON": sys.executable,
            **self._environment,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [*prefix, str(SPARK_HOME / "bin" / "spark-class"), *words]
            self._processes[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _wait_for_text(self, name: str, pattern: str) -> str:
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit:
            match = re.search(pattern, (self.folder / f"{name}.log").read_text(errors="replace"))
            if match is not None:
                return match[1]
            time.sleep(0.05)
        raise AssertionError((self.folder / f"{name}.log").read_text(errors="replace"))

    def list_executors(self) -> list[psutil.Process]:
        """The JVMs of executors, which are children of the workers."""
        return [child for process in self._processes.values() for child in _list_children(process) if _is_executor(child)]

    def close(self) -> None:
        """End all processes: the workers first, which end their executors, then what is left of their children."""
        for process in reversed(self._processes.values()):
            children = _list_children(process)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _kill_all(children)


def _kill_all(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _list_children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return False
