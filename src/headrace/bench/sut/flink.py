"""Run Apache Flink SQL on a MiniCluster in its own JVM; its source pulls Arrow batches from the driver.

Option "mode" is "statement_set" or "separate". "statement_set" runs one job for all queries, which share the scan; adding or
removing a query cancels the job and submits the new set without a savepoint, so open windows start over, and a set that exceeds
the planned memory gets a new cluster. "separate" runs a job with its own scan for each query; adding and removing leaves the
other jobs alone. The other options are those of `FlinkSettings`.
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
from headrace.bench.sut.adapter import NO_DIALECT_TEXT, QueryStatusReporter, SutConfig, SutDescription
from headrace.bench.sut.connector import build_connector
from headrace.bench.sut.flink_environment import FLINK_VERSION, ensure_flink_environment
from headrace.bench.sut.flink_settings import FlinkSettings, build_table_ddl
from headrace.bench.sut.process import serve
from headrace.connectors.tcp_protocol import TcpConnection
from headrace.errors import HeadraceError

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

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """See `SutAdapter`."""
        self._config, self._reporter = config, reporter
        self._driver = TcpConnection(config.driver)
        self._start_cluster(len(config.queries))
        self._submit_queries(config.queries)
        return SutDescription(
            {"flink": FLINK_VERSION, "headrace": importlib.metadata.version("headrace")}, self._settings.describe()
        )

    def _start_cluster(self, queries: int) -> None:
        """Start a cluster with room for a number of queries."""
        self._settings = FlinkSettings.from_options(self._config.options, queries)
        self._runner = self._open_runner(self._config.scratch, self._settings)

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
        tables = {stream.name: build_table_ddl(stream, self._config.driver, job) for stream in self._config.streams}
        sink = {"address": self._config.collector}
        response = self._runner.ask(call="submit", job=job, tables=tables, queries=dict(texts), sink=sink)
        refused: dict[str, str] = response.get("refused", {})
        if len(refused) < len(texts):
            self._job_by_owner[owner] = job
        return refused

    def _cancel_job(self, job: str) -> None:
        """Cancel a job and remove its consumer group, so that the driver stops retaining rows for it."""
        if job:
            assert self._runner is not None
            self._runner.ask(call="cancel", job=job)
            for stream in self._config.streams:
                self._driver.send_request("leave", stream=stream.name, group=job)

    def check(self) -> None:
        """See `SutAdapter`."""
        assert self._runner is not None
        self._runner.ask(call="check")

    def close(self) -> None:
        """See `SutAdapter`."""
        if self._runner is not None:
            self._runner.close()


class FlinkJobProcess:
    """The process that runs `flink_job`, seen from the adapter."""

    def __init__(self, scratch: Path, settings: FlinkSettings) -> None:
        """Start the process and wait until the cluster is up."""
        environment = ensure_flink_environment()
        log4j = scratch / "flink-log4j.properties"
        log4j.write_text(_LOG4J_PROPERTIES, encoding="utf-8")
        jars = [*environment.list_jars(), build_connector("flink", FLINK_VERSION, environment.list_jars(), _CONNECTOR_SERVICES)]
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
        self.ask(jars=[str(jar) for jar in jars], java=java_options, cluster=dict(settings.cluster), table=dict(settings.table))

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


if __name__ == "__main__":
    serve(FlinkAdapter())
