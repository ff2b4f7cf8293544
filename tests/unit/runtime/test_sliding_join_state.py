"""State of sliding joins: only rows within retention, in few files, for any batch sizes, plans and partition counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.engine.joins.state_store import _MAX_SEGMENTS
from headrace.errors import SessionError
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice
from headrace.runtime.replanning import SlidingJoinOptimizer
from support.sliding_join_plans import join_sql, make_join, parse_choice
from support.sliding_join_session import JoinSession

Rows = Mapping[str, list[dict[str, Any]]]
CHAIN = "r.b = s.b AND s.c = t.c"
TEN = {"r": "10 s", "s": "10 s", "t": "10 s"}


def choose_materialized_st(number: int = 0) -> ProbeOrderChoice:
    """Return a choice in which rows of r probe the materialized join s⋈t."""
    query = make_join(number, CHAIN)
    orders = {"r": "st[s.b]", "s": "t[c] r[b]", "t": "s[c] r[b]"}
    return parse_choice((query, orders), materialized={query.join_graph.subgraph("st"): {"s": "t[c]", "t": "s[c]"}})


def draw_rows(random: Random, names: str, at: float, step: float, count: int, keys: int) -> Rows:
    """Draw the rows of a batch; `a` identifies a row."""
    return {
        name: [
            {"a": random.getrandbits(30), "b": random.randrange(keys), "c": random.randrange(keys), "at": at + step * k / count}
            for k in range(count)
        ]
        for name in names
    }


def join_rows(given: Rows, range_: float = 10) -> Counter[tuple[int, int, int]]:
    """Join the chain r ─b─ s ─c─ t by nested loops."""
    results: Counter[tuple[int, int, int]] = Counter()
    by_b: dict[int, list[dict[str, Any]]] = {}
    by_c: dict[int, list[dict[str, Any]]] = {}
    for row in given["r"]:
        by_b.setdefault(row["b"], []).append(row)
    for row in given["t"]:
        by_c.setdefault(row["c"], []).append(row)
    for s in given["s"]:
        for r in by_b.get(s["b"], ()):
            for t in by_c.get(s["c"], ()):
                times = (round(r["at"] * 1e6), round(s["at"] * 1e6), round(t["at"] * 1e6))
                if max(times) - min(times) <= range_ * 1e6:
                    results[r["a"], s["a"], t["a"]] += 1
    return results


# ------------------------------------------------------------------------------------------------------------------------ bounded


@dataclass
class LongRun:
    """Rows, segments and files after each of many small batches."""

    given: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in "rst"})
    rows: list[dict[str, int]] = field(default_factory=list)
    segments: list[dict[str, int]] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
    results: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    after: list[str] = field(default_factory=list)


BATCHES, STEP, EACH = 60, 0.4, 2  # 5 rows a second of each stream, ranges of 10 s: 25 batches are in range


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> LongRun:
    record, random = LongRun(), Random(1)
    with JoinSession(tmp_path_factory.mktemp("long") / "checkpoint", "rst", partitions=1) as streams:
        streams.session.add(join_sql(CHAIN, TEN), name="q")
        streams.advance()
        streams.optimizer.next_choice = choose_materialized_st()
        for batch in range(BATCHES):
            rows = draw_rows(random, "rst", STEP * batch, STEP, EACH, 12)
            for name, new_rows in rows.items():
                record.given[name] += new_rows
            streams.advance(rows)
            record.rows.append(streams.count_rows())
            record.segments.append(streams.count_segments())
            record.files.append(len(streams.files("state")))
            record.plans.append(len(streams.files("plans")))
        record.results = streams.results("q")
        streams.session.drain()
        record.after = streams.files("state")
    return record


def test_many_small_batches_give_exact_results(long_run: LongRun):
    assert long_run.results == join_rows(long_run.given)


def test_stored_rows_are_about_rate_times_range(long_run: LongRun):
    #   a row is evicted with its segment, which spans at most a quarter of the range
    in_range = EACH / STEP * 10
    for row_counts in long_run.rows[32:]:
        for name in ("r[b]", "s[c]", "t[c]"):
            assert in_range - EACH <= row_counts[name] <= 1.25 * in_range + 2 * EACH, row_counts


def test_rows_of_a_materialized_join_are_evicted_like_those_of_inputs(long_run: LongRun):
    #   the stored pairs are those of s and t in range, for any number of batches
    exact = [0] * BATCHES
    pairs = [
        max(s["at"], t["at"])
        for s in long_run.given["s"]
        for t in long_run.given["t"]
        if s["c"] == t["c"] and abs(s["at"] - t["at"]) <= 10
    ]
    for batch in range(BATCHES):
        now = STEP * (batch + 1)
        exact[batch] = sum(1 for newest in pairs if now - 10 <= newest < now)
    for row_counts, most in list(zip(long_run.rows, exact, strict=True))[32:]:
        assert 0 < row_counts["st[s.b]"] <= 1.5 * most


@pytest.mark.parametrize("store", ["r[b]", "s[c]", "t[c]", "st[s.b]"])
def test_many_small_batches_are_compacted_to_few_segments(long_run: LongRun, store: str):
    #   25 batches are in range; a store has compacted segments, and those added since the last compaction
    assert max(counts.get(store, 0) for counts in long_run.segments) <= 2 * _MAX_SEGMENTS


def test_the_number_of_files_is_bounded(long_run: LongRun):
    assert max(long_run.files[46:]) <= max(long_run.files[32:46]) + 4
    assert max(long_run.plans) <= 8


def test_drain_deletes_all_state(long_run: LongRun):
    assert long_run.after == []


@pytest.mark.parametrize(("lateness", "evicted_at"), [("0 s", 10.0), ("5 s", 15.0)])
def test_rows_are_evicted_when_only_late_rows_could_match_them(tmp_path: Path, lateness: str, evicted_at: float):
    #   r  ●0 ─────────────|evicted_at    a row of s at `evicted_at`, or a later one within its lateness, still matches
    with JoinSession(tmp_path / "c", "rs") as streams:
        streams.session.add(join_sql("r.b = s.b", lateness=lateness), name="q")
        streams.advance({name: [{"a": 0, "b": 1, "at": 0}] for name in "rs"})
        streams.advance({name: [{"a": 1, "b": 2, "at": evicted_at}] for name in "rs"})
        assert sum(streams.count_rows().values()) == 4
        streams.advance({"r": [{"a": 2, "b": 2, "at": evicted_at + 3}]})  # the watermark is that of the slower stream
        assert sum(streams.count_rows().values()) == 5
        streams.advance({"s": [{"a": 2, "b": 2, "at": evicted_at + 0.001}]})
        assert sum(streams.count_rows().values()) == 4


def test_each_stream_retains_rows_for_its_own_range(tmp_path: Path):
    #   r has a range of 2 s, s of 8 s; a row is evicted after its own range
    with JoinSession(tmp_path / "c", "rs") as streams:
        streams.session.add(join_sql("r.b = s.b", {"r": "2 s", "s": "8 s"}), name="q")
        for second in range(30):
            streams.advance({name: [{"a": second, "b": 1, "at": second}] for name in "rs"})
        row_counts = streams.count_rows()
        assert row_counts["r[b]"] == 3  # 27, 28, 29
        assert 9 <= row_counts["s[b]"] <= 11
        assert len(streams.results("q")) == sum(1 for r in range(30) for s in range(30) if s - r <= 2 and r - s <= 8)


def test_the_longest_range_of_all_queries_decides_eviction(tmp_path: Path):
    with JoinSession(tmp_path / "c", "rs") as streams:
        streams.session.add(join_sql("r.b = s.b", {"r": "1 s", "s": "1 s"}), name="short")
        streams.session.add(join_sql("r.b = s.b", {"r": "6 s", "s": "6 s"}), name="long")
        for second in range(20):
            streams.advance({name: [{"a": second, "b": 1, "at": second}] for name in "rs"})
        assert streams.count_rows() == {"r[b]": 7, "s[b]": 7}
        streams.session.remove("long")
        streams.advance({name: [{"a": 20, "b": 1, "at": 20}] for name in "rs"})
        assert streams.count_rows() == {"r[b]": 2, "s[b]": 2}


# ---------------------------------------------------------------------------------------------------------------- removed queries


def test_removing_a_query_deletes_its_stores(tmp_path: Path):
    with JoinSession(tmp_path / "c", "rstu") as streams:
        streams.session.add(join_sql(CHAIN), name="chain")
        streams.session.add(join_sql("s.b = u.b"), name="pair")
        for second in range(4):
            streams.advance({name: [{"a": second, "b": 1, "c": 1, "at": second}] for name in "rstu"})
        assert streams.count_rows() == {"r[b]": 4, "s[b]": 4, "t[c]": 4, "u[b]": 4}
        streams.session.remove("chain")
        streams.advance()
        assert streams.count_rows() == {"s[b]": 4, "u[b]": 4}
        assert streams.plan.ranked_relations == ("s", "u")
        streams.advance({name: [{"a": 5, "b": 1, "c": 1, "at": 5}] for name in "su"})
        assert {ref.file for ref in streams.segment_refs} == {f"state/{name}" for name in streams.files("state")}
        assert streams.results("pair") == Counter((s, u) for s in (0, 1, 2, 3, 5) for u in (0, 1, 2, 3, 5))


def test_removing_the_last_query_deletes_all_state_and_plans(tmp_path: Path):
    with JoinSession(tmp_path / "c", "rst") as streams:
        streams.session.add(join_sql(CHAIN), name="q")
        streams.advance({name: [{"a": 1, "b": 1, "c": 1, "at": 0}] for name in "rst"})
        assert streams.files("state")
        assert [name for name in streams.files("plans") if name.startswith("probes")]
        streams.session.remove("q")
        streams.advance()
        assert streams.segment_refs == ()
        assert streams.session._coordinator.sliding_join_plan is None
        assert streams.files("state") == []
        assert [name for name in streams.files("plans") if name.startswith("probes")] == []


def test_a_query_that_reuses_a_bit_sees_no_rows_of_the_removed_query(tmp_path: Path):
    #   the new query has the bit, the relations and the stores of the removed query
    with JoinSession(tmp_path / "c", "rs") as streams:
        streams.session.add(join_sql("r.b = s.b"), name="first")
        streams.session.add(join_sql("r.c = s.c"), name="steady")
        streams.advance({"r": [{"a": 1, "b": 1, "c": 1, "at": 0}], "s": [{"a": 9, "b": 7, "c": 7, "at": 0}]})
        streams.session.remove("first")
        streams.session.add(join_sql("r.b = s.b"), name="second")
        streams.advance({"s": [{"a": 2, "b": 1, "c": 1, "at": 1}], "r": [{"a": 3, "b": 1, "c": 3, "at": 1}]})
        assert streams.results("steady") == Counter({(1, 2): 1})
        assert streams.results("second") == Counter({(3, 2): 1})


# -------------------------------------------------------------------------------------------- plans, partitions and sharing modes


QUERIES = {
    "chain": join_sql(CHAIN),
    "again": join_sql(CHAIN, {"r": "3 s", "t": "4 s"}),
    "band": join_sql("r.b < s.b AND r.b + 3 > s.b AND s.a <> r.a"),
    "pair": join_sql("s.c = t.c AND s.b < t.b"),
    "star": join_sql("s.b = r.b AND s.b = t.b AND r.c <> t.c"),
}


PLANS = ("ilp", "greedy", "common", "flat", "left_deep", "chain", "merging")


def run_all_queries(
    directory: Path, partitions: int, plan: str, partition_counts: Sequence[int] = (), *, sharing: bool = True
) -> dict[str, Counter[tuple[Any, ...]]]:
    random = Random(7)
    with JoinSession(directory, "rst", partitions=partitions, sliding_plan=plan, sliding_sharing=sharing) as streams:
        options = streams.session._coordinator.optimizers.sliding_joins.options
        eager = SlidingJoinOptimizer(2, options=options, background=False)
        streams.optimizer = streams.session._coordinator.optimizers.sliding_joins = eager
        names = list(QUERIES)
        for batch in range(9):
            if names:
                name = names.pop(0)
                streams.session.add(QUERIES[name], name=name)
            if batch == 7:
                streams.session.remove("again")
            if partition_counts:
                streams.session.rescale(partition_counts[batch % len(partition_counts)])
            streams.advance(draw_rows(random, "rst", batch, 1.5, 7, 5))  # batches overlap by half a second
        return {name: streams.results(name) for name in QUERIES}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[tuple[Any, ...]]]:
    results = run_all_queries(tmp_path_factory.mktemp("plain") / "c", 1, "common", sharing=False)
    assert all(len(rows) > 20 for rows in results.values())
    return results


@pytest.mark.parametrize(
    ("partitions", "plan", "sharing"),
    [(1, "auto", True), (4, "auto", True), (4, "common", False), *((2 + k % 3, plan, True) for k, plan in enumerate(PLANS))],
)
def test_results_depend_on_neither_plan_nor_partitions_nor_sharing(
    expected, tmp_path: Path, partitions: int, plan: str, sharing: bool
):
    assert run_all_queries(tmp_path / "c", partitions, plan, sharing=sharing) == expected


def test_results_do_not_depend_on_rescaling(expected, tmp_path: Path):
    assert run_all_queries(tmp_path / "c", 2, "auto", (2, 4, 4, 1, 3)) == expected


# ----------------------------------------------------------------------------------------------------------------------- recovery


def test_a_restarted_session_continues_with_the_same_plan(tmp_path: Path):
    #   the last plan probes s⋈t, and still probes s and t for older rows; partners arrive after the restart
    random = Random(3)
    batches = [draw_rows(random, "rst", batch, 1, 6, 4) for batch in range(10)]
    with JoinSession(tmp_path / "c", "rst") as streams:
        streams.session.add(join_sql(CHAIN), name="q")
        for number, rows in enumerate(batches[:5]):
            streams.optimizer.next_choice = choose_materialized_st() if number == 3 else None
            streams.advance(rows)
        plan, segments = streams.plan, streams.segment_refs
        assert plan.is_transitional
    with JoinSession(tmp_path / "c", "rst") as streams:
        assert streams.plan == plan
        assert streams.segment_refs == segments
        for rows in batches[5:]:
            streams.advance(rows)
            assert streams.plan.choice == plan.choice
        given = {name: [row for rows in batches for row in rows[name]] for name in "rst"}
        assert streams.results("q") == join_rows(given)


@pytest.mark.parametrize("before", [True, False])
def test_a_restart_between_no_sharing_and_sharing_is_refused(tmp_path: Path, before: bool):
    with JoinSession(tmp_path / "c", "rst", sliding_sharing=before) as streams:
        streams.session.add(join_sql(CHAIN), name="q")
        streams.advance(draw_rows(Random(3), "rst", 0, 1, 6, 4))
    with pytest.raises(SessionError, match=f"cannot continue with sliding_sharing={not before}"):
        JoinSession(tmp_path / "c", "rst", sliding_sharing=not before)


def test_a_restart_may_change_the_search_for_plans(tmp_path: Path):
    random = Random(3)
    batches = [draw_rows(random, "rst", batch, 1, 6, 4) for batch in range(6)]
    for number, plan in enumerate(("auto", "left_deep")):
        with JoinSession(tmp_path / "c", "rst", sliding_plan=plan) as streams:
            if number == 0:
                streams.session.add(join_sql(CHAIN), name="q")
            for rows in batches[3 * number : 3 * number + 3]:
                streams.advance(rows)
            results = streams.results("q")
    assert results == join_rows({name: [row for rows in batches for row in rows[name]] for name in "rst"})


# --------------------------------------------------------------------------------------------------------------------------- late


def test_a_row_within_the_lateness_finds_partners(tmp_path: Path):
    #   r   ●0 ●4                    lateness 5 s: at 20 s, rows from 15 s on are not late
    #   s   ○0    …   ○20   then  r ●16 ●15 in time, ●14.9 late; each matches a row of s
    with JoinSession(tmp_path / "c", "rs") as streams:
        query = streams.session.add(join_sql("r.b = s.b", lateness="5 s"), name="q")
        streams.advance({"r": [{"a": 0, "b": 0, "at": 0}], "s": [{"a": 1, "b": 1, "at": 6}]})
        streams.advance({name: [{"a": 2, "b": 2, "at": 20}] for name in "rs"})
        assert query.late == {}
        streams.advance({"r": [{"a": 3, "b": 1, "at": 16}, {"a": 4, "b": 2, "at": 15}, {"a": 5, "b": 2, "at": 14.9}]})
        assert streams.results("q") == Counter([(2, 2), (3, 1), (4, 2)])
        assert query.late == {"r": 1}
        streams.advance({"s": [{"a": 6, "b": 2, "at": 14.9}, {"a": 7, "b": 2, "at": 15}]})
        assert streams.results("q") == Counter([(2, 2), (3, 1), (4, 2), (2, 7), (4, 7)])
        assert query.late == {"r": 1, "s": 1}


def test_each_stream_has_its_own_lateness(tmp_path: Path):
    #   r may be 5 s late, s not at all
    with JoinSession(tmp_path / "c", "rs") as streams:
        text = "SELECT r.a AS r, s.a AS s FROM SLIDING(r, '10 s', '5 s') r, SLIDING(s, '10 s') s WHERE r.b = s.b"
        query = streams.session.add(text, name="q")
        streams.advance({name: [{"a": 1, "b": 1, "at": 20}] for name in "rs"})
        streams.advance({name: [{"a": 2, "b": 1, "at": 16}] for name in "rs"})
        assert streams.results("q") == Counter([(1, 1), (2, 1)])
        assert query.late == {"s": 1}
