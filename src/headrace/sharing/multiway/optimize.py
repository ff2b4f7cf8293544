"""Optimizer of all sliding joins together (CLASH): candidates, a greedy choice, and the integer program that improves on it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from headrace.sharing.multiway.candidates import STORAGE_WEIGHT, candidates
from headrace.sharing.multiway.choice import strategy_of
from headrace.sharing.multiway.cost import Figures
from headrace.sharing.multiway.greedy import greedy
from headrace.sharing.multiway.program import program
from headrace.sharing.multiway.relations import Join
from headrace.sharing.multiway.solve import solve
from headrace.sharing.multiway.strategy import Strategy


def optimize(
    queries: Sequence[Join],
    cardinalities: Figures,
    tasks: int,
    *,
    time_limit: float = 2.0,
    storage_weight: float = STORAGE_WEIGHT,
    gap: float = 1e-3,
    keepable: Container[Join] | None = None,
) -> Strategy:
    """Return the cheapest strategy found for all queries together, with every store partitioned over `tasks` tasks.

    The objective is the number of rows sent: to probe, each shared step once, and to be stored, `storage_weight` times for each
    row that arrives at a store. A relation may have several stores with different partitionings; its rows are then sent to each
    of them. The solver stops within `gap` of the least cost or after `time_limit` seconds of its own clock; with no time, or
    without an improvement, the result is the greedy choice. `JoinStrategy.solver_report` tells which.

    Only joins in `materializable` are materialized, if it is given. Equal queries count once; cross products are not supported.
    """
    candidate_orders = candidates(queries, cardinalities, tasks, storage_weight=storage_weight, keepable=keepable)
    choice, solved = solve(program(candidate_orders), candidate_orders, greedy(candidate_orders), time_limit=time_limit, gap=gap)
    return strategy_of(candidate_orders, choice, solved)
