"""Samples of the rows that joins read, and what is estimated from them: shares of queries, keys, and selectivities.

For window joins, query-sets and keys of rows are sampled; for sliding joins, rows of relations. A sample of a relation has a
few rows, for conditions of any kind, and for each attribute of an equality a sketch: the values with the least hashes, and
their counts. Both sides of an equality are sketched with the same hash function, so the values that both sketches contain tell
the number of matching pairs, however rare these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.compute.keys import encode_keys, hash_keys
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.segment import RowSegment
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.engine.row_batch import RowBatch
from headrace.model.expression import Expression, column_names
from headrace.model.record import record
from headrace.planner.join.join_graph import Attribute, JoinPredicate
from headrace.planner.join.normalized_join import NormalizedJoin, split_equality, time_column_of, to_attribute, to_predicate

_SKETCH_ROWS = 1 << 14  # rows of a batch that are sketched, or whose keys are counted
_SKETCH_VALUES = 512  # values in a sketch
_SAMPLE_ROWS = 48  # rows in a sample
_MAX_COMBINATIONS = 1 << 17  # of sampled rows, on which a condition is evaluated
_MIN_COMBINATIONS = 32  # for a selectivity of those whose newest row is of one relation
_SAMPLE_SETS = 256  # query-sets sampled from a batch
_HASH_RANGE = float(1 << 64)


@record("value-sketch")
@dataclass(frozen=True, slots=True, eq=False)
class ValueSketch:
    """The values with the least hashes, up to `limit`, and the count of each among `row_count` rows."""

    hashes: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    limit: float
    row_count: int


@record("relation-sample")
@dataclass(frozen=True, slots=True, eq=False)
class RelationSample:
    """A sample of the `row_count` rows of a relation that matter to queries, out of `stream_rows` rows of its stream."""

    row_count: int
    stream_rows: int
    columns: dict[str, pa.Array]
    sketches: dict[Attribute, ValueSketch]


def sample_sets(live: QueryBitmaps, sets: QueryBitmaps) -> QueryBitmaps:
    """Return the query-sets of a few rows, after the set of all `live` queries."""
    return np.concatenate([live[None, :], sets[:: max(1, len(sets) // _SAMPLE_SETS)]])


def estimate_key_count(keys: Sequence[Expression], batch: RowBatch) -> int:
    """Return an estimate of the number of distinct keys of a stream, from a sample of adjacent rows."""
    if not keys:
        return 1
    rows = min(batch.row_count, _SKETCH_ROWS)
    columns = [combine_chunks(batch.evaluate_unguarded(key)).slice(0, rows) for key in keys]
    encoded = encode_keys(columns, rows)
    distinct_count = len(np.unique(encoded.codes))
    low, high = float(distinct_count), 1e12
    for _ in range(60):  # n rows contain about D (1 − e^(−n/D)) of D keys
        middle = (low * high) ** 0.5
        low, high = (middle, high) if middle * -np.expm1(-rows / middle) < distinct_count else (low, middle)
    return round(low)


def sample_relation(
    loaded_plan: LoadedSlidingJoinPlan, relation: str, rows: RowSegment, stream_rows: int | None = None
) -> RelationSample:
    """Return a sample of the rows of a relation that matter to queries; `stream_rows` counts all rows of the stream."""
    step = max(1, rows.row_count // _SKETCH_ROWS)
    sketched = rows.take(np.arange(0, rows.row_count, step)) if step > 1 else rows
    evaluate = Evaluator(sketched.columns, sketched.row_count)
    sketches = {
        attribute: _build_sketch(combine_chunks(evaluate(side)), sketched.row_count)
        for attribute, side in loaded_plan.list_equality_sides(relation).items()
    }
    sample_rows = sketched.take(np.linspace(0, sketched.row_count - 1, min(_SAMPLE_ROWS, sketched.row_count)).astype(np.int64))
    return RelationSample(rows.row_count, rows.row_count if stream_rows is None else stream_rows, sample_rows.columns, sketches)


def _build_sketch(column: pa.Array, rows: int) -> ValueSketch:
    valid = column.drop_null() if column.null_count else column
    values, counts = np.unique(hash_keys([valid], len(valid)), return_counts=True)
    if len(values) <= _SKETCH_VALUES:
        return ValueSketch(values, counts, _HASH_RANGE, rows)
    return ValueSketch(values[:_SKETCH_VALUES], counts[:_SKETCH_VALUES], float(values[_SKETCH_VALUES]), rows)


@dataclass(frozen=True, slots=True)
class SelectivityEstimates:
    """The share of row combinations that satisfy each condition; `by_newest`: of those with the newest row of a relation."""

    of_all: dict[JoinPredicate, float]
    by_newest: dict[tuple[JoinPredicate, str], float]


def estimate_selectivities(
    queries: Iterable[NormalizedJoin], samples: Mapping[str, Sequence[RelationSample]]
) -> SelectivityEstimates:
    """Return the selectivity of each condition over several relations, as far as samples allow."""
    estimates = SelectivityEstimates({}, {})
    for condition in dict.fromkeys(term for query in queries for term in query.conditions):
        predicate = to_predicate(condition)
        if predicate is None or any(not samples.get(name) for name in predicate.relations):
            continue
        sides = split_equality(condition)
        if sides is None:
            columns = {name: _concat_columns(samples[name]) for name in predicate.relations}
            _estimate_on_samples(predicate, condition, columns, estimates)
        else:
            left_samples, right_samples = (samples[name] for name in predicate.relations)
            estimates.of_all[predicate] = _estimate_equality(
                _merge_sketches(left_samples, to_attribute(sides[0])), _merge_sketches(right_samples, to_attribute(sides[1]))
            )
    return estimates


def _merge_sketches(samples: Sequence[RelationSample], attribute: Attribute) -> ValueSketch:
    sketches = [sample.sketches[attribute] for sample in samples if attribute in sample.sketches]
    if not sketches:
        return ValueSketch(np.zeros(0, np.uint64), np.zeros(0, np.int64), _HASH_RANGE, 0)
    limit = min(sketch.limit for sketch in sketches)
    values, value_ids = np.unique(np.concatenate([sketch.hashes for sketch in sketches]), return_inverse=True)
    counts = np.bincount(value_ids, np.concatenate([sketch.counts for sketch in sketches]), len(values)).astype(np.int64)
    below_limit = values.astype(np.float64) < limit
    return ValueSketch(values[below_limit], counts[below_limit], limit, sum(sketch.row_count for sketch in sketches))


def _estimate_equality(left: ValueSketch, right: ValueSketch) -> float:
    """Return the selectivity of an equality: matching pairs among values below both limits, extrapolated, over all pairs."""
    limit = min(left.limit, right.limit)
    _, left_ids, right_ids = np.intersect1d(left.hashes, right.hashes, assume_unique=True, return_indices=True)
    below_limit = left.hashes[left_ids].astype(np.float64) < limit
    pairs = float((left.counts[left_ids] * right.counts[right_ids])[below_limit].sum())
    return max(pairs, 0.5) * (_HASH_RANGE / limit) / max(1.0, float(left.row_count) * right.row_count)


def _estimate_on_samples(
    predicate: JoinPredicate, condition: Expression, columns: Mapping[str, dict[str, pa.Array]], estimates: SelectivityEstimates
) -> None:
    """Add the selectivities of any condition, by evaluating it on all combinations of sampled rows, or of some of them."""
    limit = int(_MAX_COMBINATIONS ** (1 / len(columns)))
    counts = {name: len(next(iter(relation_columns.values()))) for name, relation_columns in columns.items()}
    chosen = {name: np.linspace(0, count - 1, min(count, limit)).astype(np.int64) for name, count in counts.items()}
    if not all(counts.values()):
        estimates.of_all[predicate] = 1.0
        return
    grid = np.meshgrid(*chosen.values(), indexing="ij")
    row_ids = {name: pa.array(ids.ravel()) for name, ids in zip(chosen, grid, strict=True)}
    joined = {column: values.take(row_ids[name]) for name in columns for column, values in columns[name].items()}
    if any(name not in joined for name in column_names(condition)):
        estimates.of_all[predicate] = 1.0
        return
    holds = np.asarray(combine_chunks(Evaluator(joined, grid[0].size)(condition)).fill_null(False))
    estimates.of_all[predicate] = _estimate_share(holds)
    times = [joined.get(time_column_of(name)) for name in columns]
    if all(column is not None for column in times):
        event_times = np.stack([np.asarray(column).astype(np.int64) for column in times])
        latest = event_times.max(axis=0)
        for name, own_times in zip(columns, event_times, strict=True):
            is_newest = own_times == latest
            if int(is_newest.sum()) >= _MIN_COMBINATIONS:
                estimates.by_newest[predicate, name] = _estimate_share(holds[is_newest])


def _estimate_share(holds: npt.NDArray[np.bool_]) -> float:
    return max(float(holds.sum()), 0.5) / len(holds)


def _concat_columns(samples: Sequence[RelationSample]) -> dict[str, pa.Array]:
    names = [name for name in samples[0].columns if all(name in sample.columns for sample in samples)]
    return {name: pa.concat_arrays([sample.columns[name] for sample in samples]) for name in names}
