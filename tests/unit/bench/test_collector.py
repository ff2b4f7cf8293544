"""Results on their way in: lines, blocks, connections, and what is broken."""

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


def rows_of(emissions: Emissions) -> list[tuple[int, str, int, int, int]]:
    names = [emissions.query_names[code] for code in emissions.query_code]
    columns = (emissions.arrival_us, emissions.window_end_us, emissions.rows, emissions.event_time_us)
    arrival, end, rows, event = (column.tolist() for column in columns)
    return list(zip(arrival, names, end, rows, event, strict=True))


def parsed(text: bytes) -> tuple[list[tuple[int, str, int, int, int]], list[bytes]]:
    emissions, broken = parse_lines(text, np.arange(text.count(b"\n")))
    return rows_of(emissions), broken


def test_lines_with_and_without_an_event_time():
    rows, broken = parsed(b"q1\t8000000\t5\nq2\t9000000\t1\t8999999\nq1\t12000000\t7\r\n")
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
def test_a_broken_line_is_named_and_the_others_count(line: bytes):
    rows, broken = parsed(b"a\t1\t1\n" + line + b"\nb\t2\t2\n")
    assert [row[:2] for row in rows] == [(0, "a"), (2, "b")]
    assert broken == [line + b"\n"]


def test_a_name_may_hold_anything_but_tabs_and_newlines():
    rows, _ = parsed("größte Gebote, je Stück\t1\t1\n".encode() + b"\xff\t2\t2\n")
    assert [row[1] for row in rows] == ["größte Gebote, je Stück", "\ufffd"]


def test_nothing_is_no_emissions():
    assert parsed(b"") == ([], [])
    assert len(Emissions.concat([])) == 0


def test_emissions_are_put_together_by_name():
    first, _ = parse_lines(b"a\t1\t1\nb\t2\t2\n", np.array([10, 11]))
    second, _ = parse_lines(b"c\t3\t3\nb\t4\t4\n", np.array([12, 13]))
    both = Emissions.concat([first, Emissions.empty(), second])
    assert both.query_names == ("a", "b", "c")
    assert [row[:3] for row in rows_of(both)] == [(10, "a", 1), (11, "b", 2), (12, "c", 3), (13, "b", 4)]
    assert [row[:3] for row in rows_of(both.filter_queries({"b", "z"}))] == [(11, "b", 2), (13, "b", 4)]


def test_a_line_arrives_with_its_last_byte():
    #  block at 100      at 200          at 300
    #  a 1 1 NL | b 2    | 2 NL c 3 3    | NL
    inbox = ConnectionBuffer()
    inbox.blocks = [(100, b"a\t1\t1\nb\t2"), (200, b"\t2\nc\t3\t3"), (300, b"\n")]
    lines, arrivals = inbox.take_lines()
    assert (lines, arrivals.tolist()) == (b"a\t1\t1\nb\t2\t2\nc\t3\t3\n", [100, 200, 300])


def test_the_beginning_of_a_line_waits_for_its_end():
    inbox = ConnectionBuffer([(100, b"a\t1\t1\nb\t2")])
    assert inbox.take_lines()[0] == b"a\t1\t1\n"
    assert inbox.take_lines()[0] == b""
    inbox.blocks.append((250, b"\t2\n"))
    lines, arrivals = inbox.take_lines()
    assert (lines, arrivals.tolist()) == (b"b\t2\t2\n", [250])


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_line_cut_off_is_broken_though_it_looks_whole(taken_before: bool):
    inbox = ConnectionBuffer([(100, b"a\t1\t1\nb\t2\t12")])  # the number was 12345
    lines = inbox.take_lines()[0] if taken_before else b""
    inbox.closed = True
    rest, arrivals = inbox.take_lines()
    assert len(arrivals) == rest.count(b"\n")
    rows, broken = parsed(lines + rest)
    assert ([row[1] for row in rows], len(broken)) == (["a"], 1)
    assert inbox.take_lines()[0] == b""


def test_bytes_without_a_newline_do_not_pile_up():
    inbox = ConnectionBuffer([(100, b"x" * 200_000)])
    inbox.take_lines()
    assert len(inbox.partial_line) < 1000
    inbox.blocks.append((101, b"\t1\t1\na\t1\t1\n"))
    rows, broken = parsed(inbox.take_lines()[0])
    assert ([row[1] for row in rows], len(broken)) == (["a"], 1)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.lists(st.booleans(), min_size=31, max_size=31))
def test_cuts_between_blocks_and_takes_do_not_matter(lengths: list[int], take_after: list[bool]):
    text = b"".join(b"q%d\t%d\t%d\n" % (number % 3, number * 1000, number) for number in range(20))
    cuts = [0, *(cut for cut in itertools.accumulate(lengths) if cut < len(text)), len(text)]
    inbox, lines = ConnectionBuffer(), []
    for place, (start, stop) in enumerate(itertools.pairwise(cuts)):
        inbox.blocks.append((place, text[start:stop]))
        if take_after[place]:
            lines.append(inbox.take_lines())
    lines.append(inbox.take_lines())
    assert b"".join(line for line, _ in lines) == text
    ends = [end for end, byte in enumerate(text) if byte == ord("\n")]
    blocks = [next(place for place, stop in enumerate(cuts[1:]) if stop > end) for end in ends]
    assert np.concatenate([arrivals for _, arrivals in lines]).tolist() == blocks


def send(collector: ResultCollector, *blocks: bytes) -> None:
    host, port = collector.address.split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
        for block in blocks:
            connection.sendall(block)


def wait(until: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE / 0.01)):
        if until():
            return
        pause.wait(0.01)
    raise TimeoutError


def test_results_of_several_connections_arrive():
    with ResultCollector(clock=lambda: 12.5) as collector:
        senders = [
            threading.Thread(target=send, args=(collector, b"q%d\t1000\t5\n" % number, b"q%d\t2000\t6\t1999\n" % number))
            for number in range(8)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    found = collector.take()
    assert sorted(found.query_names) == [f"q{number}" for number in range(8)]
    assert int(found.rows.sum()) == 8 * 11
    assert set(found.arrival_us.tolist()) == {12_500_000}
    assert (collector.broken_lines, collector.broken_examples) == (0, ())


def test_what_was_taken_is_not_given_twice():
    taken: list[Emissions] = []
    with ResultCollector() as collector:
        send(collector, b"a\t1\t1\n")
        wait(lambda: bool(taken.append(collector.take()) or sum(map(len, taken)) == 1))
        send(collector, b"a\t2\t1\n")
    assert collector.take().window_end_us.tolist() == [2]
    assert len(collector.take()) == 0


def test_broken_lines_are_counted_and_the_first_ones_shown():
    with ResultCollector() as collector:
        send(collector, b"a\t1\t1\n", *(b"nonsense %d\n" % number for number in range(9)), b"a\t2\t")
    assert len(collector.take()) == 1
    assert collector.broken_lines == 10
    assert collector.broken_examples == tuple(f"nonsense {number}" for number in range(5))


def test_a_connection_reset_keeps_what_came_before():
    with ResultCollector() as collector:
        host, port = collector.address.split(":")
        connection = socket.create_connection((host, int(port)), timeout=DEADLINE)
        connection.sendall(b"a\t1\t1\n")
        found: list[Emissions] = []
        wait(lambda: bool(found.append(collector.take()) or sum(map(len, found)) == 1))
        assert collector.open_connections == 1
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
        connection.close()
        wait(lambda: collector.open_connections == 0)
        send(collector, b"b\t1\t1\n")
    assert rows_of(collector.take())[0][1] == "b"


def test_a_large_block_is_parsed_whole():
    text = b"".join(b"q%d\t%d\t1\n" % (number % 64, number) for number in range(50_000))
    with ResultCollector() as collector:
        send(collector, text)
    found = collector.take()
    assert np.array_equal(found.window_end_us, np.arange(50_000))
    assert (len(found.query_names), int(found.rows.sum())) == (64, 50_000)


def test_a_collector_that_failed_says_so():
    def clock() -> float:
        raise OverflowError("no time")

    with ResultCollector(clock) as collector:
        send(collector, b"a\t1\t1\n")
    with pytest.raises(HeadraceError, match="no time"):
        collector.take()
