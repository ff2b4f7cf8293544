"""Request checks: tokens and roles, body sizes, hostile SQL, Host and Origin headers."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headrace.service.admission import ServiceLimits
from headrace.service.auth import Identity, Role, TokenRegistry
from support.in_process_service import COLUMNS, COUNT_QUERY, Service

READ, WRITE, ADMIN = "r" * 20, "w" * 20, "a" * 20
TOKENS = [(READ, Identity("rita", Role.read)), (WRITE, Identity("will", Role.write)), (ADMIN, Identity("ada", Role.admin))]
STREAM = {"source": "memory", "name": "purchases", "columns": COLUMNS, "time": "time"}


@pytest.fixture
def guarded(serve: Callable[..., Service]) -> Service:
    return serve(tokens=TokenRegistry(TOKENS))


def open_socket(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 20)


def send_request(service: Service, method: str, path: str, token: str | None, **options: object) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return service.http.request(method, path, headers=headers, **options).status_code  # type: ignore[arg-type]


def test_the_role_of_a_token_limits_requests(guarded: Service):
    for token, streams, queries, reads in ((None, 401, 401, 401), ("wrong" * 5, 401, 401, 401), (READ, 403, 403, 200)):
        assert send_request(guarded, "POST", "/v1/streams", token, json=STREAM) == streams
        assert send_request(guarded, "POST", "/v1/queries", token, json={"sql": COUNT_QUERY}) == queries
        assert send_request(guarded, "GET", "/v1/queries", token) == reads
        assert send_request(guarded, "GET", "/metrics", token) == reads
    assert send_request(guarded, "POST", "/v1/streams", WRITE, json=STREAM) == 403
    assert send_request(guarded, "POST", "/v1/streams", ADMIN, json=STREAM) == 201
    assert send_request(guarded, "POST", "/v1/queries", WRITE, json={"sql": COUNT_QUERY, "name": "q"}) == 201
    assert send_request(guarded, "GET", "/v1/health", None) == 200
    query = guarded.http.get("/v1/queries/q", headers={"Authorization": f"Bearer {READ}"}).json()
    assert query["owner"] == "will"
    assert guarded.http.get("/v1/queries").headers["WWW-Authenticate"] == "Bearer"


def test_a_socket_needs_a_token(guarded: Service):
    address = guarded.url.replace("http", "ws")
    with pytest.raises((ConnectionClosed, InvalidStatus)), connect(f"{address}/v1/queries/q/socket") as socket:
        socket.recv()


def test_queries_per_user_are_limited(serve: Callable[..., Service]):
    service = serve(tokens=TokenRegistry(TOKENS), limits=ServiceLimits(queries_per_user=2))
    send_request(service, "POST", "/v1/streams", ADMIN, json=STREAM)
    codes = [send_request(service, "POST", "/v1/queries", WRITE, json={"sql": COUNT_QUERY}) for _ in range(3)]
    assert codes == [201, 201, 429]
    assert send_request(service, "POST", "/v1/queries", ADMIN, json={"sql": COUNT_QUERY}) == 201
    answer = service.http.post("/v1/queries", json={"sql": COUNT_QUERY}, headers={"Authorization": f"Bearer {WRITE}"})
    assert int(answer.headers["Retry-After"]) >= 1
    assert "will" in answer.json()["error"]
    assert send_request(service, "PUT", "/v1/queries/q3", WRITE, json={"sql": COUNT_QUERY}) == 403  # a query of ada
    assert send_request(service, "PUT", "/v1/queries/q1", WRITE, json={"sql": COUNT_QUERY}) == 200  # a replacement adds none
    service.restart()  # owners survive a restart
    assert send_request(service, "POST", "/v1/queries", WRITE, json={"sql": COUNT_QUERY}) == 429


@pytest.mark.parametrize("name", ["evil.example", "10.0.0.1:80", "", "127.0.0.1.evil.example", "localhost.evil.example:8420"])
def test_without_tokens_only_loopback_names_are_served(unchanged_service: Service, name: str):
    assert unchanged_service.http.get("/v1/queries", headers={"Host": name}).status_code == 421


@pytest.mark.parametrize("name", ["localhost", "localhost:99", "127.0.0.1:8420", "[::1]:8420", "[::1]", "LOCALHOST"])
def test_all_loopback_names_are_served(unchanged_service: Service, name: str):
    assert unchanged_service.http.get("/v1/queries", headers={"Host": name}).status_code == 200


def test_requests_from_other_origins_are_refused(service: Service):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", service.url.replace("127.0.0.1", "evil.example")):
        answer = service.http.get("/v1/queries", headers={"Origin": origin})
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        assert service.http.options("/v1/queries", headers=preflight).status_code == 403
    assert service.http.get("/v1/queries", headers={"Origin": service.url}).status_code == 200


def test_requests_from_allowed_origins_are_served(serve: Callable[..., Service]):
    service = serve(origins=["https://board.example"])
    service.declare()
    allowed, other = ({"Origin": origin} for origin in ("https://board.example", "https://evil.example"))
    answer = service.http.get("/v1/queries", headers=allowed)
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://board.example")
    preflight = {"Access-Control-Request-Method": "DELETE", "Access-Control-Request-Headers": "authorization"}
    assert service.http.options("/v1/queries/q", headers={**allowed, **preflight}).status_code == 200
    refused = service.http.post("/v1/check", content=b"x" * 1_000_000, headers=allowed)
    assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (413, "https://board.example")
    assert service.http.get("/v1/queries", headers=other).status_code == 403
    assert service.http.options("/v1/queries/q", headers={**other, **preflight}).status_code == 400
    service.add(name="q")
    address = f"{service.url.replace('http', 'ws')}/v1/queries/q/socket"
    with connect(address, origin="https://board.example") as subscription:
        assert "columns" in subscription.recv()


def test_sockets_from_other_origins_are_refused(service: Service):
    service.add(name="q")
    address = f"{service.url.replace('http', 'ws')}/v1/queries/q/socket"
    with pytest.raises(InvalidStatus), connect(address, origin="http://evil.example"):
        pass
    with connect(address, origin=service.url) as subscription:
        assert "columns" in subscription.recv()


def test_an_excessive_content_length_is_refused(service: Service):
    for length in ("9" * 12, "9" * 5_000):
        with open_socket(service.url) as raw:
            raw.sendall(f"POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n".encode())
            assert raw.recv(100).split()[1] in (b"400", b"413")
    assert service.http.get("/v1/health").status_code == 200


HOSTILE = {
    "a million tokens": "SELECT " + "1," * 1_000_000 + "1 FROM purchases",
    "maximum length": "SELECT " + "1," * 9_000 + "1 FROM purchases",
    "parentheses": "SELECT " + "(" * 9_000 + "1" + ")" * 9_000 + " FROM purchases",
    "open parentheses": "SELECT " + "(" * 19_000,
    "NOT": "SELECT price FROM purchases WHERE " + "NOT " * 4_500 + "TRUE",
    "minus": "SELECT " + "- " * 9_000 + "1 FROM purchases",
    "sum": "SELECT " + "1+" * 9_000 + "1 FROM purchases",
    "ors": "SELECT price FROM purchases WHERE " + " OR ".join(f"price={n}" for n in range(1_500)),
    "sub-queries": "SELECT a FROM (" * 800 + "SELECT price AS a FROM purchases" + ")" * 800,
    "CASE": "SELECT " + "CASE WHEN TRUE THEN " * 800 + "1" + " END" * 800 + " FROM purchases",
    "unions": " UNION ALL ".join(["SELECT price FROM purchases"] * 600),
    "joins": "SELECT 1 AS a FROM TUMBLE(purchases, '1 second') p0 " + " ".join(
        f"JOIN TUMBLE(purchases, '1 second') p{n} ON p{n}.user_id = p0.user_id" for n in range(1, 250)
    ),
    "a long name": "SELECT " + "x" * 19_000 + " FROM purchases",
    "controls": "SELECT \x00\x01\x02 FROM purchases",
    "quotes": "SELECT '" + "''" * 9_000 + " FROM purchases",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_sql_does_not_delay_other_queries(service: Service, kind: str):
    service.add(name="bystander")
    answer = service.http.post("/v1/check", json={"sql": HOSTILE[kind]})  # the client waits at most 20 s
    assert answer.status_code in (200, 413, 422), answer.text[:200]
    service.append(0.5, 5.5)
    service.wait_for_rows("bystander", 1)


def test_a_large_body_is_refused_before_it_is_read(serve: Callable[..., Service]):
    service = serve(limits=ServiceLimits(body_bytes=10_000))
    assert service.http.post("/v1/check", content=b"x" * 20_000).status_code == 413

    def send_chunks():
        for _ in range(100):
            yield b"x" * 1_000

    assert service.http.post("/v1/check", content=send_chunks()).status_code == 413
    assert service.http.get("/v1/health").json()["status"] == "ok"
