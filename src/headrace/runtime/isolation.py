"""Isolation: finds the query that makes a micro-batch fail, so that the batch can be run without it.

An operator that serves many queries raises without telling for which of them. The batch is then tried without some of them, until
the culprit is known; trials commit nothing. The decision, a removal with the error, is added to the log entry of the batch before
the batch runs for good, so that a replay agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

BatchTrial: TypeAlias = Callable[[frozenset[int]], str | None]
"""Runs a batch without some of the suspects; returns the error that another one may have caused, or None."""


def find_culprit(suspects: Iterable[int], error: str, run_trial: BatchTrial) -> tuple[int, str] | None:
    """Return the query that makes a batch fail and its error, after log₂ n trials; None if the batch fails without any suspect.

    `error` is that of the batch with all suspects. The search adds queries by age: it finds a query with which the batch fails,
    and succeeds without it and all newer suspects. So if queries fail only together, for example because they share too little
    memory, older ones stay.
    """
    by_age = sorted(suspects)
    if run_trial(frozenset(by_age)) is not None:
        return None
    succeeding, failing = 0, len(by_age)
    while failing - succeeding > 1:
        middle = (succeeding + failing) // 2
        problem = run_trial(frozenset(by_age[middle:]))
        if problem is None:
            succeeding = middle
        else:
            failing, error = middle, problem
    return (by_age[failing - 1], error) if by_age else None
