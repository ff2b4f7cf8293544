"""The cluster that runs a system under test: nodes that the benchmark starts on this machine, or a cluster of the user.

A node is a worker of Spark or a task manager of Flink, with its processes, limited to a number of cores. The load driver, the
collector, the driver program of Spark and the job manager of Flink are not limited: they stand for other machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import HeadraceError

LOOPBACK = "127.0.0.1"
DEFAULT_NODE_CORES = 0.5


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """A number of `nodes` of `cores` and `memory_mib` each; or, with `master`, a running cluster, whose nodes are as they are.

    `master` is the URL of a Spark master, or of the REST interface of a Flink cluster.
    """

    nodes: int = 0
    cores: float = DEFAULT_NODE_CORES
    memory_mib: int = 2048
    master: str = ""

    def __post_init__(self) -> None:
        """Reject a cluster without nodes, nodes without cores or memory, and nodes beside a master."""
        if self.master and self.nodes:
            raise HeadraceError("a cluster has nodes to start, or the master of a running cluster, not both")
        if not self.master and self.nodes < 1:
            raise HeadraceError(f"a cluster cannot have {self.nodes} nodes", hint="use one or more nodes, or a master")
        if not (self.cores > 0 and self.memory_mib > 0):
            raise HeadraceError(f"a node cannot have {self.cores:g} cores and {self.memory_mib} MiB of memory")

    @property
    def slots(self) -> int:
        """The number of tasks that a node runs at a time."""
        return math.ceil(self.cores)

    def to_json(self) -> dict[str, Any]:
        """Return all values."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any] | None) -> BenchCluster | None:
        """Read the JSON form of `to_json`; None is no cluster: the system runs on this machine, without limits."""
        return None if value is None else BenchCluster(**value)
