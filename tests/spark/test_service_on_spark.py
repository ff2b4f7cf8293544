"""`headrace serve` on Spark, killed with SIGKILL and started again: all is there, and a reader notices nothing."""

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


class Reader:
    """Follows a query by server-sent events, and comes back with the id of the last one it has."""

    def __init__(self, query: str) -> None:
        self._path, self._last = f"/v1/queries/{query}/live", ""
        self.rows: list[list[Any]] = []

    def read(self, url: str, more: int) -> None:
        """Read until there are so many rows more, then hang up."""
        wanted, headers = len(self.rows) + more, {"Last-Event-ID": self._last} if self._last else {}
        with httpx.stream(
            "GET", f"{url}{self._path}", params={"from": "beginning"}, headers=headers, timeout=TIMEOUT_SECONDS
        ) as answer:
            for kind, number, data in parse_events(answer):
                assert kind != "missed"
                self._last = number
                self.rows += data["rows"] if kind == "rows" else []
                if len(self.rows) >= wanted:
                    return


def known(session: Any) -> dict[str, Any]:
    """Return what must not change by a restart: queries and their ids, what they share, and streams."""
    queries = {one.name: (one.id, one.sql, one.status) for one in session.queries()}
    plan = session.ask("GET", "/plan").json()
    shared = {(one["kind"], one["label"], tuple(one["queries"])) for one in plan["operators"]}
    return {"queries": queries, "shared": shared, "streams": {name: one["source"] for name, one in session.streams().items()}}


def gone(processes: list[psutil.Process]) -> bool:
    """Tell whether all of them end, if they are given a moment."""
    return not psutil.wait_procs(processes, timeout=20)[1]


def test_killed_on_spark_it_goes_on(tmp_path: Path):
    """|--epoch--|--epoch--✗   |--goes on--|: the reader's rows of both are the query's results."""
    words = ("--demo", "--port", "0", "--checkpoint", str(tmp_path / "state"), "--interval", "0.05")
    counts, tops = Reader("counts"), Reader("tops")
    with run_service(*words, backend="spark") as (url, process):
        session = hr.connect(url)
        session.add(COUNTS, name="counts")
        counts.read(url, 3)
        session.add(TOPS, name="tops")  # another epoch
        tops.read(url, 5)
        before, emitted = known(session), session.query("counts").page()
        assert any(one["kind"] == "epoch" for one in session.ask("GET", "/events").json())
        left = kill_process(process)
    assert left  # a JVM, at least
    assert gone(left)
    with run_service(*words, backend="spark") as (url, _):
        session = hr.connect(url)
        assert known(session) == before
        assert session.query("counts").page().rows.slice(0, emitted.rows.num_rows) == emitted.rows
        counts.read(url, 5)
        tops.read(url, 20)
        whole = {one: session.query(one).results() for one in ("counts", "tops")}
    for name, reader in (("counts", counts), ("tops", tops)):
        expected = [list(row.values()) for row in whole[name].to_pylist()][: len(reader.rows)]
        assert [row[1:] for row in reader.rows] == [row[1:] for row in expected]  # none twice, none left out
    starts = [row["window_start"] for row in whole["counts"].to_pylist()]
    assert len(set(starts)) == len(starts)
