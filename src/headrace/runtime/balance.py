"""Divide the input ranges of a micro-batch into map tasks."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.connectors import Range


def split_into_tasks(ranges: Sequence[Range], parallelism: int) -> list[list[Range]]:
    """Divide ranges into at most `parallelism` tasks with about equal row counts; adjacent ranges stay together."""
    total = sum(item.rows for item in ranges)
    tasks: list[list[Range]] = []
    assigned = 0
    for item in ranges:
        if not tasks or (len(tasks) < parallelism and assigned * parallelism >= total * len(tasks)):
            tasks.append([])
        tasks[-1].append(item)
        assigned += item.rows
    return tasks
