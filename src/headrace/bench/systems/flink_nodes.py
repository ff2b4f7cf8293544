"""A standalone Flink cluster on loopback addresses: a job manager, and a task manager for each node.

They are started by the scripts of the Flink package, with a configuration folder for each process.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from headrace.bench.cluster import LOOPBACK, BenchCluster
from headrace.bench.systems.node_processes import NodeProcesses, find_loopback_hosts
from headrace.errors import HeadraceError

_START_TIMEOUT_S, _POLL_S = 180.0, 0.1
_JOB_MANAGER_MIB = 1024


class FlinkNodes:
    """The processes of the cluster; `rest_address` is where jobs are submitted."""

    def __init__(
        self, home: Path, folder: Path, cluster: BenchCluster, settings: Mapping[str, str], java_options: str, log4j: Path
    ) -> None:
        """Start the cluster and return when all task managers have registered.

        `settings` are Flink settings; raise HeadraceError with the output of a process that does not start.
        """
        self._home, self._log4j = home, log4j
        rpc_port, rest_port = find_free_ports(2)
        self.rest_address = f"http://{LOOPBACK}:{rest_port}"
        self._settings = {
            **settings,
            "env.java.opts.all": java_options,
            "jobmanager.rpc.address": LOOPBACK,
            "jobmanager.rpc.port": str(rpc_port),
            "jobmanager.bind-host": LOOPBACK,
            "jobmanager.memory.process.size": f"{_JOB_MANAGER_MIB}m",
            "rest.address": LOOPBACK,
            "rest.bind-address": LOOPBACK,
            "rest.port": str(rest_port),
        }
        self.processes = NodeProcesses(folder, cluster)
        try:
            self.processes.start_service(
                "job-manager", self._make_command("jobmanager"), self._make_environment("job-manager", {})
            )
            for node, host in enumerate(find_loopback_hosts(cluster.nodes)):
                place = {"taskmanager.host": host, "taskmanager.bind-host": host}
                environment = self._make_environment(f"node-{node}", place)
                self.processes.start_node(node, self._make_command("taskmanager"), environment)
            self._wait_for_task_managers(cluster.nodes)
        except BaseException:
            self.processes.close()
            raise

    def _make_command(self, script: str) -> list[str]:
        return ["bash", str(self._home / "bin" / f"{script}.sh"), "start-foreground"]

    def _make_environment(self, name: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Write the configuration of a process to a folder of its own; return the environment that names it."""
        folder = self.processes.folder / f"{name}-conf"
        folder.mkdir()
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in {**self._settings, **settings}.items()]
        (folder / "config.yaml").write_text("".join(lines), encoding="utf-8")
        shutil.copy(self._log4j, folder / "log4j-console.properties")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FLINK_"))}
        return {**inherited, "FLINK_CONF_DIR": str(folder), "FLINK_LOG_DIR": str(self.processes.folder)}

    def _wait_for_task_managers(self, count: int) -> None:
        end = time.monotonic() + _START_TIMEOUT_S
        while (found := count_task_managers(self.rest_address)) < count:
            self.processes.check()
            if time.monotonic() > end:
                raise HeadraceError(f"{found} of {count} Flink task managers registered within {_START_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)


def count_task_managers(rest_address: str) -> int:
    """Return the number of registered task managers; 0 while the job manager does not answer."""
    return read_overview(rest_address).get("taskmanagers", 0)


def read_overview(rest_address: str) -> dict[str, int]:
    """Return the overview of a Flink cluster, with `taskmanagers` and `slots-total`; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"{rest_address}/overview", timeout=10) as response:  # noqa: S310  http by construction
            overview: dict[str, int] = json.load(response)
            return overview
    except (OSError, ValueError):
        return {}


def find_free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free now."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
