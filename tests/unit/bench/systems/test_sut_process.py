"""A system under test as a process: what it is told, what it says, and that nothing of it is left."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.bench.driver.streams import StreamSpec
from headrace.bench.queries.dialects import BenchAggregate
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutDescription, SutStream
from headrace.bench.systems.process import SutEvent, SutEventWriter, SutProcess, drive_adapter
from headrace.errors import HeadraceError

SECOND = 1_000_000
PATIENCE = 60.0


def query(name: str) -> BenchQuery:
    return build_window_aggregation(
        name, "purchases", ["user_id"], [BenchAggregate("SUM", "price", "total")], None, 8 * SECOND, 4 * SECOND
    )


def config(tmp_path: Path, *queries: str, **options: object) -> SutConfig:
    stream = SutStream(StreamSpec("purchases", "purchases"), (5, 6))
    return SutConfig("127.0.0.1:1", "127.0.0.1:2", tmp_path, (stream,), tuple(map(query, queries)), options)


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not condition():
        time.sleep(0.01)
    return condition()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., SutProcess]:
    """The fake system lives beside this test; a dotted name finds it."""
    package = tmp_path / "systems"
    package.mkdir()
    (package / "fake_system.py").write_text((Path(__file__).parent / "fake_system.py").read_text())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda *queries, **options: SutProcess("systems.fake_system", config(tmp_path, *queries, **options))


class Recorder:
    """An adapter that notes its calls; commands that wait while it works come in one change."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[object] = []
        self._fails = fails

    def start(self, config, tell):
        self.calls.append(("start", [q.name for q in config.queries]))
        return SutDescription({}, {})

    def change(self, added, removed):
        self.calls.append(("change", [q.name for q in added], list(removed)))

    def check(self):
        if self._fails:
            raise RuntimeError(self._fails)

    def close(self):
        self.calls.append("close")


def talk(adapter: Recorder, *lines: dict | None) -> tuple[int, list[dict]]:
    waiting: queue.Queue[str | None] = queue.Queue()
    for line in lines:
        waiting.put(None if line is None else json.dumps(line))
    out = io.StringIO()
    code = drive_adapter(adapter, waiting, SutEventWriter(out, clock=lambda: 12.5))
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_configuration_survives_the_trip(tmp_path):
    asked = config(tmp_path, "a", mode="separate")
    assert SutConfig.from_json(json.loads(json.dumps(asked.to_json()))) == asked


def test_an_unknown_stream_is_named(tmp_path):
    with pytest.raises(HeadraceError, match="unknown stream 'ads'"):
        config(tmp_path).get_stream("ads")


def test_commands_that_wait_are_one_change(tmp_path):
    adapter = Recorder(fails="enough")  # or it would be asked for ever
    add = [{"command": "add", "query": query(name).to_json()} for name in ("b", "c")]
    _, said = talk(adapter, config(tmp_path, "a").to_json(), *add, {"command": "remove", "name": "a"})
    assert adapter.calls[:2] == [("start", ["a"]), ("change", ["b", "c"], ["a"])]
    assert said[0] == {"event": "ready", "versions": {}, "settings": {}}


def test_a_query_given_up_at_once_is_never_asked_for(tmp_path):
    adapter = Recorder()
    commands = [{"command": "add", "query": query("b").to_json()}, {"command": "remove", "name": "b"}, {"command": "stop"}]
    code, _ = talk(adapter, config(tmp_path).to_json(), *commands)
    assert (code, adapter.calls) == (0, [("start", []), "close"])


def test_the_end_of_the_input_is_the_end(tmp_path):
    adapter = Recorder()
    assert talk(adapter, config(tmp_path).to_json(), None)[0] == 0
    assert adapter.calls == [("start", []), "close"]


def test_a_failure_is_told_and_everything_closed(tmp_path):
    adapter = Recorder(fails="out of rows")
    add = {"command": "add", "query": query("b").to_json()}
    code, said = talk(adapter, config(tmp_path).to_json(), add)
    assert code == 1
    assert said[-1] == {"event": "failed", "reason": "RuntimeError('out of rows')"}
    assert adapter.calls[-1] == "close"


def test_events_are_stamped():
    out = io.StringIO()
    voice = SutEventWriter(out, clock=lambda: 12.5)
    voice.report_live("a")
    voice.report_removed("b")
    voice.report_refused("c", "no")
    at = 12_500_000
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"event": "live", "query": "a", "at": at},
        {"event": "removed", "query": "b", "at": at},
        {"event": "refused", "query": "c", "at": at, "reason": "no"},
    ]


def test_a_process_is_ready_adds_and_removes(fake):
    with fake("a", "bad") as system:
        ready = system.wait_ready(PATIENCE)
        assert (ready.versions, ready.settings) == ({"fake": "1"}, {"queries": 2})
        assert [(e.event, e.query, e.reason) for e in system.events()] == [("refused", "bad", "it is bad")]
        before = int(time.time() * 1e6)
        system.add(query("b"))
        heard: list[SutEvent] = []
        assert until(lambda: bool(heard.extend(system.events()) or heard))
        system.remove("b")
        assert until(lambda: bool(heard.extend(system.events()) or heard[1:]))
        assert [(e.event, e.query) for e in heard] == [("live", "b"), ("removed", "b")]
        assert before <= heard[0].at <= heard[1].at <= int(time.time() * 1e6)
        assert "what libraries print" in system.tail()
    assert not system.alive


def test_a_system_that_cannot_run_says_why(fake):
    with pytest.raises(HeadraceError, match="it cannot run here\nhint: try another one"), fake(fails=True) as system:
        system.wait_ready(PATIENCE)


def test_a_module_that_is_not_there_is_told(tmp_path):
    with (
        pytest.raises(HeadraceError, match=r"storm ended with code 1\n(.|\n)*No module named"),
        SutProcess("storm", config(tmp_path)) as system,
    ):
        system.wait_ready(PATIENCE)


def test_a_system_that_breaks_is_heard(fake):
    with fake() as system:
        system.wait_ready(PATIENCE)
        system.add(query("breaks"))
        assert until(lambda: not system.alive)
        assert [(e.event, e.reason) for e in system.events()][-1] == ("failed", "it broke")


def test_commands_to_a_dead_system_are_refused(fake):
    with fake() as system:
        system.wait_ready(PATIENCE)
        os.kill(system.pids()[0], signal.SIGKILL)
        assert until(lambda: not system.alive)
        with pytest.raises(HeadraceError, match="no longer accepts commands"):
            system.add(query("b"))


def test_children_end_with_the_process(fake):
    with fake(child=True) as system:
        system.wait_ready(PATIENCE)
        pids = system.pids()
        assert len(pids) == 2
    assert until(lambda: not any(map(_runs, pids)))


def test_children_of_a_killed_process_end_too(fake):
    with fake(child=True) as system:
        system.wait_ready(PATIENCE)
        pids = system.pids()
        os.kill(pids[0], signal.SIGKILL)
        assert until(lambda: not system.alive)
    assert until(lambda: not any(map(_runs, pids)))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
