"""Partners of arriving rows among stored ones, a bounded number of pairs at a time.

They are found by hash where there are equalities, by search in sorted values where there is a comparison, and by trying
everything otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.execution.joined_rows import JoinedRows
from headrace.execution.multiway.loaded import LoadedProbe
from headrace.execution.multiway.stored import Stored, valid_keys
from headrace.execution.multiway.tuples import Bits, Integers, Tuples
from headrace.execution.searching import searched
from headrace.kernels import compiled_join, compiled_probe
from headrace.kernels.columns import flat
from headrace.kernels.keys import hashes
from headrace.kernels.sets import Sets

PAIRS = 1 << 18  # at most so many pairs are held at once
_FEW_PAIRS = 1 << 12
_EVERYTHING = np.zeros(0, np.int32)
_NO_BIRTHS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Arriving rows, stored rows, and the sets of those who want them together."""

    own: Integers
    theirs: Integers
    sets: Sets


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

    def pairs(self, bucket: Stored, sets: Sets) -> Iterator[Pairs]:
        """Yield pairs of arriving and stored rows whose sets and times meet; `sets` are those of the bucket as they are now."""
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
                yield Pairs(own[:found], theirs[:found], common[:found])
            size = PAIRS

    def joined(self, pairs: Pairs, rows: JoinedRows, fresh: Bits) -> Tuples:
        """Return the rows of pairs side by side, of those only for which windows and conditions hold.

        `rows` are the stored ones that pairs point to, `fresh` says what is new in them.
        """
        new = self._tuples.fresh[pairs.own] | fresh
        return self._checked(Tuples(self._tuples.rows.beside(pairs.own, rows, pairs.theirs, pairs.sets), new))

    def _checked(self, found: Tuples) -> Tuples:
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
                return found.take(alive, sets[alive])
        return found

    def _ranges(self, bucket: Stored) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
        """Return for each row the range of places in an order of the bucket's rows where its partners are."""
        count = self._tuples.count
        if self._hashes is not None:
            index = bucket.hash_index(self._loaded.keys)
            begins, ends = compiled_probe.look_up(self._hashes, self._valid, index.directory, index.hashes, index.bits)
            return begins, ends, index.order
        if not self._loaded.bounds:
            return np.zeros(count, np.int64), np.full(count, bucket.rows, np.int64), _EVERYTHING
        found = bucket.sorted_index(self._loaded.bounds[0].stored)
        bounds = [(bound.operator, flat(self._tuples.evaluate(bound.arriving))) for bound in self._loaded.bounds]
        return *searched(found, bounds), found.order
