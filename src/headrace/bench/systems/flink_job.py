"""Run jobs on a Flink MiniCluster, or on a cluster of other processes, controlled by JSON lines from `flink`.

This script runs in Flink's own Python environment, so it imports only the standard library and pyflink.

    {"jars": […], "java": [options], "cluster": {…}, "table": {…}, "rest": address or null}     first line; response when
                                                                         the cluster is up: a MiniCluster, if rest is null
    {"call": "submit", "job": j, "tables": {name: DDL}, "queries": {name: SQL}, "sink": {option: value}}
    {"call": "cancel", "job": j}           {"call": "check"}

Every line gets one response: {"refused": {query: reason}} or {} on success, {"error": text} on failure.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment

_START_TIMEOUT_S = 120.0  # seconds until a job must run; deploying hundreds of operators is slow
_PR_SET_PDEATHSIG = 1  # prctl option


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends, for whatever reason (Linux only)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_jvm(jars: list[str], options: list[str]) -> int:
    """Start the JVM of the Python gateway; return its port. Files of this run are in the working directory."""
    port_file = Path.cwd() / f"gateway-{os.getpid()}.port"
    command = ["java", *options, "-cp", os.pathsep.join(jars), "org.apache.flink.client.python.PythonGatewayServer"]
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.PIPE,
        stdout=sys.stderr,
        env={**os.environ, "_PYFLINK_CONN_INFO_PATH": str(port_file)},
        preexec_fn=die_with_parent,  # noqa: PLW1509  no threads are running yet
    )
    while not port_file.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the Flink JVM ended with code {process.returncode}")
        time.sleep(0.05)
    return int(struct.unpack("!I", port_file.read_bytes()[:4])[0])


class FlinkCluster:
    """A cluster that jobs are submitted to: at an address, or a MiniCluster with its REST interface on loopback.

    A MiniCluster has the job manager and one task manager in the JVM of this process.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        """Start the JVM and, without an address, the MiniCluster; `cluster` and `table` of `config` are Flink settings."""
        os.environ["PYFLINK_GATEWAY_PORT"] = str(start_jvm(config["jars"], config["java"]))
        self._jvm = get_gateway().jvm
        self._rest_address = config["rest"] or self._start_mini_cluster(config["cluster"])
        settings = EnvironmentSettings.new_instance().in_streaming_mode().build()
        self._table_environment = TableEnvironment.create(settings)
        host, _, port = self._rest_address.rpartition("/")[2].rpartition(":")
        target = {"execution.target": "remote", "rest.address": host, "rest.port": port}
        for name, value in {**config["table"], **target}.items():
            self._table_environment.get_config().set(name, value)
        self._job_clients: dict[str, Any] = {}

    def _start_mini_cluster(self, settings: dict[str, str]) -> str:
        configuration = self._jvm.org.apache.flink.configuration.Configuration()
        for name, value in settings.items():
            configuration.setString(name, value)
        package = self._jvm.org.apache.flink.runtime.minicluster
        slots = int(settings["taskmanager.numberOfTaskSlots"])
        builder = package.MiniClusterConfiguration.Builder().setConfiguration(configuration).setNumTaskManagers(1)
        builder = builder.setNumSlotsPerTaskManager(slots).withRandomPorts().setCommonBindAddress("127.0.0.1")
        self._mini_cluster = package.MiniCluster(builder.build())
        self._mini_cluster.start()
        return str(self._mini_cluster.getRestAddress().get().toString())

    def submit(self, job: str, tables: dict[str, str], queries: dict[str, str], sink: dict[str, str]) -> dict[str, str]:
        """Run queries as one job over these tables; return, when it runs, the refused queries with their reasons."""
        for name, ddl in tables.items():
            self._table_environment.execute_sql(f"DROP TEMPORARY TABLE IF EXISTS `{name}`")
            self._table_environment.execute_sql(ddl)
        statements, refused = self._table_environment.create_statement_set(), {}
        for name, sql in queries.items():
            target = TableDescriptor.for_connector("headrace").option("query", name)
            for option, value in sink.items():
                target = target.option(option, value)
            try:
                statements.add_insert(target.build(), self._table_environment.sql_query(sql))
            except Exception as error:  # noqa: BLE001  Flink rejects the text
                refused[name] = _extract_cause(error)
        if len(refused) < len(queries):
            self._job_clients[job] = statements.execute().get_job_client()
            self._wait_running(job)
        return refused

    def _wait_running(self, job: str) -> None:
        end = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < end:
            state = self._get_json(f"/jobs/{self._job_clients[job].get_job_id()}")
            if state["state"] == "RUNNING" and all(v["status"] == "RUNNING" for v in state["vertices"]):
                return
            if state["state"] in {"FAILED", "CANCELED", "FINISHED"}:
                raise RuntimeError(self._fetch_failure_reason(str(self._job_clients[job].get_job_id())))
            time.sleep(0.01)
        raise RuntimeError(f"job '{job}' is not running after {_START_TIMEOUT_S:g} s")

    def cancel(self, job: str) -> None:
        """Cancel a job and wait until its slots are free; do nothing for a job that was never submitted."""
        if job in self._job_clients:
            client = self._job_clients.pop(job)
            client.cancel().result()
            while self._get_json(f"/jobs/{client.get_job_id()}")["state"] not in {"CANCELED", "FAILED", "FINISHED"}:
                time.sleep(0.01)

    def check(self) -> None:
        """Raise if a job is no longer running."""
        running = {str(client.get_job_id()) for client in self._job_clients.values()}
        for job in self._get_json("/jobs")["jobs"]:
            if job["id"] in running and job["status"] != "RUNNING":
                raise RuntimeError(self._fetch_failure_reason(job["id"]))

    def _fetch_failure_reason(self, number: str) -> str:
        history = self._get_json(f"/jobs/{number}/exceptions").get("exceptionHistory", {}).get("entries", [])
        causes = [line for entry in history for line in entry["stacktrace"].splitlines() if not line.startswith("\t")]
        return "a Flink job failed: " + (" / ".join(causes)[-1500:] or "no reason reported")

    def _get_json(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self._rest_address + path, timeout=30) as response:  # noqa: S310  own cluster
            body: dict[str, Any] = json.load(response)
            return body


def _extract_cause(error: BaseException) -> str:
    """Return the innermost message of a Java exception: Flink wraps the reason in several others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1].removeprefix("Caused by: ") if causes else lines[0] if lines else repr(error))[:500]


def handle_request(cluster: FlinkCluster, request: dict[str, Any]) -> dict[str, Any]:
    """Execute a request and return the response."""
    arguments = {name: value for name, value in request.items() if name != "call"}
    refused = getattr(cluster, {"submit": "submit", "cancel": "cancel", "check": "check"}[request["call"]])(**arguments)
    return {"refused": refused} if refused else {}


def main() -> None:
    """Handle requests until the input ends."""
    die_with_parent()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of the JVM must not mix with the responses
    cluster: FlinkCluster | None = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            response = {}
            if cluster is None:
                cluster = FlinkCluster(request)
            else:
                response = handle_request(cluster, request)
        except Exception as error:  # noqa: BLE001  sent as the response
            response = {"error": _extract_cause(error)}
        print(json.dumps(response), file=out, flush=True)
    os._exit(0)  # py4j would try to notify a JVM that has ended


if __name__ == "__main__":
    main()
