"""The optimizer of sliding joins in a running session: when it replans, and what it changes.

r ─b─ s ─c─ t       b has two values, c has two thousand: an order that joins r and s first makes a hundred times the rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from headrace.engine.batch_job import ReduceReport
from headrace.errors import SessionError
from headrace.model.sliding_join_options import PlanSearch, SlidingJoinOptions
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import SlidingJoinOptimizer
from support.sliding_join_plans import format_probe_tree, join_sql
from support.sliding_join_session import JoinSession, ManualOptimizer

CHAIN = join_sql("r.b = s.b AND s.c = t.c", dict.fromkeys("rst", "5 s"))
EACH = 40
Draw = Callable[[Random], dict[str, int]]


class RecordingOptimizer(SlidingJoinOptimizer):
    """Records the number of probing rows of each batch, and the choices."""

    def __init__(self, every: int = 2, **options: Any) -> None:
        super().__init__(every, **{"background": False, **options})
        self.probing_rows: list[int] = []
        self.chosen: list[ProbeOrderChoice] = []

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        super().record_batch(outcomes)
        self.probing_rows.append(sum(rows for outcome in outcomes for rows, _ in outcome.probe_counts.values()))

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        choice = super().choose_plan(state, probes)
        self.chosen += [] if choice is None else [choice]
        return choice


class StaticOptimizer(ManualOptimizer):
    """Records the number of probing rows of each batch; never changes the plan."""

    def __init__(self) -> None:
        super().__init__()
        self.probing_rows: list[int] = []

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        self.probing_rows.append(sum(rows for outcome in outcomes for rows, _ in outcome.probe_counts.values()))


def draw_skewed(random: Random) -> dict[str, int]:
    return {"b": random.randrange(2), "c": random.randrange(2000)}


def draw_uniform(random: Random) -> dict[str, int]:
    return {"b": random.randrange(2000), "c": random.randrange(2000)}


def run(
    directory: Path, optimizer: SlidingJoinOptimizer, texts: Sequence[str] = (CHAIN,), draw: Draw = draw_skewed, batches: int = 9
) -> tuple[list[Counter[tuple[Any, ...]]], SlidingJoinPlan]:
    """Run queries with a second of rows per batch; return their results and the last plan."""
    random = Random(5)
    names = [name for name in "rstu" if any(f"{name}." in text for text in texts)]
    with JoinSession(directory, "".join(names), optimizer) as streams:
        for number, text in enumerate(texts):
            streams.session.add(text, name=f"q{number}")
        for batch in range(batches):
            rows = {
                name: [{"a": EACH * batch + k, "at": batch + k / EACH, **draw(random)} for k in range(EACH)] for name in names
            }
            streams.advance(rows)
        return [streams.results(f"q{number}") for number in range(len(texts))], streams.plan


@dataclass(frozen=True)
class StaticRun:
    """Results, plan and probing rows without an optimizer."""

    results: list[Counter[tuple[Any, ...]]]
    plan: SlidingJoinPlan
    probing_rows: list[int]


@pytest.fixture(scope="module")
def static_run(tmp_path_factory: pytest.TempPathFactory) -> StaticRun:
    static = StaticOptimizer()
    return StaticRun(*run(tmp_path_factory.mktemp("still") / "c", static), static.probing_rows)


def test_the_optimizer_finds_a_much_cheaper_order_within_a_few_batches(static_run: StaticRun, tmp_path: Path):
    optimizer, expected, first = RecordingOptimizer(), static_run.results, static_run.plan
    results, plan = run(tmp_path / "c", optimizer)
    assert format_probe_tree(first, "s")[0].split()[-1] == "r[b]"  # initial orders are by name: the expensive join comes first
    assert len(format_probe_tree(first, "s")) == 2
    assert results == expected
    assert len(expected[0]) > 100
    assert optimizer.chosen
    assert plan.choice != first.choice
    assert "t[" in format_probe_tree(plan, "s")[0]
    assert sum(optimizer.probing_rows[5:]) < sum(static_run.probing_rows[5:]) / 10


def test_an_optimal_plan_is_not_changed(tmp_path: Path):
    optimizer = RecordingOptimizer(every=1)
    pair = join_sql("r.b = s.b", {"r": "5 s", "s": "5 s"})
    _, plan = run(tmp_path / "c", optimizer, [pair], draw_uniform, batches=6)
    assert optimizer.chosen == []
    assert optimizer.last_comparison is not None  # the optimizer has run
    assert format_probe_tree(plan, "r") == ["stored s[b] !0"]


def test_plans_do_not_oscillate(tmp_path: Path):
    optimizer = RecordingOptimizer(every=1)
    run(tmp_path / "c", optimizer, batches=12)
    assert 1 <= len(optimizer.chosen) <= 3


def test_the_optimizer_waits_until_all_relations_have_rows(tmp_path: Path):
    optimizer = RecordingOptimizer(every=1)
    with JoinSession(tmp_path / "c", "rst", optimizer) as streams:
        streams.session.add(CHAIN, name="q")
        for second in range(4):
            streams.advance({name: [{"a": 1, "b": 1, "c": second, "at": second}] * 9 for name in "rs"})
        assert optimizer.last_comparison is None
        streams.advance({"t": [{"a": 1, "b": 1, "c": 1, "at": 4}]})
        streams.advance({"t": [{"a": 1, "b": 1, "c": 1, "at": 5}]})
        assert optimizer.last_comparison is not None


def test_the_optimizer_runs_after_query_changes_and_every_few_batches(tmp_path: Path):
    #   batch           0   1   2   3   4   5   6   7   8   9   10
    #   query added     +               +
    #   optimizer runs          ×           ×               ×        rates are known from the second batch on
    runs: list[int] = []

    class CountingOptimizer(RecordingOptimizer):
        def _find_cheaper_choice(self, probes: SlidingJoinPlan, figures: Any, parts: int) -> ProbeOrderChoice | None:
            runs.append(len(self.probing_rows))
            return None

    with JoinSession(tmp_path / "c", "rst", CountingOptimizer(every=4)) as streams:
        streams.session.add(CHAIN, name="q")
        for second in range(11):
            if second == 4:
                streams.session.add(join_sql("s.c = t.c"), name="p")
            streams.advance({name: [{"a": 1, "b": 1, "c": 1, "at": second}] for name in "rst"})
    assert runs == [2, 5, 9]


# -------------------------------------------------------------------------------------------------------------- in the background


class SlowOptimizer(RecordingOptimizer):
    """Plans in the background until the test sets `go`."""

    def __init__(self) -> None:
        super().__init__(every=1, background=True)
        self.go = Event()
        self.begun = Event()

    def _find_cheaper_choice(self, probes: SlidingJoinPlan, figures: Any, parts: int) -> ProbeOrderChoice | None:
        self.begun.set()
        assert self.go.wait(30)
        return super()._find_cheaper_choice(probes, figures, parts)


def test_batches_do_not_wait_for_the_background_optimizer(tmp_path: Path):
    #   batch     0   1   2   3   4   5     6
    #   planning      ├───────────────┤     in force
    optimizer = SlowOptimizer()
    random = Random(5)
    with JoinSession(tmp_path / "c", "rst", optimizer) as streams:
        streams.session.add(CHAIN, name="q")

        def tick(second: int) -> None:
            streams.advance({n: [{"a": k, "at": second + k / EACH, **draw_skewed(random)} for k in range(EACH)] for n in "rst"})

        tick(0)
        first = streams.plan
        for second in range(1, 5):
            tick(second)  # batches run with the old plan
        assert optimizer.begun.wait(30)
        assert (optimizer.chosen, streams.plan) == ([], first)
        optimizer.go.set()
        assert optimizer._pending_choice is not None
        choice = optimizer._pending_choice.result(30)
        assert choice is not None
        tick(5)
        assert optimizer.chosen == [choice]
        assert streams.plan.choice.queries == choice.queries


# ----------------------------------------------------------------------------------------------------------------- cross products


def test_cross_products_are_replanned_like_other_joins(tmp_path: Path):
    #   written first: r and s by b, which is unselective; t comes without a condition at any step
    text = join_sql("r.b = s.b AND r.c = s.c AND t.b + 0 * r.b < s.b - 1", dict.fromkeys("rst", "1 s"))
    optimizer = RecordingOptimizer()
    expected, _ = run(tmp_path / "still", StaticOptimizer(), [text])
    results, _ = run(tmp_path / "c", optimizer, [text])
    assert results == expected
    assert optimizer.last_comparison is not None
    assert {candidate.search for candidate in optimizer.last_comparison.candidates} >= {"ilp", "flat", "left_deep"}


# ------------------------------------------------------------------------------------------------------------------------ sharing


@pytest.mark.parametrize("plan", ["auto", "common", "flat", "left_deep"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_the_sharing_setting_decides_whether_probes_and_stores_are_shared(tmp_path: Path, plan: str, is_shared: bool):
    #   two queries that differ in one comparison
    texts = [CHAIN, join_sql("r.b = s.b AND s.c = t.c AND r.a < t.a", dict.fromkeys("rst", "5 s"))]
    optimizer = RecordingOptimizer(options=SlidingJoinOptions.parse(plan, is_shared=is_shared))
    _, probe_plan = run(tmp_path / "c", optimizer, texts, batches=6)
    shared = [probe for _, probe in probe_plan.probes if len(probe.query_ids) > 1]
    if is_shared:
        assert shared
        assert sorted(probe_plan.ranked_relations) == ["r", "s", "t"]
    else:
        assert not shared
        assert sorted(probe_plan.ranked_relations) == ["r@0", "r@1", "s@0", "s@1", "t@0", "t@1"]
        assert all("@" in name for store in probe_plan.stores for name in store.relation.relations)


def test_the_optimizer_finds_cheaper_orders_without_sharing(static_run: StaticRun, tmp_path: Path):
    optimizer = RecordingOptimizer(options=SlidingJoinOptions(is_shared=False))
    results, _ = run(tmp_path / "c", optimizer)
    assert results == static_run.results
    assert sum(optimizer.probing_rows[5:]) < sum(static_run.probing_rows[5:]) / 10


# ------------------------------------------------------------------------------------------------------------------------ options


def test_a_plan_that_is_asked_for_is_adopted_although_it_costs_more(static_run: StaticRun, tmp_path: Path):
    def count_materialized(search: str, **settings: Any) -> int:
        optimizer = RecordingOptimizer(options=SlidingJoinOptions.parse(search, **settings))
        results, plan = run(tmp_path / f"{search}{len(settings)}", optimizer, draw=draw_skewed)
        assert results == static_run.results
        assert optimizer.last_comparison is not None
        assert optimizer.last_comparison.taken.choice == plan.choice
        return len(plan.choice.materialized)

    assert count_materialized("flat") == 0
    assert count_materialized("left_deep", target="latency") == 1  # one hop less for the rows of one input
    assert count_materialized("left_deep", target="latency", budget=0) == 0


def test_explain_shows_all_plans_and_why_one_was_taken(tmp_path: Path):
    with JoinSession(tmp_path / "c", "rst", sliding_plan="chain", sliding_budget=10_000) as streams:
        streams.session._coordinator.optimizers.sliding_joins = SlidingJoinOptimizer(
            1, options=streams.session._coordinator.optimizers.sliding_joins.options, background=False
        )
        streams.session.add(CHAIN, name="q")
        assert "plans by estimate" not in streams.session.explain()  # nothing is measured yet
        for second in range(4):
            streams.advance({n: [{"a": 1, "b": k, "c": k, "at": second + k / 9} for k in range(9)] for n in "rst"})
        lines = [line.split() for line in streams.session.explain().splitlines()]
        assert "taken: chain (sliding_plan = 'chain' within the budget of 10,000 stored rows)" in streams.session.explain()
        assert [line[0] for line in lines if line and line[0] in tuple(PlanSearch)] == ["flat", "left_deep", "merging"]
        assert [line[1] for line in lines if line and line[0] == "→" and line[1] in tuple(PlanSearch)] == ["chain"]


def test_the_work_at_stores_is_counted_by_partition(tmp_path: Path):
    #   each of 8 rows of r has a partner among the rows of s: r is ranked first, so rows of s find those of the same batch
    with JoinSession(tmp_path / "c", "rs", partitions=2) as streams:
        streams.session.add(join_sql("r.b = s.b"), name="q")
        for second in range(2):
            streams.advance({n: [{"a": 1, "b": k, "c": 1, "at": second * 100 + k / 9} for k in range(8)] for n in "rs"})
        work = streams.session.statistics.count_store_work()
        names = {store.number: str(store.relation) for store in streams.plan.stores}
        totals = {
            names[store]: [
                sum(getattr(c, figure) for c in counts.values()) for figure in ("rows_in", "probes", "matches", "delayed")
            ]
            for store, counts in work.items()
        }
        assert totals == {"r": [16, 16, 16, 0], "s": [16, 16, 0, 0]}
        assert {partition for counts in work.values() for partition in counts} == {"0", "1"}
        assert all(counts.pairs >= counts.matches for by_partition in work.values() for counts in by_partition.values())
        text = streams.session.explain()
        assert "work at stores of joins in SLIDING windows, since the session was opened" in text
        assert "of r: 16 rows in, 16 probes, " in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search": "all"}, "invalid setting sliding_plan='all'"),
        ({"target": "speed"}, "invalid setting sliding_target='speed'"),
        ({"budget": -1}, "invalid setting sliding_budget=-1"),
        ({"budget": True}, "invalid setting sliding_budget=True"),
        ({"is_shared": "no"}, "invalid setting sliding_sharing='no'"),
    ],
)
def test_invalid_options_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(SessionError, match=message):
        SlidingJoinOptions.parse(**settings)


@pytest.mark.parametrize(
    ("condition", "pairs"),
    [
        ("r.b BETWEEN s.b - 1 AND s.b + 1", 2 * 22),  # the 22 pairs of a range search in each of two batches
        ("r.b <> s.b", 2 * 64),  # all pairs
    ],
)
def test_the_pairs_that_are_compared_without_an_equality_are_counted(tmp_path: Path, condition: str, pairs: int):
    with JoinSession(tmp_path / "c", "rs", partitions=2) as streams:
        streams.session.add(join_sql(condition), name="q")
        for second in range(2):
            streams.advance({n: [{"a": 1, "b": k, "c": 1, "at": second * 100 + k / 9} for k in range(8)] for n in "rs"})
        work = streams.session.statistics.count_store_work()
        assert sum(counts.pairs for by_partition in work.values() for counts in by_partition.values()) == pairs
