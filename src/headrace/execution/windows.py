"""Shared aggregation, second half: the windows that close, evaluated over slices for all queries at once.

Every slice is read once; each (query, window) takes from it what its spans of cells hold. Slices of older epochs have
other layouts: the query is looked up in the plan of the slice's own epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.finish import Combined, Listed, finish
from headrace.execution.result import Failures, Results
from headrace.execution.selection import SharedSelection
from headrace.kernels import compiled, compiled_few
from headrace.kernels.columns import Numbers, take, wide
from headrace.kernels.component import empty, listed, neutral
from headrace.kernels.keys import unify
from headrace.kernels.partial import Entries, Partial
from headrace.plan.logical import AggregateQuery
from headrace.sharing.aggregation import Component
from headrace.sharing.selection import Layout, Spans, cell_spans
from headrace.sharing.shared_plan import Store

Integers = npt.NDArray[np.int64]
_MAX_ACCUMULATORS = 1 << 23
_FORCED: bool | None = None  # for tests: go through partials entry by entry, or never


@dataclass(frozen=True, slots=True)
class Slice:
    """A partial with the store whose layout it has."""

    store: Store
    selection: SharedSelection
    start: int
    load: Callable[[], Partial]


@dataclass(frozen=True, slots=True)
class Due:
    """Windows to evaluate, sorted by (query, start); all of one shape."""

    queries: Integers
    starts: Integers
    ends: Integers

    def part(self, first: int, last: int) -> Due:
        """Return some of them."""
        return Due(self.queries[first:last], self.starts[first:last], self.ends[first:last])


@dataclass(frozen=True, slots=True)
class _Users:
    """Members of one store, once for each due window: which window, which predicate, and where the needs are."""

    targets: Integers
    predicates: Integers
    needs: list[tuple[int, ...]]
    need_of: Integers


@dataclass(frozen=True, slots=True)
class _Slices:
    """The partials of one store that are needed, by slice, with the cells of all of them in one numbering.

    `rows[p]` gives for each key of partial p its place among all keys.
    """

    starts: Integers
    partials: list[Partial]
    rows: list[Integers]
    cells: list[Integers]
    spans: Spans
    labels: Integers | None


def evaluate(
    plan: AggregateQuery, needs: Sequence[Component], due: Due, slices: Sequence[Slice], results: Results, failures: Failures
) -> None:
    """Evaluate due windows of queries that share a shape; `needs` is their list of components."""
    first, last_edge = int(due.starts.min()), int(due.ends.max())
    by_store: dict[int, list[Slice]] = {}
    for one in slices:
        if first <= one.start < last_edge:
            by_store.setdefault(id(one.store), []).append(one)
    used = [(found, users) for found in by_store.values() if (users := _users(found[0].store, due)).targets.size]
    if not used:
        return
    loaded = [[(s, s.load()) for s in sorted(found, key=lambda s: s.start)] for found, _ in used]
    columns, count, maps = unify([(p.keys, p.key_count) for group in loaded for _, p in group])
    places = iter(maps)
    stores = [_slices(group, [next(places) for _ in group]) for group in loaded]
    step = max(1, _MAX_ACCUMULATORS // max(count, 1))
    for at in range(0, len(due.queries), step):
        piece = due.part(at, at + step)
        grid = _Grid(needs, piece, count)
        for (found, users), store in zip(used, stores, strict=True):
            grid.add(store, users if step >= len(due.queries) else _users(found[0].store, piece))
        finish(plan, grid.combined(columns), results, failures)


def _users(store: Store, due: Due) -> _Users:
    targets: list[int] = []
    predicates: list[int] = []
    need_of: list[int] = []
    patterns: dict[tuple[int, ...], int] = {}
    firsts = dict(zip(*_firsts(due.queries), strict=True))
    for member, predicate, places in zip(store.members, store.predicate_of, store.places, strict=True):
        window = firsts.get(member.query)
        if window is not None:
            pattern = patterns.setdefault(places, len(patterns))
            targets += range(*window)
            predicates += [predicate] * (window[1] - window[0])
            need_of += [pattern] * (window[1] - window[0])
    return _Users(np.array(targets, np.int64), np.array(predicates, np.int64), list(patterns), np.array(need_of, np.int64))


def _firsts(queries: Integers) -> tuple[list[int], list[tuple[int, int]]]:
    cuts = (
        np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1], [True]])) if queries.size else np.zeros(1, np.int64)
    )
    ranges = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    return [int(queries[a]) for a, _ in ranges], ranges


def _slices(group: Sequence[tuple[Slice, Partial]], rows: list[Integers]) -> _Slices:
    starts = np.array([s.start for s, _ in group], np.int64)
    partials = [p for _, p in group]
    cells = [p.cells for p in partials]
    selection = group[0][0].selection
    if selection.selection.layout is not Layout.SIGNATURES:
        return _Slices(starts, partials, rows, cells, selection.spans, None)
    labels = np.unique(np.concatenate(cells))
    cells = [np.searchsorted(labels, c) for c in cells]
    return _Slices(starts, partials, rows, cells, cell_spans(selection.selection, labels), labels)


class _Grid:
    """Accumulators for every due window and key.

    Counts of values are kept as what they lack against the row count: usually nothing, and then nothing is computed.
    """

    def __init__(self, needs: Sequence[Component], due: Due, keys: int) -> None:
        self._needs, self._due, self._keys = needs, due, keys
        width = len(due.queries)
        self._dense: list[list[Numbers]] = [
            [a.reshape(width, keys) for a in empty(*n.signature, width * keys)] if n.is_dense else [] for n in needs
        ]
        self._listed: dict[int, list[tuple[Integers, list[Any], Integers]]] = {
            i: [] for i, n in enumerate(needs) if not n.is_dense
        }

    def add(self, store: _Slices, users: _Users) -> None:
        """Take from the slices of a store what every window over them wants."""
        begins = np.searchsorted(store.starts, self._due.starts[users.targets])
        ends = np.searchsorted(store.starts, self._due.ends[users.targets])
        for pattern, places in enumerate(users.needs):
            chosen = np.flatnonzero((users.need_of == pattern) & (begins < ends))
            if chosen.size:
                few = _FORCED if _FORCED is not None else _are_few(store, int((ends[chosen] - begins[chosen]).sum()), chosen.size)
                if not few:
                    spans = _gather(store.spans, users.predicates[chosen])
                    self._add_sums(store, places, begins[chosen], ends[chosen], users.targets[chosen], spans)
                for part in range(len(store.partials)):
                    over = np.flatnonzero((begins[chosen] <= part) & (part < ends[chosen]))
                    if over.size:
                        table = (users.targets[chosen][over], *_gather(store.spans, users.predicates[chosen][over]))
                        if few:
                            self._add_few_sums(store, part, places, table)
                        self._add_others(store, part, places, table, few=few)

    def _add_sums(
        self,
        store: _Slices,
        places: Sequence[int],
        begins: Integers,
        ends: Integers,
        targets: Integers,
        spans: tuple[Integers, ...],
    ) -> None:
        firsts, lasts = _ranges(store, self._keys)
        cells = _joined(store.cells)
        for need, (component, place) in enumerate(zip(self._needs, places, strict=True)):
            if component.kind not in {"rows", "count", "add"}:
                continue
            for limb, total in enumerate(self._dense[need]):
                values = _column(store, place, limb, places[0] if component.kind == "count" else None)
                if values is not None:
                    compiled.window_sums(firsts, lasts, cells, values, store.spans.size, begins, ends, targets, *spans, total)

    def _add_few_sums(self, store: _Slices, part: int, places: Sequence[int], table: tuple[Integers, ...]) -> None:
        """Add the sums of one partial, entry by entry."""
        partial, rows = store.partials[part], store.rows[part]
        base = (wide(partial.starts), store.cells[part])
        for need, (component, place) in enumerate(zip(self._needs, places, strict=True)):
            if component.kind == "count":
                counts, against = partial.dense[place][0], partial.dense[places[0]][0]
                if counts is not against:
                    compiled_few.window_sums(*base, wide(against) - wide(counts), rows, *table, self._dense[need][0])
            elif component.kind in {"rows", "add"}:
                for limb, total in enumerate(self._dense[need]):
                    compiled_few.window_sums(*base, wide(partial.dense[place][limb]), rows, *table, total)

    def _add_others(self, store: _Slices, part: int, places: Sequence[int], table: tuple[Integers, ...], *, few: bool) -> None:
        partial, rows, size = store.partials[part], store.rows[part], store.spans.size
        base = (wide(partial.starts), wide(store.cells[part]))
        for need, (component, place) in enumerate(zip(self._needs, places, strict=True)):
            out = self._dense[need]
            if component.kind in {"float", "square"} and few:
                compiled_few.window_floats(*base, *partial.dense[place], rows, *table, *out)
            elif component.kind in {"float", "square"}:
                compiled.window_floats(*base, *partial.dense[place], rows, size, *table, *out)
            elif component.kind in {"min", "max"}:
                none = neutral(component.kind, component.args[0].type)
                values = wide(partial.dense[place][0])
                compiled.window_extremes(int(component.kind == "max"), none, *base, values, rows, size, *table, out[0])
            elif not component.is_dense:
                entries = partial.listed[place]
                cells = wide(entries.cells)
                local = cells if store.labels is None else np.searchsorted(store.labels, cells)
                self._take_entries(need, entries, local, rows[wide(entries.keys)], table)

    def _take_entries(self, need: int, entries: Entries, cells: Integers, keys: Integers, table: tuple[Integers, ...]) -> None:
        targets, offsets, lows, highs = table
        for i, target in enumerate(targets.tolist()):
            hit = np.zeros(len(cells), np.bool_)
            for s in range(int(offsets[i]), int(offsets[i + 1])):
                hit |= (cells >= lows[s]) & (cells < highs[s])
            found = np.flatnonzero(hit)
            if found.size:
                at = target * self._keys + keys[found]
                self._listed[need].append((at, [take(v, found) for v in entries.values], wide(entries.counts)[found]))

    def combined(self, columns: list[Any]) -> Combined:
        """Return the windows and keys that have rows, sorted by query, window and key."""
        found, keys, counts = compiled.occupied(self._dense[0][0])
        everything = found.size == self._dense[0][0].size
        dense = [[a.reshape(-1) if everything else a.reshape(-1)[found] for a in arrays] for arrays in self._dense]
        for need, component in enumerate(self._needs):
            if component.kind == "count":
                dense[need] = [dense[0][0] - dense[need][0]]
        values = {need: self._reduced(need, found) for need in self._listed}
        due = (self._due.queries, self._due.starts, self._due.ends)
        queries, starts, ends = (compiled.repeated(a, counts, found.size) for a in due)
        return Combined(queries, starts, ends, [take(c, keys) for c in columns], dense, values)

    def _reduced(self, need: int, places: Integers) -> Listed:
        pieces = self._listed[need]
        types = [a.type for a in self._needs[need].args]
        if not pieces:
            return Listed(np.zeros(0, np.int64), [pa.array([], t) for t in types], np.zeros(0, np.int64))
        rows = np.searchsorted(places, np.concatenate([p[0] for p in pieces]))
        values = [pa.concat_arrays([p[1][i] for p in pieces]) for i in range(len(types))]
        return Listed(*listed(self._needs[need].kind, values, rows, np.concatenate([p[2] for p in pieces])))


def _are_few(store: _Slices, covered: int, windows: int) -> bool:
    """Tell whether going through partials entry by entry costs less than prefix sums, for one key.

    `covered` is over how many partials windows lie, all together: each of their entries is looked at once for each window.
    """
    keys = sum(partial.key_count for partial in store.partials)
    entries = sum(len(partial.cells) for partial in store.partials) / max(keys, 1)
    return covered * entries <= 3 * len(store.partials) * store.spans.size + 4 * windows


def _ranges(store: _Slices, keys: int) -> tuple[Integers, Integers]:
    """Return for each partial and key where its cells begin and end, among the cells of all partials."""
    firsts, lasts = np.zeros((len(store.partials), keys), np.int64), np.zeros((len(store.partials), keys), np.int64)
    offset = 0
    for part, (partial, rows) in enumerate(zip(store.partials, store.rows, strict=True)):
        starts = wide(partial.starts) + offset
        firsts[part, rows], lasts[part, rows] = starts[:-1], starts[1:]
        offset += len(partial.cells)
    return firsts, lasts


def _column(store: _Slices, place: int, limb: int, against: int | None) -> Integers | None:
    """Return one array of a component over all partials; for a count (`against` the row count) what it lacks, None if nothing."""
    if against is None:
        return _joined([p.dense[place][limb] for p in store.partials])
    if all(p.dense[place][0] is p.dense[against][0] for p in store.partials):
        return None
    return np.concatenate([wide(p.dense[against][0]) - wide(p.dense[place][0]) for p in store.partials])


def _joined(arrays: Sequence[Integers]) -> Integers:
    """Return narrow integers one after the other, in one of two widths: each makes a compiled version of its own."""
    return np.concatenate(arrays, dtype=np.int32 if max(a.itemsize for a in arrays) <= 4 else np.int64)


def _gather(spans: Spans, predicates: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the spans of several predicates, one after the other."""
    firsts, counts = spans.offsets[predicates], spans.offsets[predicates + 1] - spans.offsets[predicates]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    at = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts) + np.repeat(firsts, counts)
    return offsets.astype(np.int64), spans.lows[at], spans.highs[at]


def due_windows(windows: Iterable[tuple[int, Sequence[int], int]]) -> Due:
    """Return due windows from (query, starts, size), sorted."""
    flat = sorted((query, start, start + size) for query, starts, size in windows for start in starts)
    table = np.array(flat, np.int64).reshape(-1, 3)
    return Due(*(np.ascontiguousarray(table[:, i]) for i in range(3)))
