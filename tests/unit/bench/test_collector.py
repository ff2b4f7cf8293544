"""Result collector: lines, blocks, connections and broken input."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.measure.collector import UNKNOWN_TIME, ConnectionBuffer, Emissions, ResultCollector, parse_lines
from headrace.errors import HeadraceError

DEADLINE = 20.0


def list_rows(emissions: Emissions) -> list[tuple[int, str, int, int, int]]:
    names = [emissions.query_names[code] for code in emissions.query_code]
    columns = (emissions.arrival_us, emissions.window_end_us, emissions.rows, emissions.event_time_us)
    arrival, end, rows, event = (column.tolist() for column in columns)
    return list(zip(arrival, names, end, rows, event, strict=True))


def parse_rows(text: bytes) -> tuple[list[tuple[int, str, int, int, int]], list[bytes]]:
    emissions, broken = parse_lines(text, np.arange(text.count(b"\n")))
    return list_rows(emissions), broken


def test_lines_with_and_without_an_event_time():
    rows, broken = parse_rows(b"q1\t8000000\t5\nq2\t9000000\t1\t8999999\nq1\t12000000\t7\r\n")
    assert rows == [
        (0, "q1", 8_000_000, 5, UNKNOWN_TIME),
        (1, "q2", 9_000_000, 1, 8_999_999),
        (2, "q1", 12_000_000, 7, UNKNOWN_TIME),
    ]
    assert broken == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"q1",
        b"q1\t5",
        b"\t5\t5",
        b"q1\tx\t5",
        b"q1\t5\t-1",
        b"q1\t5\t1.5",
        b"q1\t5\t5\t",
        b"q1\t5\t5\t6\t7",
        b"q1\t" + b"9" * 19 + b"\t1",
    ],
)
def test_a_broken_line_is_reported_and_other_lines_are_parsed(line: bytes):
    rows, broken = parse_rows(b"a\t1\t1\n" + line + b"\nb\t2\t2\n")
    assert [row[:2] for row in rows] == [(0, "a"), (2, "b")]
    assert broken == [line + b"\n"]


def test_a_query_name_can_hold_any_bytes_except_tabs_and_newlines():
    rows, _ = parse_rows("größte Gebote, je Stück\t1\t1\n".encode() + b"\xff\t2\t2\n")
    assert [row[1] for row in rows] == ["größte Gebote, je Stück", "\ufffd"]


def test_empty_input_gives_no_emissions():
    assert parse_rows(b"") == ([], [])
    assert len(Emissions.concat([])) == 0


def test_concat_merges_query_names():
    first, _ = parse_lines(b"a\t1\t1\nb\t2\t2\n", np.array([10, 11]))
    second, _ = parse_lines(b"c\t3\t3\nb\t4\t4\n", np.array([12, 13]))
    both = Emissions.concat([first, Emissions.empty(), second])
    assert both.query_names == ("a", "b", "c")
    assert [row[:3] for row in list_rows(both)] == [(10, "a", 1), (11, "b", 2), (12, "c", 3), (13, "b", 4)]
    assert [row[:3] for row in list_rows(both.filter_queries({"b", "z"}))] == [(11, "b", 2), (13, "b", 4)]


def test_a_line_has_the_arrival_time_of_its_last_byte():
    #  block at 100      at 200          at 300
    #  a 1 1 NL | b 2    | 2 NL c 3 3    | NL
    buffer = ConnectionBuffer()
    buffer.blocks = [(100, b"a\t1\t1\nb\t2"), (200, b"\t2\nc\t3\t3"), (300, b"\n")]
    lines, arrivals = buffer.take_lines()
    assert (lines, arrivals.tolist()) == (b"a\t1\t1\nb\t2\t2\nc\t3\t3\n", [100, 200, 300])


def test_a_partial_line_is_buffered_until_its_newline():
    buffer = ConnectionBuffer([(100, b"a\t1\t1\nb\t2")])
    assert buffer.take_lines()[0] == b"a\t1\t1\n"
    assert buffer.take_lines()[0] == b""
    buffer.blocks.append((250, b"\t2\n"))
    lines, arrivals = buffer.take_lines()
    assert (lines, arrivals.tolist()) == (b"b\t2\t2\n", [250])


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_line_without_newline_is_broken_after_close(taken_before: bool):
    buffer = ConnectionBuffer([(100, b"a\t1\t1\nb\t2\t12")])  # the number was 12345
    lines = buffer.take_lines()[0] if taken_before else b""
    buffer.closed = True
    rest, arrivals = buffer.take_lines()
    assert len(arrivals) == rest.count(b"\n")
    rows, broken = parse_rows(lines + rest)
    assert ([row[1] for row in rows], len(broken)) == (["a"], 1)
    assert buffer.take_lines()[0] == b""


def test_the_partial_line_buffer_is_bounded():
    buffer = ConnectionBuffer([(100, b"x" * 200_000)])
    buffer.take_lines()
    assert len(buffer.partial_line) < 1000
    buffer.blocks.append((101, b"\t1\t1\na\t1\t1\n"))
    rows, broken = parse_rows(buffer.take_lines()[0])
    assert ([row[1] for row in rows], len(broken)) == (["a"], 1)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.lists(st.booleans(), min_size=31, max_size=31))
def test_block_boundaries_do_not_change_the_lines(lengths: list[int], take_after: list[bool]):
    text = b"".join(b"q%d\t%d\t%d\n" % (number % 3, number * 1000, number) for number in range(20))
    cuts = [0, *(cut for cut in itertools.accumulate(lengths) if cut < len(text)), len(text)]
    buffer, lines = ConnectionBuffer(), []
    for index, (start, stop) in enumerate(itertools.pairwise(cuts)):
        buffer.blocks.append((index, text[start:stop]))
        if take_after[index]:
            lines.append(buffer.take_lines())
    lines.append(buffer.take_lines())
    assert b"".join(line for line, _ in lines) == text
    ends = [end for end, byte in enumerate(text) if byte == ord("\n")]
    blocks = [next(index for index, stop in enumerate(cuts[1:]) if stop > end) for end in ends]
    assert np.concatenate([arrivals for _, arrivals in lines]).tolist() == blocks


def send_blocks(collector: ResultCollector, *blocks: bytes) -> None:
    host, port = collector.address.split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
        for block in blocks:
            connection.sendall(block)


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise TimeoutError


def test_results_of_several_connections_are_collected():
    with ResultCollector(clock=lambda: 12.5) as collector:
        senders = [
            threading.Thread(target=send_blocks, args=(collector, b"q%d\t1000\t5\n" % number, b"q%d\t2000\t6\t1999\n" % number))
            for number in range(8)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    emissions = collector.take()
    assert sorted(emissions.query_names) == [f"q{number}" for number in range(8)]
    assert int(emissions.rows.sum()) == 8 * 11
    assert set(emissions.arrival_us.tolist()) == {12_500_000}
    assert (collector.broken_lines, collector.broken_examples) == (0, ())


def test_take_returns_each_result_once():
    taken: list[Emissions] = []
    with ResultCollector() as collector:
        send_blocks(collector, b"a\t1\t1\n")
        wait_until(lambda: bool(taken.append(collector.take()) or sum(map(len, taken)) == 1))
        send_blocks(collector, b"a\t2\t1\n")
    assert collector.take().window_end_us.tolist() == [2]
    assert len(collector.take()) == 0


def test_broken_lines_are_counted_with_examples():
    with ResultCollector() as collector:
        send_blocks(collector, b"a\t1\t1\n", *(b"nonsense %d\n" % number for number in range(9)), b"a\t2\t")
    assert len(collector.take()) == 1
    assert collector.broken_lines == 10
    assert collector.broken_examples == tuple(f"nonsense {number}" for number in range(5))


def test_a_connection_reset_keeps_earlier_results():
    with ResultCollector() as collector:
        host, port = collector.address.split(":")
        connection = socket.create_connection((host, int(port)), timeout=DEADLINE)
        connection.sendall(b"a\t1\t1\n")
        taken: list[Emissions] = []
        wait_until(lambda: bool(taken.append(collector.take()) or sum(map(len, taken)) == 1))
        assert collector.open_connections == 1
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
        connection.close()
        wait_until(lambda: collector.open_connections == 0)
        send_blocks(collector, b"b\t1\t1\n")
    assert list_rows(collector.take())[0][1] == "b"


def test_a_large_block_is_parsed_completely():
    text = b"".join(b"q%d\t%d\t1\n" % (number % 64, number) for number in range(50_000))
    with ResultCollector() as collector:
        send_blocks(collector, text)
    emissions = collector.take()
    assert np.array_equal(emissions.window_end_us, np.arange(50_000))
    assert (len(emissions.query_names), int(emissions.rows.sum())) == (64, 50_000)


def test_take_raises_after_a_collector_failure():
    def clock() -> float:
        raise OverflowError("no time")

    with ResultCollector(clock=clock) as collector:
        send_blocks(collector, b"a\t1\t1\n")
    with pytest.raises(HeadraceError, match="no time"):
        collector.take()
