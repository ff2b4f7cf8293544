"""What samples of rows tell of conditions between relations, against what holds of all rows.

Of an equality, 512 values a sample are sketched, the same ones on both sides: the error is about 1 / √(pairs among them).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.joins import sampling
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.sampling import RelationSample, estimate_selectivities, sample_relation
from headrace.engine.joins.segment import PackedRows
from headrace.planner.join.normalized_join import NormalizedJoin, qualify_column, time_column_of
from headrace.planner.join.sliding_join_planner import plan_sliding_joins
from headrace.runtime.sliding_join_epochs import choose_orders
from support.sliding_join_plans import make_join

TYPES = {"a": pa.int32(), "b": pa.int32(), "c": pa.int32(), "d": pa.int32(), "x": pa.float64(), "n": pa.string()}


def loaded(query: NormalizedJoin) -> LoadedSlidingJoinPlan:
    return LoadedSlidingJoinPlan(plan_sliding_joins((query,), choose_orders((query,), None, None), 0, 2, {query.id: 0}))


def rows(relation: str, **columns) -> PackedRows:
    """Rows of a relation, with values as Python or numpy has them; None is NULL."""
    count = len(next(iter(columns.values())))
    arrays = {
        qualify_column(relation, name): pa.array(values, TYPES[name], from_pandas=False) for name, values in columns.items()
    }
    arrays[time_column_of(relation)] = pa.array(np.arange(count))
    return PackedRows(arrays, np.ones((count, 1), np.uint64), np.ones(count, np.uint64))


def told(query: NormalizedJoin, batches: int = 1, **relations) -> float:
    """Return the selectivity that samples tell; columns of each relation are cut into as many batches."""
    probes = loaded(query)
    samples: dict[str, list[RelationSample]] = {}
    for name, columns in relations.items():
        size = len(next(iter(columns.values()))) // batches
        for k in range(batches):
            part = {column: values[k * size : (k + 1) * size] for column, values in columns.items()}
            samples.setdefault(name, []).append(sample_relation(probes, name, rows(name, **part)))
    (found,) = estimate_selectivities([query], samples).values()
    return found


def exact(left, right) -> float:
    """The part of all pairs that are equal; NULL equals nothing."""
    ours, theirs = (Counter(value for value in side if value is not None) for side in (left, right))
    return sum(count * theirs[value] for value, count in ours.items()) / (len(left) * len(right))


EQUAL = make_join(0, "r.b = s.b")
TEXTS = make_join(0, "r.n = s.n")


def within(found: float, expected: float, factor: float) -> bool:
    return expected / factor <= found <= expected * factor


@pytest.mark.parametrize("batches", [1, 5])
@pytest.mark.parametrize("keys", [1, 10, 500])
def test_of_few_values_all_are_known(keys: int, batches: int):
    chance = np.random.default_rng(keys)
    left, right = (chance.integers(0, keys, size).tolist() for size in (3000, 1000))
    assert told(EQUAL, batches, r={"b": left}, s={"b": right}) == pytest.approx(exact(left, right), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_dense_keys(seed: int):
    chance = np.random.default_rng(seed)
    left, right = (chance.integers(0, 20_000, 15_000).tolist() for _ in range(2))
    assert within(told(EQUAL, r={"b": left}, s={"b": right}), exact(left, right), 1.3)


@pytest.mark.parametrize("seed", range(4))
def test_rare_pairs_are_seen_all_the_same(seed: int):
    #   one pair of rows in a million: of 2304 million pairs about 2304 are partners, and 1 in 24 of these has a value that is
    #   sketched
    chance = np.random.default_rng(seed)
    left, right = (chance.integers(0, 1_000_000, 48_000).tolist() for _ in range(2))
    assert exact(left, right) == pytest.approx(1e-6, rel=0.1)
    assert within(told(EQUAL, 4, r={"b": left}, s={"b": right}), exact(left, right), 1.6)


@pytest.mark.parametrize("seed", range(4))
def test_foreign_keys(seed: int):
    #   every row of r has one partner among ten thousand of s
    chance = np.random.default_rng(seed)
    left, right = chance.integers(0, 10_000, 3000).tolist(), chance.permutation(10_000).tolist()
    assert exact(left, right) == pytest.approx(1e-4)
    assert within(told(EQUAL, r={"b": left}, s={"b": right}), 1e-4, 1.4)


@pytest.mark.parametrize("seed", range(2))
def test_few_values_against_many(seed: int):
    #   all values of one side are known, of the other a part: only what both would have is compared
    chance = np.random.default_rng(seed)
    few, many = (400 * chance.integers(0, 400, 9000)).tolist(), chance.permutation(160_000)[:9000].tolist()
    many[:3000] = chance.choice(few, 3000).tolist()
    expected = exact(few, many)
    assert within(told(EQUAL, r={"b": few}, s={"b": many}), expected, 1.8)
    assert within(told(EQUAL, r={"b": many}, s={"b": few}), expected, 1.8)


def test_samples_of_different_sizes():
    #   a small batch, of which all values are known, and a large one
    chance = np.random.default_rng(8)
    left, right = (chance.integers(0, 5000, 12_300).tolist() for _ in range(2))
    probes = loaded(EQUAL)
    samples = {
        name: [
            sample_relation(probes, name, rows(name, b=values[:300])),
            sample_relation(probes, name, rows(name, b=values[300:])),
        ]
        for name, values in (("r", left), ("s", right))
    }
    (found,) = estimate_selectivities([EQUAL], samples).values()
    assert within(found, exact(left, right), 1.3)


def test_keys_that_never_meet_are_told_apart_from_those_that_do():
    #   nothing is found, and half a pair is assumed: no order is thought to cost nothing at all
    chance = np.random.default_rng(0)
    left, right = chance.integers(0, 5000, 4000), chance.integers(5000, 10_000, 4000)
    assert 0 < told(EQUAL, r={"b": left.tolist()}, s={"b": right.tolist()}) < 1e-5 < exact(left.tolist(), left.tolist()) / 10


@pytest.mark.parametrize("seed", range(3))
def test_null_equals_nothing(seed: int):
    chance = np.random.default_rng(seed)
    left, right = ([None if chance.random() < 0.5 else int(chance.integers(0, 300)) for _ in range(2000)] for _ in range(2))
    assert told(EQUAL, r={"b": left}, s={"b": right}) == pytest.approx(exact(left, right), rel=1e-9)
    nothing = [None] * 2000
    assert told(EQUAL, r={"b": nothing}, s={"b": right}) < 1e-6


@pytest.mark.parametrize("keys", [50, 8000])
def test_texts(keys: int):
    chance = np.random.default_rng(keys)
    left, right = ([f"key {value}" for value in chance.integers(0, keys, 6000)] for _ in range(2))
    assert within(told(TEXTS, 2, r={"n": left}, s={"n": right}), exact(left, right), 1.0001 if keys < 512 else 1.3)


def test_expressions_are_sketched_as_columns_are():
    query = make_join(0, "r.b + 1 = s.b * 2")
    chance = np.random.default_rng(3)
    left, right = (chance.integers(0, 100, 1000) for _ in range(2))
    expected = exact((left + 1).tolist(), (right * 2).tolist())
    assert told(query, r={"b": left.tolist()}, s={"b": right.tolist()}) == pytest.approx(expected, rel=1e-9)


def test_of_many_rows_some_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "_SKETCH_ROWS", 1000)
    chance = np.random.default_rng(1)
    left, right = (chance.integers(0, 100, 20_000).tolist() for _ in range(2))
    assert within(told(EQUAL, r={"b": left}, s={"b": right}), exact(left, right), 1.15)


def test_a_sample_is_small():
    found = sample_relation(loaded(EQUAL), "r", rows("r", a=np.arange(50_000), b=np.arange(50_000)))
    (sketch,) = found.sketches.values()
    assert found.row_count == 50_000
    assert len(sketch.hashes) == 512
    assert all(len(column) == 48 for column in found.columns.values())


# --------------------------------------------------------------------------------------------------------------- any conditions


@pytest.mark.parametrize(
    ("conditions", "expected", "factor"),
    [
        ("r.x < s.x", 0.5, 1.2),
        ("r.x + s.x > 1.8", 0.02, 2.0),
        ("r.b <> s.b", 0.9, 1.1),
        ("r.b = s.b OR r.b = s.b + 1", 0.19, 1.5),
    ],
)
def test_other_conditions_are_tried_on_rows_that_were_kept(conditions: str, expected: float, factor: float):
    chance = np.random.default_rng(5)
    columns = {
        name: {"x": chance.random(6000).tolist(), "b": chance.integers(0, 10, 6000).tolist(), "a": [0] * 6000} for name in "rs"
    }
    assert within(told(make_join(0, conditions), 3, **columns), expected, factor)


def test_what_holds_for_no_pair_that_was_tried_is_not_thought_to_hold_never():
    found = told(make_join(0, "r.b > s.b + 1000"), r={"b": list(range(100))}, s={"b": list(range(100))})
    assert 0 < found < 1e-3


def test_a_condition_that_is_unknown_does_not_hold():
    assert told(make_join(0, "r.b <> s.b"), r={"b": [None] * 40}, s={"b": list(range(40))}) < 1e-3


def test_nothing_is_said_of_relations_that_were_not_seen():
    query = make_join(0, "r.b = s.b AND s.c = t.c")
    probes = loaded(query)
    samples = {name: [sample_relation(probes, name, rows(name, a=[0], b=[1], c=[2]))] for name in "rs"}
    assert [str(one) for one in estimate_selectivities([query], samples)] == ["r.b = s.b"]


def test_samples_from_before_a_query_came_do_not_know_its_columns():
    #   the first sample was taken when nobody looked at column c
    before, after = make_join(0, "r.b = s.b"), make_join(0, "r.b = s.b AND r.c < s.c AND r.d = s.d")
    samples = {
        name: [
            sample_relation(loaded(before), name, rows(name, a=[0] * 50, b=range(50))),
            sample_relation(loaded(after), name, rows(name, a=[0] * 50, b=range(50), c=range(50), d=range(50))),
        ]
        for name in "rs"
    }
    found = {str(one): value for one, value in estimate_selectivities([after], samples).items()}
    assert found["r.b = s.b"] == pytest.approx(0.02)
    assert found["r.d = s.d"] == pytest.approx(0.02)
    assert found["r.c < s.c"] == 1.0
