"""Limit nodes, which are groups of processes, to a number of cores each.

A control group with a quota of CPU time does it for any number of cores; it needs the right to create one. Without that right,
a node of one or more whole cores is pinned to cores of its own. Other nodes are refused: priorities would not limit them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

from headrace.errors import HeadraceError

_PERIOD_US = 20_000  # a fifth of the default: a node of half a core pauses for at most 10 ms
_GROUP_PREFIX = "headrace-node-"


class CpuLimiter:
    """Limits nodes to `cores` each; `close` removes the limits once their processes have ended."""

    def __init__(self, nodes: int, cores: float, parents: Sequence[Path] | None = None) -> None:
        """Create the control groups, below one of `parents` (default: those of this process).

        Raises HeadraceError if there is no way to limit the nodes.
        """
        self._groups: list[Path] = []
        self._pinned_cores: list[list[int]] = []
        for parent in find_group_parents() if parents is None else parents:
            _remove_ended_groups(parent)
            if self._create_groups(parent, nodes, cores):
                return
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # Linux only
        if not float(cores).is_integer() or nodes * int(cores) > len(usable):
            raise HeadraceError(
                f"{nodes} nodes of {cores:g} cores cannot be limited on this machine",
                detail="no control group with a quota of CPU time can be created here",
                hint="run the benchmark as root, or use nodes of whole cores, at most as many as the machine has",
            )
        self._pinned_cores = [usable[node * int(cores) : (node + 1) * int(cores)] for node in range(nodes)]

    def _create_groups(self, parent: Path, nodes: int, cores: float) -> bool:
        """Create a control group with a quota for each node; leave nothing behind and return False if that is impossible."""
        try:
            for node in range(nodes):
                group = parent / f"{_GROUP_PREFIX}{os.getpid()}-{node}"
                group.mkdir()
                self._groups.append(group)
                _write_quota(group, int(_PERIOD_US * cores))
        except OSError:
            self.close()
            return False
        return True

    @property
    def means(self) -> str:
        """How nodes are limited, for the settings of a result."""
        if not self._groups:
            return "each node is pinned to cores of its own"
        kind = "cpu.max" if (self._groups[0] / "cpu.max").exists() else "cpu.cfs_quota_us"
        return f"a control group for each node ({kind}, period {_PERIOD_US // 1000} ms)"

    def limit_node(self, node: int, list_pids: Callable[[], Iterable[int]]) -> None:
        """Limit the processes of a node, and all that they start later; `list_pids` returns the present ones."""
        limited: set[int] = set()
        while new := set(list_pids()) - limited:  # a process may start others while they are limited
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    self._limit_process(node, pid)
            limited |= new

    def _limit_process(self, node: int, pid: int) -> None:
        if self._groups:
            (self._groups[node] / "cgroup.procs").write_text(str(pid))
            return
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), self._pinned_cores[node])

    def close(self) -> None:
        """Remove the control groups; one that still has processes is removed by a later benchmark."""
        while self._groups:
            with contextlib.suppress(OSError):
                self._groups.pop().rmdir()


def _write_quota(group: Path, quota_us: int) -> None:
    """Write the quota in the way of version 2 or 1 of control groups; raise OSError if the group has neither."""
    if (group / "cgroup.controllers").exists():
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.subtree_control").write_text("+cpu")
        _write_existing(group / "cpu.max", f"{quota_us} {_PERIOD_US}")
    else:
        _write_existing(group / "cpu.cfs_period_us", str(_PERIOD_US))
        _write_existing(group / "cpu.cfs_quota_us", str(quota_us))


def _write_existing(path: Path, text: str) -> None:
    with path.open("r+", encoding="ascii") as file:
        file.write(text)


def find_group_parents() -> list[Path]:
    """Return the folders of control groups that can have groups with a quota: where this process is, and above."""
    parents = []
    for line in _read_lines("/proc/mounts"):
        _, mount, kind, options = line.split(" ")[:4]
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            own = _find_own_group(kind == "cgroup2")
            parents += [Path(mount) / own, (Path(mount) / own).parent, Path(mount)] if own else [Path(mount)]
    return [parent for parent in dict.fromkeys(parents) if (parent / "cgroup.procs").exists()]


def _find_own_group(unified: bool) -> str:
    for line in _read_lines("/proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if (number == "0" and not controllers) if unified else "cpu" in controllers.split(","):
            return path.lstrip("/")
    return ""


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _remove_ended_groups(parent: Path) -> None:
    """Remove the groups of benchmarks that were killed."""
    for group in parent.glob(f"{_GROUP_PREFIX}*"):
        owner = group.name.removeprefix(_GROUP_PREFIX).partition("-")[0]
        if not psutil.pid_exists(int(owner)):
            with contextlib.suppress(OSError):
                group.rmdir()
