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
from headrace.kernels import compiled
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
    """Members of one store that take part: for each, the range of due windows, its predicate, and where its needs are."""

    targets: Integers
    predicates: Integers
    needs: list[tuple[int, ...]]
    need_of: Integers


def evaluate(plan: AggregateQuery, needs: Sequence[Component], due: Due, slices: Sequence[Slice], results: Results, failures: Failures) -> None:
    """Evaluate due windows of queries that share a shape; `needs` is their list of components."""
    first, last_edge = int(due.starts.min()), int(due.ends.max())
    stores = {id(s.store): s.store for s in slices}
    users = {number: _users(store, due) for number, store in stores.items()}
    used = [s for s in slices if first <= s.start < last_edge and users[id(s.store)].targets.size]
    if not used:
        return
    loaded = [(s, s.load()) for s in used]
    columns, count, maps = unify([(p.keys, p.key_count) for _, p in loaded])
    step = max(1, _MAX_ACCUMULATORS // max(count, 1))
    for at in range(0, len(due.queries), step):
        piece = due.part(at, at + step)
        chosen = users if step >= len(due.queries) else {number: _users(store, piece) for number, store in stores.items()}
        grid = _Grid(needs, piece, count)
        for (part_slice, partial), rows in zip(loaded, maps, strict=True):
            grid.add(part_slice, partial, rows, chosen[id(part_slice.store)])
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
    cuts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1], [True]])) if queries.size else np.zeros(1, np.int64)
    ranges = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    return [int(queries[a]) for a, _ in ranges], ranges


class _Grid:
    """Accumulators for every key and due window.

    Counts of values are kept as what they lack against the row count: usually nothing, and then nothing is computed.
    """

    def __init__(self, needs: Sequence[Component], due: Due, keys: int) -> None:
        self._needs, self._due, self._keys = needs, due, keys
        width = len(due.queries)
        self._dense: list[list[Numbers]] = [
            [a.reshape(keys, width) for a in empty(*n.signature, keys * width)] if n.is_dense else [] for n in needs
        ]
        self._listed: dict[int, list[tuple[Integers, list[Any], Integers]]] = {i: [] for i, n in enumerate(needs) if not n.is_dense}

    def add(self, part: Slice, partial: Partial, rows: Integers, users: _Users) -> None:
        """Take from a slice what every window over it wants."""
        inside = (self._due.starts[users.targets] <= part.start) & (part.start < self._due.ends[users.targets])
        if not inside.any():
            return
        spans, cells, size, labels = _local_spans(part, partial)
        for pattern, places in enumerate(users.needs):
            chosen = np.flatnonzero(inside & (users.need_of == pattern))
            if chosen.size:
                table = (users.targets[chosen], *_gather(spans, users.predicates[chosen]))
                self._add_dense(partial, cells, size, rows, places, table)
                self._add_listed(partial, labels, rows, places, table)

    def _add_dense(self, partial: Partial, cells: Integers, size: int, rows: Integers, places: Sequence[int], table: tuple[Integers, ...]) -> None:
        starts = wide(partial.starts)
        for need, (component, place) in enumerate(zip(self._needs, places, strict=True)):
            if not component.is_dense:
                continue
            arrays, out = [wide(a) for a in partial.dense[place]], self._dense[need]
            if component.kind == "count":
                if partial.dense[place][0] is partial.dense[places[0]][0]:
                    continue
                arrays = [wide(partial.dense[places[0]][0]) - arrays[0]]
            if component.kind in {"float", "square"}:
                compiled.window_floats(starts, cells, *arrays, rows, size, *table, *out)
            elif component.kind in {"min", "max"}:
                none = neutral(component.kind, component.args[0].type)
                compiled.window_extremes(int(component.kind == "max"), none, starts, cells, arrays[0], rows, size, *table, out[0])
            else:
                for array, total in zip(arrays, out, strict=True):
                    compiled.window_sums(starts, cells, array, rows, size, *table, total)

    def _add_listed(self, partial: Partial, labels: Integers | None, rows: Integers, places: Sequence[int], table: tuple[Integers, ...]) -> None:
        for need in self._listed:
            entries = partial.listed[places[need]]
            cells = wide(entries.cells)
            self._take_entries(need, entries, cells if labels is None else np.searchsorted(labels, cells), rows[wide(entries.keys)], table)

    def _take_entries(self, need: int, entries: Entries, cells: Integers, keys: Integers, table: tuple[Integers, ...]) -> None:
        targets, offsets, lows, highs = table
        for i, target in enumerate(targets.tolist()):
            hit = np.zeros(len(cells), np.bool_)
            for s in range(int(offsets[i]), int(offsets[i + 1])):
                hit |= (cells >= lows[s]) & (cells < highs[s])
            found = np.flatnonzero(hit)
            if found.size:
                at = keys[found] * len(self._due.queries) + target
                self._listed[need].append((at, [take(v, found) for v in entries.values], wide(entries.counts)[found]))

    def combined(self, columns: list[Any]) -> Combined:
        """Return the keys and windows that have rows, sorted by query, window and key."""
        width = len(self._due.queries)
        rows = _by_window(self._dense[0][0])
        found = np.flatnonzero(rows)
        everything = found.size == rows.size
        windows, keys = (found // max(self._keys, 1)), found % max(self._keys, 1)
        dense = [[_by_window(a) if everything else _by_window(a)[found] for a in arrays] for arrays in self._dense]
        for need, component in enumerate(self._needs):
            if component.kind == "count":
                dense[need] = [dense[0][0] - dense[need][0]]
        listed_values = {need: self._reduced(need, keys * width + windows) for need in self._listed}
        at = self._due
        return Combined(at.queries[windows], at.starts[windows], at.ends[windows], [take(c, keys) for c in columns], dense, listed_values)

    def _reduced(self, need: int, places: Integers) -> Listed:
        pieces = self._listed[need]
        types = [a.type for a in self._needs[need].args]
        if not pieces:
            return Listed(np.zeros(0, np.int64), [_nothing(t) for t in types], np.zeros(0, np.int64))
        order = np.argsort(places)
        at = np.concatenate([p[0] for p in pieces])
        rows = order[np.searchsorted(places[order], at)]
        values = [_joined([p[1][i] for p in pieces]) for i in range(len(types))]
        found, columns, counts = listed(self._needs[need].kind, values, rows, np.concatenate([p[2] for p in pieces]))
        return Listed(found, columns, counts)


def _by_window(accumulators: Numbers) -> Numbers:
    """Return accumulators in the order window, key."""
    return np.ascontiguousarray(accumulators.T).reshape(-1)


def _nothing(kind: Any) -> Any:
    return pa.array([], kind)


def _joined(arrays: Sequence[Any]) -> Any:
    return pa.concat_arrays(arrays)


def _local_spans(part: Slice, partial: Partial) -> tuple[Spans, Integers, int, Integers | None]:
    """Return spans over this partial's cells, the cells in that numbering, how many, and the labels if renumbered."""
    cells = wide(partial.cells)
    if part.selection.selection.layout is not Layout.SIGNATURES:
        return part.selection.spans, cells, part.selection.spans.size, None
    labels, codes = np.unique(cells, return_inverse=True)
    return cell_spans(part.selection.selection, labels), codes.reshape(-1).astype(np.int64), len(labels), labels


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
