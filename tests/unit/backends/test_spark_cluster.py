"""What the driver makes of a cluster: how long it waits for executors, and what it says about their reports."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.backends.spark import backend, cluster, worker_probe
from headrace.backends.spark.cluster import WorkerReport
from headrace.connectors.worker_places import WorkerPlace, list_sink_places, list_source_places
from headrace.engine.batch_job import BatchJob
from headrace.errors import SessionError
from headrace.model.partition_map import PartitionMap
from headrace.storage.locations import open_store
from headrace.storage.posix import PosixStore

NONCE = b"nonce"
OWN, _ = worker_probe.import_packages(cluster._PACKAGES)


class StubContext:
    """A SparkContext whose executors register at given times of a clock that `sleep` moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, registered: list[float], **settings: str) -> None:
        self.now, self.registered, self.settings, self.master = 1000.0, registered, settings, "spark://host:7077"
        self.startTime = 1_000_000
        monkeypatch.setattr(cluster, "time", self)
        monkeypatch.setattr(cluster, "count_executors", lambda context: context.count())

    def count(self) -> int:
        return sum(self.now - 1000.0 >= second for second in self.registered)

    @property
    def defaultParallelism(self) -> int:  # noqa: N802  Spark's name
        return max(2, self.count())

    def getConf(self) -> Any:  # noqa: N802
        return {name.replace("_", "."): value for name, value in self.settings.items()}

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, *, complete: bool = True) -> tuple[float, int]:
        """Wait as a session does; return the seconds that it took and the executors that there are then."""
        cluster.wait_for_executors(self, complete=complete)
        return round(self.now - 1000.0), self.count()


# executors     1   2                     registered at these seconds
# |-------------|---|--------|            two seconds without another one end the wait
@pytest.mark.parametrize(
    ("registered", "settings", "seconds", "executors"),
    [
        ([3.0, 4.0], {}, 6, 2),
        ([3.0, 4.0, 9.0], {}, 6, 2),
        ([3.0, 4.0, 9.0], {"spark_executor_instances": "3"}, 9, 3),
        ([3.0, 4.0], {"spark_executor_instances": "3"}, 30, 2),
        ([3.0, 4.0, 5.0], {"spark_cores_max": "3"}, 5, 3),
        ([], {"spark_dynamicAllocation_enabled": "true"}, 0, 0),
    ],
)
def test_a_session_waits_for_executors(monkeypatch, registered, settings, seconds, executors):
    assert StubContext(monkeypatch, registered, **settings).wait() == (seconds, executors)


def test_a_known_number_of_partitions_waits_for_the_first_executor_only(monkeypatch):
    assert StubContext(monkeypatch, [3.0, 4.0]).wait(complete=False) == (3, 1)


def test_a_spark_that_has_run_for_a_while_has_its_executors(monkeypatch):
    context = StubContext(monkeypatch, [0.0])
    context.startTime = (1000 - 60) * 1000
    assert context.wait() == (0, 1)


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({}, 2),
        ({"spark_dynamicAllocation_maxExecutors": "8"}, 2),  # it is not enabled
        ({"spark_dynamicAllocation_enabled": "true", "spark_dynamicAllocation_maxExecutors": "8"}, 8),
        (
            {
                "spark_dynamicAllocation_enabled": "true",
                "spark_dynamicAllocation_maxExecutors": "8",
                "spark_executor_cores": "4",
                "spark_task_cpus": "2",
            },
            16,
        ),
        ({"spark_dynamicAllocation_enabled": "true", "spark_executor_cores": "4"}, 1024),  # Spark has no limit
    ],
)
def test_dynamic_allocation_could_run_more_tasks(monkeypatch, settings, tasks):
    context = StubContext(monkeypatch, [0.0, 0.0], **settings)
    assert cluster.count_allocatable_slots(context, context.defaultParallelism) == tasks


def test_a_cluster_without_executors_is_an_error(monkeypatch):
    with pytest.raises(
        SessionError, match=r"no executor of 'spark://host:7077' registered within 30 seconds\nhint: see the page"
    ):
        StubContext(monkeypatch, []).wait()


def make_report(**changes: Any) -> WorkerReport:
    values = {
        "host": "node1", "address": "", "process": 7, "folder": "/work", "python": "3.11.7", "versions": OWN, "missing": {},
        "places": {}, "refused": "", "answer": "answer", **changes,
    }  # fmt: skip
    return WorkerReport(**values)


def find_problems(tmp_path: Path, *reports: WorkerReport) -> list[tuple[str, str]]:
    store = PosixStore(tmp_path)
    store.put("answer", [NONCE])
    return cluster._find_problems(store, NONCE, reports)


def test_a_worker_like_the_driver_has_no_problem(tmp_path, caplog):
    assert find_problems(tmp_path, make_report()) == []
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"missing": {"headrace": "ModuleNotFoundError: No module named 'headrace'"}, "answer": ""}, "has no headrace"),
        ({"missing": {"numba": "ImportError"}}, r"has no numba \(ImportError\)"),
        ({"versions": {**OWN, "headrace": "0.0.1"}}, "has headrace 0.0.1, the driver has"),
        ({"versions": {**OWN, "pyarrow": "1.0"}}, "has pyarrow 1.0, the driver has"),
        ({"answer": "", "refused": "FileNotFoundError: x"}, r"cannot use the checkpoint \(FileNotFoundError: x\)"),
        ({"answer": "elsewhere"}, r"cannot use the checkpoint \(the driver does not see its file\)"),
    ],
)
def test_a_worker_that_cannot_do_the_work_is_named(tmp_path, changes, problem):
    problems = find_problems(tmp_path, make_report(), make_report(host="node2", **changes))
    assert len(problems) == 1
    with pytest.raises(SessionError, match=rf"^worker on node2, /work {problem}") as caught:
        cluster._raise_problems(problems)
    assert caught.value.hint


def test_several_workers_make_one_error(tmp_path):
    reports = [make_report(host=host, answer="", refused="gone") for host in ("node1", "node2")]
    with pytest.raises(
        SessionError, match=r"^2 workers cannot run micro-batches\ndetail: worker on node1.*; worker on node2"
    ) as caught:
        cluster._raise_problems(find_problems(tmp_path, *reports))
    assert caught.value.hint.count("in a folder that all machines share, or by the URL of an object store") == 1


def test_another_minor_version_of_a_library_is_a_warning(tmp_path, caplog):
    major = OWN["numpy"].partition(".")[0]
    with caplog.at_level(logging.WARNING, "headrace"):
        assert find_problems(tmp_path, make_report(versions={**OWN, "numpy": f"{major}.999"})) == []
    assert f"has numpy {major}.999" in caplog.text


def test_the_probe_reads_the_nonce_and_answers(tmp_path):
    store = PosixStore(tmp_path, "id")
    store.put("shuffle/n", [NONCE])
    job = pickle.dumps(BatchJob(-1, PartitionMap(1), PartitionMap(1), str(tmp_path), {}, (), checkpoint_id="id"))
    request = {
        "job": job,
        "key": "shuffle/n",
        "nonce": NONCE,
        "packages": ("headrace", "no_such_package"),
        "paths": b"",
        "seconds": 0.0,
    }
    (report,) = worker_probe.run_probe(request, [])
    assert store.get(report["answer"]) == NONCE
    assert (list(report["missing"]), report["places"], report["refused"]) == (["no_such_package"], {}, "")
    (other,) = worker_probe.run_probe({**request, "nonce": b"another"}, [])
    assert (other["answer"], other["refused"]) == ("", f"{tmp_path}/shuffle/n has other content than the driver wrote")
    (absent,) = worker_probe.run_probe({**request, "key": "shuffle/none"}, [])
    assert absent["refused"].startswith("FileNotFoundError")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("x [PYTHON_VERSION_MISMATCH] Python in worker has 3.9\nat y", "workers have another Python than the driver"),
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2\n\tat x',
            "workers do not have the Python of the driver",
        ),
        ("something else\n\tat org.apache", "the workers of Spark cannot run tasks\ndetail: something else$"),
    ],
)
def test_a_probe_that_cannot_run_is_explained(message, expected):
    with pytest.raises(SessionError, match=expected):
        raise cluster.explain_failure(message)


def test_executors_that_join_later_are_probed_before_the_next_batch(monkeypatch, tmp_path):
    """An executor joins, another one is replaced, one leaves; a probe that finds a problem is repeated."""
    probes, present = [], frozenset({"a:1"})
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    used = backend.SparkBackend(spark, owns_spark=False)
    monkeypatch.setattr(backend, "wait_for_executors", lambda context, *, complete: None)
    monkeypatch.setattr(backend, "list_executors", lambda context: present)
    monkeypatch.setattr(backend, "probe_workers", lambda job, run: probes.append(job) or 0)

    def run_batch() -> int:
        """Begin a batch; return how many probes there were until then."""
        with pytest.raises(AttributeError, match="setJobGroup"):
            used.run(job, [()])
        return len(probes)

    job = BatchJob(-1, PartitionMap(1), PartitionMap(1), str(tmp_path), {}, ())
    used.probe(job)
    assert run_batch() == 1
    present = frozenset({"a:1", "b:2"})
    assert (run_batch(), run_batch()) == (2, 2)
    present = frozenset({"a:1", "b:3"})
    assert run_batch() == 3
    present = frozenset({"a:1"})
    assert run_batch() == 3
    present = frozenset({"a:1", "c:4"})
    monkeypatch.setattr(backend, "probe_workers", lambda job, run: cluster._raise_problems([("no headrace", "ship it")]))
    for _ in range(2):
        with pytest.raises(SessionError, match="no headrace"):
            used.run(job, [()])


def test_places_are_probed_again_on_executors_that_join_and_on_those_that_did_not_report(monkeypatch, tmp_path, caplog):
    probed, present, silent, now = [], frozenset({"a:1"}), 0, 100.0
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    used = backend.SparkBackend(spark, owns_spark=False)
    monkeypatch.setattr(backend, "wait_for_executors", lambda context, *, complete: None)
    monkeypatch.setattr(backend, "list_executors", lambda context: present)
    monkeypatch.setattr(backend, "probe_workers", lambda job, run: silent)
    monkeypatch.setattr(backend, "probe_places", lambda job, places, run: probed.append(places) or silent)
    monkeypatch.setattr(backend, "time", SimpleNamespace(monotonic=lambda: now))
    place, other = (WorkerPlace(path, "folder of the sink", is_written=True) for path in ("s3://bucket/out", "/data/out"))
    places = [place]
    job = BatchJob(-1, PartitionMap(1), PartitionMap(1), str(tmp_path), {}, ())

    def run_batch() -> list[list[WorkerPlace]]:
        """Begin a batch; return which places were probed."""
        probed.clear()
        with pytest.raises(AttributeError, match="setJobGroup"):
            used.run(job, [()])
        return list(probed)

    used.probe(job, lambda: places)
    assert probed == [[place]]
    assert run_batch() == []
    present, places = frozenset({"a:1", "b:2"}), [other]  # the first sink is gone meanwhile
    assert (run_batch(), run_batch()) == ([[other]], [])
    present, silent = frozenset({"a:1", "c:3"}), 1
    assert (run_batch(), run_batch()) == ([[other]], [])
    assert "1 executors did not report to the probe" in caplog.text
    now, silent = 111.0, 0
    assert (run_batch(), run_batch()) == ([[other]], [])


def run_in_this_process(request: dict[str, Any]) -> tuple[list[WorkerReport], int]:
    """Be the only worker, which runs two tasks, and of which one report counts."""
    worker_probe.run_probe(request, [])
    return [WorkerReport(**worker_probe.run_probe(request, [])[0])], 0


def list_paths(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_topic_of_dead_letters_is_no_place_of_workers():
    source = hr.KafkaSource(
        "t", brokers="127.0.0.1:1", schema="x INT, time TIMESTAMP", on_error="skip_row", dead_letter="kafka:letters"
    )
    assert list_source_places(source) == []


def test_places_of_sources_sinks_and_dead_letters_are_probed_and_left_as_they_were(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x,time\n")
    source = hr.FileSource(
        tmp_path / "in" / "*.csv", schema="x INT, time TIMESTAMP", on_error="skip_row", dead_letter="jsonl:memory://probe/bad"
    )
    remote = hr.FileSource("memory://probe/in", schema="x INT, time TIMESTAMP", format="csv")
    sinks = [hr.ParquetSink(str(tmp_path / "out")), hr.JsonLinesSink("memory://probe/out"), hr.NoopSink()]
    places = [*list_source_places(source), *list_source_places(remote), *list_sink_places(sinks)]
    assert [(place.location, place.is_written) for place in places] == [
        (str(tmp_path / "in" / "*.csv"), False),
        ("memory://probe/bad", True),
        ("memory://probe/in", False),
        (str(tmp_path / "out"), True),
        ("memory://probe/out", True),
    ]
    job = BatchJob(-1, PartitionMap(1), PartitionMap(1), str(tmp_path / "ck"), {}, ())
    assert cluster.probe_places(job, places, run_in_this_process) == 0
    assert list_paths(tmp_path) == ["in/a.csv"]
    assert list(open_store("memory://probe").list("")) == []
    assert cluster.probe_places(job, [WorkerPlace(str(tmp_path / "none"), "folder of the stream", is_written=False)], None) == 0
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (WorkerPlace("memory://hidden/out", "folder of the sink", is_written=True), "the driver does not see its file"),
        (WorkerPlace("{folder}", "folder of the stream", is_written=False), "it has another folder of that name, or none"),
        (WorkerPlace("/proc/out", "folder of dead letters", is_written=True), "Error: "),
        (WorkerPlace("s3://bucket/in", "folder of the stream", is_written=False), "'no_such_option' is not valid"),
    ],
)
def test_a_place_that_a_worker_does_not_see_is_an_error_with_the_reason(tmp_path, place, message):
    place = replace(place, location=place.location.format(folder=tmp_path))
    options = {"no_such_option": "x"} if place.location.startswith("s3:") else {}
    job = BatchJob(-1, PartitionMap(1), PartitionMap(1), str(tmp_path / "ck"), {}, (), storage_options=options)

    def run_elsewhere(request: dict[str, Any]) -> tuple[list[WorkerReport], int]:
        """Be a worker on a machine with other folders and buckets."""
        for path in tmp_path.glob(".headrace-*"):
            path.unlink()
        reports, missing = run_in_this_process(request)
        for key in open_store("memory://hidden").list("out/_pending"):
            open_store("memory://hidden").delete(key)
        return reports, missing

    with pytest.raises(SessionError, match=rf"^workers do not see the {place.use} '{place.location}'") as caught:
        cluster.probe_places(job, [place], run_elsewhere)
    assert message in caught.value.detail


def test_a_worker_that_cannot_import_what_the_driver_has_is_an_error_and_no_failed_task(tmp_path):
    def run_with_other_code(request: dict[str, Any]) -> tuple[list[WorkerReport], int]:
        return run_in_this_process({**request, "job": b"cno.such.module\nBatchJob\n."})

    job = BatchJob(-1, PartitionMap(1), PartitionMap(1), str(tmp_path / "ck"), {}, ())
    with pytest.raises(SessionError, match="workers do not see") as caught:
        cluster.probe_places(job, [WorkerPlace(str(tmp_path), "folder of the stream", is_written=False)], run_with_other_code)
    assert "ModuleNotFoundError" in caught.value.detail


def test_an_executor_that_gets_no_task_is_counted_as_missing(monkeypatch):
    seconds = []
    report = make_report()

    def run_job(context: Any, request: dict[str, Any], tasks: int) -> list[WorkerReport]:
        seconds.append(request["seconds"])
        return [report] * tasks

    monkeypatch.setattr(cluster, "_run_job", run_job)
    monkeypatch.setattr(cluster, "count_executors", lambda context: 2)
    assert cluster.run_rounds(SimpleNamespace(defaultParallelism=2), {}) == ([report], 1)
    assert seconds == [0.0, 0.2, 0.4]


PROGRAM_WITHOUT_GRPC = """
import sys
sys.modules["grpc"] = None
import headrace as hr
try:
    hr.Session()
except hr.HeadraceError as error:
    print(error)
"""


def test_spark_connect_without_its_packages_is_an_error_and_no_silent_exit():
    environment = {**os.environ, "SPARK_REMOTE": "sc://127.0.0.1:1"}
    program = [sys.executable, "-c", PROGRAM_WITHOUT_GRPC]
    completed = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert completed.stdout.startswith("Spark Connect needs packages that are not installed\n"), completed.stderr
    assert completed.stdout.endswith("hint: pip install 'headrace[connect]'\n")
