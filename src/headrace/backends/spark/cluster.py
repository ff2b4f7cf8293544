"""A cluster at the start of a session: wait for its executors, and probe whether each of them can do the work.

The probe is one small Spark job with tasks on every executor. It finds before the first micro-batch what would fail in its
middle: another Python, no headrace, a checkpoint that only the driver sees. On a local master there is nothing to find.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import platform
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark import cloudpickle as untyped
from pyspark.errors import PySparkException

from headrace.backends.spark import worker_probe
from headrace.connectors.worker_places import PlaceCheck, WorkerPlace, leave_files, verify_answer
from headrace.engine.batch_job import BatchJob
from headrace.errors import SessionError
from headrace.storage.locations import is_url, use_storage_options
from headrace.storage.store import Store, make_attempt_key

cloudpickle: Any = untyped
_LOG = logging.getLogger("headrace")
_PACKAGES = ("headrace", "pyarrow", "numpy", "numba")
_TASK_MODULES = ("headrace.backends.spark.pipeline", "headrace.storage.locations", "headrace.connectors")
_DOCUMENT = "docs/deployment.md"
_CHECKPOINT_HINT = (
    f"choose a checkpoint (--checkpoint) in a folder that all machines share, or by the URL of an object store; see {_DOCUMENT}"
)
_WAIT_SECONDS = 30.0  # for the first executor, as Spark's spark.scheduler.maxRegisteredResourcesWaitingTime
_SETTLE_SECONDS = 2.0  # without another executor, after which those of the start are complete
_POLL_SECONDS = 0.05
_MAX_ROUNDS = 3
_MAX_MAP_TASKS = 1024  # each is some milliseconds of the driver, and a shuffle block for each partition
_REPEATED_SECONDS = 0.2
_MAX_TASKS_PER_EXECUTOR = 16


def count_executors(context: SparkContext) -> int:
    """Return the number of registered executors."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001  the driver counts, too


def count_allocatable_slots(context: SparkContext, parallelism: int) -> int:
    """Return how many tasks could run at a time if dynamic allocation started all executors that it may, up to a bound.

    Without dynamic allocation it is the parallelism. An executor of a standalone cluster has all cores of its worker unless
    spark.executor.cores is set; it counts with those of the present ones.
    """
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return parallelism
    most = int(conf.get("spark.dynamicAllocation.maxExecutors", str(_MAX_MAP_TASKS)))
    cores = int(conf.get("spark.executor.cores", "0")) or parallelism // max(1, count_executors(context))
    slots = most * max(1, cores // int(conf.get("spark.task.cpus", "1")))
    return max(parallelism, min(slots, _MAX_MAP_TASKS))


def list_executors(context: SparkContext) -> frozenset[str]:
    """Return the addresses of the registered executors; one that is started again has another port. The driver has one, too."""
    return frozenset(str(context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")).split())  # noqa: SLF001


def wait_for_executors(context: SparkContext, *, complete: bool) -> None:
    """Wait for the first executor; if `complete`, for all that Spark starts with: their cores may decide about partitions.

    The number is that of spark.executor.instances, else known when no executor has registered for two seconds. With dynamic
    allocation executors come with the tasks, and nothing waits. Raises SessionError if none registers within 30 seconds.
    """
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    expected, cores = int(conf.get("spark.executor.instances", "0")), int(conf.get("spark.cores.max", "0"))
    start = time.monotonic()
    is_old = bool(count_executors(context)) and time.time() - context.startTime / 1000 > _WAIT_SECONDS
    count, changed = 0, start
    while time.monotonic() - start < _WAIT_SECONDS:
        now = count_executors(context)
        if now != count:
            count, changed = now, time.monotonic()
        is_complete = count >= expected > 0 or context.defaultParallelism >= cores > 2
        has_settled = not expected and time.monotonic() - changed >= _SETTLE_SECONDS
        if count and (not complete or is_old or is_complete or has_settled):
            return
        time.sleep(_POLL_SECONDS)
    if not count:
        raise SessionError(
            f"no executor of '{context.master}' registered within {_WAIT_SECONDS:.0f} seconds",
            hint="see the page or the log of the cluster manager: its workers need free cores and memory for spark.executor.cores"
            " and spark.executor.memory, and must reach this machine (spark.driver.host)",
        )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What the probe found on one executor; see `worker_probe.run_probe`."""

    host: str
    address: str
    process: int
    folder: str
    python: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    places: Mapping[WorkerPlace, PlaceCheck]
    refused: str
    answer: str

    @property
    def place(self) -> str:
        """The executor, for messages."""
        address = f" ({self.address})" if self.address and self.address != self.host else ""
        return f"{self.host}{address}, {self.folder}"


RunRequests: TypeAlias = Callable[[Mapping[str, Any]], tuple[list[WorkerReport], int]]


def import_in_workers(context: SparkContext) -> None:
    """Let the Python workers import what every task needs, where executors have registered; raises nothing."""
    tasks = max(1, int(context.defaultParallelism))
    with contextlib.suppress(Py4JError, PySparkException), pickle_by_value():
        context.parallelize(range(tasks), tasks).mapPartitions(partial(worker_probe.import_modules, _TASK_MODULES)).collect()


def probe_workers(job: BatchJob, run_requests: RunRequests) -> int:
    """Probe workers: packages, and whether they read from and write to the checkpoint of the job.

    `run_requests` sends them a request and returns their reports, and the number of executors that have not reported, which is
    returned. Raises SessionError that lists the workers that cannot run micro-batches, and says what to do.
    """
    store, nonce = job.store, uuid.uuid4().hex.encode()
    key = make_attempt_key("shuffle", "probe", ".nonce")
    store.put(key, [nonce], sync=False)
    try:
        reports, missing = run_requests(make_request(job, key, nonce, _PACKAGES))
        problems = _find_problems(store, nonce, reports)
    finally:
        for name in store.list("shuffle"):
            if name.startswith(key):
                store.delete(name)
    _raise_problems(problems)
    return missing


def probe_places(job: BatchJob, places: Sequence[WorkerPlace], run_requests: RunRequests) -> int:
    """Probe whether workers can use these folders and URLs, with the options of the job; see `probe_workers`.

    Raises SessionError for the first place that one cannot use.
    """
    job.prepare_environment()
    with use_storage_options(job.storage_options), leave_files(places) as paths:
        if not paths:
            return 0
        request = make_request(job, packages=("headrace",), paths=pickle.dumps(paths))
        reports, missing = run_requests(request)
        problems: dict[WorkerPlace, list[str]] = defaultdict(list)
        for report in reports:
            for place in paths:
                reason = verify_answer(place, report.places.get(place, PlaceCheck(report.refused or "it has no headrace")))
                if reason:
                    problems[place].append(f"{report.place} ({reason})")
    for place, texts in problems.items():
        is_remote = is_url(place.location)
        hint = "give workers its options and credentials" if is_remote else "use a folder that all machines mount at one path"
        raise SessionError(
            f"workers do not see the {place.use} '{place.location}'",
            detail=f"not seen on {'; '.join(texts)}",
            hint=f"{hint}, see {_DOCUMENT}",
        )
    return missing


def make_request(
    job: BatchJob, key: str = "", nonce: bytes = b"", packages: Sequence[str] = (), paths: bytes = b""
) -> dict[str, Any]:
    """Return the request of a probe: packages to import, and the nonce in the checkpoint and the places to use, if there are."""
    return {"job": pickle.dumps(job), "key": key, "nonce": nonce, "packages": packages, "paths": paths, "seconds": 0.0}


def run_rounds(context: SparkContext, request: Mapping[str, Any]) -> tuple[list[WorkerReport], int]:
    """Run the probe until every executor has reported, at most three times; return the reports, and how many are missing.

    An executor that is busy with other jobs may not get a task. From the second time on, a task takes longer, so that the others
    do not take all of them.
    """
    reports: dict[tuple[str, int], WorkerReport] = {}
    executors = 0
    for number in range(_MAX_ROUNDS):
        executors = count_executors(context)
        tasks = max(1, executors, min(context.defaultParallelism, _MAX_TASKS_PER_EXECUTOR * executors))
        for report in _run_job(context, {**request, "seconds": number * _REPEATED_SECONDS}, tasks):
            reports.setdefault((report.host, report.process), report)
        if len(reports) >= executors:
            break
    return sorted(reports.values(), key=lambda report: report.place), max(0, executors - len(reports))


def _run_job(context: SparkContext, request: Mapping[str, Any], tasks: int) -> list[WorkerReport]:
    try:
        with pickle_by_value():
            rows = context.parallelize(range(tasks), tasks).mapPartitions(partial(worker_probe.run_probe, request)).collect()
    except (Py4JError, PySparkException) as error:
        raise explain_failure(str(error)) from error
    return [WorkerReport(**row) for row in rows]


@contextlib.contextmanager
def pickle_by_value() -> Iterator[None]:
    """Send the code of the probe with the job: a worker may not have it."""
    cloudpickle.register_pickle_by_value(worker_probe)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(worker_probe)


def explain_failure(message: str) -> SessionError:
    """Return the error of a probe that could not run at all."""
    if "PYTHON_VERSION_MISMATCH" in message:
        start = message.index("PYTHON_VERSION_MISMATCH")
        return SessionError(
            f"workers have another Python than the driver, which has {platform.python_version()}",
            detail=message[start:].split("\n", 1)[0].removeprefix("PYTHON_VERSION_MISMATCH]").strip(),
            hint=f"set PYSPARK_PYTHON to a Python of the same version on the workers, or ship one, see {_DOCUMENT}",
        )
    if "Cannot run program" in message:
        start = message.index("Cannot run program")
        return SessionError(
            "workers do not have the Python of the driver",
            detail=message[start:].split("\n", 1)[0],
            hint=f"set PYSPARK_PYTHON to the path of Python on the workers, or ship an environment, see {_DOCUMENT}",
        )
    return SessionError("the workers of Spark cannot run tasks", detail=message.split("\n\tat ", 1)[0].strip())


def _find_problems(store: Store, nonce: bytes, reports: Sequence[WorkerReport]) -> list[tuple[str, str]]:
    """Return (what is wrong, what to do) for each executor that cannot run micro-batches."""
    own, _ = worker_probe.import_packages(_PACKAGES)
    problems: list[tuple[str, str]] = []
    for report in reports:
        if "headrace" in report.missing:
            what = f"worker on {report.place} has no headrace ({report.missing['headrace']})"
            problems.append((what, f"install it there or ship it, see {_DOCUMENT}"))
            continue
        for name, reason in report.missing.items():
            problems.append((f"worker on {report.place} has no {name} ({reason})", f"install it there, see {_DOCUMENT}"))
        for name, version in report.versions.items():
            if _is_incompatible(name, version, own[name]):
                what = f"worker on {report.place} has {name} {version}, the driver has {own[name]}"
                problems.append((what, "install the same versions everywhere"))
            elif version != own[name]:
                _LOG.warning("worker on %s has %s %s, the driver has %s", report.place, name, version, own[name])
        if not _has_answered(store, nonce, report):
            what = f"worker on {report.place} cannot use the checkpoint ({report.refused or 'the driver does not see its file'})"
            problems.append((what, _CHECKPOINT_HINT))
    return problems


def _is_incompatible(name: str, version: str, own: str) -> bool:
    """Messages between driver and workers need the same headrace; of libraries, the major version must agree."""
    return version != own if name == "headrace" else version.partition(".")[0] != own.partition(".")[0]


def _has_answered(store: Store, nonce: bytes, report: WorkerReport) -> bool:
    """Return whether the driver reads what the worker wrote into the checkpoint."""
    try:
        return bool(report.answer) and store.get(report.answer) == nonce
    except FileNotFoundError:
        return False


def _raise_problems(problems: Sequence[tuple[str, str]]) -> None:
    if problems:
        lines = [what for what, _ in problems]
        raise SessionError(
            lines[0] if len(lines) == 1 else f"{len(lines)} workers cannot run micro-batches",
            detail="" if len(lines) == 1 else "; ".join(lines),
            hint="; ".join(dict.fromkeys(hint for _, hint in problems)),
        )
