"""Where the Spark of a system under test runs: in this process, on nodes that are started here, or on a cluster of the user.

The nodes are a standalone cluster from the package of Spark: a master, and a worker with one executor for each node. They are
children of the process of the system, so that its resources include theirs and they end with it.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from headrace.backends.spark.environment import start_spark
from headrace.bench.cluster import LOOPBACK, BenchCluster
from headrace.bench.systems.adapter import SutConfig
from headrace.bench.systems.node_processes import NodeProcesses, find_loopback_hosts
from headrace.errors import HeadraceError

SPARK_HOME = Path(pyspark.__file__).parent
_MASTER_CLASS, _WORKER_CLASS = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_START_TIMEOUT_S, _POLL_S = 180.0, 0.05


class SparkDeployment:
    """Starts Spark for a system; the options "settings" (Spark settings by name) and "checkpoint" (a URL) are common to both.

    On a cluster of other machines, "checkpoint" is a folder or URL that all of them see; by default it is a local folder.
    """

    def __init__(self, config: SutConfig) -> None:
        """Prepare; `start` starts."""
        self._config, self._cluster = config, config.cluster
        self._nodes: SparkNodes | None = None
        self._spark: Any = None

    def start(self, settings: Mapping[str, str], jar: Path | None = None) -> Any:
        """Start the nodes, if any, and Spark; return the SparkSession when all executors of the nodes have registered."""
        jars = {} if jar is None else {"spark.driver.extraClassPath": str(jar), "spark.jars": str(jar)}
        self._spark = start_spark(self._start_master(), {**settings, **jars, **self._make_settings(), **self._own_settings})
        if self._nodes is not None and self._cluster is not None:
            self._wait_for_executors(self._cluster.nodes)
        return self._spark

    def _start_master(self) -> str:
        if self._cluster is None:
            return "local[*]"
        if self._cluster.master:
            return self._cluster.master
        self._nodes = SparkNodes(self._config.scratch / "nodes", self._cluster)
        return self._nodes.master

    @property
    def _own_settings(self) -> dict[str, str]:
        return {name: str(value) for name, value in self._config.options.get("settings", {}).items()}

    def _make_settings(self) -> dict[str, str]:
        """Return the settings that follow from the place; those of the cluster of a user are the user's."""
        local = {"spark.local.dir": str(self._config.scratch)}
        if self._nodes is None or self._cluster is None:
            return {} if self._cluster else local
        return {
            **local,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.executor.memory": f"{self._cluster.memory_mib}m",
            "spark.cores.max": str(self._cluster.nodes * self._cluster.slots),
        }

    def _wait_for_executors(self, nodes: int) -> None:
        status = self._spark.sparkContext._jsc.sc()  # noqa: SLF001  the driver is in this list, too
        end = time.monotonic() + _START_TIMEOUT_S
        while (found := int(status.getExecutorMemoryStatus().size()) - 1) < nodes:
            if time.monotonic() > end:
                raise HeadraceError(f"{found} of {nodes} Spark executors registered within {_START_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)

    @property
    def task_slots(self) -> int:
        """The number of tasks that Spark runs at a time."""
        return int(self._spark.sparkContext.defaultParallelism)

    def make_checkpoint(self, name: str) -> str:
        """Return a new folder, or a URL, for a checkpoint."""
        shared = self._config.options.get("checkpoint")
        return str(self._config.scratch / name) if shared is None else f"{shared}/{name}-{uuid.uuid4().hex}"

    def limit_nodes(self) -> None:
        """Limit the processors of the nodes from now on."""
        if self._nodes is not None:
            self._nodes.processes.limit_nodes()

    def describe(self) -> dict[str, Any]:
        """Return the settings of the result document."""
        if self._nodes is not None:
            master, limit = "a standalone cluster", {"node_limit": self._nodes.processes.limiter.means}
        else:
            master, limit = str(self._spark.sparkContext.master), {}
        return {"master": master, "task_slots": self.task_slots, **limit, **self._own_settings}

    def check(self) -> None:
        """Raise HeadraceError if a node has ended."""
        if self._nodes is not None:
            self._nodes.processes.check()

    def close(self) -> None:
        """Stop Spark, and the nodes."""
        if self._spark is not None:
            self._spark.stop()
        if self._nodes is not None:
            self._nodes.processes.close()


class SparkNodes:
    """A Spark standalone cluster on loopback addresses: a master, and a worker with one executor for each node."""

    def __init__(self, folder: Path, cluster: BenchCluster) -> None:
        """Start the processes and return when all workers have registered; raise HeadraceError with their output otherwise."""
        self.processes = NodeProcesses(folder, cluster)
        try:
            words = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
            self.processes.start_service("master", _make_command(_MASTER_CLASS, *words), _make_environment(LOOPBACK))
            self.master = self.processes.wait_for_text("master", r"Starting Spark master at (spark://\S+)")
            for node, host in enumerate(find_loopback_hosts(cluster.nodes)):
                self.processes.start_node(node, self._make_worker_command(node, host, cluster), _make_environment(host))
            for node in range(cluster.nodes):
                self.processes.wait_for_text(f"node-{node}", r"(Successfully registered) with master")
        except BaseException:
            self.processes.close()
            raise

    def _make_worker_command(self, node: int, host: str, cluster: BenchCluster) -> list[str]:
        size = ("--cores", str(cluster.slots), "--memory", f"{cluster.memory_mib}m")
        folder = str(self.processes.folder / f"work-{node}")
        return _make_command(_WORKER_CLASS, "--host", host, "--webui-port", "0", *size, "--work-dir", folder, self.master)


def _make_command(*words: str) -> list[str]:
    return [str(SPARK_HOME / "bin" / "spark-class"), *words]


def _make_environment(host: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **inherited,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }
