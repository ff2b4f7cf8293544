"""A service whose checkpoint another process takes over: it answers 503, and readers continue at the new one.

first    POST query · rows · reader ┊ loses the lease: 503, the live stream ends without `end`
second                              ┊ takes over · the reader goes on with Last-Event-ID: every row once
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from functools import partial

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from headrace.errors import OwnershipLostError
from headrace.service.placeholder import serve_placeholder
from headrace.storage.lease import Lease
from support.in_process_service import Service, parse_events, wait_until

ROWS = "SELECT price FROM purchases"
LEASE_SECONDS = 0.3


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Functions that start a service on one checkpoint in an object store; their leases are short, and renewed by hand."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("headrace.storage.lease.Lease", partial(Lease, seconds=LEASE_SECONDS))
    monkeypatch.setattr(Lease, "start_renewals", lambda self: None)
    url, started = f"memory://{uuid.uuid4().hex}", []

    def start() -> Service:
        started.append(Service(url))
        return started[-1]

    yield start
    for service in started:
        with contextlib.suppress(OwnershipLostError):
            service.close()


def notice_loss(service: Service) -> None:
    """Do what the thread that renews the lease does when it wakes up."""
    lease = service.session._checkpoint._lock
    with lease._lock:
        lease._renew()


def test_a_service_that_lost_its_checkpoint_says_so_and_readers_go_on_at_the_new_one(pair):
    first = pair()
    first.declare()
    first.add(ROWS, name="rows")
    first.append_and_wait(1)
    with first.http.stream("GET", "/v1/queries/rows/live", params={"from": "beginning"}) as live:
        events = parse_events(live)
        position, rows = next((at, data["rows"]) for kind, at, data in events if kind == "rows")
        assert rows == [[10.0]]
        second = pair()
        notice_loss(first)
        assert [kind for kind, _, _ in events if kind not in ("rows", "quiet")] == []  # it ends without `end`: reconnect
    answer = first.http.get("/v1/queries")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["error"] == "this service no longer owns its checkpoint: another process has taken it over"
    assert first.http.get("/v1/queries/rows/results").status_code == 503
    health = first.http.get("/v1/health")
    assert (health.status_code, health.json()["status"]) == (503, "lost")
    assert "epoch 2 has taken it over, since 2" in health.json()["detail"]
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{first.port}/v1/queries/rows/socket")
    assert caught.value.response.status_code == 503
    with second.http.stream("GET", "/v1/queries/rows/live", headers={"Last-Event-ID": position}) as live:
        second.append(2, price=20.0)
        rows = next(data for kind, _, data in parse_events(live) if kind == "rows")
    assert rows["rows"] == [[20.0]]


def test_a_standby_answers_503():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with serve_placeholder(listening, None):
            wait_until(lambda: httpx.get(f"{url}/v1/health", timeout=10).status_code == 503)
            assert httpx.get(f"{url}/v1/health", timeout=10).json() == {"status": "standby"}
            answer = httpx.post(f"{url}/v1/queries", json={}, timeout=10)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.json()["error"] == "this service waits as a standby"
        with socket.create_connection(listening.getsockname()):
            listening.setblocking(True)
            listening.accept()[0].close()  # the socket goes on
