"""`headrace serve` as a separate process: started, killed, started again."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest

import headrace as hr
from headrace.cli import serve
from headrace.errors import HeadraceError
from support.certificates import make_certificate
from support.service_process import COMMAND, TIMEOUT_SECONDS, run_service, start_service, wait_until

pytestmark = pytest.mark.usefixtures("preloaded")


def test_a_killed_service_resumes_without_loss_or_duplicates(tmp_path: Path):
    options = ("--demo", "--port", "0", "--checkpoint", str(tmp_path / "state"), "--interval", "0.05")
    seen: list[tuple] = []
    at = "beginning"

    def read_pages(url: str, rows: int) -> str:
        """Read pages until `rows` rows are seen; return the next position."""
        position = at
        until = time.monotonic() + TIMEOUT_SECONDS
        while len(seen) < rows:
            page = httpx.get(f"{url}/v1/queries/mine/results", params={"after": position, "wait": 5}, timeout=30).json()
            seen.extend(tuple(row) for row in page["rows"])
            position = page["next"]
            assert time.monotonic() < until
        return position

    with run_service(*options) as (url, process):
        session = hr.connect(url)
        assert {"purchases", "ads"} <= set(session.streams())
        assert len(session.queries()) > 3
        session.add("SELECT window_start, COUNT(*) AS n FROM TUMBLE(purchases, '200 milliseconds')", name="mine")
        at = read_pages(url, 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with run_service(*options) as (url, _):
        session = hr.connect(url)
        assert session.query("mine").status == "live"
        at = read_pages(url, 5)
        results = session.query("mine").results().to_pylist()
    windows = [datetime.fromisoformat(row[0]) for row in seen]
    assert windows == [
        windows[0] + timedelta(milliseconds=200 * number) for number in range(len(windows))
    ]  # each window exactly once
    assert [row[1] for row in seen] == [row["n"] for row in results][: len(seen)]


def test_a_standby_answers_503_until_the_service_is_killed_and_then_serves(tmp_path: Path):
    options = ("--checkpoint", str(tmp_path / "state"), "--interval", "0.05")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with (
        run_service("--demo", "--port", "0", *options) as (first_url, first),
        start_service("--standby", "--port", port, *options) as standby,
    ):
        wait_until(lambda: find_status(url) == "standby")
        assert httpx.get(f"{url}/v1/queries", timeout=10).json()["error"] == "this service waits as a standby"
        wait_until(lambda: httpx.get(f"{first_url}/v1/progress", timeout=10).json())  # its streams are in the checkpoint
        first.send_signal(signal.SIGKILL)
        first.wait()
        wait_until(lambda: find_status(url) == "ok")
        assert {"purchases", "ads"} <= {stream["name"] for stream in httpx.get(f"{url}/v1/streams", timeout=10).json()}
        standby.send_signal(signal.SIGTERM)
        assert standby.wait(TIMEOUT_SECONDS) == 0


def find_status(url: str) -> str:
    try:
        return httpx.get(f"{url}/v1/health", timeout=5).json()["status"]
    except httpx.TransportError:
        return ""


def test_a_session_file_adds_its_queries_only_on_the_first_start(tmp_path: Path):
    options = ("examples/purchases.toml", "--port", "0", "--checkpoint", str(tmp_path / "state"))
    with run_service(*options) as (url, process):
        session = hr.connect(url)
        names = {query.name for query in session.queries()}
        assert "revenue" in names
        session.remove("revenue")
        wait_until(lambda: session.query("revenue").status == "removed")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0
    with run_service(*options) as (url, _):
        assert {query.name for query in hr.connect(url).queries()} == names - {"revenue"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0", "--checkpoint", "memory://serve"], "tokens are not generated in an object store"),
        (["--allow-root", "no-such-folder"], "is not a directory"),
        (["{file}"], "sink 'hdfs://nn/out' has the unsupported scheme"),
    ],
)
def test_a_standby_refuses_at_its_start_what_it_could_not_do_later(headrace, session_file, monkeypatch, words, message):
    """Otherwise it looks healthy, and ends at the failover."""
    monkeypatch.setattr(serve, "Session", lambda *_, **__: pytest.fail("the session was opened"))
    file = session_file(queries='[queries.q]\nsql = "SELECT k FROM t"\nsink = "jsonl:hdfs://nn/out"\n')
    refused = headrace("serve", "--standby", "--backend", "local", "--port", "0", *(word.format(file=file) for word in words))
    assert (refused.code, message in refused.err) == (1, True), refused.err


def test_an_address_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*COMMAND, "--backend", "local", "--port", port]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert completed.returncode == 1
    assert "cannot listen on" in completed.stderr
    assert "--port" in completed.stderr


def test_listening_beyond_loopback_creates_tokens(tmp_path: Path):
    """Also with the other options of access: TLS, an allowed root, no functions."""
    chain, key = make_certificate(tmp_path, "service")
    (tmp_path / "open").mkdir()
    options = ("--demo", "--host", "0.0.0.0", "--port", "0", "--checkpoint", str(tmp_path / "state"), "--no-functions")
    access = ("--tls-cert", str(chain), "--tls-key", str(key), "--allow-root", str(tmp_path / "open"))
    with run_service(*options, *access) as (url, _):
        address = url.replace("0.0.0.0", "127.0.0.1")
        assert address.startswith("https://")
        tokens = {line.split()[0]: line.split()[2] for line in (tmp_path / "state" / "tokens").read_text().splitlines()}
        with hr.connect(address, verify=chain) as session, pytest.raises(HeadraceError, match="requires a valid token"):
            session.queries()
        with hr.connect(address, token=tokens["write"], verify=chain) as session:
            assert session.queries()
        with hr.connect(address, token=tokens["admin"], verify=chain) as session:
            files = {"source": "files", "columns": "k INT, time TIMESTAMP"}
            session.create_stream("allowed", {**files, "path": str(tmp_path / "open")}, time="time")
            with pytest.raises(HeadraceError, match="is not below an allowed root"):
                session.create_stream("refused", {**files, "path": str(tmp_path)}, time="time")
