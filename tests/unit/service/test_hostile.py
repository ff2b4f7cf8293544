"""What is sent to harm: texts that are taken and then too much for the pipeline, bodies of a million errors, silence."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.service.admission import ServiceLimits
from support.in_process_service import Service, parse_events, timestamp

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


def connected(service: Service) -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_query_stops_the_others(service: Service, kind: str):
    service.add(name="bystander")
    assert service.add(HOSTILE[kind], name="hostile").status_code in (201, 422)
    service.append(0.5, 5.5)
    until = time.monotonic() + 20
    while service.http.get("/v1/queries/bystander").json()["emitted"] < 1:
        assert service.http.get("/v1/health").status_code == 200
        assert time.monotonic() < until
        time.sleep(0.02)


def test_only_rows_may_be_many(service: Service):
    body = b'{"sql": "' + b"x" * 300_000 + b'"}'
    for path in ("/v1/check", "/v1/queries", "/v1/streams"):
        assert service.http.post(path, content=body).status_code == 413
    assert service.http.put("/v1/queries/rows", content=body).status_code == 413  # a name, and no rows
    rows = [{"user_id": 1, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"}] * 10_000
    assert service.http.post("/v1/streams/purchases/rows", json=rows).status_code == 202


def test_what_all_requests_have_on_their_way_in_is_bound(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(bodies_bytes=1_000))
    service.declare()
    row = {"user_id": 1, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"}
    answer = service.http.post("/v1/streams/purchases/rows", json=[row] * 100)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    for _ in range(30):  # what was answered is no longer on its way
        assert service.http.post("/v1/streams/purchases/rows", json=[row]).status_code == 202


def test_what_is_quoted_is_cut(service: Service):
    answer = service.http.post("/v1/streams/purchases/rows", json=[{"user_id": "x" * 1_000_000}])
    assert answer.status_code == 422
    assert len(answer.content) < 10_000


def test_a_query_that_is_all_escapes_fits(service: Service):
    text = "\\ud83d\\ude00" * 9_900  # each is two characters of a text, and twelve bytes
    answer = service.http.post("/v1/check", content=f'{{"sql": "{text}"}}', headers={"Content-Type": "application/json"})
    assert answer.status_code == 422


@pytest.mark.parametrize("said", [b"", b"GET /v1/health HTTP/1.1\r\nHost: 127", b"POST /v1/check HTTP/1.1\r\n"])
def test_who_says_nothing_is_hung_up_on(serve: Callable[..., Service], said: bytes):
    service = serve(limits=ServiceLimits(patience_s=0.3))
    with connected(service) as silent:
        silent.sendall(said)
        assert silent.recv(100) == b""


def test_who_does_not_send_the_rest_is_told(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(patience_s=0.3))
    with connected(service) as slow:
        slow.sendall(b'POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\n{"sql": "')
        assert slow.recv(100).split()[1] == b"408"


def test_readers_may_be_silent_for_long(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(patience_s=0.2))
    service.declare()
    service.add(name="q")
    with service.http.stream("GET", "/v1/queries/q/live") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: columns"
        time.sleep(1)  # five times as long as a request may be silent
        service.append(0.5, 5.5)
        assert "event: rows" in (next(lines) for _ in range(20))


def test_answers_are_sent_at_once(service: Service, monkeypatch: pytest.MonkeyPatch):
    """Two small writes, as of an answer's head and body, must not wait for each other."""
    seen: list[int] = []
    made = H11Protocol.connection_made

    def noted(self: H11Protocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        sock = transport.get_extra_info("socket")
        self.loop.call_soon(lambda: seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))

    monkeypatch.setattr(H11Protocol, "connection_made", noted)
    with connected(service) as raw:
        raw.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert raw.recv(100)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("path", ["/v1/queries", "/v1/check", "/v1/streams"])
def test_thousands_of_unknown_keys_are_one_mistake(service: Service, path: str):
    body = {"sql": "x", "source": "memory"} | {f"k{number}": 1 for number in range(10_000)}
    answer = service.http.post(path, json=body)
    assert answer.status_code == 422
    assert "the body has 10,002 keys; at most 50 are allowed" in answer.json()["detail"]
    few = service.http.post(path, json={"sql": "x", "source": "memory", "colour": 1})
    assert "colour: Extra inputs" in few.json()["detail"]


def test_connections_beyond_a_number_are_refused_and_taken_again_later(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(connections=5))
    held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(5)]
    time.sleep(0.3)
    refused = httpx.get(f"{service.url}/v1/health")
    assert refused.status_code == 429
    assert (refused.json()["error"], refused.headers["Retry-After"]) == ("too many connections", "10")
    for one in held:
        one.close()
    time.sleep(0.3)
    assert httpx.get(f"{service.url}/v1/health").status_code == 200


def test_whoever_is_connected_is_served_while_thousands_connect(service: Service):
    """Connections are taken a few in each turn of the event loop: here 600 wait when it goes on."""
    loop, gate, turn, taken = service.host.notifier._loop, threading.Event(), [0], []
    assert loop is not None
    before = H11Protocol.connection_made

    def counted(self, transport):
        taken.append(turn[0])
        before(self, transport)

    def tick():
        turn[0] += 1
        if len(taken) < 600:
            loop.call_soon(tick)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(H11Protocol, "connection_made", counted)
        loop.call_soon_threadsafe(gate.wait, 20)
        held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(600)]
        loop.call_soon_threadsafe(tick)
        gate.set()
        until = time.monotonic() + 20
        while len(taken) < 600:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert max(Counter(taken).values()) <= 16
    for one in held:
        one.close()


def test_who_has_hung_up_is_not_answered(service: Service, monkeypatch):
    service.add(name="rows")
    entered: list[int] = []
    enter = service.host.acquire_reader_slot
    monkeypatch.setattr(service.host, "acquire_reader_slot", lambda: (entered.append(1), enter())[1])
    for _ in range(50):
        with connected(service) as left:
            left.sendall(b"GET /v1/queries/rows/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert service.http.get("/v1/health").status_code == 200
    assert len(entered) < 50
    until = time.monotonic() + 20
    while service.host.reader_count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_readers_do_not_wait_for_what_others_ask(service: Service, monkeypatch):
    """There are forty threads for requests; here each of them is held, and more wait."""
    service.add("SELECT price FROM purchases", name="rows")
    gate, held, query = threading.Event(), [], service.host.find_query

    def slow(name, *given):
        if name == "slow":
            held.append(1)
            gate.wait(30)
        return query(name, *given)

    with service.http.stream("GET", "/v1/queries/rows/live") as following:
        told = parse_events(following)
        assert next(told)[0] == "columns"
        monkeypatch.setattr(service.host, "find_query", slow)
        url, patience = f"{service.url}/v1/queries/slow", {"timeout": 60}
        asking = [threading.Thread(target=httpx.get, args=[url], kwargs=patience) for _ in range(60)]
        for one in asking:
            one.start()
        until = time.monotonic() + 20
        while len(held) < 40:
            assert time.monotonic() < until
            time.sleep(0.01)
        httpx.post(f"{service.url}/v1/streams/purchases/rows", json=[{"price": 7.0, "time": timestamp(1)}], timeout=20)
        assert next(told)[2]["rows"] == [[7.0]]
        assert not gate.is_set()
        gate.set()
    for one in asking:
        one.join(30)
