"""Queues: what is kept for whom, who is how far, and what happens when nobody comes."""

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


def queue_at(rate: float, *ticks: float, capacity: int = 1000, **more) -> StreamQueue:
    queue = StreamQueue(small_stream(**{"partitions": 2, **more}), capacity)
    queue.start(RateScript.constant(rate), 0)
    for tick in ticks:
        queue.advance(round(tick * SECOND))
    return queue


def times(queue: StreamQueue, partition: int, start: int, stop: int, group: str = "g") -> list[int]:
    return queue.take(group, partition, start, stop).tolist()


def test_rows_are_born_on_schedule_whenever_the_clock_is_looked_at():
    late, often = queue_at(100, 5), queue_at(100, *np.arange(0, 5.001, 0.013), 5)
    for partition in (0, 1):
        assert times(late, partition, 0, 250) == times(often, partition, 0, 250)
    assert times(late, 0, 0, 3) == [10_000, 30_000, 50_000]
    assert times(late, 1, 0, 3) == [20_000, 40_000, 60_000]


def test_partitions_are_equally_far():
    queue = queue_at(100, 0.05)
    assert queue.get_progress().produced == (3, 2)


def test_a_clock_that_goes_back_takes_nothing_away():
    queue = queue_at(100, 1, 0.5)
    assert queue.get_progress().produced == (50, 50)


def test_a_new_rate_goes_on_with_the_next_row():
    queue = queue_at(100)
    queue.start(RateScript.constant(10), SECOND)  # not looked at in between
    queue.advance(2 * SECOND)
    assert queue.get_progress().produced == (55, 55)
    assert times(queue, 0, 49, 52) == [990_000, 1_100_000, 1_300_000]
    queue.start(None, 2 * SECOND)
    queue.advance(9 * SECOND)
    assert queue.get_progress().produced == (55, 55)


@pytest.mark.parametrize("disorder", [0.0, 0.5])
def test_disorder_moves_times_back_by_up_to_so_much(disorder):
    queue = queue_at(1000, 1, disorder=disorder, seed=4)
    back = np.arange(1000, 1_000_001, 2000) - np.array(times(queue, 0, 0, 500))
    assert back.min() >= 0
    assert back.max() <= disorder * SECOND
    assert (back.max() > 0.4 * SECOND) == (disorder > 0)
    assert times(queue, 1, 0, 500) == times(queue_at(1000, 0.3, 1, disorder=disorder, seed=4), 1, 0, 500)


def test_a_long_queue_has_no_seams():
    queue = queue_at(1_000_000, 1, 1.7, 3, partitions=1, capacity=10_000_000)
    assert times(queue, 0, 400_000, 2_900_000) == list(range(400_001, 2_900_001))


def test_memory_that_was_given_up_is_used_again():
    queue = queue_at(1_000_000, 2, partitions=1, capacity=10_000_000)
    queue.get_progress("g")
    for second in range(3, 9):
        (produced,) = queue.get_progress().produced
        queue.record_read("g", 0, 0, produced, 0)
        queue.commit("g", [produced - 10])
        queue.advance(second * SECOND)
        assert times(queue, 0, produced - 10, produced + 100_000) == list(range(produced - 9, produced + 100_001))
    assert len(queue._partitions[0]._slabs) + len(queue._partitions[0]._free_slabs) < 6


# Reading and committing


def test_a_group_reads_what_is_there_and_not_given_up():
    queue = queue_at(100, 1)
    assert times(queue, 0, 10, 10) == []
    for start, stop, says in [(0, 51, "only 50 are produced yet"), (5, 4, "invalid row range"), (-1, 4, "invalid row range")]:
        with pytest.raises(HeadraceError, match=says):
            queue.take("g", 0, start, stop)
    with pytest.raises(HeadraceError, match="unknown partition 2\ndetail: partitions: 0 to 1"):
        queue.take("g", 2, 0, 1)
    queue.record_read("g", 0, 0, 20, SECOND)
    queue.commit("g", [20, 0])
    assert times(queue, 0, 20, 21) == [410_000]
    with pytest.raises(HeadraceError, match="committed the rows before 20"):
        queue.take("g", 0, 19, 21)


def test_a_commit_is_checked_before_any_of_it_is_done():
    queue = queue_at(100, 1)
    queue.get_progress("g")
    queue.record_read("g", 0, 0, 20, SECOND)
    for positions, says in [([20, 1], "0 were read"), ([20], "1 positions given for 2 partitions"), ([-1, 0], "before -1")]:
        with pytest.raises(HeadraceError, match=says):
            queue.commit("g", positions)
    assert queue.get_progress("g").committed == (0, 0)
    queue.commit("g", [20, 0])
    queue.commit("g", [10, 0])  # nothing comes back
    assert queue.get_progress("g").committed == (20, 0)


# a: committed ───── 30      b: ── 10       kept from 10 on


def test_rows_stay_until_every_group_has_committed_them():
    queue = queue_at(100, 1)
    for group, stop in (("a", 30), ("b", 10)):
        queue.take(group, 0, 0, stop)
        queue.record_read(group, 0, 0, stop, SECOND)
    queue.commit("a", [30, 0])
    assert times(queue, 0, 0, 1, "b") == [10_000]
    queue.commit("b", [10, 0])
    assert queue.get_progress("late").committed == (10, 0)
    assert queue.get_progress("new", from_now=True).read == (50, 50)
    assert queue.get_progress() == queue.get_progress("late")


def test_only_the_first_request_says_where_a_group_begins():
    queue = queue_at(100, 1)
    assert queue.get_progress("g").committed == (0, 0)
    assert queue.get_progress("g", from_now=True).committed == (0, 0)


def test_a_group_that_left_keeps_nothing():
    queue = queue_at(100, 1, capacity=60)
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


def test_a_full_queue_ends_the_birth_of_rows():
    queue = queue_at(100, 1, 1.2, 1.4, 9, capacity=60)
    assert queue.overflowed
    assert queue.get_progress().produced == (60, 60)
    assert not queue.schedule.is_running
    assert queue.schedule.count_due(100 * SECOND) == 120
    queue.start(RateScript.constant(100), 10 * SECOND)
    assert not queue.overflowed


def test_committing_makes_room():
    queue = queue_at(100, 1, capacity=60)
    for second in range(2, 9):
        produced = queue.get_progress("g").produced
        for partition, stop in enumerate(produced):
            queue.record_read("g", partition, 0, stop, second * SECOND)
        queue.commit("g", produced)
        queue.advance(second * SECOND)
    assert not queue.overflowed
    assert queue.get_progress().produced == (400, 400)


def test_text_is_followed_from_the_next_row_on():
    queue = queue_at(100, 1)
    assert queue.add_follower("line", 1) == 50
    assert len(queue.next_chunk(1, 50)) == 0
    queue.advance(2 * SECOND)
    assert len(queue.next_chunk(1, 50)) == 50
    queue.record_consumed({"line": 100}, 1, 2 * SECOND)
    assert queue.get_progress("late").committed == (0, 100)


# When was it pulled?   row     0 ──── 10 ──── 30 ──── 40
#                       time        1        2      3       by the slowest


def test_the_slowest_group_counts():
    queue = queue_at(100, 1, partitions=1)
    for group in ("a", "b"):
        queue.get_progress(group)
    for group, stop, second in [("a", 30, 1), ("b", 10, 1), ("b", 30, 2), ("b", 40, 2), ("a", 40, 3)]:
        queue.record_read(group, 0, 0, stop, second * SECOND)
    assert queue.list_pulls() == [(1 * SECOND, 0, 10), (2 * SECOND, 0, 30), (3 * SECOND, 0, 40)]
    queue.get_progress("c")  # it wants everything again
    assert queue.list_pulls() == []
    queue.record_read("c", 0, 0, 50, 4 * SECOND)
    assert queue.list_pulls() == [(4 * SECOND, 0, 40)]
    queue.remove_group("a", 5 * SECOND)
    assert queue.list_pulls() == [(4 * SECOND, 0, 40)]
    queue.remove_group("b", 6 * SECOND)
    assert queue.list_pulls() == [(4 * SECOND, 0, 40), (6 * SECOND, 0, 50)]


def test_a_late_group_takes_back_only_what_it_still_has_to_pull():
    queue = queue_at(100, 1, partitions=1)
    queue.get_progress("a")
    for stop in (20, 40):
        queue.record_read("a", 0, 0, stop, stop * SECOND)
    queue.commit("a", [30])
    queue.get_progress("b")
    assert queue.list_pulls() == [(20 * SECOND, 0, 20), (40 * SECOND, 0, 30)]


def test_pulls_of_one_moment_are_one():
    queue = queue_at(100, 1, partitions=1)
    queue.get_progress("g")
    for stop, when in [(10, 0), (20, 1000), (30, 4999), (40, 5000)]:
        queue.record_read("g", 0, 0, stop, SECOND + when)
    assert queue.list_pulls() == [(SECOND + 4999, 0, 30), (SECOND + 5000, 0, 40)]


# Parts read by several readers at once, in any order


@given(st.lists(st.integers(0, 11), max_size=40))
def test_read_is_where_nothing_is_missing(parts):
    cursor, done = GroupCursor(100), set()
    for part in parts:
        cursor.record_read(100 + 10 * part, 110 + 10 * part)
        done.add(part)
        expected = next((p for p in range(12) if p not in done), 12)
        assert cursor.read == 100 + 10 * expected
    assert cursor.committed == 100


def test_parts_may_overlap():
    cursor = GroupCursor(0)
    cursor.record_read(5, 9)
    cursor.record_read(5, 7)
    assert cursor.read == 0
    cursor.record_read(0, 6)
    assert cursor.read == 9
