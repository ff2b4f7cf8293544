"""A system under test as a process: commands, events and cleanup of child processes."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import psutil
import pytest

from headrace.bench.cluster import BenchCluster
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.queries.dialects import BenchAggregate
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutDescription, SutStream
from headrace.bench.systems.process import SutEvent, SutEventWriter, SutProcess, drive_adapter
from headrace.errors import HeadraceError

pytestmark = pytest.mark.usefixtures("preloaded")

SECOND = 1_000_000
TIMEOUT = 60.0


def make_query(name: str) -> BenchQuery:
    return build_window_aggregation(
        name, "purchases", ["user_id"], [BenchAggregate("SUM", "price", "total")], None, 8 * SECOND, 4 * SECOND
    )


def make_config(tmp_path: Path, *queries: str, **options: object) -> SutConfig:
    stream = SutStream(StreamSpec("purchases", "purchases"), (5, 6))
    return SutConfig("127.0.0.1:1", "127.0.0.1:2", tmp_path, (stream,), tuple(map(make_query, queries)), options)


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and not condition():
        time.sleep(0.01)
    return condition()


@pytest.fixture
def start_fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., SutProcess]:
    """Return a function that starts the fake system, which is importable by its dotted name."""
    package = tmp_path / "systems"
    package.mkdir()
    (package / "fake_system.py").write_text((Path(__file__).parent / "fake_system.py").read_text())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return lambda *queries, **options: SutProcess("systems.fake_system", make_config(tmp_path, *queries, **options))


class RecordingAdapter:
    """An adapter that records its calls; queued commands arrive as one change."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[object] = []
        self._fails = fails

    def start(self, config, events):
        self.calls.append(("start", [q.name for q in config.queries]))
        return SutDescription({}, {})

    def change(self, added, removed):
        self.calls.append(("change", [q.name for q in added], list(removed)))

    def check(self):
        if self._fails:
            raise RuntimeError(self._fails)

    def close(self):
        self.calls.append("close")


def drive_with_lines(adapter: RecordingAdapter, *lines: dict | None) -> tuple[int, list[dict]]:
    commands_queue: queue.Queue[str | None] = queue.Queue()
    for line in lines:
        commands_queue.put(None if line is None else json.dumps(line))
    out = io.StringIO()
    code = drive_adapter(adapter, commands_queue, SutEventWriter(out, clock=lambda: 12.5))
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_configuration_round_trips_through_json(tmp_path):
    sut_config = make_config(tmp_path, "a", mode="separate")
    assert SutConfig.from_json(json.loads(json.dumps(sut_config.to_json()))) == sut_config
    on_nodes = replace(sut_config, cluster=BenchCluster(2))
    assert SutConfig.from_json(json.loads(json.dumps(on_nodes.to_json()))) == on_nodes


def test_an_unknown_stream_is_refused(tmp_path):
    with pytest.raises(HeadraceError, match="unknown stream 'ads'"):
        make_config(tmp_path).get_stream("ads")


def test_queued_commands_are_applied_as_one_change(tmp_path):
    adapter = RecordingAdapter(fails="enough")  # ends the loop
    add = [{"command": "add", "query": make_query(name).to_json()} for name in ("b", "c")]
    _, events = drive_with_lines(adapter, make_config(tmp_path, "a").to_json(), *add, {"command": "remove", "name": "a"})
    assert adapter.calls[:2] == [("start", ["a"]), ("change", ["b", "c"], ["a"])]
    assert events[0] == {"event": "ready", "versions": {}, "settings": {}}


def test_a_query_removed_before_the_change_is_never_added(tmp_path):
    adapter = RecordingAdapter()
    commands = [{"command": "add", "query": make_query("b").to_json()}, {"command": "remove", "name": "b"}, {"command": "stop"}]
    code, _ = drive_with_lines(adapter, make_config(tmp_path).to_json(), *commands)
    assert (code, adapter.calls) == (0, [("start", []), "close"])


def test_the_end_of_the_input_closes_the_adapter(tmp_path):
    adapter = RecordingAdapter()
    assert drive_with_lines(adapter, make_config(tmp_path).to_json(), None)[0] == 0
    assert adapter.calls == [("start", []), "close"]


def test_a_failure_is_reported_and_the_adapter_closed(tmp_path):
    adapter = RecordingAdapter(fails="out of rows")
    add = {"command": "add", "query": make_query("b").to_json()}
    code, events = drive_with_lines(adapter, make_config(tmp_path).to_json(), add)
    assert code == 1
    assert events[-1] == {"event": "failed", "reason": "RuntimeError('out of rows')"}
    assert adapter.calls[-1] == "close"


def test_events_have_timestamps():
    out = io.StringIO()
    writer = SutEventWriter(out, clock=lambda: 12.5)
    writer.report_live("a")
    writer.report_removed("b")
    writer.report_refused("c", "no")
    at = 12_500_000
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"event": "live", "query": "a", "at": at},
        {"event": "removed", "query": "b", "at": at},
        {"event": "refused", "query": "c", "at": at, "reason": "no"},
    ]


def test_a_process_starts_adds_and_removes_queries(start_fake):
    with start_fake("a", "bad") as system:
        ready = system.wait_ready(TIMEOUT)
        assert (ready.versions, ready.settings) == ({"fake": "1"}, {"queries": 2})
        assert [(e.event, e.query, e.reason) for e in system.events()] == [("refused", "bad", "it is bad")]
        before = int(time.time() * 1e6)
        system.add(make_query("b"))
        events: list[SutEvent] = []
        assert wait_until(lambda: bool(events.extend(system.events()) or events))
        system.remove("b")
        assert wait_until(lambda: bool(events.extend(system.events()) or events[1:]))
        assert [(e.event, e.query) for e in events] == [("live", "b"), ("removed", "b")]
        assert before <= events[0].at <= events[1].at <= int(time.time() * 1e6)
        assert "what libraries print" in system.tail()
    assert not system.alive


def test_a_failed_start_raises_the_cause(start_fake):
    with pytest.raises(HeadraceError, match="it cannot run here\nhint: try another one"), start_fake(fails=True) as system:
        system.wait_ready(TIMEOUT)


def test_nodes_are_limited_on_request_and_other_events_are_kept(start_fake):
    with start_fake() as system:
        system.wait_ready(TIMEOUT)
        system.limit_nodes(TIMEOUT)
        assert [(e.event, e.query) for e in system.events()] == [("live", "limited")]


def test_a_system_says_how_much_work_its_components_had(start_fake):
    with start_fake() as system:
        system.wait_ready(TIMEOUT)
        assert system.read_component_seconds(TIMEOUT) == {"join": 1.5}
        assert system.events() == []


def test_nodes_that_cannot_be_limited_fail_the_system(start_fake):
    with start_fake(**{"cannot limit": True}) as system:
        system.wait_ready(TIMEOUT)
        with pytest.raises(HeadraceError, match=r"systems\.fake_system failed\ndetail: a node has ended"):
            system.limit_nodes(TIMEOUT)
        assert [event.reason for event in system.events() if event.event == "failed"] == ["a node has ended"]


def test_a_missing_module_raises(tmp_path):
    with (
        pytest.raises(HeadraceError, match=r"storm ended with code 1\n(.|\n)*No module named"),
        SutProcess("storm", make_config(tmp_path)) as system,
    ):
        system.wait_ready(TIMEOUT)


def test_a_thread_of_a_library_does_not_block_the_end(start_fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "Popen", Popen)  # a forked child would not wait for its threads
    with start_fake(thread=True) as system:
        system.wait_ready(TIMEOUT)
    assert system._process.returncode == 0


def test_a_broken_system_reports_a_failure(start_fake):
    with start_fake() as system:
        system.wait_ready(TIMEOUT)
        system.add(make_query("breaks"))
        assert wait_until(lambda: not system.alive)
        assert [(e.event, e.reason) for e in system.events()][-1] == ("failed", "it broke")


def test_commands_to_a_dead_system_are_refused(start_fake):
    with start_fake() as system:
        system.wait_ready(TIMEOUT)
        os.kill(system.pids()[0], signal.SIGKILL)
        assert wait_until(lambda: not system.alive)
        with pytest.raises(HeadraceError, match="no longer accepts commands"):
            system.add(make_query("b"))


def test_children_end_with_the_process(start_fake):
    with start_fake(child=True) as system:
        system.wait_ready(TIMEOUT)
        pids = system.pids()
        assert len(pids) == 2
    assert wait_until(lambda: not any(map(_is_running, pids)))


def test_children_end_with_a_killed_process(start_fake):
    with start_fake(child=True) as system:
        system.wait_ready(TIMEOUT)
        pids = system.pids()
        os.kill(pids[0], signal.SIGKILL)
        assert wait_until(lambda: not system.alive)
    assert wait_until(lambda: not any(map(_is_running, pids)))


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
