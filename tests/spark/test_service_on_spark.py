"""`headrace serve` on Spark, killed with SIGKILL and restarted: queries and streams are recovered; subscribers miss no rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import headrace as hr
from support.in_process_service import parse_events
from support.service_process import TIMEOUT_SECONDS, kill_process, run_service

pytestmark = pytest.mark.spark

COUNTS = "SELECT window_start, COUNT(*) AS n, SUM(price) AS total FROM TUMBLE(purchases, '250 ms')"
TOPS = "SELECT window_start, gem_pack, MAX(price) AS top FROM HOP(purchases, '1 second', '250 ms') GROUP BY gem_pack"


class Subscriber:
    """Reads a query by server-sent events, and resumes after the id of the last event."""

    def __init__(self, query: str) -> None:
        self._path, self._last = f"/v1/queries/{query}/live", ""
        self.rows: list[list[Any]] = []

    def read(self, url: str, more: int) -> None:
        """Read until `more` further rows have arrived, then disconnect."""
        wanted, headers = len(self.rows) + more, {"Last-Event-ID": self._last} if self._last else {}
        with httpx.stream(
            "GET", f"{url}{self._path}", params={"from": "beginning"}, headers=headers, timeout=TIMEOUT_SECONDS
        ) as response:
            for kind, number, data in parse_events(response):
                assert kind != "missed"
                self._last = number
                self.rows += data["rows"] if kind == "rows" else []
                if len(self.rows) >= wanted:
                    return


def describe_session(session: Any) -> dict[str, Any]:
    """Return the parts that a restart must not change: queries, shared operators and streams."""
    queries = {query.name: (query.id, query.sql, query.status) for query in session.queries()}
    plan = session.ask("GET", "/plan").json()
    shared = {(op["kind"], op["label"], tuple(op["queries"])) for op in plan["operators"]}
    return {
        "queries": queries,
        "shared": shared,
        "streams": {name: stream["source"] for name, stream in session.streams().items()},
    }


def have_ended(processes: list[psutil.Process]) -> bool:
    """Return whether all processes end within 20 s."""
    return not psutil.wait_procs(processes, timeout=20)[1]


def test_the_service_continues_on_spark_after_a_kill(tmp_path: Path):
    """|--epoch--|--epoch--✗   |--restarted--|: subscribers get exactly the results of the queries."""
    words = ("--demo", "--port", "0", "--checkpoint", str(tmp_path / "state"), "--interval", "0.05")
    counts, tops = Subscriber("counts"), Subscriber("tops")
    with run_service(*words, backend="spark") as (url, process):
        session = hr.connect(url)
        session.add(COUNTS, name="counts")
        counts.read(url, 3)
        session.add(TOPS, name="tops")  # another epoch
        tops.read(url, 5)
        before, emitted = describe_session(session), session.query("counts").page()
        assert any(event["kind"] == "epoch" for event in session.ask("GET", "/events").json())
        left = kill_process(process)
    assert left  # a JVM, at least
    assert have_ended(left)
    with run_service(*words, backend="spark") as (url, _):
        session = hr.connect(url)
        assert describe_session(session) == before
        assert session.query("counts").page().rows.slice(0, emitted.rows.num_rows) == emitted.rows
        counts.read(url, 5)
        tops.read(url, 20)
        results = {name: session.query(name).results() for name in ("counts", "tops")}
    for name, subscriber in (("counts", counts), ("tops", tops)):
        expected = [list(row.values()) for row in results[name].to_pylist()][: len(subscriber.rows)]
        assert [row[1:] for row in subscriber.rows] == [row[1:] for row in expected]  # no duplicates, no gaps
    starts = [row["window_start"] for row in results["counts"].to_pylist()]
    assert len(set(starts)) == len(starts)
