"""Windows, event time and row buffers of the single-process systems."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.systems.adapter import IDLE_SECONDS, AlignedWindows, EventTimeClock, count_by_window
from headrace.bench.systems.duckdb import OpenWindowRows
from headrace.model.types import TIMESTAMP

SCHEMA = pa.schema([("v", pa.int64()), ("time", TIMESTAMP)])


def make_rows(*times: int) -> pa.Table:
    return pa.table([pa.array(range(len(times))), pa.array(times, pa.int64()).cast(TIMESTAMP)], SCHEMA)


def list_times(table: pa.Table) -> list[int]:
    return table.column("time").cast(pa.int64()).to_pylist()


# 0     4     8     12    16
# ├─────┼─────┼─────┼─────┤
# [───────────)
#       [───────────)
#             [───────────)
def test_windows_end_every_slide():
    windows = AlignedWindows(8, 4)
    assert list(windows.ends_between(7, 16)) == [8, 12, 16]
    assert list(windows.ends_between(8, 15)) == [12]
    assert list(windows.slices_of(12)) == [1, 2]


# 0  2     5  7    10 12
# ├──┼─────┼──┼─────┼──┤      size 7, slide 5: slices of 1
# [───────────)
#          [────────────)
def test_windows_whose_size_is_no_multiple_of_the_slide():
    windows = AlignedWindows(7, 5)
    assert list(windows.ends_between(0, 17)) == [2, 7, 12, 17]
    assert windows.slice_length == 1
    assert list(windows.slices_of(7)) == list(range(7))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(-50, 50), st.integers(0, 60))
def test_window_ends_match_aligned_starts(size, slide, after, span):
    expected = [end for end in range(after + 1, after + span + 1) if (end - size) % slide == 0]
    assert list(AlignedWindows(size, slide).ends_between(after, after + span)) == expected


def test_event_time_follows_the_slowest_partition():
    clock = EventTimeClock(["a", "b"], clock=lambda: 0.0)
    assert clock.get_event_time() is None
    clock.advance("a", 10)
    assert clock.get_event_time() is None
    clock.advance("b", 7)
    clock.advance("a", 9)
    assert clock.get_event_time() == 7
    assert clock.get_event_time(["a"]) == 10


def test_an_idle_partition_does_not_hold_back_event_time():
    now = [0.0]
    clock = EventTimeClock(["a", "b"], clock=lambda: now[0])
    clock.advance("a", 10)
    clock.advance("b", 7)
    clock.mark_empty("b")
    now[0] = IDLE_SECONDS
    clock.mark_empty("b")
    assert clock.get_event_time() == 7
    now[0] = IDLE_SECONDS + 0.01
    assert clock.get_event_time() == 10
    clock.advance("b", 8)
    assert clock.get_event_time() == 8


def test_event_time_is_none_while_all_partitions_are_idle():
    now = [0.0]
    clock = EventTimeClock(["a"], clock=lambda: now[0])
    now[0] = 2 * IDLE_SECONDS
    assert clock.get_event_time() is None


# wall clock   0 ……… start ……… start + idle
# a                    10
# b                                            (no rows: idle only now)
def test_no_partition_is_idle_before_the_first_row():
    now = [0.0]
    clock = EventTimeClock(["a", "b"], clock=lambda: now[0])
    now[0] = start = 5 * IDLE_SECONDS  # the driver starts long after the system
    clock.mark_empty("b")
    clock.advance("a", 10)
    assert clock.get_event_time() is None
    now[0] = start + IDLE_SECONDS + 0.01
    assert clock.get_event_time() == 10


# blocks   [1 2 3]  [4 5]  [5 9]
# window     [2    ……    5)
def test_select_between_returns_the_rows_of_a_window():
    buffer = OpenWindowRows(SCHEMA, "time")
    assert [buffer.add(make_rows(1, 3, 2)), buffer.add(make_rows(4, 4)), buffer.add(make_rows(5, 9))] == [3, 4, 9]
    assert list_times(buffer.select_between(2, 5)) == [3, 2, 4, 4]
    assert list_times(buffer.select_between(10, 20)) == []


def test_rows_of_closed_windows_are_evicted():
    buffer = OpenWindowRows(SCHEMA, "time")
    buffer.add(make_rows(1, 3))
    buffer.add(make_rows(2, 8))
    full = buffer.nbytes
    buffer.evict_before(4)
    assert 0 < buffer.nbytes < full
    assert list_times(buffer.select_between(0, 10)) == [2, 8]
    buffer.evict_before(9)
    assert buffer.nbytes == 0


def test_results_are_counted_by_window():
    ends = pa.chunked_array([[1000, 1000, 2000, 1000], [], [1000]], pa.int64()).cast(TIMESTAMP)
    assert sorted(count_by_window(ends)) == [(1000, 4), (2000, 1)]
