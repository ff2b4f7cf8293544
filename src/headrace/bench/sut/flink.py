"""Apache Flink: SQL on a MiniCluster in a JVM of its own, fed by a source that pulls Arrow batches from the driver.

Option "mode" is "statement_set" (one job for all queries, which share the scan; adding or removing a query cancels the job and
submits the new set, without a savepoint: open windows begin anew; a set that has outgrown the memory it was planned for gets a
new cluster) or "separate" (a job for each query, each with a scan of its own; adding and removing touch nothing else). The
other options are those of `flink_settings`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import NO_TEXT, Started, SutConfig, Teller
from headrace.bench.sut.connector import connector
from headrace.bench.sut.flink_environment import VERSION, flink_environment
from headrace.bench.sut.flink_settings import Settings, table
from headrace.bench.sut.process import serve
from headrace.connectors.tcp_protocol import Connection
from headrace.errors import HeadraceError

_SERVICES = {"org.apache.flink.table.factories.Factory": "headrace.bench.flink.Tables"}
_LOG4J = """rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.name=console
appender.console.type=CONSOLE
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1} %m%n
"""


class Side(Protocol):
    """Whoever runs jobs: `FlinkSide`, or a stand-in."""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request of `flink_job`; raises HeadraceError with what Flink says."""

    def close(self) -> None:
        """End it."""


class Flink:
    """The adapter."""

    def __init__(self, open_side: Callable[[Path, Settings], Side] | None = None) -> None:
        """Nothing is started yet; `open_side` starts a cluster (Flink's own, unless given)."""
        self._open_side = open_side or FlinkSide
        self._side: Side | None = None
        self._queries: dict[str, str] = {}  # texts of those that are live
        self._job_of: dict[str, str] = {}  # by query, or by "" if all are one job
        self._jobs = 0

    def start(self, config: SutConfig, tell: Teller) -> Started:
        """See `Adapter`."""
        self._config, self._tell = config, tell
        self._driver = Connection(config.driver)
        self._begin(len(config.queries))
        self._submit(config.queries)
        return Started({"flink": VERSION, "headrace": importlib.metadata.version("headrace")}, self._settings.described())

    def _begin(self, queries: int) -> None:
        """Start a cluster that has room for so many queries."""
        self._settings = Settings.of(self._config.options, queries)
        self._side = self._open_side(self._config.scratch, self._settings)

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `Adapter`."""
        for name in removed:
            self._queries.pop(name, None)
        if self._settings.mode == "separate":
            self._change_each(added, removed)
        else:
            self._change_all(added, removed)

    def _change_each(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        for name in removed:
            self._cancel(self._job_of.pop(name, ""))
            self._tell.removed(name)
        for query in added:
            for name in self._submit([query]):
                self._tell.live(name)

    def _change_all(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """Submit the new set in place of the old one; on a larger cluster, if it is too large for this one."""
        self._cancel(self._job_of.pop("", ""))
        wanted = len(self._queries) + len(added)
        if wanted > self._settings.most:
            self.close()
            self._begin(2 * wanted)
        live = self._submit(added)
        for name in removed:
            self._tell.removed(name)
        for name in live:
            self._tell.live(name)

    def _submit(self, added: Sequence[BenchQuery]) -> list[str]:
        """Run the queries that are new, with all others if they are one job; return those that were not refused."""
        texts = {query.name: query.sql["flink"] for query in added if query.sql.get("flink")}
        refused = {query.name: NO_TEXT for query in added if query.name not in texts}
        if self._settings.mode == "statement_set":
            refused |= self._run("", {**self._queries, **texts})
        else:
            for name, text in texts.items():
                refused |= self._run(name, {name: text})
        for name, reason in refused.items():
            self._tell.refused(name, reason)
        taken = {name: text for name, text in texts.items() if name not in refused}
        self._queries.update(taken)
        return list(taken)

    def _run(self, owner: str, texts: Mapping[str, str]) -> dict[str, str]:
        """Submit a job that pulls as a consumer group of its own; return who was refused, and why."""
        if not texts:
            return {}
        if owner and len(self._job_of) >= self._settings.most:
            return {owner: f"there are slots for {self._settings.most} queries (option max_queries)"}
        assert self._side is not None
        self._jobs += 1
        job = f"flink-{self._jobs}"
        tables = {stream.name: table(stream, self._config.driver, job) for stream in self._config.streams}
        sink = {"address": self._config.collector}
        answer = self._side.ask(call="submit", job=job, tables=tables, queries=dict(texts), sink=sink)
        refused: dict[str, str] = answer.get("refused", {})
        if len(refused) < len(texts):
            self._job_of[owner] = job
        return refused

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


class FlinkSide:
    """The process that has Flink, from our side."""

    def __init__(self, scratch: Path, settings: Settings) -> None:
        """Start it; returns when the cluster is up."""
        environment = flink_environment()
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
        java = [
            *settings.java,
            *environment.java_options(),
            f"-Dlog4j.configurationFile={log4j.as_uri()}",
            f"-Djava.io.tmpdir={scratch}",
        ]
        self.ask(jars=[str(jar) for jar in jars], java=java, cluster=dict(settings.cluster), table=dict(settings.table))

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


if __name__ == "__main__":
    serve(Flink())
