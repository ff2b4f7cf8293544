"""What is to be read in a micro-batch, cut into tasks."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.connectors import Range


def balance(ranges: Sequence[Range], parallelism: int) -> list[list[Range]]:
    """Cut ranges into at most `parallelism` tasks of about equal rows, neighbours together."""
    total = sum(one.rows for one in ranges)
    tasks: list[list[Range]] = []
    done = 0
    for one in ranges:
        if not tasks or (len(tasks) < parallelism and done * parallelism >= total * len(tasks)):
            tasks.append([])
        tasks[-1].append(one)
        done += one.rows
    return tasks
