"""What one partition keeps of its stores: buckets in state files, let go when no row that is not late could find a partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.execution.job import Job, StoreRef
from headrace.execution.joined_rows import JoinedRows, Pieces, Table, all_of
from headrace.execution.multiway.loaded import LoadedProbes
from headrace.execution.multiway.stored import Stored, indexed, united
from headrace.execution.multiway.tuples import Integers
from headrace.kernels import compiled_join, pack
from headrace.kernels.columns import flat
from headrace.kernels.keys import partitions
from headrace.kernels.sets import Sets, widened
from headrace.sharing.multiway.asked import Asked
from headrace.sharing.multiway.loan import Loan
from headrace.sharing.multiway.probes import StoreSpec
from headrace.sharing.slicing import FOREVER, NEVER

_COPIED = 1 << 20  # rows a bucket: a copy of so many costs less than to look into each bucket many times
_MANY = 8  # buckets of a store, before small neighbours are made one
_SPANS = 4  # a bucket spans at most this part of the batches that a store holds, so that what has expired goes in time


@dataclass(slots=True, eq=False)
class Shelved:
    """A bucket at hand: its rows, and their sets as they are meant now."""

    ref: StoreRef
    bucket: Stored
    sets: Sets


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """All buckets of a store in this partition, one after the other; `begins` is the place of the first row of each."""

    shelved: Sequence[Shelved]
    begins: Sequence[int]
    rows: JoinedRows


class Shelf:
    """The stores of one partition at one level; `marks` gives the watermark of a query after this batch."""

    def __init__(self, job: Job, partition: int, level: int, marks: Callable[[Asked], int], handed: Sequence[StoreRef]) -> None:
        """`handed` are buckets that earlier levels of this batch wrote."""
        self._job, self._partition, self._level, self._marks = job, partition, level, marks
        self.probes: LoadedProbes = job.probes()
        self._directory = Path(job.directory)
        self._new: list[tuple[StoreRef, Stored]] = []
        self._file = f"state/{job.batch:010d}-{partition:05d}-{level}.stores"
        dealt = job.dealt != job.partitions
        old = [] if dealt else [ref for ref in job.stores if ref.partition == partition and ref.store in self.probes.stores]
        self._dealt = [ref for ref in handed if ref.newest < job.batch]
        self.old = [*old, *self._dealt]
        self.fresh = [ref for ref in handed if ref.newest == job.batch]
        self._at_hand: dict[tuple[str, int], Shelved] = {}
        self._views: dict[int, View] = {}
        if dealt and level == 0:
            self._deal()

    # --- reading ------------------------------------------------------------------------------------------------------

    def view(self, store: int) -> View:
        """Return the rows of a store: those of earlier batches, and what this batch has stored so far."""
        if store not in self._views:
            shelved = [self.load(ref) for ref in (*self.old, *self.fresh) if ref.store == store]
            begins = np.concatenate([[0], np.cumsum([one.bucket.rows for one in shelved])]).astype(np.int64).tolist()
            known = shelved[0].bucket.columns if shelved else ()
            names = [name for name in known if all(name in one.bucket.columns for one in shelved)]
            table = Table({name: Pieces([one.bucket.columns[name] for one in shelved], _COPIED) for name in names}, begins[-1])
            self._views[store] = View(shelved, begins, all_of(table, np.zeros((begins[-1], 0), np.uint64)))
        return self._views[store]

    def load(self, ref: StoreRef) -> Shelved:
        """Return a bucket."""
        at = (ref.file, ref.index)
        if at not in self._at_hand:
            bucket = next((b for r, b in self._new if r == ref), None) or self._stored(ref)
            sets = self._meant(bucket, ref)
            self._at_hand[at] = Shelved(ref, bucket, sets)
        return self._at_hand[at]

    def _stored(self, ref: StoreRef) -> Stored:
        names = self.probes.plan.columns(self.probes.stores[ref.store].relation.relations)
        return self._job.stored(ref).with_columns({name: self.probes.types[name] for name in names})

    def _meant(self, bucket: Stored, ref: StoreRef) -> Sets:
        """Return query-sets as they are meant now: a bit may have been another query's when the row was stored."""
        sets = widened(bucket.sets, self.probes.width)
        later = [one for one in self.probes.plan.queries if self._job.born[one.id] > bucket.meant]
        since = self.probes.plan.uses.get(ref.store, {})
        again = [(number, first) for number, first in since.items() if first > ref.oldest]
        if not later and not again:
            return sets
        found = sets.copy()
        for one in later:
            bits = self.probes.bits([one.id])
            found &= ~bits
            for loan in one.lent if not since else ():
                if ref.spans[0][0] == loan.relation:
                    found[self._lent(bucket, sets, loan, one)] |= bits
        for number, first in again:
            found[bucket.births < first] &= ~self.probes.bits([number])
        return found

    def _lent(self, bucket: Stored, sets: Sets, loan: Loan, borrower: Asked) -> npt.NDArray[np.bool_]:
        """Tell which rows were stored for the lender, after it came, and are not before what the borrower sees."""
        word = sets[:, loan.bit // 64] if loan.bit // 64 < sets.shape[1] else np.zeros(bucket.rows, np.uint64)
        has = (word >> np.uint64(loan.bit % 64) & np.uint64(1)).astype(np.bool_)
        return has & (bucket.births >= loan.first) & (bucket.times(loan.relation) >= borrower.since)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def put(self, store: int, bucket: Stored) -> None:
        """Take rows that this batch stores."""
        self.fresh.append(self._add(store, bucket))
        self._views.pop(store, None)

    def _add(self, store: int, bucket: Stored) -> StoreRef:
        spec = self.probes.stores[store]
        spans = tuple((name, *_span(bucket.times(name))) for name in sorted(spec.relation.relations))
        births = (int(bucket.births.min()), int(bucket.births.max()))
        ref = StoreRef(self._file, len(self._new), self._partition, store, *births, bucket.rows, spans, bucket.bytes)
        self._new.append((ref, bucket))
        return ref

    def keep(self) -> list[StoreRef]:
        """Write what is new; return what is still needed after the batch: old buckets at level 0, and what was put here."""
        kept = [ref for ref in self.old if self._is_needed(ref)] if self._level == 0 else []
        if self._level == 0:
            kept = self._few(kept)
        kept += [ref for ref, _ in self._new if ref.newest == self._job.batch and self._is_needed(ref)]
        if self._new:
            pack.write(self._directory / self._file, [bucket for _, bucket in self._new])
        return kept

    def handed_on(self) -> list[StoreRef]:
        """Return the buckets that later levels need to be told of: those that are not in the job."""
        return [*self.fresh, *self._dealt]

    def _is_needed(self, ref: StoreRef) -> bool:
        """Tell whether a row that is not late could still find a partner in a bucket."""
        relations = {name for name, *_ in ref.spans}
        for one in self.probes.plan.queries:
            if relations <= set(one.inputs) and self._born(one) <= ref.newest:
                mark = self._marks(one)
                if mark == NEVER or (mark != FOREVER and self._reaches(ref, one, mark)):
                    return True
        return False

    def _born(self, query: Asked) -> int:
        return max((loan.first for loan in query.lent), default=self._job.born[query.id])

    def _reaches(self, ref: StoreRef, query: Asked, mark: int) -> bool:
        return all(last + query.inputs[name].range >= mark - query.lateness for name, _, last in ref.spans)

    def _few(self, refs: Sequence[StoreRef]) -> list[StoreRef]:
        """Return buckets, small neighbours made one where a store has many."""
        by_store: dict[int, list[StoreRef]] = defaultdict(list)
        for ref in refs:
            by_store[ref.store].append(ref)
        found: list[StoreRef] = []
        for store, mine in by_store.items():
            mine.sort(key=lambda ref: (ref.oldest, ref.newest))
            if len(mine) <= _MANY:
                found += mine
                continue
            for group in _groups(mine, _spanned(mine) // _SPANS):
                found += group if len(group) == 1 else self._unite(store, group)
        return found

    def _unite(self, store: int, refs: Sequence[StoreRef]) -> list[StoreRef]:
        shelved = [self.load(ref) for ref in refs]
        live = self.probes.bits([one.id for one in self.probes.plan.queries])
        cleaned = [replace(one.bucket, sets=one.sets & live) for one in shelved]
        rows = [compiled_join.alive(one.sets) for one in cleaned]
        merged = united(cleaned, rows, self.probes.width, self._job.batch)
        return [self._add(store, indexed(merged, *self.probes.indexes[store]))] if merged.rows else []

    # --- another number of partitions ---------------------------------------------------------------------------------

    def _deal(self) -> None:
        """Take this partition's share of all buckets."""
        for ref in self._job.stores:
            spec = self.probes.stores.get(ref.store)
            if spec is not None:
                whole = self._stored(ref)
                rows = self._share(spec, whole, ref)
                if rows.size:
                    mine = united([whole], [rows], whole.sets.shape[1], whole.meant)
                    self._dealt.append(self._add(ref.store, indexed(mine, *self.probes.indexes[ref.store])))
        self.old += self._dealt

    def _share(self, spec: StoreSpec, whole: Stored, ref: StoreRef) -> Integers:
        if spec.key is None:
            places = (np.arange(whole.rows) + ref.partition) % self._job.partitions
        else:
            places = partitions([flat(whole.evaluate(spec.key))], whole.rows, self._job.partitions)
        return np.flatnonzero(places == self._partition)


def _span(times: Integers) -> tuple[int, int]:
    return int(times.min()), int(times.max())


def _groups(refs: Sequence[StoreRef], longest: int) -> list[list[StoreRef]]:
    """Cut neighbours into groups to be made one: none spans more batches than `longest`, nor has a much larger first one."""
    found: list[list[StoreRef]] = []
    for ref in refs:
        found.append([ref])
        while len(found) > 1 and _rows(found[-2]) <= 2 * _rows(found[-1]) and _spanned(found[-2] + found[-1]) <= longest:
            found[-2:] = [found[-2] + found[-1]]
    return found


def _rows(refs: Sequence[StoreRef]) -> int:
    return sum(ref.rows for ref in refs)


def _spanned(refs: Sequence[StoreRef]) -> int:
    """Return over how many batches buckets were stored; event times of a join's rows would say nothing about their age."""
    return 1 + max(ref.newest for ref in refs) - min(ref.oldest for ref in refs)
