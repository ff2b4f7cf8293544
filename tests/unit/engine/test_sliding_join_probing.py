"""Partners of arriving rows among stored ones: the loops, and what is found by hash, by search and by trying everything."""

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
from headrace.engine.joins import segment, sliding_join
from headrace.engine.joins.joined_rows import ChunkedColumn, JoinTable, select_all_rows
from headrace.engine.joins.probe_plan import LoadedProbe, LoadedSlidingJoinPlan
from headrace.engine.joins.segment import PackedRows, ProbeTuples, StateSegment, unpack_rows
from headrace.engine.joins.sliding_join import ProbePairs, Prober
from headrace.engine.kernels import probe as probe_kernels
from headrace.planner.join.normalized_join import NormalizedJoin, qualify_column, time_column_of
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.join.sliding_join_planner import plan_sliding_joins
from support.sliding_join_plans import COLUMNS, join_sql, make_join, parse_choice

SECOND = 1_000_000
TYPES = {"a": pa.int32(), "b": pa.int32(), "c": pa.int32(), "d": pa.int32(), "x": pa.float64(), "n": pa.string()}
EVERYBODY = np.zeros(0, np.bool_)

# --------------------------------------------------------------------------------------------------------------------- the loops

HASHES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1])), max_size=40)


@given(HASHES, HASHES, st.integers(1, 6), st.integers(0, 2**32))
def test_look_ups_find_the_rows_of_equal_hash_in_order_of_arrival(here, asked, bits, seed):
    chance = np.random.default_rng(seed)
    asked = asked + here[:10]
    valid, wanted = chance.random(len(here)) < 0.8, chance.random(len(asked)) < 0.8
    directory, ordered, order = probe_kernels.index_hashes(np.array(here, np.uint64), valid, bits)
    begins, ends = probe_kernels.look_up_hashes(np.array(asked, np.uint64), wanted, directory, ordered, bits)
    for i, one in enumerate(asked):
        expected = [j for j, other in enumerate(here) if valid[j] and other == one] if wanted[i] else []
        assert order[begins[i] : ends[i]].tolist() == expected


def test_no_mask_says_that_all_rows_are_valid():
    here = np.array([7, 7, 2**64 - 1, 0], np.uint64)
    directory, ordered, order = probe_kernels.index_hashes(here, EVERYBODY, 2)
    begins, ends = probe_kernels.look_up_hashes(here, EVERYBODY, directory, ordered, 2)
    assert [sorted(order[b:e].tolist()) for b, e in zip(begins, ends, strict=True)] == [[0, 1], [0, 1], [2], [3]]


@given(st.integers(0, 2**32), st.integers(1, 2), st.integers(1, 7), st.booleans(), st.booleans())
def test_pairs_whose_sets_and_times_meet(seed: int, words: int, size: int, in_order: bool, born: bool):
    chance = np.random.default_rng(seed)
    mine, there, before = int(chance.integers(0, 12)), int(chance.integers(0, 12)), 5
    begins, ends = np.sort(chance.integers(0, there + 1, (2, mine)), axis=0)
    order = chance.permutation(there).astype(np.int32) if in_order else np.zeros(0, np.int32)
    sets, theirs = (chance.integers(0, 4, (n, words)).astype(np.uint64) << np.uint64(62) for n in (mine, there))
    low, high, times = (chance.integers(0, 10, n) for n in (mine, mine, there))
    births = chance.integers(0, 9, there).astype(np.int32) if born else np.zeros(0, np.int32)
    expected = []
    for i in range(mine):
        for place in range(begins[i], ends[i]):
            j = int(order[place]) if in_order else place
            common = sets[i] & theirs[j]
            if low[i] <= times[j] <= high[i] and common.any() and (not born or births[j] < before):
                expected.append((i, j, common.tolist()))
    found, row, place = [], 0, 0
    while row < mine:
        own, other, both = np.empty(size, np.int64), np.empty(size, np.int64), np.empty((size, words), np.uint64)
        count, row, place = probe_kernels.find_matches(
            begins, ends, order, sets, theirs, low, high, times, births, before, row, place, own, other, both
        )
        assert count <= size
        found += list(zip(own[:count].tolist(), other[:count].tolist(), both[:count].tolist(), strict=True))
    assert found == expected  # as many at a time as there is room for, each once


def test_windows_are_looked_at_for_those_who_have_them():
    #   one   ●────────|  range 5        two   ○──| range 2
    #   times  0   and   4, 5, 6;   5 and 3, 2
    one, two = np.array([0, 0, 0, 5, 5]), np.array([4, 5, 6, 3, 2])
    sets = np.full((5, 1), 0b11, np.uint64)
    probe_kernels.clear_outside_windows(one, two, 5, 2, np.array([0b10], np.uint64), sets)
    assert sets[:, 0].tolist() == [0b11, 0b11, 0b01, 0b11, 0b01]


# ------------------------------------------------------------------------------------------------------------------------ probes

Row = Mapping[str, Any]
SIDES = {"r": "s[]", "s": "r[]"}


def plan_of(*queries: NormalizedJoin) -> SlidingJoinPlan:
    return plan_sliding_joins(queries, parse_choice(*((one, SIDES) for one in queries)), 0, 1, {one.id: 0 for one in queries})


def columns(relation: str, rows: Sequence[Row]) -> dict[str, pa.Array]:
    names = [name for name in TYPES if any(name in row for row in rows)]
    found = {qualify_column(relation, name): pa.array([row.get(name) for row in rows], TYPES[name]) for name in names}
    times = [int(row.get("at", 0) * SECOND) for row in rows]
    return {**found, time_column_of(relation): pa.array(times, pa.int64())}


def bits(rows: Sequence[Row]) -> np.ndarray:
    return np.array([[row.get("for", 0b11)] for row in rows], np.uint64).reshape(-1, 1)


def arriving(relation: str, rows: Sequence[Row]) -> ProbeTuples:
    return unpack_rows([PackedRows(columns(relation, rows), bits(rows), np.zeros(len(rows), np.uint64))], 1)


def bucket(relation: str, rows: Sequence[Row]) -> StateSegment:
    births = np.array([row.get("born", 0) for row in rows], np.int32)
    packed = PackedRows(columns(relation, rows), bits(rows), np.zeros(len(rows), np.uint64))
    return replace(segment.build_segment([packed], 0, (), (), 1), insert_batch=births)


def probe_of(start: str, *queries: NormalizedJoin) -> LoadedProbe:
    plan = plan_of(*queries)
    (root,) = plan.root_probes[start]
    return LoadedSlidingJoinPlan(plan).get_probe(root.number)


def found_by(loaded: LoadedProbe, mine: Sequence[Row], theirs: Sequence[Row], start: str = "r") -> list[tuple[int, int, int]]:
    """Return (arriving row, stored row, set) of all that a probe makes; rows are told by their place."""
    other = "s" if start == "r" else "r"
    users = int(loaded.user_set[0])
    mine, theirs = (
        [{**row, "a": place, "for": row.get("for", users) & users} for place, row in enumerate(rows)] for rows in (mine, theirs)
    )
    here, prober = bucket(other, theirs), Prober(loaded, arriving(start, mine))
    table = JoinTable({name: ChunkedColumn([column]) for name, column in here.columns.items()}, here.row_count)
    found = []
    for pairs in prober.find_pairs(here, here.sets):
        joined = prober.join_pairs(
            pairs, select_all_rows(table, np.zeros((here.row_count, 0), np.uint64)), np.zeros(len(pairs.own), np.uint64)
        )
        numbers = [joined.rows.get_column(qualify_column(name, "a")).to_pylist() for name in (start, other)]
        found += list(zip(*numbers, joined.sets[:, 0].tolist(), strict=True))
    return sorted(found)


def expected_by(
    holds: Callable[[Row, Row], bool], mine: Sequence[Row], theirs: Sequence[Row], ranges: tuple[float, float] = (10, 10)
) -> list[tuple[int, int]]:
    """Try everything, as the language defines it: each is at most its range older than the other."""
    found = []
    for i, one in enumerate(mine):
        for j, two in enumerate(theirs):
            apart = two.get("at", 0) - one.get("at", 0)
            if -ranges[1] <= apart <= ranges[0] and holds(one, two):
                found.append((i, j))
    return found


def equal(one: Any, two: Any) -> bool:
    """NaN equals itself, −0.0 equals 0.0, NULL equals nothing."""
    if one is None or two is None:
        return False
    return one == two or (isinstance(one, float) and math.isnan(one) and math.isnan(two))


def less(one: Any, two: Any) -> bool:
    """NaN is the greatest."""
    return one is not None and two is not None and not math.isnan(one) and (math.isnan(two) or one < two)


ODD = [None, math.nan, -math.nan, -0.0, 0.0, 1.5, -1.5, math.inf, -math.inf]
WAYS = [
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
    ("r.b <> s.b", "everything", lambda r, s: None not in (r["b"], s["b"]) and r["b"] != s["b"]),
    ("r.n < s.n", "everything", lambda r, s: None not in (r["n"], s["n"]) and r["n"] < s["n"]),
    ("r.b + s.b = 3", "everything", lambda r, s: None not in (r["b"], s["b"]) and r["b"] + s["b"] == 3),
]


def drawn_rows(chance: np.random.Generator, count: int) -> list[Row]:
    small = [None, 0, 1, 2, 3]
    return [
        {
            "b": small[chance.integers(5)],
            "c": small[chance.integers(5)],
            "x": ODD[chance.integers(len(ODD))],
            "n": [None, "", "a", "ab", "\x00null"][chance.integers(5)],
            "at": int(chance.integers(0, 30)),
        }
        for _ in range(count)
    ]


def way(loaded: LoadedProbe) -> str:
    return "hash" if loaded.build_keys else "search" if loaded.bounds else "everything"


@pytest.mark.parametrize("start", ["r", "s"])
@pytest.mark.parametrize(("conditions", "how", "holds"), WAYS, ids=[text for text, *_ in WAYS])
def test_however_partners_are_found_they_are_those_that_the_language_says(conditions: str, how: str, holds, start: str):
    #   odd values throughout: NULL, NaN, −0.0, the empty text
    loaded = probe_of(start, make_join(0, conditions, {"r": "4 s", "s": "9 s"}))
    assert way(loaded) == how
    chance = np.random.default_rng(11)
    mine, theirs = drawn_rows(chance, 50), drawn_rows(chance, 70)
    if start == "r":
        expected = expected_by(holds, mine, theirs, (4, 9))
    else:
        expected = expected_by(lambda s, r: holds(r, s), mine, theirs, (9, 4))
    assert expected
    assert found_by(loaded, mine, theirs, start) == [(i, j, 1) for i, j in expected]


@pytest.mark.parametrize("conditions", ["r.n = s.n", "r.x = s.x", "r.b = s.b AND r.c = s.c"])
def test_equal_hashes_are_not_taken_for_equal_values(conditions: str, monkeypatch: pytest.MonkeyPatch):
    holds = next(found for text, _, found in WAYS if text == conditions)
    monkeypatch.setattr(sliding_join, "hash_keys", lambda found, rows: np.zeros(rows, np.uint64))
    monkeypatch.setattr(segment, "hash_keys", lambda found, rows: np.zeros(rows, np.uint64))
    chance = np.random.default_rng(2)
    mine, theirs = drawn_rows(chance, 40), drawn_rows(chance, 40)
    assert [pair[:2] for pair in found_by(probe_of("r", make_join(0, conditions)), mine, theirs)] == expected_by(
        holds, mine, theirs
    )


def test_of_whole_keys_equal_hashes_are_equal_values():
    assert not probe_of("r", make_join(0, "r.b = s.b")).conditions
    assert probe_of("r", make_join(0, "r.n = s.n")).conditions


def test_windows_of_each_query():
    #   r  ●0                     query 0: r lives 10 s, s 2 s       query 1: r lives 3 s, s 8 s
    #   s        ○3      ○9       ○3: both;  ○9: query 0
    #   r                   ●12   ○9 is 3 s older: too old for query 0, not for query 1
    short, long = make_join(0, "r.b = s.b", {"r": "10 s", "s": "2 s"}), make_join(1, "r.b = s.b", {"r": "3 s", "s": "8 s"})
    loaded = probe_of("r", short, long)
    mine, theirs = [{"b": 1, "at": 0}, {"b": 1, "at": 12}], [{"b": 1, "at": 3}, {"b": 1, "at": 9}, {"b": 1, "at": 11}]
    assert found_by(loaded, mine, theirs) == [(0, 0, 0b11), (0, 1, 0b01), (1, 1, 0b10), (1, 2, 0b11)]
    assert not probe_of("r", short).window_groups  # what all have in common was looked at when pairs were made
    assert len(loaded.window_groups) == 2


def test_rows_are_joined_for_those_who_want_both_of_them():
    loaded = probe_of("r", make_join(0, "r.b = s.b"), make_join(1, "r.b = s.b AND r.c < s.c"))
    mine = [{"b": 1, "c": 1, "for": 0b11}, {"b": 1, "c": 1, "for": 0b01}, {"b": 1, "c": 9}]
    theirs = [{"b": 1, "c": 5, "for": 0b10}, {"b": 1, "c": 5, "for": 0b11}, {"b": 2, "c": 5}]
    assert found_by(loaded, mine, theirs) == [(0, 0, 0b10), (0, 1, 0b11), (1, 1, 0b01), (2, 1, 0b01)]


def test_partners_from_before_a_batch():
    #   stored in batches 3, 4, 5 and 4; the probe is for rows of before batch 5
    query = make_join(0, "r.b = s.b")
    first = plan_of(query)
    born = {one.number: 0 for one in first.stores}
    moved = parse_choice((query, {"r": "s[b]", "s": "r[]"}))
    plan = plan_sliding_joins((query,), moved, 5, 1, {0: 0}, first, born)
    old = next(probe for name, probe in plan.probes if name == "r" and probe.before_batch == 5)
    theirs = [{"b": 1, "born": 3}, {"b": 1, "born": 4}, {"b": 1, "born": 5}, {"b": 1, "born": 4}]
    assert found_by(LoadedSlidingJoinPlan(plan).get_probe(old.number), [{"b": 1}], theirs) == [(0, 0, 1), (0, 1, 1), (0, 3, 1)]
    new = next(probe for name, probe in plan.probes if name == "r" and probe.before_batch is None)
    assert len(found_by(LoadedSlidingJoinPlan(plan).get_probe(new.number), [{"b": 1}], theirs)) == 4


def test_no_partners_no_rows():
    loaded = probe_of("r", make_join(0, "r.b = s.b"))
    assert found_by(loaded, [{"b": 1}], [{"b": 2}]) == []
    assert found_by(loaded, [{"b": None}], [{"b": None}]) == []
    assert found_by(loaded, [{"b": 1, "at": 0}], [{"b": 1, "at": 11}]) == []


# ------------------------------------------------------------------------------------------------------- so many pairs at a time


@pytest.mark.parametrize("most", [1, 7, 64])
@pytest.mark.parametrize("conditions", ["r.b = s.b", "r.b < s.b", "r.b <> s.b"])
def test_only_so_many_pairs_are_held(conditions: str, most: int, monkeypatch: pytest.MonkeyPatch):
    loaded = probe_of("r", make_join(0, conditions))
    mine = [{"b": k % 3} for k in range(30)]
    expected = found_by(loaded, mine, mine)
    assert len(expected) >= 300
    monkeypatch.setattr(sliding_join, "MAX_PAIRS", most)
    here, held = bucket("s", mine), []
    for pairs in Prober(loaded, arriving("r", mine)).find_pairs(here, here.sets):
        assert isinstance(pairs, ProbePairs)
        held.append(len(pairs.own))
    assert max(held) <= most
    assert sum(held) >= 300
    assert found_by(loaded, mine, mine) == expected


@pytest.mark.parametrize("most", [3, 1 << 18])
def test_results_do_not_depend_on_how_many_pairs_are_held(most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    #   three batches; what one probe makes goes on to the next piece by piece
    monkeypatch.setattr(sliding_join, "MAX_PAIRS", most)
    monkeypatch.setattr(sliding_join, "MAX_PAIRS", most)
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
