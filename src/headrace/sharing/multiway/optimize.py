"""The optimizer of many multi-way joins together: candidates, a greedy choice, and the integer program that improves on it."""

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
    figures: Figures,
    tasks: int,
    *,
    time_limit: float = 2.0,
    storage_weight: float = STORAGE_WEIGHT,
    gap: float = 1e-3,
    keepable: Container[Join] | None = None,
) -> Strategy:
    """Return how queries are best worked off together, every store being partitioned to so many tasks.

    What is minimized are rows sent: to be probed, each step once for all who share it, and to be kept, `storage_weight` times
    for each row that comes to a store. A relation may be kept in several stores, each partitioned for somebody else, and then
    its rows are sent to each of them. The solver stops within `gap` of the least cost or after `time_limit` seconds, of its own
    clock; with none, and when it finds nothing better, the answer is the greedy one. `Strategy.solved` says which it was.

    Only joins in `keepable` are kept, if it is given. Equal queries are one, and none may have a cross product.
    """
    among = candidates(queries, figures, tasks, storage_weight=storage_weight, keepable=keepable)
    choice, solved = solve(program(among), among, greedy(among), time_limit=time_limit, gap=gap)
    return strategy_of(among, choice, solved)
