"""Session windows per key, for every session query.

The sessions of a query depend on its own selection, so they are kept for each query; reading, keys and selection are
shared. Rows of a batch first become runs (rows of a key at most `gap` apart); runs travel to the partition of their key,
are joined with the open sessions there, and leave when the watermark has passed their end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.batch import Batch
from headrace.execution.finish import Combined, Listed, finish
from headrace.execution.keying import Keying
from headrace.execution.result import Failures, Results
from headrace.execution.selection import Tagged, rows_by_predicate
from headrace.kernels import compiled
from headrace.kernels.columns import Numbers, take, wide
from headrace.kernels.component import Accumulator, combine, empty, listed
from headrace.kernels.keys import encode
from headrace.model.window import SessionGap
from headrace.plan.logical import AggregateQuery
from headrace.sharing.aggregation import Component
from headrace.sharing.shared_plan import Member, Sessions

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of rows: key columns, first and last event time, and the components, one entry a run."""

    keys: list[pa.Array]
    firsts: Integers
    lasts: Integers
    dense: list[list[Numbers]]
    listed: dict[int, Listed]

    @property
    def bytes(self) -> int:
        """About how many bytes they take; without values that are kept one by one."""
        dense = {id(array): array.nbytes for arrays in self.dense for array in arrays}
        return int(2 * self.firsts.nbytes + sum(dense.values()) + sum(column.nbytes for column in self.keys))


def runs(
    operator: Sessions, tagged: Tagged, batch: Batch, keying: Keying, watermarks: Mapping[int, int]
) -> Iterator[tuple[int, int, Runs, int]]:
    """Yield (partition, query, runs, late rows) for every member that has rows; late rows are reported with partition −1."""
    rows_of = rows_by_predicate(tagged, sorted(set(operator.predicate_of)))
    for member, predicate in zip(operator.members, operator.predicate_of, strict=True):
        gap = member.window.gap if isinstance(member.window, SessionGap) else 0
        rows = rows_of[predicate]
        rows = rows[batch.times[rows] >= member.since]
        late = batch.times[rows] + gap <= watermarks[member.query]
        if late.any():
            yield -1, member.query, Runs([], rows[:0], rows[:0], [], {}), int(late.sum())
        if not late.all():
            for partition, found in _runs_of(member, gap, rows[~late], batch, keying):
                yield partition, member.query, found, 0


def _runs_of(member: Member, gap: int, rows: Integers, batch: Batch, keying: Keying) -> Iterator[tuple[int, Runs]]:
    table = keying.table(member.keys)
    codes, times = keying.codes(member.keys)[rows], batch.times[rows]
    order = np.lexsort((times, codes))
    rows, codes, times = rows[order], codes[order], times[order]
    heads = compiled.session_heads(codes, times, times, gap)
    places = np.cumsum(heads) - 1
    begin = np.flatnonzero(heads)
    finish_at = np.append(begin[1:], len(rows)) - 1
    cuts = np.searchsorted(codes[begin], table.bounds)
    count = len(begin)
    accumulator = Accumulator([n.signature if n.is_dense else None for n in member.needs], count)
    accumulator.add(places, [[batch.evaluate(a) for a in n.args] for n in member.needs], rows)
    dense = accumulator.arrays(np.arange(count))
    values = {}
    for index, need in enumerate(member.needs):
        if not need.is_dense:
            values[index] = listed(need.kind, [batch.evaluate(a).take(pa.array(rows)) for a in need.args], places)
    for partition in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
        first, last = int(cuts[partition]), int(cuts[partition + 1])
        picked = {i: _pick(v, first, last) for i, v in values.items()}
        arrays = [[a[first:last] for a in d] for d in dense]
        keys = [take(c, codes[begin[first:last]]) for c in table.columns]
        yield partition, Runs(keys, times[begin[first:last]], times[finish_at[first:last]], arrays, picked)


def _pick(found: tuple[Integers, list[pa.Array], Numbers], first: int, last: int) -> Listed:
    places, values, counts = found
    kept = np.flatnonzero((places >= first) & (places < last))
    return Listed(places[kept] - first, [take(v, kept) for v in values], counts[kept])


def merge(needs: Sequence[Component], gap: int, parts: Sequence[Runs]) -> Runs:
    """Join runs of one query that touch."""
    firsts, lasts = (np.concatenate([getattr(p, name) for p in parts]) for name in ("firsts", "lasts"))
    columns = [pa.concat_arrays([p.keys[i] for p in parts]) for i in range(len(parts[0].keys))]
    codes = encode(columns, len(firsts)).codes
    order = np.lexsort((firsts, codes))
    heads = compiled.session_heads(codes[order], firsts[order], lasts[order], gap)
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(heads) - 1
    count = int(heads.sum())
    begin = order[np.flatnonzero(heads)]
    ends = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(ends, places, lasts)
    dense, values = merge_components(needs, parts, places, count)
    return Runs([take(c, begin) for c in columns], firsts[begin], ends, dense, values)


def merge_components(
    needs: Sequence[Component], parts: Sequence[Runs], places: Integers, count: int
) -> tuple[list[list[Numbers]], dict[int, Listed]]:
    """Return the components of `count` groups: `places` tells to which of them each entry of the parts belongs."""
    dense: list[list[Numbers]] = []
    values: dict[int, Listed] = {}
    offsets = np.cumsum([0, *(len(p.firsts) for p in parts)])
    for index, need in enumerate(needs):
        into = empty(*need.signature, count) if need.is_dense else []
        if need.is_dense:
            for part, offset in zip(parts, offsets, strict=False):
                combine(need.kind, part.dense[index], places[offset : offset + len(part.firsts)], into)
        else:
            values[index] = _merge_listed(need, index, parts, offsets, places)
        dense.append(into)
    return dense, values


def _merge_listed(need: Component, index: int, parts: Sequence[Runs], offsets: Integers, places: Integers) -> Listed:
    at = np.concatenate([places[p.listed[index].rows + o] for p, o in zip(parts, offsets, strict=False)])
    columns = [pa.concat_arrays([p.listed[index].values[i] for p in parts]) for i in range(len(need.args))]
    counts = np.concatenate([wide(p.listed[index].counts) for p in parts])
    return Listed(*listed(need.kind, columns, at, counts))


def split(found: Runs, gap: int, watermark: int) -> tuple[Runs, Runs]:
    """Return (closed, open): a session is closed when its last row plus the gap is not after the watermark."""
    closed = found.lasts <= watermark - gap
    return subset(found, np.flatnonzero(closed)), subset(found, np.flatnonzero(~closed))


def subset(found: Runs, rows: Integers) -> Runs:
    """Return some of the runs."""
    place = np.full(len(found.firsts), -1, np.int64)
    place[rows] = np.arange(len(rows))
    values = {}
    for index, entries in found.listed.items():
        kept = np.flatnonzero(place[entries.rows] >= 0)
        values[index] = Listed(place[entries.rows[kept]], [take(v, kept) for v in entries.values], entries.counts[kept])
    dense = [[a[rows] for a in d] for d in found.dense]
    return Runs([take(c, rows) for c in found.keys], found.firsts[rows], found.lasts[rows], dense, values)


def emit(query: int, plan: AggregateQuery, gap: int, closed: Runs, results: Results, failures: Failures) -> None:
    """Turn closed sessions into result rows, in the order of their start."""
    ordered = subset(closed, np.argsort(closed.firsts, kind="stable"))
    queries = np.full(len(ordered.firsts), query, np.int64)
    dense = [[wide(a) for a in d] for d in ordered.dense]
    finish(plan, Combined(queries, ordered.firsts, ordered.lasts + gap, ordered.keys, dense, ordered.listed), results, failures)
