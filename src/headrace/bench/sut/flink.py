"""Apache Flink: SQL on a MiniCluster in a JVM of its own, fed by a source that pulls Arrow batches from the driver.

Options: "mode" is "statement_set" (one job for all queries, which share the scan; adding or removing a query cancels the job
and submits the new set, without a savepoint: open windows begin anew) or "separate" (a job for each query, each with a scan
of its own; adding and removing touch nothing else). "max_queries" is for how many queries slots and buffers are set aside;
"settings" are more of Flink's own, by name, "java" more options of its JVM.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import NO_TEXT, Started, SutConfig, SutStream, Teller
from headrace.bench.sut.connector import connector
from headrace.bench.sut.flink_environment import VERSION, FlinkEnvironment, flink_environment
from headrace.bench.sut.process import serve
from headrace.connectors.tcp_protocol import Connection
from headrace.errors import HeadraceError
from headrace.model.schema import type_name

MODES = ("statement_set", "separate")
_SERVICES = {"org.apache.flink.table.factories.Factory": "headrace.bench.flink.Tables"}
_MAX_QUERIES = 128
_MEBI = 1 << 20
_LOG4J = """rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.name=console
appender.console.type=CONSOLE
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1} %m%n
"""


class Flink:
    """The adapter."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._side: FlinkSide | None = None
        self._queries: dict[str, str] = {}  # texts of those that are live
        self._jobs = 0
        self._job_of: dict[str, str] = {}

    def start(self, config: SutConfig, tell: Teller) -> Started:
        """See `Adapter`."""
        self._config, self._tell = config, tell
        self._mode = config.options.get("mode", MODES[0])
        if self._mode not in MODES:
            raise HeadraceError(f"flink has no mode '{self._mode}'", detail=f"modes: {', '.join(MODES)}")
        environment = flink_environment()
        settings = Settings(config, self._mode)
        self._driver = Connection(config.driver)
        self._side = FlinkSide(environment, config.scratch, settings)
        self._submit(config.queries)
        return Started(_versions(environment), settings.described())

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `Adapter`."""
        for name in removed:
            self._queries.pop(name, None)
        if self._mode == "separate":
            for name in removed:
                self._cancel(self._job_of.pop(name, ""))
                self._tell.removed(name)
            for query in added:
                self._tell_live(self._submit([query]))
            return
        self._cancel(self._job_of.get("", ""))
        live = self._submit(added)
        for name in removed:
            self._tell.removed(name)
        self._tell_live(live)

    def _tell_live(self, names: Sequence[str]) -> None:
        for name in names:
            self._tell.live(name)

    def _submit(self, added: Sequence[BenchQuery]) -> list[str]:
        """Run the queries that are new, with all others if they are one job; return those that were not refused."""
        texts = {}
        for query in added:
            if query.sql.get("flink"):
                texts[query.name] = query.sql["flink"]
            else:
                self._tell.refused(query.name, NO_TEXT)
        if self._mode == "statement_set":
            refused = self._run("", {**self._queries, **texts})
        else:
            refused = {name: why for name, text in texts.items() for why in self._run(name, {name: text}).values()}
        for name, reason in refused.items():
            self._tell.refused(name, reason)
        taken = {name: text for name, text in texts.items() if name not in refused}
        self._queries.update(taken)
        return list(taken)

    def _run(self, owner: str, texts: Mapping[str, str]) -> dict[str, str]:
        """Submit a job that pulls as a consumer group of its own name."""
        if not texts:
            return {}
        assert self._side is not None
        self._jobs += 1
        job = self._job_of[owner] = f"flink-{self._jobs}"
        tables = {stream.name: table(stream, self._config.driver, job) for stream in self._config.streams}
        sink = {"address": self._config.collector}
        answer = self._side.ask(call="submit", job=job, tables=tables, queries=dict(texts), sink=sink)
        return dict(answer.get("refused", {}))

    def _cancel(self, job: str) -> None:
        """End a job, and have the driver no longer keep rows for it."""
        if job:
            assert self._side is not None
            self._side.ask(call="cancel", job=job)
            for stream in self._config.streams:
                self._driver.ask("leave", stream=stream.name, group=job)

    def check(self) -> None:
        """See `Adapter`."""
        assert self._side is not None
        self._side.ask(call="check")

    def close(self) -> None:
        """See `Adapter`."""
        if self._side is not None:
            self._side.close()


class Settings:
    """Flink's settings for a number of queries on this machine; docs/benchmark-systems.md says why."""

    def __init__(self, config: SutConfig, mode: str) -> None:
        """Look at the machine."""
        self.mode, self.cores = mode, int(config.options.get("parallelism") or os.cpu_count() or 1)
        most = max(len(config.queries), int(config.options.get("max_queries", _MAX_QUERIES if mode == "separate" else 1)))
        memory = psutil.virtual_memory().total
        heap, buffers = max(2048, memory // 4 // _MEBI), 128 + 2 * self.cores * most
        self.slots = self.cores * (most if mode == "separate" else 1)
        managed = self.slots * (16 if mode == "separate" else max(32, 8 * most))
        self.java = [f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={buffers + managed + 1024}m"]
        self.cluster = {
            "rest.bind-address": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": str(self.slots),
            "taskmanager.memory.managed.size": f"{min(managed, heap)}m",
            "taskmanager.memory.network.min": f"{buffers}m",
            "taskmanager.memory.network.max": f"{buffers}m",
        }
        self.table = {
            "parallelism.default": str(self.cores),
            "pipeline.object-reuse": "true",
            "pipeline.auto-watermark-interval": "50 ms",
            "table.exec.source.idle-timeout": "1 s",
            "table.local-time-zone": "UTC",
            "restart-strategy.type": "none",
        }
        for name, value in dict(config.options.get("settings", {})).items():
            (self.cluster if name in self.cluster or name.startswith("taskmanager.") else self.table)[name] = str(value)
        self.java += config.options.get("java", [])

    def described(self) -> dict[str, Any]:
        """Return what a result says about them."""
        return {
            "mode": self.mode,
            "source": "Arrow batches pulled by a Java source (FLIP-27), a split for each partition",
            "checkpoints": "none",
            "java": list(self.java),
            **self.cluster,
            **self.table,
        }


class FlinkSide:
    """The process that has Flink, from our side."""

    def __init__(self, environment: FlinkEnvironment, scratch: Path, settings: Settings) -> None:
        """Start it; returns when the cluster is up."""
        log4j = scratch / "flink-log4j.properties"
        log4j.write_text(_LOG4J, encoding="utf-8")
        jars = [*environment.jars(), connector("flink", VERSION, environment.jars(), _SERVICES)]
        self._process = subprocess.Popen(  # noqa: S603  our own script
            [str(environment.python), "-I", str(Path(__file__).with_name("flink_job.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
            cwd=scratch,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        )
        java = [*settings.java, *environment.java_options(), f"-Dlog4j.configurationFile={log4j.as_uri()}"]
        self.ask(jars=[str(jar) for jar in jars], java=java, cluster=settings.cluster, table=settings.table)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a line and return the answer; raises HeadraceError with what Flink says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HeadraceError("the process of Flink is gone") from error
        line = self._process.stdout.readline()
        if not line:
            raise HeadraceError("the process of Flink is gone", detail=f"it ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HeadraceError("Flink failed", detail=answer["error"])
        return answer

    def close(self) -> None:
        """End it; its JVM ends with it."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()


def table(stream: SutStream, driver: str, group: str) -> str:
    """Return the DDL of a stream: event time is in milliseconds, as Flink's row-time attributes are."""
    columns = [f"`{field.name}` {_TYPES.get(type_name(field.type), type_name(field.type))}" for field in stream.schema.fields]
    delay = f" - INTERVAL '{stream.spec.watermark:.3f}' SECOND(4, 3)" if stream.spec.watermark else ""
    options = {"connector": "headrace", "address": driver, "stream": stream.name, "group": group}
    options["partitions"] = str(stream.spec.partitions)
    given = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    return (
        f"CREATE TEMPORARY TABLE `{stream.name}` ({', '.join(columns)}, WATERMARK FOR `{stream.spec.time}` AS "
        f"`{stream.spec.time}`{delay}) WITH ({given})"
    )


_TYPES = {"TIMESTAMP": "TIMESTAMP(3)"}


def _versions(environment: FlinkEnvironment) -> dict[str, str]:
    return {"flink": VERSION, "headrace": importlib.metadata.version("headrace"), "environment": str(environment.home)}


if __name__ == "__main__":
    serve(Flink())
