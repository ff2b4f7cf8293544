"""Adaptive join orders of window joins: collect samples from running batches and choose orders for coming windows.

Only the driver holds the samples, and they are lost with it; the chosen orders are in the log and in the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.execution.job import ReduceReport
from headrace.kernels.sets import QueryBitmaps, estimate_selected_share
from headrace.runtime.state import EngineState
from headrace.sharing.arrangement import JoinOrderVersion
from headrace.sharing.join_order import REGROUP_THRESHOLD, JoinStatistics, reorder_joins
from headrace.sharing.shared_plan import LiveQuery

_WINDOW_JOIN_SAMPLES_KEPT = 8  # samples of a stream
_QUERIES_PER_INTERVAL = 20  # planning takes some milliseconds a join, so the interval grows by itself for every so many queries


class WindowJoinOptimizer:
    """Collects samples, and plans join orders again when the set of queries changes and every few batches."""

    def __init__(self, interval: int = 4) -> None:
        """Plan again at least after this many batches; the interval grows with the number of queries."""
        self._interval = interval
        self._samples: dict[tuple[str, int], list[QueryBitmaps]] = {}
        self._sampled_queries: frozenset[int] = frozenset()
        self._planned_queries: frozenset[int] = frozenset()
        self._last_planned_batch = -1
        self._rows_per_round: dict[tuple[int, int], float] = {}

    def record_batch(self, reduce_reports: Sequence[ReduceReport], live: frozenset[int]) -> None:
        """Record the row counts and samples of a batch. A change of the `live` queries discards samples: bits are reused."""
        joined: dict[tuple[int, int], tuple[int, int]] = {}
        for reduce_report in reduce_reports:
            for path, (rows, rounds) in reduce_report.join_counts.items():
                counted = joined.get(path, (0, 0))
                joined[path] = (counted[0] + rows, max(counted[1], rounds))
        self._rows_per_round |= {path: rows / rounds for path, (rows, rounds) in joined.items()}
        self._rows_per_round = {path: rows for path, rows in self._rows_per_round.items() if path[0] in live}
        if live != self._sampled_queries:
            self._samples, self._sampled_queries = {}, live
        for map_report in (map_report for reduce_report in reduce_reports for map_report in reduce_report.map_reports):
            for slot, samples in map_report.set_samples.items():
                kept = self._samples.setdefault(slot, [])
                kept += samples
                del kept[:-_WINDOW_JOIN_SAMPLES_KEPT]

    def choose_join_orders(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[int, JoinOrderVersion]:
        """Return the new join orders for the next batch, by query id; queries without a change are absent."""
        if not self._samples:
            return {}
        queries = frozenset(live)
        changed = len(queries ^ self._planned_queries)
        if not changed and state.batch - self._last_planned_batch < self._interval * (1 + len(queries) // _QUERIES_PER_INTERVAL):
            return {}
        anew = changed > REGROUP_THRESHOLD * max(1, len(self._planned_queries))
        self._planned_queries, self._last_planned_batch = queries, state.batch
        return reorder_joins(live.values(), self.collect_statistics(state), regroup=anew)

    def collect_statistics(self, state: EngineState) -> JoinStatistics:
        """Return the current rates, key counts, selectivities and intermediate row counts."""
        rates = {name: stream.rate for name, stream in state.streams.items() if stream.rate}
        keys = {(name, text): count for name, stream in state.streams.items() for text, count in stream.keys.items()}
        return JoinStatistics(rates, keys, self._estimate_selected_share, self._rows_per_round)

    def _estimate_selected_share(self, stream: str, slot: int, bits: frozenset[int]) -> float | None:
        return estimate_selected_share(self._samples.get((stream, slot), ()), bits)
