"""The processes of a cluster that the benchmark starts on this machine: services without a limit, and nodes with one."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from headrace.bench.cluster import LOOPBACK, BenchCluster
from headrace.bench.systems.cpu_limits import CpuLimiter
from headrace.bench.systems.process import list_process_tree
from headrace.errors import HeadraceError

_START_TIMEOUT_S, _POLL_S, _STOP_GRACE_S = 180.0, 0.05, 5.0
_TAIL_CHARACTERS = 2000  # end of the output that an error quotes


class NodeProcesses:
    """Starts and ends the processes of a cluster, and limits its nodes; their output is in `folder`."""

    def __init__(self, folder: Path, cluster: BenchCluster) -> None:
        """Create the folder; raise HeadraceError if nodes of this size cannot be limited here."""
        self.limiter = CpuLimiter(cluster.nodes, cluster.cores)
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._nodes: dict[int, psutil.Process] = {}
        folder.mkdir(parents=True)

    def start_service(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process that is not part of a node, such as a master."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603  the scripts of Spark and Flink
                command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def start_node(self, node: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process of a node, whose children belong to the node, too."""
        self.start_service(f"node-{node}", command, environment)
        self._nodes[node] = psutil.Process(self._processes[f"node-{node}"].pid)

    def wait_for_text(self, name: str, pattern: str) -> str:
        """Return what the group of a pattern matches in the output of a process; raise HeadraceError after three minutes."""
        end = time.monotonic() + _START_TIMEOUT_S
        while True:
            has_ended = self._processes[name].poll() is not None
            text = (self.folder / f"{name}.log").read_text(errors="replace")
            if match := re.search(pattern, text):
                return match[1]
            if has_ended or time.monotonic() > end:
                problem = "ended" if has_ended else f"did not start within {_START_TIMEOUT_S:g} s"
                raise HeadraceError(f"the process '{name}' of the cluster {problem}", detail=text[-_TAIL_CHARACTERS:].strip())
            time.sleep(_POLL_S)

    def limit_nodes(self) -> None:
        """Limit the processors of every node from now on."""
        for node, process in self._nodes.items():
            self.limiter.limit_node(node, partial(_list_pids, process.pid))

    def check(self) -> None:
        """Raise HeadraceError if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise HeadraceError(f"the process '{name}' of the cluster ended", detail=f"exit code {process.returncode}")

    def close(self) -> None:
        """End all processes with SIGTERM, the last first, and what is left of them and their children with SIGKILL."""
        for process in reversed(self._processes.values()):
            tree = list_process_tree(process.pid)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_GRACE_S)
            for member in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            process.wait()
            psutil.wait_procs(tree, _STOP_GRACE_S)  # a control group can be removed when its processes have ended
        self.limiter.close()


def _list_pids(root: int) -> list[int]:
    return [process.pid for process in list_process_tree(root)]


def find_loopback_hosts(count: int) -> list[str]:
    """Return an address for each node: 127.0.0.1, 127.0.0.2, … where all of 127/8 is loopback, else the same for all."""
    hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
    return hosts if all(map(_is_own_address, hosts)) else [LOOPBACK] * count


def _is_own_address(host: str) -> bool:
    try:
        socket.create_server((host, 0)).close()
    except OSError:
        return False
    return True
