"""Limits of nodes: control groups where this process may create them, else cores of their own, else a refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from headrace.bench.cluster import BenchCluster
from headrace.bench.systems.cpu_limits import CpuLimiter, find_group_parents
from headrace.bench.systems.node_processes import NodeProcesses, find_loopback_hosts
from headrace.errors import HeadraceError

PARENT = """
import subprocess, sys
sys.stdin.readline()
child = "import os; print(sorted(os.sched_getaffinity(0)), open('/proc/self/cgroup').read())"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout, flush=True)
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process that, after a line of input, starts a child and prints its cores and control groups."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def can_create_groups() -> bool:
    """Try it, as the limiter does: a control group has a file with its quota as soon as its folder exists."""
    for parent in find_group_parents():
        folder = parent / f"headrace-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        has_quota = any((folder / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us"))
        folder.rmdir()
        if has_quota:
            return True
    return False


def is_running(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ask_child(parent: subprocess.Popen[str]) -> str:
    return parent.communicate("\n")[0]


def test_a_control_group_limits_a_node_and_what_it_starts(parent):
    """Without the right to create one, half a core is refused."""
    if not can_create_groups():
        with pytest.raises(HeadraceError, match=r"1 nodes of 0\.5 cores cannot be limited(.|\n)*use nodes of whole cores"):
            CpuLimiter(1, 0.5)
        return
    limiter = CpuLimiter(1, 0.5)
    group = next(path for folder in find_group_parents() for path in folder.glob(f"headrace-node-{os.getpid()}-0"))
    quota = (group / "cpu.max", group / "cpu.cfs_quota_us")
    assert next(path.read_text().split()[0] for path in quota if path.exists()) == "10000"
    limiter.limit_node(0, lambda: [parent.pid])
    assert group.name in ask_child(parent)
    assert limiter.means.startswith("a control group for each node")
    limiter.close()
    assert not group.exists()


def test_groups_of_a_benchmark_that_was_killed_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, own = tmp_path / f"headrace-node-{ended.pid}-0", tmp_path / f"headrace-node-{os.getpid()}-0"
    left.mkdir()
    own.mkdir()
    with pytest.raises(HeadraceError):
        CpuLimiter(10_000, 1.0, [tmp_path])
    assert (left.exists(), own.exists()) == (False, True)


def test_without_control_groups_whole_cores_are_pinned_and_others_refused(parent):
    limiter = CpuLimiter(1, 1.0, [])
    limiter.limit_node(0, lambda: [parent.pid])
    assert ask_child(parent).startswith(f"[{min(os.sched_getaffinity(0))}] ")
    assert limiter.means == "each node is pinned to cores of its own"
    for nodes, cores in ((1, 0.5), (len(os.sched_getaffinity(0)) + 1, 1.0)):
        with pytest.raises(HeadraceError, match=f"{nodes} nodes of {cores:g} cores cannot be limited on this machine"):
            CpuLimiter(nodes, cores, [])


def test_a_process_that_ends_at_its_start_is_an_error_with_its_output(tmp_path):
    processes = NodeProcesses(tmp_path / "nodes", BenchCluster(1, 1.0))
    processes.start_service("master", [sys.executable, "-c", "print('no such port')"], os.environ)
    with pytest.raises(HeadraceError, match="the process 'master' of the cluster ended\ndetail: no such port"):
        processes.wait_for_text("master", "(ready)")
    with pytest.raises(HeadraceError, match="the process 'master' of the cluster ended\ndetail: exit code 0"):
        processes.check()
    processes.close()


def test_closing_ends_nodes_with_their_children(tmp_path):
    processes = NodeProcesses(tmp_path / "nodes", BenchCluster(1, 1.0))
    script = "import subprocess, time; subprocess.Popen(['sleep', '100']); print('started', flush=True); time.sleep(100)"
    processes.start_node(0, [sys.executable, "-c", script], os.environ)
    processes.wait_for_text("node-0", "(started)")
    processes.limit_nodes()
    processes.check()
    sleeping = [child for child in psutil.Process().children(recursive=True) if child.cmdline()[:1] == ["sleep"]]
    assert sleeping
    processes.close()
    assert not any(map(is_running, sleeping))


def test_nodes_have_addresses_of_their_own_where_all_of_127_is_loopback():
    hosts = find_loopback_hosts(3)
    assert hosts in (["127.0.0.1", "127.0.0.2", "127.0.0.3"], ["127.0.0.1"] * 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "a cluster cannot have 0 nodes"),
        ({"nodes": 2, "master": "spark://127.0.0.1:7077"}, "nodes to start, or the master of a running cluster"),
        ({"nodes": 1, "cores": 0.0}, "a node cannot have 0 cores and 2048 MiB"),
    ],
)
def test_impossible_clusters_are_refused(values, message):
    with pytest.raises(HeadraceError, match=message):
        BenchCluster(**values)
