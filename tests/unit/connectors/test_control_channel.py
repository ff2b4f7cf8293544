"""The requests of a driver to a server: a caller waits once for a silent server, and then never again until it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors import control_channel
from headrace.connectors.control_channel import ControlChannel
from headrace.errors import SourceError

LONG = 20.0  # seconds that no test waits


class Server:
    """A server that answers while it is open, and keeps the requests."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.arrived = threading.Semaphore(0)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.connections = self.closed = 0
        self.error: Exception | None = None

    def connect(self) -> Server:
        self.connections += 1
        return self

    def send_request(self, request: str, **arguments: Any) -> dict[str, Any]:
        self.requests.append((request, arguments))
        self.arrived.release()
        assert self.open.wait(LONG)
        if self.error is not None:
            raise self.error
        return {"number": len(self.requests)}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.open.set()


@pytest.fixture
def channel(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlChannel]:
    """A channel that waits long for a server that answers; `fall_silent` lets it wait shortly."""
    monkeypatch.setattr(control_channel, "_PROMPT_SECONDS", LONG)
    monkeypatch.setattr(control_channel, "_SLOW_SECONDS", LONG)
    channel = ControlChannel(server.connect, lambda silence: SourceError(f"silent: {silence}"))
    yield channel
    server.open.set()
    channel.close()


def fall_silent(server: Server, channel: ControlChannel, name: str = "ends") -> None:
    """Let the server answer no more, and a first request find out."""
    server.open.clear()
    answer, error = channel.send_request(name, patience=0.001)
    assert error is not None
    assert error.message.startswith("silent: no answer for 0.")
    assert answer == channel.get_last_answer(name)


def test_a_request_returns_the_answer_and_the_connection_is_kept(server: Server, channel: ControlChannel):
    assert channel.get_last_answer("ends") is None
    assert channel.send_request("ends", stream="s") == ({"number": 1}, None)
    assert channel.send_request("starts") == ({"number": 2}, None)
    assert server.requests == [("ends", {"stream": "s"}), ("starts", {})]
    assert (channel.get_last_answer("ends"), channel.get_last_answer("starts")) == ({"number": 1}, {"number": 2})
    assert (server.connections, server.closed) == (1, 0)


def test_a_silent_server_is_asked_once_and_the_last_answers_stay(server: Server, channel: ControlChannel):
    channel.send_request("ends")
    fall_silent(server, channel)
    for _ in range(3):
        answer, error = channel.send_request("ends")
        assert answer == {"number": 1}
        assert error is not None
    assert channel.send_request("starts")[0] is None
    assert len(server.requests) == 2
    server.open.set()
    assert channel.send_request("starts", patience=LONG) == ({"number": 3}, None)
    assert channel.get_last_answer("ends") == {"number": 2}, "the late answer counts"
    assert channel.send_request("ends") == ({"number": 4}, None), "the server is waited for again"


def test_a_request_that_fails_raises_once(server: Server, channel: ControlChannel):
    server.error = SourceError("refused")
    with pytest.raises(SourceError, match="refused"):
        channel.send_request("ends")
    server.error = None
    assert channel.send_request("ends") == ({"number": 2}, None)


def test_a_late_error_is_raised_by_the_next_request(server: Server, channel: ControlChannel):
    fall_silent(server, channel)
    server.error = SourceError("refused")
    server.open.set()
    with pytest.raises(SourceError, match="refused"):
        channel.send_request("ends", patience=LONG)
    server.error = None
    assert channel.send_request("ends", patience=LONG) == ({"number": 2}, None)


def test_a_message_is_posted_unless_an_earlier_one_is_on_its_way(server: Server, channel: ControlChannel):
    assert channel.post_request("trim", to=1)
    fall_silent(server, channel)
    assert channel.post_request("trim", to=2), "it waits behind the request, and its caller does not"
    assert not channel.post_request("trim", to=3)
    server.open.set()
    assert channel.send_request("ends", patience=LONG)[1] is None
    assert channel.post_request("trim", to=4)
    assert [arguments for name, arguments in server.requests if name == "trim"] == [{"to": 1}, {"to": 2}, {"to": 4}]


def test_a_message_that_fails_at_once_raises(server: Server, channel: ControlChannel):
    server.error = SourceError("refused")
    with pytest.raises(SourceError, match="refused"):
        channel.post_request("trim")


def test_a_posted_message_without_an_answer_ends_the_waiting(server: Server, channel: ControlChannel, monkeypatch):
    monkeypatch.setattr(control_channel, "_PROMPT_SECONDS", 0.001)
    channel.close()  # and begin with that patience
    server.open.clear()
    assert channel.post_request("trim")
    monkeypatch.setattr(control_channel, "_PROMPT_SECONDS", LONG)
    assert channel.send_request("ends")[1] is not None, "or this waits for long"


def test_the_patience_is_twice_the_time_of_the_last_answer_within_limits(server: Server, monkeypatch):
    monkeypatch.setattr(control_channel, "_PROMPT_SECONDS", 2.0)
    monkeypatch.setattr(control_channel, "_SLOW_SECONDS", 8.0)
    now = [10.0]
    monkeypatch.setattr(control_channel, "time", SimpleNamespace(monotonic=lambda: now[0]))
    send_request = server.send_request

    def take_time(request: str, *, seconds: float) -> dict[str, Any]:
        now[0] += seconds
        return send_request(request)

    monkeypatch.setattr(server, "send_request", take_time)
    channel = ControlChannel(server.connect, SourceError)
    found = [(channel.send_request("ends", seconds=seconds), channel._patience)[1] for seconds in (1.0, 3.0, 9.0)]
    assert found == [2.0, 6.0, 8.0]
    channel.close()
    assert channel._patience == 2.0


def test_a_closed_channel_connects_again_and_has_no_answers(server: Server, channel: ControlChannel):
    channel.close()
    channel.send_request("ends")
    channel.close()
    assert server.closed == 1
    assert channel.get_last_answer("ends") is None
    assert channel.send_request("ends") == ({"number": 2}, None)
    assert server.connections == 2


def test_closing_does_not_wait_for_a_silent_server(server: Server, channel: ControlChannel):
    fall_silent(server, channel)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "headrace-control"][-1], "nor does the process"
    channel.close()
    server.open.set()
    assert channel.send_request("ends")[1] is None
