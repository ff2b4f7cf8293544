"""What a batch shows of the rows that multi-way joins see, and what follows for conditions between relations.

Of each relation a few rows are kept, for conditions of any kind; and for each attribute of an equality a sketch: of all values
those with the least hashes, and how often they came. Since both sides of an equality are sketched by the same hashes, the values
that both have tell how many pairs of rows there are, however rare they be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.multiway.loaded import LoadedProbes
from headrace.execution.multiway.tuples import Packed
from headrace.kernels.columns import flat
from headrace.kernels.expression import Evaluator
from headrace.kernels.keys import hashes
from headrace.model.expression import Expression, columns
from headrace.sharing.multiway.asked import Asked, attribute_of, predicate_of, sides_of
from headrace.sharing.multiway.relations import Attribute, Predicate

_ROWS = 1 << 14  # of a batch are sketched
_VALUES = 512  # are kept in a sketch
_SHOWN = 48  # rows of a batch are kept as they are
_SCALE = float(1 << 64)


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """The values with the least hashes, up to `limit`, and how often each came among `rows` rows."""

    hashes: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    limit: float
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Some of the `rows` rows of a relation that matter to somebody, of the `seen` rows of its stream."""

    rows: int
    seen: int
    columns: dict[str, pa.Array]
    sketches: dict[Attribute, Sketch]


def sampled(probes: LoadedProbes, relation: str, rows: Packed, seen: int | None = None) -> Sample:
    """Return a sample of the rows of a relation, which matter to somebody; the stream had `seen` rows, if it had more."""
    step = max(1, rows.rows // _ROWS)
    some = rows.take(np.arange(0, rows.rows, step)) if step > 1 else rows
    evaluate = Evaluator(some.columns, some.rows)
    sketches = {attribute: _sketch(flat(evaluate(side)), some.rows) for attribute, side in probes.sides(relation).items()}
    shown = some.take(np.linspace(0, some.rows - 1, min(_SHOWN, some.rows)).astype(np.int64))
    return Sample(rows.rows, rows.rows if seen is None else seen, shown.columns, sketches)


def _sketch(column: pa.Array, rows: int) -> Sketch:
    valid = column.drop_null() if column.null_count else column
    values, counts = np.unique(hashes([valid], len(valid)), return_counts=True)
    if len(values) <= _VALUES:
        return Sketch(values, counts, _SCALE, rows)
    return Sketch(values[:_VALUES], counts[:_VALUES], float(values[_VALUES]), rows)


def selectivities(queries: Iterable[Asked], samples: Mapping[str, Sequence[Sample]]) -> dict[Predicate, float]:
    """Return the part of pairs of rows for which each condition between two relations holds, as far as samples tell."""
    found: dict[Predicate, float] = {}
    for condition in dict.fromkeys(one for query in queries for one in query.conditions):
        predicate = predicate_of(condition)
        if predicate is None or any(not samples.get(name) for name in predicate.relations):
            continue
        sides = sides_of(condition)
        one, two = (samples[name] for name in predicate.relations)
        if sides is None:
            found[predicate] = _tried(condition, one, two)
        else:
            found[predicate] = _equal(_merged(one, attribute_of(sides[0])), _merged(two, attribute_of(sides[1])))
    return found


def _merged(samples: Sequence[Sample], attribute: Attribute) -> Sketch:
    mine = [one.sketches[attribute] for one in samples if attribute in one.sketches]
    if not mine:
        return Sketch(np.zeros(0, np.uint64), np.zeros(0, np.int64), _SCALE, 0)
    limit = min(one.limit for one in mine)
    values, places = np.unique(np.concatenate([one.hashes for one in mine]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([one.counts for one in mine]), len(values)).astype(np.int64)
    kept = values.astype(np.float64) < limit
    return Sketch(values[kept], counts[kept], limit, sum(one.rows for one in mine))


def _equal(one: Sketch, two: Sketch) -> float:
    """Return the selectivity of an equality: pairs among values that both sketches would have, against all pairs."""
    limit = min(one.limit, two.limit)
    _, ours, theirs = np.intersect1d(one.hashes, two.hashes, assume_unique=True, return_indices=True)
    inside = one.hashes[ours].astype(np.float64) < limit
    pairs = float((one.counts[ours] * two.counts[theirs])[inside].sum())
    return max(pairs, 0.5) * (_SCALE / limit) / max(1.0, float(one.rows) * two.rows)


def _tried(condition: Expression, one: Sequence[Sample], two: Sequence[Sample]) -> float:
    """Return the selectivity of any condition: try it on all pairs of the rows that were kept."""
    left, right = _together(one), _together(two)
    mine, theirs = len(next(iter(left.values()))), len(next(iter(right.values())))
    if not mine or not theirs:
        return 1.0
    first, second = pa.array(np.repeat(np.arange(mine), theirs)), pa.array(np.tile(np.arange(theirs), mine))
    joined = {n: c.take(first) for n, c in left.items()} | {n: c.take(second) for n, c in right.items()}
    if any(name not in joined for name in columns(condition)):
        return 1.0
    holds = np.asarray(flat(Evaluator(joined, mine * theirs)(condition)).fill_null(False))
    return max(float(holds.sum()), 0.5) / (mine * theirs)


def _together(samples: Sequence[Sample]) -> dict[str, pa.Array]:
    names = [name for name in samples[0].columns if all(name in one.columns for one in samples)]
    return {name: pa.concat_arrays([one.columns[name] for one in samples]) for name in names}
