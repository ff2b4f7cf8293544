"""Partners of arriving rows among stored ones, a bounded number of pairs at a time.

They are found by hash where there are equalities, by search in sorted values where there is a comparison, and by trying
everything otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headrace.execution.joined_rows import JoinedRows
from headrace.execution.multiway.loaded import Bound, LoadedProbe
from headrace.execution.multiway.stored import SortedIndex, Stored, valid_keys
from headrace.execution.multiway.tuples import Bits, Integers, Tuples
from headrace.kernels import compiled_join, compiled_probe
from headrace.kernels.columns import flat, numbers, validity
from headrace.kernels.keys import hashes
from headrace.kernels.sets import Sets

PAIRS = 1 << 18  # at most so many pairs are held at once
_FEW_PAIRS = 1 << 12
_EVERYTHING = np.zeros(0, np.int32)
_NO_BIRTHS = np.zeros(0, np.int32)


class Prober:
    """Arriving rows of one probe, made ready once for all buckets of its store."""

    def __init__(self, loaded: LoadedProbe, tuples: Tuples) -> None:
        """Take rows that are there to be probed."""
        self._loaded, self._tuples = loaded, tuples
        times = [(tuples.times(name), loaded.longest[name]) for name in loaded.before]
        self._newest = np.maximum.reduce([found for found, _ in times])
        self._until = np.minimum.reduce([found + longest for found, longest in times])
        self._keys = [flat(tuples.evaluate(left)) for left, _ in loaded.probe.keys]
        self._hashes = hashes(self._keys, tuples.count) if self._keys else None
        self._valid = valid_keys(self._keys)

    @property
    def span(self) -> tuple[int, int]:
        """From which event time to which partners can be."""
        return int(self._newest.min()) - self._loaded.longest[self._loaded.stored[0]], int(self._until.max())

    def partners(self, bucket: Stored, sets: Sets, rows: JoinedRows, fresh: Bits | None = None) -> Iterator[Tuples]:
        """Yield joined rows; `sets` are those of the bucket as they are meant now, `rows` its rows as they can be joined.

        `fresh` says what is new in rows of a bucket that this batch made.
        """
        loaded, relation = self._loaded, self._loaded.stored[0]
        begins, ends, order = self._ranges(bucket)
        low, times = self._newest - loaded.longest[relation], bucket.times(relation)
        before = loaded.probe.before
        births = _NO_BIRTHS if before is None or int(bucket.births.max()) < before else bucket.births
        row = place = 0
        own_sets = self._tuples.sets
        size = min(PAIRS, max(_FEW_PAIRS, self._tuples.count))
        while row < self._tuples.count:
            own, theirs = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size, sets.shape[1]), np.uint64)
            found, row, place = compiled_probe.meet(
                begins, ends, order, own_sets, sets, low, self._until, times, births, before or 0, row, place, own, theirs, common
            )
            if found:
                new = self._tuples.fresh[own[:found]]
                new = new if fresh is None else new | fresh[theirs[:found]]
                yield from self._checked(Tuples(self._tuples.rows.beside(own[:found], rows, theirs[:found], common[:found]), new))
            size = PAIRS

    def _checked(self, found: Tuples) -> Iterator[Tuples]:
        """Look at windows and conditions of pairs; what overflows is unknown, as NULL is."""
        loaded, sets = self._loaded, found.sets
        for windows, bits in loaded.windows:
            for old in loaded.before:
                for new in loaded.stored:
                    compiled_probe.outside(found.times(old), found.times(new), windows[old], windows[new], bits, sets)
        for condition, bits in loaded.conditions.items():
            holds = np.asarray(flat(found.evaluate(condition)).fill_null(False))
            sets[~holds] &= ~bits
        if loaded.windows or loaded.conditions:
            alive = compiled_join.alive(sets)
            if alive.size < len(sets):
                found = found.take(alive, sets[alive])
        if found.count:
            yield found

    def _ranges(self, bucket: Stored) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
        """Return for each row the range of places in an order of the bucket's rows where its partners are."""
        count = self._tuples.count
        if self._hashes is not None:
            index = bucket.hash_index(self._loaded.keys)
            begins, ends = compiled_probe.look_up(self._hashes, self._valid, index.directory, index.hashes, index.bits)
            return begins, ends, index.order
        begins, ends = np.zeros(count, np.int64), np.full(count, bucket.rows, np.int64)
        if not self._loaded.bounds:
            return begins, ends, _EVERYTHING
        found = bucket.sorted_index(self._loaded.bounds[0].stored)
        ends = np.full(count, len(found.order), np.int64)
        for bound in self._loaded.bounds:
            lower, upper = self._searched(bound, found)
            begins, ends = np.maximum(begins, lower), np.minimum(ends, upper)
        return begins, np.maximum(begins, ends), found.order

    def _searched(self, bound: Bound, index: SortedIndex) -> tuple[Integers, Integers]:
        column = flat(self._tuples.evaluate(bound.arriving))
        values = numbers(column)
        least, most = np.zeros(len(values), np.int64), np.full(len(values), len(index.order), np.int64)
        if bound.operator in ("lt", "le"):
            most = np.searchsorted(index.values, values, side="left" if bound.operator == "lt" else "right")
        else:
            least = np.searchsorted(index.values, values, side="right" if bound.operator == "gt" else "left")
        if column.null_count:
            most[~validity(column)] = 0
        return least, most
