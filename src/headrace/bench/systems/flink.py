"""Run Apache Flink SQL; its source pulls Arrow batches from the driver.

Without a cluster, Flink is a MiniCluster in its own JVM. With nodes it is a standalone cluster of processes (`flink_nodes`). With
a master it is a running cluster, which gets the connector with each job.

Option "mode" is "statement_set" or "separate". "statement_set" runs one job for all queries, which share the scan; adding or
removing a query cancels the job and submits the new set without a savepoint, so open windows start over, and a set that exceeds
the planned memory gets a new cluster. "separate" runs a job with its own scan for each query; adding and removing leaves the
other jobs alone. The other options are those of `FlinkSettings`: "max_queries" is the number of concurrent queries that get slots
and buffers; "parallelism" defaults to the number of cores or slots; "settings" are further Flink settings by name; "java" are
further JVM options.

Flink comes from the package registry and runs in its own virtual environment, because it needs older libraries.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from headrace.bench.cluster import LOOPBACK, BenchCluster
from headrace.bench.driver.topic import TIME_MEMBER, TopicAddress
from headrace.bench.queries.query import BenchQuery
from headrace.bench.systems.adapter import NO_DIALECT_TEXT, QueryStatusReporter, SutConfig, SutDescription, SutStream
from headrace.bench.systems.flink_nodes import FlinkNodes, read_overview
from headrace.bench.systems.jvm_connector import build_connector, ensure_jar, get_cache_folder
from headrace.bench.systems.process import serve
from headrace.connectors.tcp import TcpConnection
from headrace.errors import HeadraceError
from headrace.model.types import type_name

FLINK_VERSION = "2.3.0"
KAFKA_CONNECTOR_VERSION = "5.0.0-2.2"  # the newest; it has no version for Flink 2.3
_SUPPORTED_PYTHONS = ("3.11", "3.12", "3.10", "3.9")  # versions with packages for this Flink


@dataclass(frozen=True, slots=True)
class FlinkEnvironment:
    """The location of Flink: the Python of its environment, and its home folder."""

    python: Path
    home: Path

    def list_jars(self) -> list[Path]:
        """Return the jars that a JVM needs to run jobs and to accept calls from Python."""
        return [*sorted((self.home / "lib").glob("*.jar")), *sorted((self.home / "opt").glob("flink-python-*.jar"))]

    def read_java_options(self) -> list[str]:
        """Return the JVM options from Flink's configuration file."""
        lines = (self.home / "conf" / "config.yaml").read_text(encoding="utf-8").splitlines()
        options = next((line for line in lines if line.strip().startswith("all: --add-exports")), "")
        return options.strip().removeprefix("all: ").split()


def ensure_flink_environment() -> FlinkEnvironment:
    """Return the Flink environment; install it first if needed (one or two minutes, 850 MB). Raise HeadraceError on failure."""
    folder = get_cache_folder() / f"flink-{FLINK_VERSION}"
    if not folder.exists():
        _install_flink(folder)
    python = folder / "bin" / "python"
    homes = list(folder.glob("lib/python*/site-packages/pyflink"))
    if not python.exists() or not homes:
        raise HeadraceError(f"'{folder}' is not a Flink environment", hint="remove the folder; the next run creates it again")
    return FlinkEnvironment(python, homes[0])


def _install_flink(folder: Path) -> None:
    """Create the environment in a temporary folder and rename it atomically; the first of concurrent installs wins."""
    python = _find_python()
    print(f"installing Apache Flink {FLINK_VERSION} into '{folder}' (once, about 850 MB)", file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        _run_install_command([python, "-m", "venv", str(scratch)])
        _run_install_command(
            [str(scratch / "bin" / "python"), "-m", "pip", "install", "--progress-bar=off", f"apache-flink=={FLINK_VERSION}"]
        )
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_install_command(command: list[str]) -> None:
    completed = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if completed.returncode:
        raise HeadraceError(
            f"installing Apache Flink {FLINK_VERSION} failed",
            detail=completed.stderr[-1500:].strip(),
            hint=f"check that 'pip install apache-flink=={FLINK_VERSION}' works in an empty environment, or leave out flink",
        )


def _find_python() -> str:
    """Return a Python interpreter with packages for Flink; prefer the current one."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own in _SUPPORTED_PYTHONS:
        return os.fspath(getattr(sys, "_base_executable", sys.executable))
    interpreter = next((path for version in _SUPPORTED_PYTHONS if (path := shutil.which(f"python{version}"))), None)
    if interpreter is None:
        raise HeadraceError(
            f"Apache Flink {FLINK_VERSION} has no package for Python {own}",
            hint=f"install one of Python {', '.join(_SUPPORTED_PYTHONS)} as pythonX.Y on the PATH",
        )
    return interpreter


FLINK_MODES = ("statement_set", "separate")
_CLUSTER_PREFIXES = ("taskmanager.", "jobmanager.", "rest.", "cluster.")
_DEFAULT_MAX_QUERIES = 256
_SLOT_MIB = 16  # MiB of managed memory; a buffering operator needs more than one and is slower with very many
_BYTES_PER_MIB = 1 << 20
_CHECKPOINT_INTERVAL = "1 s"  # only of a topic: a checkpoint commits the offsets
_FLINK_TYPES = {"TIMESTAMP": "TIMESTAMP(3)"}


@dataclass(frozen=True, slots=True)
class FlinkSettings:
    """Flink settings for a number of queries on this machine; docs/benchmark-systems.md gives the reasons."""

    mode: str
    max_queries: int  # concurrent queries
    java: tuple[str, ...]
    cluster: Mapping[str, str]
    table: Mapping[str, str]
    nodes: BenchCluster | None = None
    reads_topic: bool = False

    @staticmethod
    def from_options(
        options: Mapping[str, Any], queries: int, nodes: BenchCluster | None = None, *, reads_topic: bool = False
    ) -> FlinkSettings:
        """Return the settings for this machine or these nodes, the adapter's options and a number of queries."""
        mode = options.get("mode", FLINK_MODES[0])
        if mode not in FLINK_MODES:
            raise HeadraceError(f"unknown flink mode '{mode}'", detail=f"modes: {', '.join(FLINK_MODES)}")
        parallelism = int(options.get("parallelism") or find_parallelism(nodes))
        cores = nodes.slots if nodes is not None and nodes.nodes else parallelism  # of a task manager
        max_queries = max(queries, 1, int(options.get("max_queries", _DEFAULT_MAX_QUERIES if mode == "separate" else 1)))
        slots = cores * max_queries if mode == "separate" else cores
        heap = max(2048, psutil.virtual_memory().total // 4 // _BYTES_PER_MIB)
        buffers = 128 + 2 * parallelism * max_queries
        managed = min(heap, slots * (_SLOT_MIB if mode == "separate" else max(32, 5 * max_queries)))
        cluster = {
            "rest.bind-address": LOOPBACK,
            "taskmanager.numberOfTaskSlots": str(slots),
            "taskmanager.memory.managed.size": f"{managed}m",
            "taskmanager.memory.network.min": f"{buffers}m",
            "taskmanager.memory.network.max": f"{buffers}m",
        }
        job = {
            "parallelism.default": str(parallelism),
            "pipeline.object-reuse": "true",
            "pipeline.auto-watermark-interval": "50 ms",
            "table.exec.source.idle-timeout": "1 s",
            "table.local-time-zone": "UTC",
            "restart-strategy.type": "none",
            **({"execution.checkpointing.interval": _CHECKPOINT_INTERVAL} if reads_topic else {}),
        }
        extra = {name: str(value) for name, value in options.get("settings", {}).items()}
        cluster |= {name: value for name, value in extra.items() if name.startswith(_CLUSTER_PREFIXES)}
        job |= {name: value for name, value in extra.items() if not name.startswith(_CLUSTER_PREFIXES)}
        java = (f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={buffers + managed + 1024}m", *options.get("java", ()))
        if nodes is not None:
            cluster |= {} if nodes.master else {"taskmanager.memory.task.heap.size": f"{nodes.memory_mib}m"}
        return FlinkSettings(mode, max_queries, java, {} if nodes and nodes.master else cluster, job, nodes, reads_topic)

    def describe(self) -> dict[str, Any]:
        """Return the settings as the result document lists them."""
        source = "Arrow batches pulled by a Java source, one split per partition"
        checkpoints = "none"
        if self.reads_topic:
            source, checkpoints = f"Flink's Kafka connector {KAFKA_CONNECTOR_VERSION}", f"every {_CHECKPOINT_INTERVAL}, in memory"
        summary = {"mode": self.mode, "source": source, "checkpoints": checkpoints, "java": list(self.java)}
        return {**summary, **self.cluster, **self.table}


def find_parallelism(nodes: BenchCluster | None) -> int:
    """Return the slots of a cluster, or the cores of this machine; raise HeadraceError if a cluster does not answer."""
    if nodes is None:
        return os.cpu_count() or 1
    if not nodes.master:
        return nodes.nodes * nodes.slots
    slots = read_overview(nodes.master).get("slots-total", 0)
    if not slots:
        raise HeadraceError(
            f"the Flink cluster at '{nodes.master}' does not answer, or has no task managers",
            hint="for Flink, --master is the address of the REST interface, such as http://127.0.0.1:8081",
        )
    return slots


def build_table_ddl(stream: SutStream, driver: str, group: str) -> str:
    """Return the DDL of a stream; event time is in milliseconds like all row-time attributes of Flink."""
    columns = [
        f"`{field.name}` {_FLINK_TYPES.get(type_name(field.type), type_name(field.type))}" for field in stream.schema.fields
    ]
    delay = f" - INTERVAL '{stream.spec.watermark:.3f}' SECOND(4, 3)" if stream.spec.watermark else ""
    options = {"connector": "headrace", "address": driver, "stream": stream.name, "group": group}
    options["partitions"] = str(stream.spec.partitions)
    option_list = _render_options(options)
    return (
        f"CREATE TEMPORARY TABLE `{stream.name}` ({', '.join(columns)}, WATERMARK FOR `{stream.spec.time_column}` AS "
        f"`{stream.spec.time_column}`{delay}) WITH ({option_list})"
    )


def build_topic_ddl(stream: SutStream, topic: TopicAddress) -> str:
    """Return the DDL of a stream whose rows are messages of Kafka; times are milliseconds since 1970."""
    time = stream.spec.time_column
    columns = [f"`{field.name}` {type_name(field.type)}" for field in stream.schema.fields if field.name != time]
    options = {
        "connector": "kafka",
        "topic": topic.topic,
        "properties.bootstrap.servers": topic.brokers,
        "properties.group.id": topic.group,
        "scan.startup.mode": "earliest-offset",
        "format": "json",
    }
    delay = f" - INTERVAL '{stream.spec.watermark:.3f}' SECOND(4, 3)" if stream.spec.watermark else ""
    columns += [f"`{TIME_MEMBER}` BIGINT", f"`{time}` AS TO_TIMESTAMP_LTZ(`{TIME_MEMBER}`, 3)"]
    columns.append(f"WATERMARK FOR `{time}` AS `{time}`{delay}")
    return f"CREATE TEMPORARY TABLE `{stream.name}` ({', '.join(columns)}) WITH ({_render_options(options)})"


def _render_options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


_KAFKA_CONNECTOR = (
    f"org/apache/flink/flink-sql-connector-kafka/{KAFKA_CONNECTOR_VERSION}/"
    f"flink-sql-connector-kafka-{KAFKA_CONNECTOR_VERSION}.jar"
)
_CONNECTOR_SERVICES = {"org.apache.flink.table.factories.Factory": "headrace.bench.flink.Tables"}
_LOG4J_PROPERTIES = """rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.name=console
appender.console.type=CONSOLE
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1} %m%n
"""


class FlinkJobRunner(Protocol):
    """Runs Flink jobs: `FlinkJobProcess`, or a fake in tests."""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the response to a request of `flink_job`; raise HeadraceError with Flink's message."""

    def limit_nodes(self) -> None:
        """Limit the processors of the nodes, if the cluster has any."""

    def check(self) -> None:
        """Raise HeadraceError if a process of the cluster has ended."""

    def describe(self) -> Mapping[str, str]:
        """Return how the nodes are limited; empty without nodes."""

    def close(self) -> None:
        """Stop the cluster."""


class FlinkAdapter:
    """The adapter of Flink."""

    def __init__(self, open_runner: Callable[[Path, FlinkSettings], FlinkJobRunner] | None = None) -> None:
        """Create the adapter; `open_runner` starts a cluster (default: `FlinkJobProcess`)."""
        self._open_runner = open_runner or FlinkJobProcess
        self._runner: FlinkJobRunner | None = None
        self._live_queries: dict[str, str] = {}  # SQL texts of the live queries, by name
        self._job_by_owner: dict[str, str] = {}  # by query name, or by "" for the job of all queries
        self._job_count = 0
        self._is_limited = False

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """See `SutAdapter`."""
        self._config, self._reporter = config, reporter
        self._driver = TcpConnection(config.driver) if config.driver else None
        self._start_cluster(len(config.queries))
        self._submit_queries(config.queries)
        assert self._runner is not None
        versions = {"flink": FLINK_VERSION, "headrace": importlib.metadata.version("headrace")}
        return SutDescription(versions, {**self._settings.describe(), **self._runner.describe()})

    def _start_cluster(self, queries: int) -> None:
        """Start a cluster with room for a number of queries."""
        reads_topic = self._config.topic is not None
        self._settings = FlinkSettings.from_options(self._config.options, queries, self._config.cluster, reads_topic=reads_topic)
        self._runner = self._open_runner(self._config.scratch, self._settings)

    def limit_nodes(self) -> None:
        """See `SutAdapter`."""
        assert self._runner is not None
        self._runner.limit_nodes()
        self._is_limited = True

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`."""
        for name in removed:
            self._live_queries.pop(name, None)
        if self._settings.mode == "separate":
            self._change_separate_jobs(added, removed)
        else:
            self._replace_statement_set(added, removed)

    def _change_separate_jobs(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        for name in removed:
            self._cancel_job(self._job_by_owner.pop(name, ""))
            self._reporter.report_removed(name)
        for query in added:
            for name in self._submit_queries([query]):
                self._reporter.report_live(name)

    def _replace_statement_set(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """Replace the running set by the new one; start a larger cluster if the set exceeds the current one."""
        self._cancel_job(self._job_by_owner.pop("", ""))
        query_count = len(self._live_queries) + len(added)
        if query_count > self._settings.max_queries:
            self.close()
            self._start_cluster(2 * query_count)
            if self._is_limited:
                self.limit_nodes()
        live = self._submit_queries(added)
        for name in removed:
            self._reporter.report_removed(name)
        for name in live:
            self._reporter.report_live(name)

    def _submit_queries(self, added: Sequence[BenchQuery]) -> list[str]:
        """Run new queries, together with the live ones in mode "statement_set"; return the names of accepted queries."""
        texts = {query.name: query.sql["flink"] for query in added if query.sql.get("flink")}
        refused = {query.name: NO_DIALECT_TEXT for query in added if query.name not in texts}
        if self._settings.mode == "statement_set":
            refused |= self._submit_job("", {**self._live_queries, **texts})
        else:
            for name, text in texts.items():
                refused |= self._submit_job(name, {name: text})
        for name, reason in refused.items():
            self._reporter.report_refused(name, reason)
        accepted = {name: text for name, text in texts.items() if name not in refused}
        self._live_queries.update(accepted)
        return list(accepted)

    def _submit_job(self, owner: str, texts: Mapping[str, str]) -> dict[str, str]:
        """Submit a job with its own consumer group; return the refused queries with their reasons."""
        if not texts:
            return {}
        if owner and len(self._job_by_owner) >= self._settings.max_queries:
            return {owner: f"the cluster has slots for {self._settings.max_queries} queries (option max_queries)"}
        assert self._runner is not None
        self._job_count += 1
        job = f"flink-{self._job_count}"
        tables = {stream.name: self._build_ddl(stream, job) for stream in self._config.streams}
        sink = {"address": self._config.collector}
        response = self._runner.ask(call="submit", job=job, tables=tables, queries=dict(texts), sink=sink)
        refused: dict[str, str] = response.get("refused", {})
        if len(refused) < len(texts):
            self._job_by_owner[owner] = job
        return refused

    def _build_ddl(self, stream: SutStream, group: str) -> str:
        if self._config.topic is not None:
            return build_topic_ddl(stream, self._config.topic)
        return build_table_ddl(stream, self._config.driver, group)

    def _cancel_job(self, job: str) -> None:
        """Cancel a job and remove its consumer group, so that the driver stops retaining rows for it."""
        if job:
            assert self._runner is not None
            self._runner.ask(call="cancel", job=job)
            if self._driver is None:
                return
            for stream in self._config.streams:
                self._driver.send_request("leave", stream=stream.name, group=job)

    def read_component_seconds(self) -> Mapping[str, float]:
        """See `SutAdapter`; this system does not measure them."""
        return {}

    def check(self) -> None:
        """See `SutAdapter`."""
        assert self._runner is not None
        self._runner.check()

    def close(self) -> None:
        """See `SutAdapter`."""
        if self._runner is not None:
            self._runner.close()


class FlinkJobProcess:
    """The process that runs `flink_job`, seen from the adapter, and the nodes of its cluster."""

    def __init__(self, scratch: Path, settings: FlinkSettings) -> None:
        """Start the process, and the nodes if the settings have some; return when the cluster is up."""
        environment = ensure_flink_environment()
        log4j = scratch / "flink-log4j.properties"
        log4j.write_text(_LOG4J_PROPERTIES, encoding="utf-8")
        connector = build_connector("flink", FLINK_VERSION, environment.list_jars(), _CONNECTOR_SERVICES)
        added = [connector, *([ensure_jar(_KAFKA_CONNECTOR)] if settings.reads_topic else [])]
        jars = [*environment.list_jars(), *added]
        self._nodes = _start_nodes(environment, scratch, settings, log4j)
        self._process = subprocess.Popen(  # noqa: S603  own script
            [str(environment.python), "-I", str(Path(__file__).with_name("flink_job.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
            cwd=scratch,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        )
        java_options = [
            *settings.java,
            *environment.read_java_options(),
            f"-Dlog4j.configurationFile={log4j.as_uri()}",
            f"-Djava.io.tmpdir={scratch}",
        ]
        started = {"jars": [str(jar) for jar in jars], "java": java_options, "cluster": dict(settings.cluster)}
        remote = self._find_rest_address(settings)
        shipped = {"pipeline.jars": ";".join(jar.as_uri() for jar in added)} if remote else {}
        try:
            self.ask(**started, table={**settings.table, **shipped}, rest=remote)
        except HeadraceError:
            self.close()
            raise

    def _find_rest_address(self, settings: FlinkSettings) -> str | None:
        if self._nodes is not None:
            return self._nodes.rest_address
        return settings.nodes.master if settings.nodes is not None else None

    def limit_nodes(self) -> None:
        """See `FlinkJobRunner`."""
        if self._nodes is not None:
            self._nodes.processes.limit_nodes()

    def check(self) -> None:
        """See `FlinkJobRunner`."""
        if self._nodes is not None:
            self._nodes.processes.check()
        self.ask(call="check")

    def describe(self) -> Mapping[str, str]:
        """See `FlinkJobRunner`."""
        return {} if self._nodes is None else {"node_limit": self._nodes.processes.limiter.means}

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the response; raise HeadraceError with Flink's message."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HeadraceError("the Flink process ended") from error
        line = self._process.stdout.readline()
        if not line:
            raise HeadraceError("the Flink process ended", detail=f"exit code {self._process.wait()}")
        response: dict[str, Any] = json.loads(line)
        if "error" in response:
            raise HeadraceError("Flink failed", detail=response["error"])
        return response

    def close(self) -> None:
        """Stop the process; its JVM ends with it."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        if self._nodes is not None:
            self._nodes.processes.close()


def _start_nodes(environment: FlinkEnvironment, scratch: Path, settings: FlinkSettings, log4j: Path) -> FlinkNodes | None:
    """Start the nodes of a cluster; the folder is a new one, because a larger cluster may replace a smaller one."""
    if settings.nodes is None or settings.nodes.master:
        return None
    folder = Path(tempfile.mkdtemp(prefix="flink-nodes-", dir=scratch)) / "processes"
    java_options = " ".join(environment.read_java_options())
    return FlinkNodes(environment.home, folder, settings.nodes, {**settings.cluster, **settings.table}, java_options, log4j)


if __name__ == "__main__":
    serve(FlinkAdapter())
