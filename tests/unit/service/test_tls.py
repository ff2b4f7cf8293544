"""HTTPS with a certificate that the test makes: requests, live results, sockets, the client and the shell."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from websockets.sync.client import connect as connect_socket

import headrace as hr
from headrace.cli import serve as serve_command
from headrace.cli.shell.remote import open_remote
from headrace.errors import HeadraceError, SessionError
from headrace.service.admission import ServiceLimits
from headrace.service.server import Server, load_tls_context
from support.certificates import Certificate, make_certificate
from support.in_process_service import Service, parse_events


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "service")


@pytest.fixture
def secure(serve: Callable[..., Service], certificate: Certificate) -> Service:
    service = serve(certificate=certificate)
    service.declare()
    return service


def test_requests_and_live_results_are_encrypted(secure: Service, certificate: Certificate):
    assert secure.url.startswith("https://")
    secure.add(name="counts")
    with secure.http.stream("GET", "/v1/queries/counts/live", params={"from": "beginning"}) as answer:
        events = parse_events(answer)
        assert next(events)[0] == "columns"
        secure.append(0.5, 1.5)
        assert next(events)[2]["rows"][0][1] == 1
    address = secure.url.replace("https", "wss")
    context = ssl.create_default_context(cafile=str(certificate.chain))
    with connect_socket(f"{address}/v1/queries/counts/socket?from=beginning", ssl=context) as live:
        assert "columns" in live.recv(20)


def test_the_client_trusts_the_given_certificates_only(secure: Service, certificate: Certificate, tmp_path: Path):
    secure.add(name="counts")
    context = ssl.create_default_context(cafile=str(certificate.chain))
    for verify in (str(certificate.chain), certificate.chain, context, False):
        with hr.connect(secure.url, verify=verify) as session:
            assert [query.name for query in session.queries()] == ["counts"]
    other = make_certificate(tmp_path, "other")
    for verify in (True, other.chain):
        with pytest.raises(SessionError, match="no service answers") as refused:
            hr.connect(secure.url, verify=verify)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.value.detail
        assert "verify=" in refused.value.hint
    for missing in (tmp_path / "none.pem", certificate.key):
        with pytest.raises(SessionError, match="cannot read certificates from"):
            hr.connect(secure.url, verify=missing)


def test_the_certificate_must_name_the_host(secure: Service, certificate: Certificate):
    with pytest.raises(SessionError, match="no service answers") as refused:
        hr.connect(secure.url.replace("127.0.0.1", "localhost"), verify=certificate.chain)
    assert "CERTIFICATE_VERIFY_FAILED" in refused.value.detail


def test_the_shell_takes_certificates(secure: Service, certificate: Certificate):
    target = open_remote(secure.url, None, certificate.chain)
    assert [stream.stream.name for stream in target.streams()] == ["purchases"]
    target.close()
    with pytest.raises(HeadraceError, match="no service answers"):
        open_remote(secure.url, None)


def test_plain_http_gets_no_answer(secure: Service):
    with socket.create_connection(("127.0.0.1", secure.port), 20) as plain:
        plain.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b"".join(iter(lambda: plain.recv(4096), b""))
    assert b"HTTP" not in received
    assert secure.http.get("/v1/health").status_code == 200


def test_a_handshake_that_stalls_is_closed(serve: Callable[..., Service], certificate: Certificate):
    service = serve(certificate=certificate, limits=ServiceLimits(patience_s=0.2))
    with socket.create_connection(("127.0.0.1", service.port), 20) as silent:
        assert silent.recv(1) == b""


def test_invalid_files_are_refused(certificate: Certificate, tmp_path: Path):
    other = make_certificate(tmp_path, "other")
    encrypted = make_certificate(tmp_path, "encrypted", "-passout", "pass:secret")
    for chain, key in (
        (certificate.chain, other.key),
        (certificate.key, certificate.key),
        (tmp_path / "none", certificate.key),
        (encrypted.chain, encrypted.key),
    ):
        with pytest.raises(HeadraceError, match="cannot use certificate") as refused:
            load_tls_context(chain, key)
        assert str(chain) in refused.value.message
        assert refused.value.detail


def test_certificate_and_key_need_each_other(certificate: Certificate):
    with pytest.raises(typer.BadParameter, match="need each other"):
        serve_command.command(tls_cert=certificate.chain)
    with pytest.raises(typer.BadParameter, match="need each other"):
        serve_command.command(tls_key=certificate.key)


class _ClosingSocket:
    """A websocket connection that has sent its closing frame, as uvicorn keeps it."""

    def __init__(self, state: str) -> None:
        self.conn = SimpleNamespace(state=SimpleNamespace(name=state))
        self.transport = SimpleNamespace(close=lambda: self.closed.append(state))
        self.closed: list[str] = []


def test_websockets_that_are_closing_are_not_closed_again_at_the_end():
    sockets = [_ClosingSocket(state) for state in ("OPEN", "CLOSING", "CLOSED")]
    server = Server.__new__(Server)
    server.server_state = SimpleNamespace(connections=set(sockets))
    server._drop_closing_websockets()
    assert server.server_state.connections == {sockets[0]}
    assert [socket.closed for socket in sockets] == [[], ["CLOSING"], ["CLOSED"]]
