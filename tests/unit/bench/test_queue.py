"""Stream queues of the driver: retention, group positions, pull times and overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.driver.queue import GroupCursor, StreamQueue
from headrace.bench.driver.rates import RateScript
from headrace.errors import HeadraceError
from support.in_process_driver import small_stream

SECOND = 1_000_000


def make_queue(rate: float, *ticks: float, capacity: int = 1000, **more) -> StreamQueue:
    queue = StreamQueue(small_stream(**{"partitions": 2, **more}), capacity)
    queue.start(RateScript.constant(rate), 0)
    for tick in ticks:
        queue.advance(round(tick * SECOND))
    return queue


def read_times(queue: StreamQueue, partition: int, start: int, stop: int, group: str = "g") -> list[int]:
    return queue.take(group, partition, start, stop).tolist()


def test_row_times_follow_the_schedule_at_any_tick_interval():
    late, often = make_queue(100, 5), make_queue(100, *np.arange(0, 5.001, 0.013), 5)
    for partition in (0, 1):
        assert read_times(late, partition, 0, 250) == read_times(often, partition, 0, 250)
    assert read_times(late, 0, 0, 3) == [10_000, 30_000, 50_000]
    assert read_times(late, 1, 0, 3) == [20_000, 40_000, 60_000]


def test_partitions_advance_evenly():
    queue = make_queue(100, 0.05)
    assert queue.get_progress().produced == (3, 2)


def test_a_clock_that_goes_back_removes_no_rows():
    queue = make_queue(100, 1, 0.5)
    assert queue.get_progress().produced == (50, 50)


def test_a_new_rate_continues_with_the_next_row():
    queue = make_queue(100)
    queue.start(RateScript.constant(10), SECOND)  # without a tick in between
    queue.advance(2 * SECOND)
    assert queue.get_progress().produced == (55, 55)
    assert read_times(queue, 0, 49, 52) == [990_000, 1_100_000, 1_300_000]
    queue.start(None, 2 * SECOND)
    queue.advance(9 * SECOND)
    assert queue.get_progress().produced == (55, 55)


@pytest.mark.parametrize("disorder", [0.0, 0.5])
def test_disorder_delays_event_times_up_to_the_bound(disorder):
    queue = make_queue(1000, 1, disorder=disorder, seed=4)
    back = np.arange(1000, 1_000_001, 2000) - np.array(read_times(queue, 0, 0, 500))
    assert back.min() >= 0
    assert back.max() <= disorder * SECOND
    assert (back.max() > 0.4 * SECOND) == (disorder > 0)
    assert read_times(queue, 1, 0, 500) == read_times(make_queue(1000, 0.3, 1, disorder=disorder, seed=4), 1, 0, 500)


def test_a_long_queue_has_no_gaps_between_slabs():
    queue = make_queue(1_000_000, 1, 1.7, 3, partitions=1, capacity=10_000_000)
    assert read_times(queue, 0, 400_000, 2_900_000) == list(range(400_001, 2_900_001))


def test_slabs_of_committed_rows_are_reused():
    queue = make_queue(1_000_000, 2, partitions=1, capacity=10_000_000)
    queue.get_progress("g")
    for second in range(3, 9):
        (produced,) = queue.get_progress().produced
        queue.record_read("g", 0, 0, produced, 0)
        queue.commit("g", [produced - 10])
        queue.advance(second * SECOND)
        assert read_times(queue, 0, produced - 10, produced + 100_000) == list(range(produced - 9, produced + 100_001))
    assert len(queue._partitions[0]._slabs) + len(queue._partitions[0]._free_slabs) < 6


# Reading and committing


def test_a_group_reads_only_produced_and_uncommitted_rows():
    queue = make_queue(100, 1)
    assert read_times(queue, 0, 10, 10) == []
    for start, stop, message in [(0, 51, "only 50 are produced yet"), (5, 4, "invalid row range"), (-1, 4, "invalid row range")]:
        with pytest.raises(HeadraceError, match=message):
            queue.take("g", 0, start, stop)
    with pytest.raises(HeadraceError, match="unknown partition 2\ndetail: partitions: 0 to 1"):
        queue.take("g", 2, 0, 1)
    queue.record_read("g", 0, 0, 20, SECOND)
    queue.commit("g", [20, 0])
    assert read_times(queue, 0, 20, 21) == [410_000]
    with pytest.raises(HeadraceError, match="committed the rows before 20"):
        queue.take("g", 0, 19, 21)


def test_an_invalid_commit_changes_no_position():
    queue = make_queue(100, 1)
    queue.get_progress("g")
    queue.record_read("g", 0, 0, 20, SECOND)
    for positions, message in [([20, 1], "0 were read"), ([20], "1 positions given for 2 partitions"), ([-1, 0], "before -1")]:
        with pytest.raises(HeadraceError, match=message):
            queue.commit("g", positions)
    assert queue.get_progress("g").committed == (0, 0)
    queue.commit("g", [20, 0])
    queue.commit("g", [10, 0])  # a commit never goes back
    assert queue.get_progress("g").committed == (20, 0)


# a: committed ───── 30      b: ── 10       retained from 10 on


def test_rows_are_retained_until_every_group_commits():
    queue = make_queue(100, 1)
    for group, stop in (("a", 30), ("b", 10)):
        queue.take(group, 0, 0, stop)
        queue.record_read(group, 0, 0, stop, SECOND)
    queue.commit("a", [30, 0])
    assert read_times(queue, 0, 0, 1, "b") == [10_000]
    queue.commit("b", [10, 0])
    assert queue.get_progress("late").committed == (10, 0)
    assert queue.get_progress("new", from_now=True).read == (50, 50)
    assert queue.get_progress() == queue.get_progress("late")


def test_only_the_first_request_sets_the_start_of_a_group():
    queue = make_queue(100, 1)
    assert queue.get_progress("g").committed == (0, 0)
    assert queue.get_progress("g", from_now=True).committed == (0, 0)


def test_a_removed_group_retains_no_rows():
    queue = make_queue(100, 1, capacity=60)
    queue.get_progress("stuck")
    queue.take("g", 0, 0, 50), queue.take("g", 1, 0, 50)
    for partition in (0, 1):
        queue.record_read("g", partition, 0, 50, SECOND)
    queue.commit("g", [50, 50])
    queue.remove_group("stuck", SECOND)
    queue.remove_group("nobody", SECOND)
    queue.advance(2 * SECOND)
    assert not queue.overflowed
    assert queue.get_progress("other").committed == (50, 50)


def test_a_full_queue_stops_row_production():
    queue = make_queue(100, 1, 1.2, 1.4, 9, capacity=60)
    assert queue.overflowed
    assert queue.get_progress().produced == (60, 60)
    assert not queue.schedule.is_running
    assert queue.schedule.count_due(100 * SECOND) == 120
    queue.start(RateScript.constant(100), 10 * SECOND)
    assert not queue.overflowed


def test_a_commit_frees_capacity():
    queue = make_queue(100, 1, capacity=60)
    for second in range(2, 9):
        produced = queue.get_progress("g").produced
        for partition, stop in enumerate(produced):
            queue.record_read("g", partition, 0, stop, second * SECOND)
        queue.commit("g", produced)
        queue.advance(second * SECOND)
    assert not queue.overflowed
    assert queue.get_progress().produced == (400, 400)


def test_a_follower_starts_at_the_next_row():
    queue = make_queue(100, 1)
    assert queue.add_follower("line", 1) == 50
    assert len(queue.next_chunk(1, 50)) == 0
    queue.advance(2 * SECOND)
    assert len(queue.next_chunk(1, 50)) == 50
    queue.record_consumed({"line": 100}, 1, 2 * SECOND)
    assert queue.get_progress("late").committed == (0, 100)


# Pull times            row     0 ──── 10 ──── 30 ──── 40
#                       time        1        2      3       of the slowest group


def test_pull_times_follow_the_slowest_group():
    queue = make_queue(100, 1, partitions=1)
    for group in ("a", "b"):
        queue.get_progress(group)
    for group, stop, second in [("a", 30, 1), ("b", 10, 1), ("b", 30, 2), ("b", 40, 2), ("a", 40, 3)]:
        queue.record_read(group, 0, 0, stop, second * SECOND)
    assert queue.list_pulls() == [(1 * SECOND, 0, 10), (2 * SECOND, 0, 30), (3 * SECOND, 0, 40)]
    queue.get_progress("c")  # starts again at the first retained row
    assert queue.list_pulls() == []
    queue.record_read("c", 0, 0, 50, 4 * SECOND)
    assert queue.list_pulls() == [(4 * SECOND, 0, 40)]
    queue.remove_group("a", 5 * SECOND)
    assert queue.list_pulls() == [(4 * SECOND, 0, 40)]
    queue.remove_group("b", 6 * SECOND)
    assert queue.list_pulls() == [(4 * SECOND, 0, 40), (6 * SECOND, 0, 50)]


def test_a_late_group_resets_only_pull_times_of_uncommitted_rows():
    queue = make_queue(100, 1, partitions=1)
    queue.get_progress("a")
    for stop in (20, 40):
        queue.record_read("a", 0, 0, stop, stop * SECOND)
    queue.commit("a", [30])
    queue.get_progress("b")
    assert queue.list_pulls() == [(20 * SECOND, 0, 20), (40 * SECOND, 0, 30)]


def test_pulls_within_a_few_milliseconds_are_merged():
    queue = make_queue(100, 1, partitions=1)
    queue.get_progress("g")
    for stop, when in [(10, 0), (20, 1000), (30, 4999), (40, 5000)]:
        queue.record_read("g", 0, 0, stop, SECOND + when)
    assert queue.list_pulls() == [(SECOND + 4999, 0, 30), (SECOND + 5000, 0, 40)]


# Ranges read concurrently, in any order


@given(st.lists(st.integers(0, 11), max_size=40))
def test_the_read_position_stops_at_the_first_gap(parts):
    cursor, done = GroupCursor(100), set()
    for part in parts:
        cursor.record_read(100 + 10 * part, 110 + 10 * part)
        done.add(part)
        expected = next((p for p in range(12) if p not in done), 12)
        assert cursor.read == 100 + 10 * expected
    assert cursor.committed == 100


def test_read_ranges_can_overlap():
    cursor = GroupCursor(0)
    cursor.record_read(5, 9)
    cursor.record_read(5, 7)
    assert cursor.read == 0
    cursor.record_read(0, 6)
    assert cursor.read == 9
