"""Probes of sliding joins: kernels, and matches found by hash, by sorted search and by nested loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.engine.batch_job import SegmentRef
from headrace.engine.budgets import BudgetMeter
from headrace.engine.failures import QueryFailures
from headrace.engine.joins import index, nested_loops
from headrace.engine.joins.index import RowIndexes, RowPairs
from headrace.engine.joins.joined_rows import JoinedRows
from headrace.engine.joins.probe_plan import LoadedProbe, LoadedSlidingJoinPlan
from headrace.engine.joins.segment import RowSegment, view_segments
from headrace.engine.joins.sliding_join import Prober
from headrace.engine.joins.state_store import LoadedSegment
from headrace.engine.kernels import join as join_kernels
from headrace.model.budget import DEFAULT_BUDGET
from headrace.planner.join.normalized_join import NormalizedJoin, qualify_column, time_column_of
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.join.sliding_join_planner import plan_sliding_joins
from support.sliding_join_plans import COLUMNS, join_sql, make_join, parse_choice

SECOND = 1_000_000
TYPES = {"a": pa.int32(), "b": pa.int32(), "c": pa.int32(), "d": pa.int32(), "x": pa.float64(), "n": pa.string()}
ALL_VALID = np.zeros(0, np.bool_)

# ------------------------------------------------------------------------------------------------------------------------ kernels

HASHES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1])), max_size=40)

METER = BudgetMeter(DEFAULT_BUDGET, {}, QueryFailures())


@given(HASHES, HASHES, st.integers(0, 2**32))
def test_look_ups_find_rows_of_equal_hash_in_insertion_order(stored, probed, seed):
    random = np.random.default_rng(seed)
    probed = probed + stored[:10]
    valid, wanted = random.random(len(stored)) < 0.8, random.random(len(probed)) < 0.8
    *index, order = join_kernels.index_hashes(np.array(stored, np.uint64), valid)
    ranges = join_kernels.look_up_hashes(np.array(probed, np.uint64), wanted, *index)
    for i, value in enumerate(probed):
        expected = [j for j, other in enumerate(stored) if valid[j] and other == value] if wanted[i] else []
        assert order[ranges[i, 0] : ranges[i, 1]].tolist() == expected


def test_an_empty_mask_means_that_all_rows_are_valid():
    here = np.array([7, 7, 2**64 - 1, 0], np.uint64)
    *index, order = join_kernels.index_hashes(here, ALL_VALID)
    ranges = join_kernels.look_up_hashes(here, ALL_VALID, *index)
    assert [order[begin:end].tolist() for begin, end in ranges.tolist()] == [[0, 1], [0, 1], [2], [3]]


@given(st.integers(0, 2**32), st.integers(1, 2), st.integers(1, 7), *[st.booleans()] * 4)
def test_find_pairs_checks_query_sets_times_and_batches(
    seed: int, words: int, size: int, ordered: bool, in_order: bool, timed: bool, born: bool
):
    random = np.random.default_rng(seed)
    mine, there, before = int(random.integers(0, 12)), int(random.integers(0, 12)), 5
    ranges = np.sort(random.integers(0, there + 1, (mine, 2)), axis=1).astype(np.int32)
    order = random.permutation(there).astype(np.int32) if ordered else None
    sets, theirs = (random.integers(0, 4, (n, words)).astype(np.uint64) << np.uint64(62) for n in (mine, there))
    low, high, times = (random.integers(0, 10, n) if timed else None for n in (mine, mine, there))
    births = random.integers(0, 9, there).astype(np.int32) if born else None
    expected = []
    for i in range(mine):
        for place in range(*ranges[i].tolist()):
            j = place if order is None else int(order[place])
            common = sets[i] & theirs[j]
            in_time = times is None or low[i] <= times[j] <= high[i]
            if in_time and common.any() and (births is None or births[j] < before):
                expected.append((i, j, common.tolist()))
    if order is not None and in_order:
        theirs = theirs[order]
    found, row, place = [], 0, 0
    while row < mine:
        own, other, both = np.empty(size, np.int64), np.empty(size, np.int64), np.empty((size, words), np.uint64)
        count, row, place = join_kernels.find_pairs(
            ranges, order, sets, theirs, in_order, low, high, times, births, before, row, place, own, other, both
        )
        assert count <= size
        found += list(zip(own[:count].tolist(), other[:count].tolist(), both[:count].tolist(), strict=True))
    assert found == expected  # in pieces of at most `size`, each pair once


def test_pairs_outside_a_window_lose_the_bits_of_its_queries():
    #   left  ●────────|  range 5        right ○──| range 2
    #   times  0   and   4, 5, 6;   5 and 3, 2
    left, right = np.array([0, 0, 0, 5, 5]), np.array([4, 5, 6, 3, 2])
    sets = np.full((5, 1), 0b11, np.uint64)
    join_kernels.clear_outside_windows(left, right, 5, 2, np.array([0b10], np.uint64), sets)
    assert sets[:, 0].tolist() == [0b11, 0b11, 0b01, 0b11, 0b01]


# ------------------------------------------------------------------------------------------------------------------------- probes

Row = Mapping[str, Any]
SIDES = {"r": "s[]", "s": "r[]"}


def plan_queries(*queries: NormalizedJoin) -> SlidingJoinPlan:
    return plan_sliding_joins(
        queries, parse_choice(*((query, SIDES) for query in queries)), 0, 1, {query.id: 0 for query in queries}
    )


def make_columns(relation: str, rows: Sequence[Row]) -> dict[str, pa.Array]:
    names = [name for name in TYPES if any(name in row for row in rows)]
    found = {qualify_column(relation, name): pa.array([row.get(name) for row in rows], TYPES[name]) for name in names}
    times = [int(row.get("at", 0) * SECOND) for row in rows]
    return {**found, time_column_of(relation): pa.array(times, pa.int64())}


def make_query_sets(rows: Sequence[Row]) -> np.ndarray:
    return np.array([[row.get("for", 0b11)] for row in rows], np.uint64).reshape(-1, 1)


def make_rows(relation: str, rows: Sequence[Row]) -> RowSegment:
    return RowSegment(make_columns(relation, rows), make_query_sets(rows), np.zeros(len(rows), np.uint64))


def make_probe_rows(relation: str, rows: Sequence[Row]) -> JoinedRows:
    return view_segments([make_rows(relation, rows)], 1)


def make_segment(relation: str, rows: Sequence[Row]) -> LoadedSegment:
    births = np.array([row.get("born", 0) for row in rows], np.int32)
    segment = replace(make_rows(relation, rows), insert_batch=births)
    ref = SegmentRef("", 0, 0, 0, int(births.min()), int(births.max()), len(rows), ())
    return LoadedSegment(ref, segment, RowIndexes(segment.evaluate, segment.row_count, {}))


def load_probe(start: str, *queries: NormalizedJoin) -> LoadedProbe:
    plan = plan_queries(*queries)
    (root,) = plan.root_probes[start]
    return LoadedSlidingJoinPlan(plan).get_probe(root.number)


def run_probe(loaded: LoadedProbe, mine: Sequence[Row], theirs: Sequence[Row], start: str = "r") -> list[tuple[int, int, int]]:
    """Return (arriving row, stored row, query-set) of all results of a probe; rows are identified by position."""
    other = "s" if start == "r" else "r"
    users = int(loaded.user_set[0])
    mine, theirs = (
        [{**row, "a": place, "for": row.get("for", users) & users} for place, row in enumerate(rows)] for rows in (mine, theirs)
    )
    here, prober = make_segment(other, theirs), Prober(loaded, make_probe_rows(start, mine), METER)
    found = []
    for pairs in prober.find_pairs(here, here.rows.sets):
        joined = prober.join_pairs(pairs, view_segments([here.rows], 1), np.zeros(pairs.pair_count, np.uint64))
        numbers = [joined.get_column(qualify_column(name, "a")).to_pylist() for name in (start, other)]
        found += list(zip(*numbers, joined.sets[:, 0].tolist(), strict=True))
    return sorted(found)


def join_by_nested_loops(
    holds: Callable[[Row, Row], bool], mine: Sequence[Row], theirs: Sequence[Row], ranges: tuple[float, float] = (10, 10)
) -> list[tuple[int, int]]:
    """Compare all pairs; each row is at most its range older than the other."""
    found = []
    for i, left in enumerate(mine):
        for j, right in enumerate(theirs):
            apart = right.get("at", 0) - left.get("at", 0)
            if -ranges[1] <= apart <= ranges[0] and holds(left, right):
                found.append((i, j))
    return found


def equal(left: Any, right: Any) -> bool:
    """NaN equals itself, −0.0 equals 0.0, NULL equals nothing."""
    if left is None or right is None:
        return False
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


def less(left: Any, right: Any) -> bool:
    """NaN is greater than all other values."""
    return left is not None and right is not None and not math.isnan(left) and (math.isnan(right) or left < right)


def less_or_equal(left: float, right: float) -> bool:
    return less(left, right) or equal(left, right)


ODD = [None, math.nan, -math.nan, -0.0, 0.0, 1.5, -1.5, math.inf, -math.inf]
PREDICATES = [
    ("r.b = s.b", "hash", lambda r, s: equal(r["b"], s["b"])),
    ("r.b = s.b AND r.c = s.c", "hash", lambda r, s: equal(r["b"], s["b"]) and equal(r["c"], s["c"])),
    ("r.x = s.x", "hash", lambda r, s: equal(r["x"], s["x"])),
    ("r.n = s.n", "hash", lambda r, s: equal(r["n"], s["n"])),
    ("r.b = s.b AND r.x < s.x", "hash", lambda r, s: equal(r["b"], s["b"]) and less(r["x"], s["x"])),
    ("r.x < s.x", "search", lambda r, s: less(r["x"], s["x"])),
    ("r.x >= s.x", "search", lambda r, s: less(s["x"], r["x"]) or equal(r["x"], s["x"])),
    ("r.c > s.b", "search", lambda r, s: r["c"] is not None and s["b"] is not None and r["c"] > s["b"]),
    (
        "r.b < s.b AND r.c + 2 >= s.b",
        "search",
        lambda r, s: None not in (r["b"], r["c"], s["b"]) and r["b"] < s["b"] <= r["c"] + 2,
    ),
    ("abs(r.x - s.x) <= 1.5", "search", lambda r, s: None not in (r["x"], s["x"]) and less_or_equal(abs(r["x"] - s["x"]), 1.5)),
    ("r.b <> s.b", "nested loops", lambda r, s: None not in (r["b"], s["b"]) and r["b"] != s["b"]),
    ("r.n < s.n", "nested loops", lambda r, s: None not in (r["n"], s["n"]) and r["n"] < s["n"]),
    ("r.b + s.b = 3", "search", lambda r, s: None not in (r["b"], s["b"]) and r["b"] + s["b"] == 3),
]


def draw_rows(random: np.random.Generator, count: int) -> list[Row]:
    small = [None, 0, 1, 2, 3]
    return [
        {
            "b": small[random.integers(5)],
            "c": small[random.integers(5)],
            "x": ODD[random.integers(len(ODD))],
            "n": [None, "", "a", "ab", "\x00null"][random.integers(5)],
            "at": int(random.integers(0, 30)),
        }
        for _ in range(count)
    ]


def search_method(loaded: LoadedProbe) -> str:
    if loaded.search is None:
        return "hash"
    return "search" if any(group.choices for group in loaded.search.groups) else "nested loops"


@pytest.mark.parametrize("start", ["r", "s"])
@pytest.mark.parametrize(("conditions", "method", "holds"), PREDICATES, ids=[text for text, *_ in PREDICATES])
def test_every_search_method_finds_the_matches_of_nested_loops(conditions: str, method: str, holds, start: str):
    #   values include NULL, NaN, −0.0 and the empty text
    loaded = load_probe(start, make_join(0, conditions, {"r": "4 s", "s": "9 s"}))
    assert search_method(loaded) == method
    random = np.random.default_rng(11)
    mine, theirs = draw_rows(random, 50), draw_rows(random, 70)
    if start == "r":
        expected = join_by_nested_loops(holds, mine, theirs, (4, 9))
    else:
        expected = join_by_nested_loops(lambda s, r: holds(r, s), mine, theirs, (9, 4))
    assert expected
    assert run_probe(loaded, mine, theirs, start) == [(i, j, 1) for i, j in expected]


@pytest.mark.parametrize("conditions", ["r.n = s.n", "r.x = s.x", "r.b = s.b AND r.c = s.c"])
def test_hash_collisions_are_not_matches(conditions: str, monkeypatch: pytest.MonkeyPatch):
    holds = next(predicate for text, _, predicate in PREDICATES if text == conditions)
    monkeypatch.setattr(index, "hash_keys", lambda keys, rows: np.zeros(rows, np.uint64))
    random = np.random.default_rng(2)
    mine, theirs = draw_rows(random, 40), draw_rows(random, 40)
    assert [pair[:2] for pair in run_probe(load_probe("r", make_join(0, conditions)), mine, theirs)] == join_by_nested_loops(
        holds, mine, theirs
    )


def test_integer_keys_need_no_check_after_the_hash():
    assert not load_probe("r", make_join(0, "r.b = s.b")).conditions
    assert load_probe("r", make_join(0, "r.n = s.n")).conditions


def test_each_query_has_its_own_windows():
    #   r  ●0                     query 0: ranges r 10 s, s 2 s      query 1: ranges r 3 s, s 8 s
    #   s        ○3      ○9       ○3: both;  ○9: query 0
    #   r                   ●12   ○9 is 3 s older: too old for query 0, not for query 1
    short, long = make_join(0, "r.b = s.b", {"r": "10 s", "s": "2 s"}), make_join(1, "r.b = s.b", {"r": "3 s", "s": "8 s"})
    loaded = load_probe("r", short, long)
    mine, theirs = [{"b": 1, "at": 0}, {"b": 1, "at": 12}], [{"b": 1, "at": 3}, {"b": 1, "at": 9}, {"b": 1, "at": 11}]
    assert run_probe(loaded, mine, theirs) == [(0, 0, 0b11), (0, 1, 0b01), (1, 1, 0b10), (1, 2, 0b11)]
    assert not load_probe("r", short).window_groups  # a window common to all queries is checked by the kernel
    assert len(loaded.window_groups) == 2


def test_results_have_the_query_bits_common_to_both_rows():
    loaded = load_probe("r", make_join(0, "r.b = s.b"), make_join(1, "r.b = s.b AND r.c < s.c"))
    mine = [{"b": 1, "c": 1, "for": 0b11}, {"b": 1, "c": 1, "for": 0b01}, {"b": 1, "c": 9}]
    theirs = [{"b": 1, "c": 5, "for": 0b10}, {"b": 1, "c": 5, "for": 0b11}, {"b": 2, "c": 5}]
    assert run_probe(loaded, mine, theirs) == [(0, 0, 0b10), (0, 1, 0b11), (1, 1, 0b01), (2, 1, 0b01)]


def test_a_probe_with_before_batch_finds_older_rows_only():
    #   rows are inserted in batches 3, 4, 5 and 4; the probe finds rows before batch 5
    query = make_join(0, "r.b = s.b")
    first = plan_queries(query)
    born = {store.number: 0 for store in first.stores}
    moved = parse_choice((query, {"r": "s[b]", "s": "r[]"}))
    plan = plan_sliding_joins((query,), moved, 5, 1, {0: 0}, first, born)
    old = next(probe for name, probe in plan.probes if name == "r" and probe.before_batch == 5)
    theirs = [{"b": 1, "born": 3}, {"b": 1, "born": 4}, {"b": 1, "born": 5}, {"b": 1, "born": 4}]
    assert run_probe(LoadedSlidingJoinPlan(plan).get_probe(old.number), [{"b": 1}], theirs) == [(0, 0, 1), (0, 1, 1), (0, 3, 1)]
    new = next(probe for name, probe in plan.probes if name == "r" and probe.before_batch is None)
    assert len(run_probe(LoadedSlidingJoinPlan(plan).get_probe(new.number), [{"b": 1}], theirs)) == 4


def test_probes_without_matches_return_no_rows():
    loaded = load_probe("r", make_join(0, "r.b = s.b"))
    assert run_probe(loaded, [{"b": 1}], [{"b": 2}]) == []
    assert run_probe(loaded, [{"b": None}], [{"b": None}]) == []
    assert run_probe(loaded, [{"b": 1, "at": 0}], [{"b": 1, "at": 11}]) == []


# -------------------------------------------------------------------------------------------------------- limited number of pairs


@pytest.mark.parametrize("most", [1, 7, 64])
@pytest.mark.parametrize("conditions", ["r.b = s.b", "r.b < s.b", "r.b <> s.b"])
def test_the_number_of_pairs_in_memory_is_limited(conditions: str, most: int, monkeypatch: pytest.MonkeyPatch):
    loaded = load_probe("r", make_join(0, conditions))
    mine = [{"b": k % 3} for k in range(30)]
    expected = run_probe(loaded, mine, mine)
    assert len(expected) >= 300
    monkeypatch.setattr(index, "MAX_PAIRS", most)
    monkeypatch.setattr(nested_loops, "BLOCK_PAIRS", most)
    here, held = make_segment("s", mine), []
    for pairs in Prober(loaded, make_probe_rows("r", mine), METER).find_pairs(here, here.rows.sets):
        assert isinstance(pairs, RowPairs)
        held.append(len(pairs.probe_ids))
    assert max(held) <= most
    assert sum(held) >= 300
    assert run_probe(loaded, mine, mine) == expected


@pytest.mark.parametrize("most", [3, 1 << 18])
def test_results_do_not_depend_on_the_limit_of_pairs(most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    #   three batches; the results of a probe are passed to the next probe in pieces
    monkeypatch.setattr(index, "MAX_PAIRS", most)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    given = {name: [{"a": 100 * k + ord(name), "b": k % 3, "c": k % 2} for k in range(12)] for name in "rst"}
    with hr.Session(tmp_path / "checkpoint", backend="local", partitions=2) as session:
        sources = {name: hr.MemorySource(COLUMNS) for name in "rst"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        query = session.add(join_sql("r.b = s.b AND s.c = t.c"))
        for batch in range(3):
            for name, source in sources.items():
                rows = given[name][4 * batch : 4 * batch + 4]
                source.append([{**row, "time": begin + timedelta(seconds=batch)} for row in rows])
            session.advance()
        found = Counter((row["r"], row["s"], row["t"]) for row in query.results().to_pylist())
    expected = Counter(
        (r["a"], s["a"], t["a"])
        for r in given["r"]
        for s in given["s"]
        for t in given["t"]
        if r["b"] == s["b"] and s["c"] == t["c"]
    )
    assert len(expected) > 200
    assert found == expected
