"""The driver over its ports: rows as Arrow, rows as text, errors, and the log for the runner."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.generator import build_pools
from headrace.bench.driver.hub import NO_TIME, DriverLog
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.server import open_driver
from headrace.connectors.tcp import RequestRejectedError, TcpConnection
from headrace.errors import HeadraceError
from support.in_process_driver import BEGIN_US, InProcessDriver, small_stream

SECOND = 1_000_000
GROUP = {"stream": "s", "group": "g"}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other threads bring about."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "condition not met within 30 s"
        time.sleep(0.005)


@pytest.fixture
def rig():
    with InProcessDriver(small_stream()) as driver:
        yield driver


# Rows as Arrow


def test_describe_lists_streams_and_an_identity(rig: InProcessDriver):
    answer = rig.request("describe")
    assert answer["streams"] == {"s": {"schema": small_stream().schema.to_ddl(), "time": "time", "partitions": 2}}
    with InProcessDriver(small_stream()) as other:
        assert other.request("describe")["identity"] != answer["identity"]


def test_read_returns_pool_rows_with_event_times(rig: InProcessDriver):
    rig.start(10_000)
    rig.advance(0.3)
    status = rig.request("status", **GROUP)
    assert (status["produced"], status["read"], status["committed"]) == ([1500, 1500], [0, 0], [0, 0])
    pool = build_pools(small_stream())[1]
    table = rig.connection.read("s", 1, "g", 700, 1300)  # wraps around the pool twice
    assert table.schema.equals(small_stream().schema.to_arrow())
    assert table["f3"].to_pylist() == [pool.columns["f3"][row % 500].as_py() for row in range(700, 1300)]
    assert table["time"].combine_chunks().view(pa.int64()).to_pylist() == [BEGIN_US + 200 * (row + 1) for row in range(700, 1300)]


def test_read_returns_only_the_requested_columns(rig: InProcessDriver):
    rig.start(10_000)
    rig.advance(0.3)
    table = rig.connection.read("s", 0, "g", 0, 1000, ["time", "f2"])
    assert table.column_names == ["time", "f2"]
    whole = rig.connection.read("s", 0, "g", 0, 1000)
    assert table.equals(whole.select(["time", "f2"]))
    assert rig.connection.read("s", 0, "g", 5, 5).num_rows == 0


@pytest.mark.parametrize("generator", ["purchases", "ads", "persons", "auctions", "bids"])
def test_rows_of_every_generator_are_served(generator: str):
    spec = small_stream(generator=generator, partitions=1)
    with InProcessDriver(spec) as rig:
        rig.start(100_000)
        rig.advance(1)
        rows = build_pools(spec)[0].rows
        start = min(rows - 10, 50_000)
        table = rig.connection.read("s", 0, "g", start, start + 20)
        table.validate(full=True)
        assert table.schema.equals(spec.schema.to_arrow())
        assert table.num_rows == 20


def test_status_reports_read_and_committed_positions(rig: InProcessDriver):
    rig.start(1000)
    rig.advance(1)
    rig.connection.read("s", 0, "g", 0, 300)
    rig.connection.read("s", 1, "g", 100, 200)  # leaves a gap before row 100
    wait_until(lambda: rig.request("status", **GROUP)["read"] == [300, 0])
    rig.request("commit", **GROUP, positions=[250, 0])
    assert rig.request("status", **GROUP)["committed"] == [250, 0]
    assert rig.request("totals")["committed"] == 250
    assert rig.request("status", stream="s", group="new", **{"from": "now"})["read"] == [500, 500]
    rig.request("leave", **GROUP)
    assert rig.request("totals")["read"] == 1000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "invalid request"),
        (b"[]", "invalid request"),
        (b"\xff\xfe", "invalid request"),
        (b"{}", "unknown request 'None'\ndetail: requests: describe, status, read"),
        (b'{"request": []}', "unknown request"),
        (b'{"request": "status", "group": "g"}', "invalid request: KeyError('stream')"),
        (b'{"request": "status", "group": "g", "stream": "x"}', "unknown stream 'x'\ndetail: streams: s"),
        (b'{"request": "status", "group": "g", "stream": ["s"]}', "invalid request"),
        (b'{"request": "status", "group": "g", "stream": "s", "from": 3}', "invalid start position '3'"),
        (b'{"request": "start", "rate": 5}', "rate script 5 is invalid"),
        (b'{"request": "commit", "group": "g", "stream": "s", "positions": [9, 9]}', "0 were read"),
        (b'{"request": "commit", "group": "g", "stream": "s", "positions": "x"}', "invalid request"),
        (b'{"request": "read", "group": "g", "stream": "s", "partition": 7, "start": 0, "stop": 0}', "unknown partition 7"),
        (b'{"request": "read", "group": "g", "stream": "s", "partition": 0, "start": 0, "stop": 1}', "only 0 are produced"),
        (
            b'{"request": "read", "group": "g", "stream": "s", "partition": 0, "start": 0, "stop": 0, "columns": ["x"]}',
            "unknown column 'x'\ndetail: columns: key, f1",
        ),
        (b'{"request": "read", "group": "g", "stream": "s", "partition": 0, "start": 0, "stop": 0, "columns": []}', "no columns"),
    ],
)
def test_a_bad_request_is_answered_and_the_connection_stays_open(rig: InProcessDriver, line: bytes, message: str):
    with socket.create_connection(("127.0.0.1", rig.driver.port), 10) as sock, sock.makefile("rb") as file:
        sock.sendall(line + b"\n")
        assert message in json.loads(file.readline())["error"]
        sock.sendall(b'{"request": "totals"}\n')
        assert json.loads(file.readline())["produced"] == 0


def test_a_disconnected_consumer_does_not_affect_other_consumers(rig: InProcessDriver):
    rig.start(1_000_000)
    rig.advance(1)
    request = {"request": "read", **GROUP, "partition": 0, "start": 0, "stop": 500_000}
    with socket.create_connection(("127.0.0.1", rig.driver.port), 10) as sock:
        sock.sendall(json.dumps(request).encode() + b"\n")
        sock.recv(10)
    assert rig.request("status", **GROUP)["read"][1] == 0
    assert rig.connection.read("s", 0, "g", 0, 10).num_rows == 10


def test_an_oversized_request_closes_the_connection(rig: InProcessDriver):
    with socket.create_connection(("127.0.0.1", rig.driver.port), 10) as sock:
        try:
            sock.sendall(b"x" * (3 << 20))
            assert sock.recv(10) == b""
        except ConnectionError:
            pass
    assert rig.request("totals")["produced"] == 0


def test_streams_split_the_rate_by_share():
    with InProcessDriver(small_stream("a", share=0.25), small_stream("b", share=0.75, partitions=1)) as rig:
        rig.start(1000)
        rig.advance(2)
        produced = {name: rig.request("status", stream=name, group="g")["produced"] for name in "ab"}
        assert produced == {"a": [250, 250], "b": [1500]}


def test_a_full_queue_stops_all_streams():
    with InProcessDriver(small_stream("a", share=1), small_stream("b", share=3), capacity_rows=100) as rig:
        rig.start(100)
        for _ in range(50):
            rig.advance(0.1)
        totals = rig.request("totals")
        assert totals["overflowed"]
        assert totals["produced"] < 300
        rig.advance(10)
        assert rig.request("totals")["produced"] == totals["produced"]


# Rows as text


def read_lines(sock: socket.socket, count: int) -> list[str]:
    with sock.makefile("r") as file:
        return [file.readline() for _ in range(count)]


def test_line_clients_start_at_the_next_row_and_advance_the_read_position(rig: InProcessDriver):
    with socket.create_connection(("127.0.0.1", rig.driver.line_ports["s"][1]), 10) as sock:
        wait_until(lambda: rig.hub.streams["s"].queue._partitions[1].cursors != {})
        rig.start(1000)
        rig.advance(1)
        lines = read_lines(sock, 500)
        pool = build_pools(small_stream())[1]
        assert lines[499].split(",")[:2] == [str(pool.columns[name][499].as_py()) for name in ("key", "f1")]
        assert lines[0].endswith(",2023-11-14 22:13:20.002000\n")
        wait_until(lambda: rig.hub.streams["s"].queue.get_progress().read == (0, 500))
        assert rig.hub.streams["s"].queue.get_progress().committed == (0, 500)
        with socket.create_connection(("127.0.0.1", rig.driver.line_ports["s"][1]), 10) as late:
            wait_until(lambda: len(rig.hub.streams["s"].queue._partitions[1].cursors) == 2)
            rig.advance(1)
            assert read_lines(late, 500) == read_lines(sock, 500)
    assert rig.request("totals")["served_bytes"] > 1000


def test_a_dropped_line_connection_is_counted_and_its_cursor_removed(rig: InProcessDriver):
    rig.start(1000)
    with socket.create_connection(("127.0.0.1", rig.driver.line_ports["s"][0]), 10):
        wait_until(lambda: rig.hub.streams["s"].queue._partitions[0].cursors != {})
    wait_until(lambda: rig.advance(0.1) or rig.request("totals")["dropped"] == 1)
    assert rig.hub.streams["s"].queue._partitions[0].cursors == {}


def test_rows_of_a_stalled_line_client_stay_queued():
    with (
        InProcessDriver(small_stream(pool_rows=10_000), capacity_rows=10_000_000) as rig,
        socket.create_connection(("127.0.0.1", rig.driver.line_ports["s"][0]), 10),
    ):
        wait_until(lambda: rig.hub.streams["s"].queue._partitions[0].cursors != {})
        rig.start(2_000_000)
        rig.advance(4)
        totals = rig.request("totals")
        assert totals["produced"] == 8_000_000
        assert totals["read"] < 4_000_000  # the socket buffer limits the rows read


# The driver log


#  partition 0   row 0, 2, 4 …      pulled: 250 rows after 1 s, 500 after 2 s
#  partition 1   row 1, 3, 5 …      pulled: 500 rows after 2 s


def test_the_log_gives_pull_times_of_rows(rig: InProcessDriver):
    rig.start(500)
    rig.advance(1)
    rig.connection.read("s", 0, "g", 0, 250)
    wait_until(lambda: rig.request("status", **GROUP)["read"][0] == 250)
    rig.advance(1)
    for partition in (0, 1):
        rig.connection.read("s", partition, "g", 0, 500)
    wait_until(lambda: rig.request("status", **GROUP)["read"] == [500, 500])
    rig.advance(1)
    log = DriverLog.from_json(rig.request("log"))
    assert log.pulled_at("s", [BEGIN_US + 2000, BEGIN_US + 1_900_000]).tolist() == [BEGIN_US + SECOND, BEGIN_US + 2 * SECOND]
    assert log.pulled_at("s", [BEGIN_US + 2_500_000, BEGIN_US]).tolist() == [NO_TIME, NO_TIME]
    ends = [BEGIN_US, BEGIN_US + 2000, BEGIN_US + 2001, BEGIN_US + 2_000_001, BEGIN_US + 9 * SECOND]
    assert log.event_time_before("s", ends).tolist() == [
        NO_TIME,
        NO_TIME,
        BEGIN_US + 2000,
        BEGIN_US + 2 * SECOND,
        BEGIN_US + 9 * SECOND - 2000,
    ]
    assert log.time.tolist() == [BEGIN_US + second * SECOND for second in (1, 2, 3)]
    assert log.produced.tolist() == [500, 1000, 1500]
    assert log.read.tolist() == [0, 250, 1000]
    with pytest.raises(HeadraceError, match="no stream 'x'\ndetail: streams: s"):
        log.pulled_at("x", [])


def test_pull_times_include_late_rows():
    with InProcessDriver(small_stream(disorder=1.0, partitions=1)) as rig:
        rig.request("status", **GROUP)
        rig.start(100)
        for _ in range(3):
            rig.advance(1)
            stop = rig.request("status", **GROUP)["produced"][0]
            rig.connection.read("s", 0, "g", 0, stop)
            wait_until(lambda stop=stop: rig.request("status", **GROUP)["read"] == [stop])
        rig.start(None)
        log = DriverLog.from_json(rig.request("log"))
        assert log.pulled_at("s", [BEGIN_US + 900_000]).tolist() == [BEGIN_US + 2 * SECOND]


def test_an_empty_log_has_no_times(rig: InProcessDriver):
    log = DriverLog.from_json(rig.request("log"))
    assert log.event_time_before("s", np.array([BEGIN_US])).tolist() == [NO_TIME]
    assert log.pulled_at("s", np.array([BEGIN_US])).tolist() == [NO_TIME]
    assert log.event_time_before("s", []).tolist() == []


# The driver process


@pytest.mark.usefixtures("preloaded")
def test_a_driver_process_serves_rows():
    with DriverProcess([small_stream(), small_stream("t", "bids", share=2)], 1_000_000) as driver:
        assert driver.status().produced == 0
        started_at = driver.start(RateScript.constant(30_000))
        wait_until(lambda: driver.status().produced > 1000)
        driver.start(None)
        status = driver.status()
        assert (status.backlog, status.read, status.overflowed, status.dropped) == (status.produced, 0, False, 0)
        assert {name: len(ports) for name, ports in driver.line_ports.items()} == {"s": 2, "t": 2}
        table = TcpConnection(driver.address).read("t", 0, "g", 0, 100)
        assert table["time"][0].value > started_at
        wait_until(lambda: driver.status().read == 100)
        assert driver.log().event_time_before("t", [started_at + 1_000_000])[0] > started_at
        with pytest.raises(RequestRejectedError, match="refused 'start'"):
            driver._request("start", rate={})


@pytest.mark.usefixtures("preloaded")
def test_a_dead_driver_process_raises():
    with DriverProcess([small_stream()], 1000) as driver:
        driver._process.kill()
        driver._process.wait()
        with pytest.raises(HeadraceError, match="the driver process ended with code -9"):
            driver.status()


def test_a_failed_driver_start_raises_the_cause():
    with pytest.raises(HeadraceError, match="ended with code 1\ndetail: a driver needs streams"), DriverProcess([], 1000):
        pass


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "KeyError"),
        ({"streams": [3], "capacity_rows": 1}, "invalid driver configuration"),
        ({"streams": [small_stream().to_json()] * 2, "capacity_rows": 1}, "different names\ndetail: given: s, s"),
        ({"streams": [small_stream().to_json()], "capacity_rows": 0}, "capacity_rows is 0"),
    ],
)
def test_invalid_configurations_are_refused(config, message):
    with pytest.raises(HeadraceError, match=message):
        open_driver(config, time.time)
