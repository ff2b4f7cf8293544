"""Row schedules: row times across changes of the rate."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.bench.driver.rates import MAX_STAMP_ROWS, RateScript, RowSchedule

SECOND = 1_000_000


# rows      0 … 9     10 … 29          30 …
#         ├─ 10/s ──┼─ 20/s ──┤      ├─ 5/s ──
# seconds 100      101       102    110


def make_schedule() -> RowSchedule:
    schedule = RowSchedule().switch_script(RateScript.constant(10), 100 * SECOND, 0)
    schedule = schedule.switch_script(RateScript.constant(20), 101 * SECOND, schedule.count_due(101 * SECOND))
    schedule = schedule.stop_after(schedule.count_due(102 * SECOND))
    return schedule.switch_script(RateScript.constant(5), 110 * SECOND, 30)


def test_rows_continue_across_rate_changes():
    schedule = make_schedule()
    assert schedule.count_due(111 * SECOND) == 35
    times = schedule.row_times(np.arange(35))
    assert times[[0, 9, 10, 29, 30, 34]].tolist() == [
        100_100_000,
        101_000_000,
        101_050_000,
        102_000_000,
        110_200_000,
        111_000_000,
    ]
    assert np.all(np.diff(times) > 0)


def test_row_times_do_not_depend_on_the_requested_ranges():
    schedule = make_schedule()
    whole = schedule.row_times(np.arange(40))
    parts = [schedule.row_times(np.arange(a, b)) for a, b in ((0, 7), (7, 12), (12, 31), (31, 40))]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(schedule.row_times(np.arange(1, 40, 3)), whole[1::3])
    assert len(schedule.row_times(np.arange(0))) == 0


def test_count_rows_before_matches_the_row_times():
    schedule = make_schedule()
    times = schedule.row_times(np.arange(40))
    queried_times = np.concatenate([times, times + 1, times - 1, np.array([0, 105 * SECOND])])
    expected = [int((times < time).sum()) for time in queried_times]
    assert schedule.count_rows_before(queried_times).tolist() == expected


def test_count_rows_before_at_intervals_of_fractional_microseconds():
    schedule = RowSchedule().switch_script(RateScript.constant(3_333_333.3), 7, 0)
    times = schedule.row_times(np.arange(5000))
    queried_times = np.unique(np.concatenate([times, times + 1]))[:-1]
    assert schedule.count_rows_before(queried_times).tolist() == np.searchsorted(times, queried_times, side="left").tolist()


SCRIPTS = [RateScript.constant(3_333_333.3), RateScript.steps([(0.001, 1e6), (0.01, 0), (1, 7e5)]), RateScript.ramp(0, 1e6, 1),
           RateScript.spikes(1e5, 1e6, 0.01, 0.002)]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("first", [0, 12_345])
def test_stamp_times_matches_row_times(script, first):
    schedule = RowSchedule().switch_script(RateScript.constant(10), 0, 0).switch_script(script, 1_800_000_000_000_000, first)
    scratch = np.empty(MAX_STAMP_ROWS)
    for row, step, count in [(first, 1, 3000), (first + 1001, 3, 1000), (max(0, first - 100), 2, 100), (first + 5, 2, 1)]:
        out = np.empty(count, np.int64)
        schedule.stamp_times(row, step, out, scratch)
        assert np.array_equal(out, schedule.row_times(row + step * np.arange(count)))


def test_a_stopped_schedule_produces_no_rows():
    schedule = RowSchedule().switch_script(RateScript.constant(10), 0, 0).stop_after(7)
    assert not schedule.is_running
    assert schedule.count_due(100 * SECOND) == 7
    assert schedule.stop_after(3) == schedule
    assert RowSchedule().count_due(5) == 0


def test_a_schedule_round_trips_through_json():
    schedule = make_schedule()
    assert RowSchedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
