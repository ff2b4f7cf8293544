"""Hostile clients: SQL that overloads the pipeline, bodies with a million errors, idle connections."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.service.admission import ServiceLimits
from support.in_process_service import NO_TLS, Service, parse_events, wait_until

CHAIN = "WITH c0 AS (SELECT price AS a, time FROM purchases), {} SELECT a FROM c29"
HOSTILE = {
    "ANDs": "SELECT price FROM purchases WHERE " + " AND ".join(f"price > {n}" for n in range(440)),
    "parentheses": f"SELECT {'(' * 47}price{')' * 47} AS a FROM purchases",
    "columns of columns": CHAIN.format(", ".join(f"c{n} AS (SELECT a * a AS a FROM c{n - 1})" for n in range(1, 30))),
    "unions of unions": CHAIN.format(
        ", ".join(f"c{n} AS (SELECT a FROM c{n - 1} UNION ALL SELECT a FROM c{n - 1})" for n in range(1, 30))
    ),
    "types as calls": f"SELECT {'INT(' * 30}1{')' * 30} AS a FROM purchases",
    "joins without ON": "SELECT 1 AS a FROM purchases p " + " ".join(f"JOIN purchases p{n}" for n in range(40)),
    "windows": "SELECT COUNT(*) AS n FROM HOP(purchases, '36500 days', '1 us')",
    "keys": f"SELECT COUNT(*) AS n FROM TUMBLE(purchases, '1 s') GROUP BY {', '.join(f'price + {n}' for n in range(1_000))}",
}


def open_connection(service: Service) -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 20)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_queries_do_not_stop_other_queries(service: Service, kind: str):
    service.add(name="bystander")
    assert service.add(HOSTILE[kind], name="hostile").status_code in (201, 422)
    service.append(0.5, 5.5)
    service.wait_for_rows("bystander", 1)
    assert service.http.get("/v1/health").status_code == 200


def test_only_row_appends_may_have_large_bodies(service: Service):
    body = b'{"sql": "' + b"x" * 300_000 + b'"}'
    for path in ("/v1/check", "/v1/queries", "/v1/streams"):
        assert service.http.post(path, content=body).status_code == 413
    assert service.http.put("/v1/queries/rows", content=body).status_code == 413  # a query named rows, not an append of rows
    rows = [{"user_id": 1, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"}] * 10_000
    assert service.http.post("/v1/streams/purchases/rows", json=rows).status_code == 202


def test_the_bytes_of_concurrent_bodies_are_limited(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(bodies_bytes=1_000))
    service.declare()
    row = {"user_id": 1, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"}
    answer = service.http.post("/v1/streams/purchases/rows", json=[row] * 100)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    for _ in range(30):  # an answered request frees its bytes
        assert service.http.post("/v1/streams/purchases/rows", json=[row]).status_code == 202


def test_quoted_values_in_errors_are_truncated(service: Service):
    answer = service.http.post("/v1/streams/purchases/rows", json=[{"user_id": "x" * 1_000_000}])
    assert answer.status_code == 422
    assert len(answer.content) < 10_000


def test_an_escaped_query_of_maximum_length_fits(service: Service):
    text = "\\ud83d\\ude00" * 9_900  # each is two characters and twelve bytes
    answer = service.http.post("/v1/check", content=f'{{"sql": "{text}"}}', headers={"Content-Type": "application/json"})
    assert answer.status_code == 422


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTTP/1.1\r\nHost: 127", b"POST /v1/check HTTP/1.1\r\n"])
def test_idle_connections_are_closed(serve: Callable[..., Service], sent: bytes):
    service = serve(limits=ServiceLimits(patience_s=0.05))
    with open_connection(service) as silent:
        silent.sendall(sent)
        assert silent.recv(100) == b""


def test_an_incomplete_body_is_answered_with_a_timeout(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(patience_s=0.1))
    with open_connection(service) as slow:
        slow.sendall(b'POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\n{"sql": "')
        assert slow.recv(100).split()[1] == b"408"


def test_readers_have_no_idle_timeout(service: Service):
    """The test runs the check of the idle timeout by hand, several times."""
    service.add(name="q")
    with service.http.stream("GET", "/v1/queries/q/live") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: columns"
        (reader,) = (connection for connection in service.connections if not connection.cycle.response_complete)
        for _ in range(5):
            reader.loop.call_soon_threadsafe(reader._close_if_idle)
        service.append(0.5, 5.5)
        assert "event: rows" in (next(lines) for _ in range(20))


def test_responses_are_sent_without_delay(service: Service, monkeypatch: pytest.MonkeyPatch):
    """TCP_NODELAY is set: two small writes, such as head and body, do not wait for each other."""
    nodelay_options: list[int] = []
    connection_made = H11Protocol.connection_made

    def record_option(self: H11Protocol, transport: asyncio.Transport) -> None:
        connection_made(self, transport)
        sock = transport.get_extra_info("socket")
        self.loop.call_soon(lambda: nodelay_options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))

    monkeypatch.setattr(H11Protocol, "connection_made", record_option)
    with open_connection(service) as raw:
        raw.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert raw.recv(100)
    assert nodelay_options
    assert all(nodelay_options)


@pytest.mark.parametrize("path", ["/v1/queries", "/v1/check", "/v1/streams"])
def test_thousands_of_unknown_keys_give_a_single_error(service: Service, path: str):
    body = {"sql": "x", "source": "memory"} | {f"k{number}": 1 for number in range(10_000)}
    answer = service.http.post(path, json=body)
    assert answer.status_code == 422
    assert "the body has 10,002 keys; at most 50 are allowed" in answer.json()["detail"]
    few = service.http.post(path, json={"sql": "x", "source": "memory", "colour": 1})
    assert "colour: Extra inputs" in few.json()["detail"]


def test_connections_above_the_limit_are_refused_until_others_close(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(connections=5))
    held = [open_connection(service) for _ in range(5)]
    wait_until(lambda: len(service.connections) == 5)
    refused = service.http.get("/v1/health")
    assert refused.status_code == 429
    assert (refused.json()["error"], refused.headers["Retry-After"]) == ("too many connections", "10")
    for connection in held:
        connection.close()
    wait_until(lambda: not service.connections)
    assert service.http.get("/v1/health").status_code == 200


def test_connections_are_accepted_in_small_groups(service: Service):
    """The event loop accepts a few connections in each turn: 200 wait here when it continues."""
    loop, gate, turn, accepted_turns = service.host.notifier._loop, threading.Event(), [0], []
    assert loop is not None
    connection_made = H11Protocol.connection_made

    def record_turn(self, transport):
        accepted_turns.append(turn[0])
        connection_made(self, transport)

    def tick():
        turn[0] += 1
        if len(accepted_turns) < 200:
            loop.call_soon(tick)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(H11Protocol, "connection_made", record_turn)
        loop.call_soon_threadsafe(gate.wait, 20)
        held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(200)]
        loop.call_soon_threadsafe(tick)
        gate.set()
        wait_until(lambda: len(accepted_turns) == 200)
    assert max(Counter(accepted_turns).values()) <= 16
    for connection in held:
        connection.close()


def test_disconnected_clients_are_not_served(service: Service, monkeypatch):
    service.add(name="rows")
    entered: list[int] = []
    enter = service.host.acquire_reader_slot
    monkeypatch.setattr(service.host, "acquire_reader_slot", lambda: (entered.append(1), enter())[1])
    for _ in range(50):
        with open_connection(service) as left:
            left.sendall(b"GET /v1/queries/rows/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert service.http.get("/v1/health").status_code == 200
    assert len(entered) < 50
    wait_until(lambda: service.host.reader_count == 0)


def test_readers_do_not_wait_for_slow_requests(service: Service, monkeypatch):
    """Requests have forty threads: all are blocked here, and more requests wait."""
    service.add("SELECT price FROM purchases", name="rows")
    gate, held, find_query = threading.Event(), [], service.host.find_query

    def find_slowly(name, *args):
        if name == "slow":
            held.append(1)
            gate.wait(30)
        return find_query(name, *args)

    with service.http.stream("GET", "/v1/queries/rows/live") as answer:
        events = parse_events(answer)
        assert next(events)[0] == "columns"
        monkeypatch.setattr(service.host, "find_query", find_slowly)
        url, options = f"{service.url}/v1/queries/slow", {"timeout": 60, "verify": NO_TLS}
        threads = [threading.Thread(target=httpx.get, args=[url], kwargs=options) for _ in range(60)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(held) >= 40)
        service.append(1, price=7.0)
        assert next(events)[2]["rows"] == [[7.0]]
        assert not gate.is_set()
        gate.set()
    for thread in threads:
        thread.join(30)
