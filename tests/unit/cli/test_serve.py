"""`headrace serve` as a process of its own: started, killed, started again."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import httpx

import headrace as hr
from support.service_process import COMMAND, TIMEOUT_SECONDS, run_service, wait_until


def test_killed_at_any_moment_it_goes_on(tmp_path: Path):
    words = ("--demo", "--port", "0", "--checkpoint", str(tmp_path / "state"), "--interval", "0.05")
    seen: list[tuple] = []
    at = "beginning"

    def read(url: str, rows: int) -> str:
        """Read pages until there are so many rows; return the position behind them."""
        position = at
        until = time.monotonic() + TIMEOUT_SECONDS
        while len(seen) < rows:
            page = httpx.get(f"{url}/v1/queries/mine/results", params={"after": position, "wait": 5}, timeout=30).json()
            seen.extend(tuple(row) for row in page["rows"])
            position = page["next"]
            assert time.monotonic() < until
        return position

    with run_service(*words) as (url, process):
        session = hr.connect(url)
        assert {"purchases", "ads"} <= set(session.streams())
        assert len(session.queries()) > 3
        session.add("SELECT window_start, COUNT(*) AS n FROM TUMBLE(purchases, '1 second')", name="mine")
        at = read(url, 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with run_service(*words) as (url, _):
        session = hr.connect(url)
        assert session.query("mine").status == "live"
        at = read(url, 5)
        whole = session.query("mine").results().to_pylist()
    windows = [datetime.fromisoformat(row[0]) for row in seen]
    assert windows == [windows[0] + timedelta(seconds=number) for number in range(len(windows))]  # none twice, none left out
    assert [row[1] for row in seen] == [row["n"] for row in whole][: len(seen)]


def test_a_session_file_gives_streams_and_queries_once(tmp_path: Path):
    words = ("examples/purchases.toml", "--port", "0", "--checkpoint", str(tmp_path / "state"))
    with run_service(*words) as (url, process):
        session = hr.connect(url)
        names = {one.name for one in session.queries()}
        assert "revenue" in names
        session.remove("revenue")
        wait_until(lambda: session.query("revenue").status == "removed")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0
    with run_service(*words) as (url, _):
        assert {one.name for one in hr.connect(url).queries()} == names - {"revenue"}


def test_an_address_in_use_is_refused_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*COMMAND, "--backend", "local", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 1
    assert "cannot listen on" in done.stderr
    assert "--port" in done.stderr


def test_beyond_loopback_tokens_are_made(tmp_path: Path):
    words = ("--demo", "--host", "0.0.0.0", "--port", "0", "--checkpoint", str(tmp_path / "state"))
    with run_service(*words) as (url, _):
        address = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{address}/v1/queries").status_code == 401
        token = next(line.split()[2] for line in (tmp_path / "state" / "tokens").read_text().splitlines() if line[:5] == "write")
        assert hr.connect(address, token=token).queries()
