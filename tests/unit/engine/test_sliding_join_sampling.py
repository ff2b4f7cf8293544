"""Selectivities of join predicates estimated from samples, against those of all rows.

For an equality, a sample sketches 512 values, the same on both sides: the error is about 1 / √(pairs among them).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.joins import sampling
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.sampling import RelationSample, estimate_selectivities, sample_relation
from headrace.engine.joins.segment import RowSegment
from headrace.planner.join.normalized_join import NormalizedJoin, qualify_column, time_column_of
from headrace.planner.join.sliding_join_planner import plan_sliding_joins
from headrace.runtime.sliding_join_epochs import choose_orders
from support.sliding_join_plans import make_join

TYPES = {"a": pa.int32(), "b": pa.int32(), "c": pa.int32(), "d": pa.int32(), "x": pa.float64(), "n": pa.string()}


def load_plan(query: NormalizedJoin) -> LoadedSlidingJoinPlan:
    return LoadedSlidingJoinPlan(plan_sliding_joins((query,), choose_orders((query,), None, None), 0, 2, {query.id: 0}))


def pack_rows(relation: str, **columns) -> RowSegment:
    """Pack rows of a relation; None is NULL."""
    count = len(next(iter(columns.values())))
    arrays = {
        qualify_column(relation, name): pa.array(values, TYPES[name], from_pandas=False) for name, values in columns.items()
    }
    arrays[time_column_of(relation)] = pa.array(np.arange(count))
    return RowSegment(arrays, np.ones((count, 1), np.uint64), np.ones(count, np.uint64))


def estimate(query: NormalizedJoin, batches: int = 1, **relations) -> float:
    """Return the estimated selectivity; the columns of each relation are split into `batches` batches."""
    probes = load_plan(query)
    samples: dict[str, list[RelationSample]] = {}
    for name, columns in relations.items():
        size = len(next(iter(columns.values()))) // batches
        for k in range(batches):
            part = {column: values[k * size : (k + 1) * size] for column, values in columns.items()}
            samples.setdefault(name, []).append(sample_relation(probes, name, pack_rows(name, **part)))
    (selectivity,) = estimate_selectivities([query], samples).of_all.values()
    return selectivity


def compute_exact(left, right) -> float:
    """Return the share of equal pairs among all pairs; NULL equals nothing."""
    left_counts, right_counts = (Counter(value for value in side if value is not None) for side in (left, right))
    return sum(count * right_counts[value] for value, count in left_counts.items()) / (len(left) * len(right))


EQUAL = make_join(0, "r.b = s.b")
TEXTS = make_join(0, "r.n = s.n")


def is_within(found: float, expected: float, factor: float) -> bool:
    return expected / factor <= found <= expected * factor


@pytest.mark.parametrize("batches", [1, 5])
@pytest.mark.parametrize("keys", [1, 10, 500])
def test_estimates_of_few_distinct_values_are_exact(keys: int, batches: int):
    random = np.random.default_rng(keys)
    left, right = (random.integers(0, keys, size).tolist() for size in (3000, 1000))
    assert estimate(EQUAL, batches, r={"b": left}, s={"b": right}) == pytest.approx(compute_exact(left, right), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_estimates_of_dense_keys(seed: int):
    random = np.random.default_rng(seed)
    left, right = (random.integers(0, 20_000, 15_000).tolist() for _ in range(2))
    assert is_within(estimate(EQUAL, r={"b": left}, s={"b": right}), compute_exact(left, right), 1.3)


@pytest.mark.parametrize("seed", range(4))
def test_estimates_of_rare_matches(seed: int):
    #   one pair of rows in a million: of 2304 million pairs about 2304 match, and 1 in 24 of these has a value that is
    #   sketched
    random = np.random.default_rng(seed)
    left, right = (random.integers(0, 1_000_000, 48_000).tolist() for _ in range(2))
    assert compute_exact(left, right) == pytest.approx(1e-6, rel=0.1)
    assert is_within(estimate(EQUAL, 4, r={"b": left}, s={"b": right}), compute_exact(left, right), 1.6)


@pytest.mark.parametrize("seed", range(4))
def test_estimates_of_foreign_keys(seed: int):
    #   every row of r has one partner among ten thousand of s
    random = np.random.default_rng(seed)
    left, right = random.integers(0, 10_000, 3000).tolist(), random.permutation(10_000).tolist()
    assert compute_exact(left, right) == pytest.approx(1e-4)
    assert is_within(estimate(EQUAL, r={"b": left}, s={"b": right}), 1e-4, 1.4)


@pytest.mark.parametrize("seed", range(2))
def test_estimates_of_few_against_many_distinct_values(seed: int):
    #   the sketch has all values of one side and part of the other: only values in both samples are compared
    random = np.random.default_rng(seed)
    few, many = (400 * random.integers(0, 400, 9000)).tolist(), random.permutation(160_000)[:9000].tolist()
    many[:3000] = random.choice(few, 3000).tolist()
    expected = compute_exact(few, many)
    assert is_within(estimate(EQUAL, r={"b": few}, s={"b": many}), expected, 1.8)
    assert is_within(estimate(EQUAL, r={"b": many}, s={"b": few}), expected, 1.8)


def test_samples_of_different_sizes_are_combined():
    #   a small batch, sketched completely, and a large one
    random = np.random.default_rng(8)
    left, right = (random.integers(0, 5000, 12_300).tolist() for _ in range(2))
    probes = load_plan(EQUAL)
    samples = {
        name: [
            sample_relation(probes, name, pack_rows(name, b=values[:300])),
            sample_relation(probes, name, pack_rows(name, b=values[300:])),
        ]
        for name, values in (("r", left), ("s", right))
    }
    (found,) = estimate_selectivities([EQUAL], samples).of_all.values()
    assert is_within(found, compute_exact(left, right), 1.3)


def test_disjoint_keys_have_a_small_positive_selectivity():
    #   without matches half a pair is assumed: no order has zero cost
    random = np.random.default_rng(0)
    left, right = random.integers(0, 5000, 4000), random.integers(5000, 10_000, 4000)
    assert (
        0
        < estimate(EQUAL, r={"b": left.tolist()}, s={"b": right.tolist()})
        < 1e-5
        < compute_exact(left.tolist(), left.tolist()) / 10
    )


@pytest.mark.parametrize("seed", range(3))
def test_null_equals_nothing(seed: int):
    random = np.random.default_rng(seed)
    left, right = ([None if random.random() < 0.5 else int(random.integers(0, 300)) for _ in range(2000)] for _ in range(2))
    assert estimate(EQUAL, r={"b": left}, s={"b": right}) == pytest.approx(compute_exact(left, right), rel=1e-9)
    nothing = [None] * 2000
    assert estimate(EQUAL, r={"b": nothing}, s={"b": right}) < 1e-6


@pytest.mark.parametrize("keys", [50, 8000])
def test_estimates_of_text_keys(keys: int):
    random = np.random.default_rng(keys)
    left, right = ([f"key {value}" for value in random.integers(0, keys, 6000)] for _ in range(2))
    assert is_within(estimate(TEXTS, 2, r={"n": left}, s={"n": right}), compute_exact(left, right), 1.0001 if keys < 512 else 1.3)


def test_expressions_are_sketched_like_columns():
    query = make_join(0, "r.b + 1 = s.b * 2")
    random = np.random.default_rng(3)
    left, right = (random.integers(0, 100, 1000) for _ in range(2))
    expected = compute_exact((left + 1).tolist(), (right * 2).tolist())
    assert estimate(query, r={"b": left.tolist()}, s={"b": right.tolist()}) == pytest.approx(expected, rel=1e-9)


def test_large_batches_are_subsampled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "_SKETCH_ROWS", 1000)
    random = np.random.default_rng(1)
    left, right = (random.integers(0, 100, 20_000).tolist() for _ in range(2))
    assert is_within(estimate(EQUAL, r={"b": left}, s={"b": right}), compute_exact(left, right), 1.15)


def test_a_sample_has_bounded_size():
    found = sample_relation(load_plan(EQUAL), "r", pack_rows("r", a=np.arange(50_000), b=np.arange(50_000)))
    (sketch,) = found.sketches.values()
    assert found.row_count == 50_000
    assert len(sketch.hashes) == 512
    assert all(len(column) == 48 for column in found.columns.values())


# -------------------------------------------------------------------------------------------------------------------- comparisons


@pytest.mark.parametrize(
    ("conditions", "expected", "factor"),
    [
        ("r.x < s.x", 0.5, 1.2),
        ("r.x + s.x > 1.8", 0.02, 2.0),
        ("r.b <> s.b", 0.9, 1.1),
        ("r.b = s.b OR r.b = s.b + 1", 0.19, 1.5),
    ],
)
def test_other_conditions_are_evaluated_on_sampled_rows(conditions: str, expected: float, factor: float):
    random = np.random.default_rng(5)
    columns = {
        name: {"x": random.random(6000).tolist(), "b": random.integers(0, 10, 6000).tolist(), "a": [0] * 6000} for name in "rs"
    }
    assert is_within(estimate(make_join(0, conditions), 3, **columns), expected, factor)


def test_a_condition_without_sampled_matches_has_a_positive_selectivity():
    found = estimate(make_join(0, "r.b > s.b + 1000"), r={"b": list(range(100))}, s={"b": list(range(100))})
    assert 0 < found < 1e-3


def test_null_conditions_do_not_hold():
    assert estimate(make_join(0, "r.b <> s.b"), r={"b": [None] * 40}, s={"b": list(range(40))}) < 1e-3


def test_selectivities_depend_on_the_relation_of_the_newest_row():
    #   the value of each row is its time: s.b >= r.b holds for all pairs with a newest row of s, except those of equal time
    query = make_join(0, "s.b >= r.b")
    probes = load_plan(query)
    samples = {name: [sample_relation(probes, name, pack_rows(name, b=list(range(48))))] for name in "rs"}
    found = estimate_selectivities([query], samples)
    (predicate,) = found.of_all
    assert found.of_all[predicate] == pytest.approx(0.5, abs=0.02)
    assert found.by_newest[predicate, "s"] == 1.0
    assert found.by_newest[predicate, "r"] < 0.05


def test_conditions_over_three_relations_are_estimated():
    query = make_join(0, "r.b + s.b < t.b")
    probes = load_plan(query)
    samples = {
        name: [sample_relation(probes, name, pack_rows(name, b=[value] * 40))] for name, value in (("r", 1), ("s", 2), ("t", 9))
    }
    samples["t"].append(sample_relation(probes, "t", pack_rows("t", b=[0] * 120)))
    found = estimate_selectivities([query], samples)
    ((predicate, selectivity),) = found.of_all.items()
    assert predicate.relations == ("r", "s", "t")
    assert selectivity == pytest.approx(40 / 88, abs=0.05)  # 40 of t's 40 rows, and 48 of its 120


def test_relations_without_samples_have_no_estimate():
    query = make_join(0, "r.b = s.b AND s.c = t.c")
    probes = load_plan(query)
    samples = {name: [sample_relation(probes, name, pack_rows(name, a=[0], b=[1], c=[2]))] for name in "rs"}
    assert [str(predicate) for predicate in estimate_selectivities([query], samples).of_all] == ["r.b = s.b"]


def test_samples_older_than_a_query_lack_its_columns():
    #   the first sample was taken before a query used column c
    before, after = make_join(0, "r.b = s.b"), make_join(0, "r.b = s.b AND r.c < s.c AND r.d = s.d")
    samples = {
        name: [
            sample_relation(load_plan(before), name, pack_rows(name, a=[0] * 50, b=range(50))),
            sample_relation(load_plan(after), name, pack_rows(name, a=[0] * 50, b=range(50), c=range(50), d=range(50))),
        ]
        for name in "rs"
    }
    found = {str(predicate): value for predicate, value in estimate_selectivities([after], samples).of_all.items()}
    assert found["r.b = s.b"] == pytest.approx(0.02)
    assert found["r.d = s.d"] == pytest.approx(0.02)
    assert found["r.c < s.c"] == 1.0
