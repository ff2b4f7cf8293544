"""Tokens, roles, owners of queries, and the delay of repeated wrong tokens."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import CheckpointError, HeadraceError
from headrace.service.auth import Identity, Role, TokenRegistry
from headrace.service.failed_attempts import MAX_DELAY_SECONDS, FailedAttempts
from support.in_process_service import COLUMNS, COUNT_QUERY, Service, wait_until

READ, ANN, BEN, ALL, ADMIN = ("r" * 20, "n" * 20, "b" * 20, "l" * 20, "a" * 20)
TOKENS = TokenRegistry([
    (READ, Identity("rita", Role.read)),
    (ANN, Identity("ann", Role.write)),
    (BEN, Identity("ben", Role.write)),
    (ALL, Identity("olga", Role.write_all)),
    (ADMIN, Identity("ada", Role.admin)),
])  # fmt: skip


@pytest.fixture
def guarded(serve: Callable[..., Service]) -> Service:
    """A service with tokens, a stream, and a query of ann."""
    service = serve(tokens=TOKENS)
    stream = {"source": "memory", "name": "purchases", "columns": COLUMNS, "time": "time"}
    assert request(service, "POST", "/v1/streams", ADMIN, json=stream).status_code == 201
    assert request(service, "POST", "/v1/queries", ANN, json={"sql": COUNT_QUERY, "name": "counts"}).status_code == 201
    return service


def request(service: Service, method: str, path: str, token: str | None, **options):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return service.http.request(method, path, headers=headers, **options)


def write_tokens(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


class TestTokenFile:
    def test_lines_are_role_user_and_token(self, tmp_path: Path):
        lines = f"# ours\nread rita {READ}\n\nwrite:all olga {ALL}\t# boss\n   admin   ada {ADMIN}\n"
        tokens = TokenRegistry.load(write_tokens(tmp_path / "tokens", lines))
        assert tokens.identify(READ) == Identity("rita", Role.read)
        assert tokens.identify(ALL) == Identity("olga", Role.write_all)
        assert tokens.identify(ADMIN) == Identity("ada", Role.admin)
        assert [tokens.identify(token) for token in ("", None, READ[:-1], READ + "r")] == [None] * 4

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (f"read rita {READ}\ngod x {ADMIN}", "invalid line 2 .*: unknown role 'god'"),
            (f"Write ann {ANN}", "invalid line 1 .*: unknown role 'Write'"),
            (f"write:none ann {ANN}", "unknown role 'write:none'"),
            ("read rita", "it has 2 words, not 3"),
            (f"read rita {ADMIN} {READ}", "invalid line 1 .*: its word 4 is not a budget"),
            (f"read rita {ADMIN} output_rows=5 state_bytes={READ}", "invalid line 1 .*: its word 5 is not a budget"),
            (f"read rita {READ} output_rows=0", "its word 4 is not a budget"),
            (f"read rita {READ} output_rows=1e6", "its word 4 is not a budget"),
            (f"read rita {READ} rows=5", "its word 4 is not a budget"),
            (f"read rita {READ} output_rows=5 output_rows=6", "it has two budgets output_rows"),
            (f"write ann {ANN} output_rows=5\nread ann {READ}", "invalid line 2 .*: user 'ann' has another budget"),
            ("read rita short", "fewer than 16 characters"),
            (f"read rita {READ[:8]}#{READ[:8]}", "characters that a header cannot carry"),
            (f"read rita {READ}é", "characters that a header cannot carry"),
            (f"read ri\u202eta {READ}", "invalid line 1 .*: invalid user name"),
            (f"read rita {READ}\n\nadmin ada {READ}", "invalid line 3 .*: its token is also in line 1"),
            ("# nothing\n", "has no token"),
        ],
    )
    def test_anything_else_is_refused_without_quoting_the_token(self, tmp_path: Path, content: str, reason: str):
        with pytest.raises(HeadraceError, match=reason) as refused:
            TokenRegistry.load(write_tokens(tmp_path / "tokens", content))
        assert str(tmp_path / "tokens") in str(refused.value)
        assert READ[:8] not in str(refused.value)
        assert ADMIN not in str(refused.value)

    def test_budgets_follow_the_token(self, tmp_path: Path):
        lines = f"write ann {ANN} state_bytes=9 output_rows=1000 # small\nread ann {READ} output_rows=1000 state_bytes=9\n"
        tokens = TokenRegistry.load(write_tokens(tmp_path / "tokens", lines))
        limits = (("output_rows", 1000), ("state_bytes", 9))
        assert tokens.identify(ANN) == Identity("ann", Role.write, limits)
        assert tokens.identify(READ) == Identity("ann", Role.read, limits)

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
    def test_a_file_that_others_can_read_or_write_is_refused(self, tmp_path: Path, mode: int):
        path = write_tokens(tmp_path / "tokens", f"read rita {READ}", mode)
        with pytest.raises(HeadraceError, match="other users can read or write token file") as refused:
            TokenRegistry.load(path)
        assert (refused.value.detail, refused.value.hint) == (f"its mode is {mode:o}", f"chmod 600 {path}")

    def test_a_created_file_has_three_tokens_for_its_owner_only(self, tmp_path: Path):
        registry = TokenRegistry.create_file(tmp_path / "deep" / "tokens")
        assert (tmp_path / "deep" / "tokens").stat().st_mode & 0o777 == 0o600
        lines = [line.split() for line in (tmp_path / "deep" / "tokens").read_text().splitlines()]
        assert [registry.identify(token).role.label for _, _, token in lines] == ["read", "write", "admin"]

    def test_every_token_is_compared_in_constant_time(self, monkeypatch: pytest.MonkeyPatch):
        compared, compare = [], hmac.compare_digest
        monkeypatch.setattr(hmac, "compare_digest", lambda *digests: compared.append(digests) or compare(*digests))
        for token in (READ, ADMIN, "", "x" * 20):
            compared.clear()
            TOKENS.identify(token)
            assert len(compared) == 5


class TestOwners:
    @pytest.mark.parametrize(("method", "body"), [("PUT", {"json": {"sql": COUNT_QUERY + " WHERE price > 1"}}), ("DELETE", {})])
    def test_a_write_token_changes_only_its_own_queries(self, guarded: Service, method: str, body: dict):
        refused = request(guarded, method, "/v1/queries/counts", BEN, **body)
        assert refused.status_code == 403
        assert refused.json()["error"] == "query 'counts' belongs to user 'ann'; user 'ben' may not change it"
        assert "write:all" in refused.json()["hint"]
        assert request(guarded, method, "/v1/queries/counts", READ, **body).status_code == 403
        assert request(guarded, "GET", "/v1/queries/counts", READ).json()["sql"] == COUNT_QUERY
        assert request(guarded, method, "/v1/queries/counts", ANN, **body).is_success

    @pytest.mark.parametrize("token", [ALL, ADMIN])
    def test_the_roles_write_all_and_admin_change_every_query(self, guarded: Service, token: str):
        changed = request(guarded, "PUT", "/v1/queries/counts", token, json={"sql": COUNT_QUERY + " WHERE price > 1"})
        assert (changed.status_code, changed.json()["owner"]) == (200, "ann")  # the owner stays the same
        assert request(guarded, "DELETE", "/v1/queries/counts", token).status_code == 204

    def test_queries_of_the_operator_need_write_all(self, guarded: Service):
        guarded.session.add(COUNT_QUERY, name="builtin").wait_live(20)
        refused = request(guarded, "DELETE", "/v1/queries/builtin", ANN)
        assert (refused.status_code, "belongs to the service" in refused.json()["error"]) == (403, True)
        assert request(guarded, "DELETE", "/v1/queries/builtin", ALL).status_code == 204

    def test_owners_are_known_after_a_restart(self, guarded: Service):
        guarded.restart()
        assert request(guarded, "DELETE", "/v1/queries/counts", BEN).status_code == 403
        assert request(guarded, "DELETE", "/v1/queries/counts", ANN).status_code == 204

    def test_without_tokens_everybody_changes_every_query(self, service: Service):
        service.session.add(COUNT_QUERY, name="builtin", owner="ann").wait_live(20)
        assert service.http.delete("/v1/queries/builtin").status_code == 204

    def test_only_admin_changes_the_number_of_partitions(self, guarded: Service):
        assert request(guarded, "POST", "/v1/rescale", ALL, json={"partitions": 3}).status_code == 403
        assert guarded.session.partitioning.next == 2
        assert request(guarded, "POST", "/v1/rescale", ADMIN, json={"partitions": 3}).json()["next"] == 3

    def test_write_all_does_not_declare_streams(self, guarded: Service):
        stream = {"source": "memory", "name": "other", "columns": COLUMNS, "time": "time"}
        refused = request(guarded, "POST", "/v1/streams", ALL, json=stream)
        assert (refused.status_code, refused.json()["error"]) == (403, "user 'olga' has only the role write:all")


class TestHealth:
    def test_only_the_status_is_public(self, guarded: Service):
        assert request(guarded, "GET", "/v1/health", None).json() == {"status": "ok"}
        details = request(guarded, "GET", "/v1/health", READ).json()
        assert (details["status"], details["queries"], details["streams"], details["tokens"]) == ("ok", 1, 1, True)
        assert details["version"]
        assert request(guarded, "GET", "/v1/health", "x" * 20).status_code == 401

    def test_the_reason_of_a_failure_needs_a_token(self, guarded: Service, monkeypatch: pytest.MonkeyPatch):
        def raise_damaged(*_):
            raise CheckpointError("the first line of a file")

        monkeypatch.setattr(guarded.session._coordinator, "_run_job", raise_damaged)
        row = {"user_id": 1, "gem_pack": 1, "price": 1.0, "time": "2026-01-01T00:00:00Z"}
        request(guarded, "POST", "/v1/streams/purchases/rows", ANN, json=[row])
        wait_until(lambda: request(guarded, "GET", "/v1/health", None).status_code == 503)
        assert request(guarded, "GET", "/v1/health", None).json() == {"status": "failing"}
        assert "first line" in request(guarded, "GET", "/v1/health", READ).json()["detail"]
        with pytest.raises(CheckpointError):
            guarded.close()

    def test_no_public_document_has_the_version(self, guarded: Service):
        assert guarded.http.get("/openapi.json").json()["info"]["version"] == "1"

    def test_the_client_connects_with_and_without_a_token(self, guarded: Service):
        with hr.connect(guarded.url, token=READ) as session:
            assert list(session.streams()) == ["purchases"]
        with hr.connect(guarded.url) as session, pytest.raises(HeadraceError, match="requires a valid token"):
            session.streams()
        with pytest.raises(HeadraceError, match="requires a valid token"):
            hr.connect(guarded.url, token="x" * 20)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TestFailedAttempts:
    def test_the_delay_grows_up_to_a_bound(self):
        attempts = FailedAttempts(FakeClock())
        delays = [attempts.record_failure("10.0.0.1") for _ in range(2_000)]
        assert delays[:9] == [0, 0, 0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
        assert set(delays[9:]) == {MAX_DELAY_SECONDS}

    def test_addresses_are_counted_apart(self):
        attempts = FailedAttempts(FakeClock())
        for _ in range(10):
            attempts.record_failure("10.0.0.1")
        assert attempts.record_failure("10.0.0.2") == 0

    @pytest.mark.parametrize(
        ("first", "second", "same"),
        [
            ("2001:db8::1", "2001:db8::ffff:1", True),
            ("2001:db8::1", "2001:db8:0:1::1", False),
            ("::ffff:10.0.0.1", "10.0.0.1", True),
            ("fe80::1%eth0", "fe80::2%eth1", True),
            ("", "", True),
        ],
    )
    def test_a_network_of_ipv6_counts_as_one_address(self, first: str, second: str, same: bool):
        attempts = FailedAttempts(FakeClock())
        for _ in range(10):
            attempts.record_failure(first)
        assert (attempts.record_failure(second) > 0) == same

    def test_failures_are_forgotten_after_five_minutes(self):
        clock = FakeClock()
        attempts = FailedAttempts(clock)
        for _ in range(10):
            attempts.record_failure("10.0.0.1")
        clock.now = 299.0
        assert attempts.record_failure("10.0.0.1") == MAX_DELAY_SECONDS
        clock.now += 300.0
        assert attempts.record_failure("10.0.0.1") == 0

    def test_the_table_is_bounded(self):
        attempts = FailedAttempts(FakeClock(), max_addresses=3)
        for _ in range(5):
            attempts.record_failure("10.0.0.1")
        for last in range(2, 4):
            attempts.record_failure(f"10.0.0.{last}")
        assert attempts.record_failure("10.0.0.1") > 0  # the table still has it
        for last in range(4, 7):
            attempts.record_failure(f"10.0.0.{last}")
        assert attempts.record_failure("10.0.0.1") == 0
        assert len(attempts._attempts) == 3

    def test_only_wrong_tokens_wait(self, guarded: Service):
        waits: list[float] = []

        async def record_wait(seconds: float) -> None:
            waits.append(seconds)

        guarded.host.failed_attempts = FailedAttempts(FakeClock(), record_wait)
        for _ in range(5):
            assert request(guarded, "GET", "/v1/queries", "x" * 20).status_code == 401
        assert waits == [0.1, 0.2]
        assert request(guarded, "GET", "/v1/queries", READ).status_code == 200
        assert request(guarded, "GET", "/v1/queries", None).status_code == 401
        assert request(guarded, "GET", "/v1/health", None).status_code == 200
        assert waits == [0.1, 0.2]
        assert request(guarded, "GET", "/v1/health", "x" * 20).status_code == 401
        assert waits == [0.1, 0.2, 0.4]

    def test_a_waiting_answer_holds_no_thread(self, guarded: Service):
        """Sixty wrong tokens wait at the same time, more than there are worker threads; a valid one is answered meanwhile."""
        waiting, released = [], Future()

        async def wait_for_release(seconds: float) -> None:
            waiting.append(seconds)
            await asyncio.wrap_future(released)

        guarded.host.failed_attempts = FailedAttempts(FakeClock(), wait_for_release)
        text = f"GET /v1/queries HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {'x' * 20}\r\n\r\n".encode()
        with ExitStack() as stack:
            stack.callback(released.set_result, None)
            for _ in range(63):
                stack.enter_context(socket.create_connection(("127.0.0.1", guarded.port), 20)).sendall(text)
            wait_until(lambda: len(waiting) == 60)
            assert request(guarded, "GET", "/v1/queries", READ).status_code == 200
