"""`headrace serve` up to the moment at which it opens its session: what it refuses, and what the session is given."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import serve
from headrace.errors import OwnershipLostError
from support.certificates import make_certificate


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of sessions; opening one ends the service, as SIGTERM does."""
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def end(*positional: Any, **named: Any) -> None:
        arguments.append((positional, named))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(serve, "Session", end)
    return arguments


def test_a_signal_ends_the_service_and_leaves_no_handler(headrace, opened):
    before = signal.getsignal(signal.SIGTERM)
    assert headrace("serve", "--backend", "local", "--port", "0").code == 0
    assert len(opened) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_service_without_a_checkpoint_has_a_temporary_one(headrace, opened):
    headrace("serve", "--backend", "local", "--port", "0")
    ((folder,), named) = opened[0]
    assert Path(folder).name.startswith("headrace-")
    assert not Path(folder).exists()
    assert (named["backend"], named["functions"], named["partitions"], named["standby"]) == ("local", True, None, False)


def test_the_session_has_the_settings_of_the_file_and_of_the_command_line(headrace, session_file, opened, tmp_path):
    head = 'checkpoint = "state"\nrows_per_batch = 7\npartitions = 3\nfunctions = false\n'
    head += 'changes_per_batch = 5\njoin_slices = "kept"\n'
    file = session_file(head=head)
    headrace("serve", file, "--backend", "local", "--port", "0")
    headrace("serve", file, "--backend", "local", "--port", "0", "--checkpoint", tmp_path / "own", "--partitions", "auto",
             "--budget", "output_rows=9", "--conf", "a=b")  # fmt: skip
    (first, by_file), (second, by_options) = opened
    assert (first, second) == ((str(tmp_path / "state"),), (str(tmp_path / "own"),))
    assert [by_file[name] for name in ("rows_per_batch", "partitions", "functions", "changes_per_batch", "join_slices")] == [
        7, 3, False, 5, "kept",
    ]  # fmt: skip
    assert (by_options["partitions"], by_options["budget"].output_rows, by_options["spark_config"]) == ("auto", 9, {"a": "b"})


def test_functions_are_refused_on_demand(headrace, opened):
    headrace("serve", "--backend", "local", "--port", "0", "--no-functions")
    assert opened[0][1]["functions"] is False


@pytest.mark.parametrize(
    "origin", ["board.example", "ftp://board.example", "https://", "https://a/b", "https://*.example", "https:a"]
)
def test_an_origin_is_a_scheme_and_a_host(headrace, opened, origin):
    refused = headrace("serve", "--backend", "local", "--port", "0", "--origin", origin)
    assert (refused.code, f"invalid origin '{origin}'" in refused.err, opened) == (1, True, [])


@pytest.mark.parametrize("origin", ["https://board.example", "http://board.example:8443/"])
def test_a_web_origin_is_accepted(headrace, opened, origin):
    assert headrace("serve", "--backend", "local", "--port", "0", "--origin", origin).code == 0
    assert len(opened) == 1


def test_a_certificate_needs_its_key(headrace, opened, tmp_path):
    chain, key = make_certificate(tmp_path, "service")
    for words in (("--tls-cert", chain), ("--tls-key", key)):
        refused = headrace("serve", "--backend", "local", "--port", "0", *words)
        assert (refused.code, "need each other" in refused.err, opened) == (2, True, [])
    assert headrace("serve", "--backend", "local", "--port", "0", "--tls-cert", chain, "--tls-key", key).code == 0
    assert len(opened) == 1


def test_an_invalid_token_file_is_refused_at_the_start(headrace, opened, tmp_path):
    (tmp_path / "tokens").write_text("nonsense\n")
    refused = headrace("serve", "--backend", "local", "--port", "0", "--host", "0.0.0.0", "--checkpoint", tmp_path)
    assert (refused.code, opened) == (1, [])
    assert headrace("serve", "--backend", "local", "--port", "0", "--checkpoint", tmp_path).code == 0, "loopback needs no tokens"


@pytest.mark.parametrize(("words", "opens", "code"), [((), 1, 1), (("--standby",), 2, 0)])
def test_only_a_standby_waits_again_after_it_has_lost_its_checkpoint(headrace, monkeypatch, words, opens, code):
    """It says why."""
    calls = []

    def lose(*_: Any, **__: Any) -> None:
        calls.append(None)
        if len(calls) == 1:
            raise OwnershipLostError("another process has the checkpoint")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(serve, "Session", lose)
    ended = headrace("serve", "--backend", "local", "--port", "0", *words)
    assert (ended.code, len(calls)) == (code, opens)
    assert ended.err.count("another process has the checkpoint") == 1
    assert ("waiting as a standby" in ended.err) is bool(words)
