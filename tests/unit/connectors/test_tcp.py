"""TCP source: ranges of row numbers, reads by workers, commits to the server, exactly-once after a crash."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.cli.session_file import SessionFile
from headrace.connectors import Range, TcpSource, control_channel, read_range, tcp
from headrace.connectors.source import RANGE_ROWS
from headrace.connectors.tcp import TcpConnection, borrow_connection, level_partitions, parse_address
from headrace.errors import CheckpointError, HeadraceError, SourceError
from headrace.runtime import source_health
from headrace.storage.fault_points import install_fault_hook
from headrace.storage.posix import PosixStore
from headrace.storage.records import decode_records, encode_records
from support.in_process_driver import BEGIN, InProcessDriver, small_stream


@pytest.fixture
def rig() -> Iterator[InProcessDriver]:
    with InProcessDriver(small_stream("fields")) as driver:
        yield driver


@pytest.fixture
def source(rig: InProcessDriver, tmp_path: Path) -> Iterator[TcpSource]:
    attached = TcpSource(rig.address, "fields")
    attached.attach("s", PosixStore(tmp_path))
    yield attached
    attached.close()


def list_bounds(ranges: list[Range]) -> list[tuple[Any, int, int]]:
    return [(range_.options["partition"], range_.start, range_.stop) for range_ in ranges]


# Planning


def test_produced_rows_are_planned(rig: InProcessDriver, source: TcpSource):
    assert source.schema == small_stream().schema
    assert not source.pending(None)
    assert source.plan(None, 100) == ([], None)
    rig.start(100)
    rig.advance(1)
    assert source.pending(None)
    ranges, position = source.plan(None, 1000)
    assert list_bounds(ranges) == [(0, 0, 50), (1, 0, 50)]
    assert position == {"rows": [50, 50]}
    assert source.plan(None, 1000) == (ranges, position)
    assert not source.pending(position)
    rig.advance(0.01)
    assert list_bounds(source.plan(position, 1000)[0]) == [(0, 50, 51)]


def test_large_ranges_are_split(rig: InProcessDriver, source: TcpSource):
    rig.start(1_000_000)
    rig.advance(1.2)
    ranges, _ = source.plan(None, 10**9)
    assert [range_.rows for range_ in ranges] == 2 * [RANGE_ROWS, RANGE_ROWS, 600_000 - 2 * RANGE_ROWS]
    assert sum(range_.rows for range_ in source.plan(None, 1000)[0]) == 1000


COUNTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), min_size=1, max_size=4)


@given(COUNTS, st.integers(1, 100))
def test_lagging_partitions_are_planned_first(pairs, limit):
    starts, produced = [a for a, _ in pairs], [b for _, b in pairs]
    stops = level_partitions(starts, produced, limit)
    assert all(a <= stop <= b for a, stop, b in zip(starts, stops, produced, strict=True))
    assert (stops != starts) == (produced != starts)
    assert sum(stops) - sum(starts) <= max(limit, len(pairs))
    moved = [stop for start, stop in zip(starts, stops, strict=True) if stop > start]
    held = [stop for stop, b in zip(stops, produced, strict=True) if stop < b]
    assert not moved or not held or max(moved) <= min(held)


def test_a_serialized_range_reads_the_same_rows(rig: InProcessDriver, source: TcpSource):
    rig.start(10_000)
    rig.advance(1)
    ranges, _ = source.plan(None, 3000)
    range_ = decode_records(json.loads(encode_records(ranges[1])))
    table = read_range(range_, source.schema, ["time", "f1"])
    assert table.equals(rig.connection.read("fields", 1, "headrace", 0, 1500, ["time", "f1"]))
    assert read_range(range_, source.schema, []).num_rows == 1500
    assert read_range(range_, source.schema, ["f1"]).schema == pa.schema([("f1", pa.int32())])


def test_committed_rows_are_dropped_by_the_server(rig: InProcessDriver, source: TcpSource):
    rig.start(1000)
    rig.advance(1)
    ranges, position = source.plan(None, 100)
    for range_ in ranges:
        read_range(range_, source.schema, ["f1"])
    source.prune(None)
    assert read_range(ranges[0], source.schema, ["f1"]).num_rows == 50
    source.prune(position)
    assert rig.request("status", stream="fields", group="headrace")["committed"] == [50, 50]
    with pytest.raises(SourceError, match=r"refused 'read'\ndetail: rows from 0 .* committed the rows before 50"):
        read_range(ranges[0], source.schema, ["f1"])
    assert list_bounds(source.plan(position, 100)[0]) == [(0, 50, 100), (1, 50, 100)]


def test_groups_read_independently(rig: InProcessDriver, source: TcpSource, tmp_path: Path):
    rig.start(1000)
    rig.advance(1)
    other = TcpSource(rig.address, "fields", group="other")
    other.attach("s", PosixStore(tmp_path))
    ranges, position = source.plan(None, 100)
    other_ranges, _ = other.plan(None, 100)
    for range_ in ranges:
        read_range(range_, source.schema, ["f1"])
    source.prune(position)
    assert sum(read_range(range_, source.schema, ["f1"]).num_rows for range_ in other_ranges) == 100
    assert source.definition() != other.definition()
    other.close()


def test_the_definition_is_stable(rig: InProcessDriver, source: TcpSource):
    before = source.definition()
    rig.start(1000)
    rig.advance(1)
    assert TcpSource(rig.address, "fields").definition() == before == json.loads(json.dumps(before))


# Servers that are unreachable or replaced


def test_an_unreachable_server_is_reported(rig: InProcessDriver, source: TcpSource):
    rig.start(1000)
    rig.advance(1)
    ranges, position = source.plan(None, 100)
    source.close()
    rig.driver.close()
    for call in (lambda: source.pending(None), lambda: source.plan(None, 10), lambda: TcpSource(rig.address, "fields").schema):
        with pytest.raises(SourceError, match=r"server '127.0.0.1:\d+' cannot be reached\ndetail: .*\nhint: start the server"):
            call()
    with pytest.raises(SourceError, match="cannot be reached"):
        read_range(ranges[0], small_stream().schema, ["f1"])
    with pytest.raises(SourceError, match="cannot be reached"):
        source.prune(position)


def test_a_restarted_server_is_refused(rig: InProcessDriver, source: TcpSource, tmp_path: Path):
    del source  # the first source has recorded the server
    rig.hub.identity = "another"
    with pytest.raises(SourceError, match="is not the one that stream 's' was read from\nhint: the server was restarted"):
        TcpSource(rig.address, "fields").attach("s", PosixStore(tmp_path))


def test_a_server_with_fewer_rows_than_the_position_is_refused(source: TcpSource):
    with pytest.raises(SourceError, match="has fewer rows than stream 's' has read"):
        source.plan({"rows": [7, 0]}, 10)


def test_a_server_with_another_number_of_partitions_is_refused(source: TcpSource):
    for rows in ([0], [0, 0, 0]):
        with pytest.raises(SourceError, match="has fewer rows than stream 's' has read"):
            source.plan({"rows": rows}, 10)


def test_an_unknown_stream_is_refused(rig: InProcessDriver):
    with pytest.raises(SourceError, match="has no stream 'fiels'\ndetail: streams: fields"):
        _ = TcpSource(rig.address, "fiels").schema


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":5", "localhost:x", "localhost:70000"])
def test_invalid_addresses_are_refused(address):
    with pytest.raises(SourceError, match=r"invalid address .*\nhint: write host:port"):
        TcpSource(address, "fields")
    assert parse_address("[::1]:80") == ("::1", 80)


def test_plan_needs_attach(rig: InProcessDriver):
    with pytest.raises(SourceError, match="is not attached"):
        TcpSource(rig.address, "fields").plan(None, 1)


class ScriptedServer:
    """A server that sends one given response per connection and closes it."""

    def __init__(self, *responses: bytes) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, args=(responses,), daemon=True).start()

    def _serve(self, responses: tuple[bytes, ...]) -> None:
        for response in responses:
            sock, _ = self._listening.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(response)
        self._listening.close()


@pytest.mark.parametrize("response", [b"", b'{"a": 1}', b"no JSON\n", b'{"bytes": 10}\n12345'])
def test_an_incomplete_response_is_an_error(response):
    with pytest.raises(SourceError, match="cannot be reached"):
        TcpConnection(ScriptedServer(response).address, 10).send_request("describe")


def test_an_invalid_arrow_stream_is_refused():
    with pytest.raises(SourceError, match="sent an invalid Arrow stream"):
        TcpConnection(ScriptedServer(b'{"bytes": 5}\n12345').address, 10).read("s", 0, "g", 0, 1)


def test_a_lost_connection_is_reopened_once():
    connection = TcpConnection(ScriptedServer(b'{"a": 1}\n', b'{"a": 2}\n').address, 10)
    assert connection.send_request("describe") == {"a": 1}
    assert connection.send_request("describe") == {"a": 2}
    with pytest.raises(SourceError, match="cannot be reached"):
        connection.send_request("describe")


def test_connections_are_pooled_and_exclusive(rig: InProcessDriver):
    with borrow_connection(rig.address) as first, borrow_connection(rig.address) as second:
        assert first is not second
    with borrow_connection(rig.address) as again:
        assert again in (first, second)
    with pytest.raises(SourceError), borrow_connection(rig.address) as failed:
        failed.send_request("nonsense")
    with borrow_connection(rig.address) as third, borrow_connection(rig.address) as fourth:
        assert failed not in (third, fourth)


# Exactly once after a crash at any step

BY_KEY = "SELECT window_start, key, SUM(f1) AS total, COUNT(*) AS n FROM TUMBLE(s, '1 second') GROUP BY key"
ROWS = "SELECT key, f2, time FROM s WHERE f1 < 100"
STEPS = ["log", "logged", "planned", "stage one", "stage two", "commit", "committed"]


class SimulatedKill(BaseException):
    """Raised by a fault; not an Exception, so the engine does not catch it."""


class Fault:
    step = ""

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.step = ""
            raise SimulatedKill(step)


def open_session(rig: InProcessDriver, folder: Path, fault: Fault) -> hr.Session:
    install_fault_hook(folder, fault)
    session = hr.Session(folder, backend="local", rows_per_batch=175)
    session.create_stream("s", hr.TcpSource(rig.address, "fields"), time="time")
    for name, sql in (("by_key", BY_KEY), ("rows", ROWS)):
        if session.find(name) is None:
            session.add(sql, name=name)
    return session


def compute_reference(rig: InProcessDriver) -> dict[str, list[dict[str, Any]]]:
    """Return the results of the reference engine over all rows, read by a group that never commits."""
    produced = rig.request("status", stream="fields", group="judge")["produced"]
    tables = [rig.connection.read("fields", p, "judge", 0, stop) for p, stop in enumerate(produced)]
    with hr.Session(backend="reference") as session:
        memory = hr.MemorySource(small_stream().schema)
        session.create_stream("s", memory, time="time")
        queries = {"by_key": session.add(BY_KEY), "rows": session.add(ROWS)}
        memory.append(pa.concat_tables(tables))
        session.drain()
        return {name: sort_results(query) for name, query in queries.items()}


def sort_results(query: hr.Query) -> list[dict[str, Any]]:
    return sorted(query.results().to_pylist(), key=str)


@pytest.mark.parametrize("step", STEPS)
def test_every_row_counts_once_after_a_kill_at_any_step(rig: InProcessDriver, tmp_path: Path, step: str):
    rig.request("status", stream="fields", group="judge")
    rig.start(250)
    fault = Fault()
    session = open_session(rig, tmp_path / "checkpoint", fault)
    for second in range(4):
        rig.advance(1.1)
        fault.step = step if second % 2 else ""
        try:
            session.advance()
        except SimulatedKill:
            session._checkpoint.close()  # as after a kill: no orderly shutdown
            session = open_session(rig, tmp_path / "checkpoint", fault)
    rig.start(None)
    session.drain()
    expected = compute_reference(rig)
    assert {name: sort_results(session.query(name)) for name in expected} == expected
    assert sum(row["n"] for row in expected["by_key"]) == 1100
    assert rig.request("status", stream="fields", group="headrace")["committed"] == [550, 550]
    session.close()


def test_no_row_is_late_without_a_watermark_delay(rig: InProcessDriver, tmp_path: Path):
    """Partitions are read evenly, so event time only advances, even with small batches."""
    rig.start(1000)
    with hr.Session(tmp_path, backend="local", rows_per_batch=300) as session:
        session.create_stream("s", hr.TcpSource(rig.address, "fields"), time="time")
        query = session.add("SELECT window_start, COUNT(*) AS n FROM TUMBLE(s, '100 ms')")
        for _ in range(7):
            rig.advance(0.37)
            session.advance()
        rig.start(None)
        session.drain()
        assert query.late == {}
        assert sum(row["n"] for row in query.results().to_pylist()) == 2590


def test_an_unreachable_server_degrades_the_stream(rig: InProcessDriver, tmp_path: Path):
    with hr.Session(tmp_path, backend="local") as session:
        session.create_stream("s", hr.TcpSource(rig.address, "fields"), time="time")
        query = session.add(BY_KEY, name="q")
        rig.start(100)
        rig.advance(1)
        session.advance()
        assert session.streams()["s"]["max_event_time"] == (BEGIN + 1) * 1_000_000
        rig.driver.close()
        session._coordinator.sources["s"].close()
        session.advance()
        assert session.streams()["s"]["status"] == "degraded"
        assert "cannot be reached" in session.streams()["s"]["error"]
        assert query.status == "live"


class SilentServer:
    """Accepts connections and never answers."""

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0))
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_a_silent_server_blocks_nobody_while_it_is_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tcp, "_CONTROL_TIMEOUT_SECONDS", 1.0)
    with SilentServer() as address, hr.Session(tmp_path, backend="local") as session:
        source = hr.MemorySource("n INT, time TIMESTAMP")
        session.create_stream("m", source, time="time")
        with ThreadPoolExecutor(1) as pool:
            attaching = pool.submit(session.create_stream, "silent", hr.TcpSource(address, "fields"), time="time")
            query = session.add("SELECT n FROM m")
            source.append([{"n": 1, "time": "2024-01-01T00:00:00Z"}])
            session.advance()
            session.create_stream("other", hr.MemorySource("n INT, time TIMESTAMP"), time="time")
            assert not attaching.done()
            assert query.results()["n"].to_pylist() == [1]
            with pytest.raises(SourceError, match="cannot be reached"):
                attaching.result()
        assert set(session.streams()) == {"m", "other"}


def test_a_server_that_falls_silent_is_asked_again_after_a_delay_only(
    rig: InProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with SilentServer() as address, hr.Session(tmp_path, backend="local") as session:
        tcp_source, memory = hr.TcpSource(rig.address, "fields"), hr.MemorySource("n INT, time TIMESTAMP")
        session.create_stream("s", tcp_source, time="time")
        session.create_stream("m", memory, time="time")
        query = session.add("SELECT n FROM m")
        session.advance()
        tcp_source._channel = TcpSource(address, "s")._channel
        requests: list[str] = []
        exchange = TcpConnection._exchange
        monkeypatch.setattr(TcpConnection, "_exchange", lambda *args: requests.append(args[1]) or exchange(*args))
        monkeypatch.setattr(source_health, "FIRST_DELAY_SECONDS", 60.0)
        for n in range(5):
            memory.append([{"n": n, "time": "2024-01-01T00:00:00Z"}])
            session.advance(retry_degraded=False)
        assert query.results()["n"].to_pylist() == [0, 1, 2, 3, 4]
        assert session.streams()["s"]["status"] == "degraded"
        assert requests == ["status"]


class PausableProxy:
    """Forwards connections to a server; while it is paused, nothing passes."""

    def __init__(self, target: str) -> None:
        self._target, self._flowing = parse_address(target), threading.Event()
        self._flowing.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def pause(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = self._listening.accept()[0]
                server = socket.create_connection(self._target)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, origin: socket.socket, destination: socket.socket) -> None:
        with contextlib.suppress(OSError), origin, destination:
            while data := origin.recv(1 << 16):
                self._flowing.wait()
                destination.sendall(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self._listening.close()


def test_a_server_that_falls_silent_delays_nobody(rig: InProcessDriver, tmp_path: Path):
    with PausableProxy(rig.address) as proxy, hr.Session(tmp_path, backend="local") as session:
        memory = hr.MemorySource("n INT, time TIMESTAMP")
        session.create_stream("s", hr.TcpSource(proxy.address, "fields"), time="time")
        session.create_stream("m", memory, time="time")
        of_s, of_m = session.add("SELECT f1 FROM s"), session.add("SELECT n FROM m")
        rig.start(1000)
        rig.advance(1)
        session.advance()
        read_before = of_s.emitted
        assert read_before > 0
        proxy.pause()
        rig.advance(1)
        seconds = []
        for n in range(5):  # each of them tries the degraded stream again
            memory.append([{"n": n, "time": "2024-01-01T00:00:00Z"}])
            started = time.monotonic()
            session.advance()
            seconds.append(time.monotonic() - started)
        assert of_m.results()["n"].to_pylist() == [0, 1, 2, 3, 4]
        assert session.streams()["s"]["status"] == "degraded"
        assert "cannot be reached" in session.streams()["s"]["error"]
        assert sum(seconds) < 2.0, seconds
        assert sum(seconds[1:]) < 1.0, seconds
        with pytest.raises(SourceError, match="cannot be reached"):
            session.drain()
        proxy.resume()
        deadline = time.monotonic() + 20
        while of_s.emitted == read_before and time.monotonic() < deadline:
            session.advance()
            time.sleep(0.01)
        session.drain()
        assert session.streams()["s"]["status"] == "ok"
        assert of_s.emitted == rig.request("totals")["produced"]


@pytest.mark.parametrize("longest_wait", [0.02, 0.5])
def test_a_slow_server_is_read_nevertheless(
    rig: InProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest_wait: float
):
    """The driver waits as long as the server takes, or reads what the newest answer has."""
    exchange = TcpConnection._exchange

    def exchange_slowly(*args: Any) -> Any:
        time.sleep(0.05)
        return exchange(*args)

    monkeypatch.setattr(control_channel, "_PROMPT_SECONDS", 0.02)
    monkeypatch.setattr(control_channel, "_SLOW_SECONDS", longest_wait)
    monkeypatch.setattr(source_health, "FIRST_DELAY_SECONDS", 0.01)
    with hr.Session(tmp_path, backend="local") as session:
        session.create_stream("s", hr.TcpSource(rig.address, "fields"), time="time")
        query = session.add("SELECT f1 FROM s")
        rig.start(1000)
        rig.advance(1)
        monkeypatch.setattr(TcpConnection, "_exchange", exchange_slowly)
        session.start()
        assert session.wait(lambda: query.emitted == 1000, 20)
        rig.advance(1)
        assert session.wait(lambda: query.emitted == 2000, 20)
        session.stop()


def test_dropping_a_stream_leaves_the_group(rig: InProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    left = threading.Event()
    send = TcpConnection.send_request

    def send_and_notice(connection: TcpConnection, request: str, **arguments: Any) -> dict[str, Any]:
        response = send(connection, request, **arguments)
        if (request, arguments) == ("leave", {"stream": "fields", "group": "g"}):
            left.set()
        return response

    monkeypatch.setattr(TcpConnection, "send_request", send_and_notice)
    with hr.Session(tmp_path, backend="local") as session:
        session.create_stream("s", hr.TcpSource(rig.address, "fields", group="g"), time="time")
        session.add(BY_KEY, name="q")
        rig.start(100)
        rig.advance(1)
        session.advance()
        session.drop_stream("s", cascade=True)
        session.advance()
        assert left.wait(10)
        assert session.streams() == {}


def test_a_stream_declared_with_another_group_is_refused(rig: InProcessDriver, tmp_path: Path):
    with hr.Session(tmp_path, backend="local") as session:
        session.create_stream("s", hr.TcpSource(rig.address, "fields"), time="time")
        session.add(BY_KEY)
        session.advance()
    with hr.Session(tmp_path, backend="local") as session, pytest.raises(CheckpointError, match="declared differently"):
        session.create_stream("s", hr.TcpSource(rig.address, "fields", group="x"), time="time")


def test_a_session_file_declares_a_tcp_source(rig: InProcessDriver, tmp_path: Path):
    path = tmp_path / "session.toml"
    query = '[queries.q]\nsql = "SELECT key FROM s"\n'
    path.write_text(f'[streams.s]\nsource = "tcp"\naddress = "{rig.address}"\nstream = "fields"\ntime = "time"\n{query}')
    (entry,) = SessionFile.load(path).streams
    assert entry.to_stream().schema == small_stream().schema
    assert isinstance(entry.open(), TcpSource)
    path.write_text(f'[streams.s]\nsource = "tcp"\nstream = "fields"\ntime = "time"\n{query}')
    with pytest.raises(HeadraceError, match="address' is missing"):
        SessionFile.load(path)
