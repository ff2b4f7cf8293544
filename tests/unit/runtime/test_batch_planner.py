"""Input ranges of a batch are divided into tasks of about equal size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.source import Range
from headrace.runtime.batch_planner import choose_task_count, split_into_tasks


def make_ranges(rows: list[int]) -> list[Range]:
    return [Range("s", "arrow", "", number, number + 1, count) for number, count in enumerate(rows)]


@pytest.mark.parametrize("rows_per_range", [1, 100])
def test_equal_ranges_give_tasks_of_equal_size(rows_per_range: int) -> None:
    tasks = split_into_tasks(make_ranges([rows_per_range] * 12), 4)
    assert [len(task) for task in tasks] == [3, 3, 3, 3]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 8))
def test_every_range_is_in_one_task_and_no_task_is_empty(rows: list[int], parallelism: int) -> None:
    ranges = make_ranges(rows)
    tasks = split_into_tasks(ranges, parallelism)
    assert [item for task in tasks for item in task] == ranges
    assert all(tasks)
    assert len(tasks) <= parallelism


@pytest.mark.parametrize(
    ("rows", "max_tasks", "tasks"),
    [
        ([250_000] * 16, 0, 2),  # the parallelism
        ([250_000] * 16, 8, 8),
        ([250_000] * 16, 1024, 16),  # each range is one task
        ([100] * 16, 1024, 2),  # too few rows
        ([50_000] * 8, 1024, 4),
        ([], 1024, 0),
    ],
)
def test_a_large_batch_has_tasks_that_wait_for_executors(rows: list[int], max_tasks: int, tasks: int) -> None:
    ranges = make_ranges(rows)
    assert len(split_into_tasks(ranges, choose_task_count(ranges, 2, max_tasks))) == tasks
