"""The service's own files in the checkpoint: damage and deletion are refused by name, files of older versions are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CheckpointError, StorageError
from support.in_process_service import Service, wait_until

STREAMS, EVENTS = "service-streams.json", "service-events.jsonl"


@pytest.fixture
def stopped(service: Service) -> Service:
    """A service that was used and closed."""
    service.add(name="counts")
    service.append_and_wait(0.5, 1.5)
    assert service.http.get("/v1/events").json()
    service.close()
    return service


def path_of(service: Service, name: str) -> Path:
    return service.session.checkpoint_path / name


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "first bit": lambda path: flip_bit(path, 0),
    "middle bit": lambda path: flip_bit(path, path.stat().st_size // 2),
    "a bit of the end": lambda path: flip_bit(path, path.stat().st_size - 3),
}
STREAM_DAMAGE = {
    **DAMAGE,
    "deleted": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "emptied": lambda path: path.write_bytes(b""),
    "another document": lambda path: path.write_text("{}"),
    "an older form, damaged": lambda path: path.write_text("[{"),
    "an older form, of no stream": lambda path: path.write_text('[{"source": "kafka"}]'),
}


@pytest.mark.parametrize(
    ("name", "damage"), [*((STREAMS, damage) for damage in STREAM_DAMAGE), *((EVENTS, damage) for damage in DAMAGE)]
)
def test_damage_is_refused_by_name(stopped: Service, name: str, damage: str):
    path = path_of(stopped, name)
    content = path.read_bytes()
    STREAM_DAMAGE[damage](path)
    with pytest.raises(CheckpointError, match=f"file '{path}' of the checkpoint is (damaged|missing)"):
        stopped.restart()
    stopped.session.close()
    path.write_bytes(content)
    stopped.restart()
    assert [stream["name"] for stream in stopped.http.get("/v1/streams").json()] == ["purchases"]


def test_a_service_without_declared_streams_notices_the_deletion_too(serve: Callable[..., Service]):
    service = serve()
    service.close()
    path_of(service, STREAMS).unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        service.restart()
    service.session.close()


def test_the_event_log_may_be_deleted(stopped: Service):
    path_of(stopped, EVENTS).unlink()
    stopped.restart()
    assert stopped.http.get("/v1/events").json() == []
    stopped.add(name="other")
    assert stopped.http.get("/v1/events").json()


def test_events_after_a_failed_write_are_complete(service: Service, monkeypatch: pytest.MonkeyPatch):
    """A full disk leaves a part of a line; the next write replaces it. Events that were not written are lost with a restart."""
    log, path = service.host.event_log._log, path_of(service, EVENTS)

    def write_a_part(*_: object) -> None:
        path.write_bytes(path.read_bytes() + b"0123456789abcdef {")
        raise StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(log, "append", write_a_part)
        service.add(name="one")
        wait_until(lambda: "query one is live" in {event["text"] for event in service.http.get("/v1/events").json()})
    service.add(name="two")
    wait_until(lambda: "query two is live" in {event["text"] for event in service.http.get("/v1/events").json()})
    service.restart()
    events = {event["text"] for event in service.http.get("/v1/events").json()}
    assert "query two is live" in events
    assert "query one is live" not in events
