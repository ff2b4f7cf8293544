"""The optimizer at work: what running batches showed of joins, and which of them are to be worked off otherwise from now on.

Samples are kept by the driver only and lost with it: what was decided is in the log and in the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.execution.job import Outcome
from headrace.kernels.sets import Sets, share_wanted
from headrace.runtime.state import EngineState
from headrace.sharing.arrangement import Arrangement
from headrace.sharing.join_order import FULL, JoinStatistics, arrange
from headrace.sharing.shared_plan import LiveQuery

_KEPT = 8  # samples of a stream
_MANY = 20  # a look takes some milliseconds a join: with more queries there is one less often


class Optimizer:
    """Remembers samples; looks at joins again when queries came or went, and every few batches."""

    def __init__(self, every: int = 4) -> None:
        """Look at orders every so many batches, whatever happens; less often with many queries."""
        self._every = every
        self._samples: dict[tuple[str, int], list[Sets]] = {}
        self._sampled: frozenset[int] = frozenset()
        self._queries: frozenset[int] = frozenset()
        self._looked = -1
        self._rows: dict[tuple[int, int], float] = {}

    def note(self, outcomes: Sequence[Outcome], live: frozenset[int]) -> None:
        """Take what a batch showed; bits of other queries than these `live` ones may mean others now."""
        joined: dict[tuple[int, int], tuple[int, int]] = {}
        for outcome in outcomes:
            for path, (rows, rounds) in outcome.joined.items():
                known = joined.get(path, (0, 0))
                joined[path] = (known[0] + rows, max(known[1], rounds))
        self._rows |= {path: rows / rounds for path, (rows, rounds) in joined.items()}
        self._rows = {path: rows for path, rows in self._rows.items() if path[0] in live}
        if live != self._sampled:
            self._samples, self._sampled = {}, live
        for header in (header for outcome in outcomes for header in outcome.headers):
            for at, found in header.samples.items():
                kept = self._samples.setdefault(at, [])
                kept += found
                del kept[:-_KEPT]

    def decide(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[int, Arrangement]:
        """Return which joins get which arrangement in the next batch."""
        if not self._samples:
            return {}
        queries = frozenset(live)
        changed = len(queries ^ self._queries)
        if not changed and state.batch - self._looked < self._every * (1 + len(queries) // _MANY):
            return {}
        anew = changed > FULL * max(1, len(self._queries))
        self._queries, self._looked = queries, state.batch
        return arrange(live.values(), self.statistics(state), anew=anew)

    def statistics(self, state: EngineState) -> JoinStatistics:
        """Return what is known now."""
        rates = {name: stream.rate for name, stream in state.streams.items() if stream.rate}
        keys = {(name, text): count for name, stream in state.streams.items() for text, count in stream.keys.items()}
        return JoinStatistics(rates, keys, self._wanted, self._rows)

    def _wanted(self, stream: str, slot: int, bits: frozenset[int]) -> float | None:
        return share_wanted(self._samples.get((stream, slot), ()), bits)
