"""The optimizer of multi-way joins at work: what it changes, when, and what it leaves alone.

r ─b─ s ─c─ t       b has two values, c has two thousand: who joins r and s first makes a hundred times the rows
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
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import JoinSharing, SlidingJoinOptimizer, parse_sharing
from support.sliding_join_plans import format_probe_tree, join_sql
from support.sliding_join_session import JoinSession, ManualOptimizer

CHAIN = join_sql("r.b = s.b AND s.c = t.c", dict.fromkeys("rst", "5 s"))
EACH = 40
Draw = Callable[[Random], dict[str, int]]


class Watched(SlidingJoinOptimizer):
    """Counts the rows that came to probes in each batch, and the choices that were made."""

    def __init__(self, every: int = 2, **options: Any) -> None:
        super().__init__(every, **{"background": False, **options})
        self.came: list[int] = []
        self.chosen: list[ProbeOrderChoice] = []

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        super().record_batch(outcomes)
        self.came.append(sum(came for outcome in outcomes for came, _ in outcome.probe_counts.values()))

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        found = super().choose_plan(state, probes)
        self.chosen += [] if found is None else [found]
        return found


class Counting(ManualOptimizer):
    """Changes nothing, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[int] = []

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        self.came.append(sum(came for outcome in outcomes for came, _ in outcome.probe_counts.values()))


def skewed(random: Random) -> dict[str, int]:
    return {"b": random.randrange(2), "c": random.randrange(2000)}


def even(random: Random) -> dict[str, int]:
    return {"b": random.randrange(2000), "c": random.randrange(2000)}


def run(
    directory: Path, prober: SlidingJoinOptimizer, texts: Sequence[str] = (CHAIN,), draw: Draw = skewed, batches: int = 9
) -> tuple[list[Counter[tuple[Any, ...]]], SlidingJoinPlan]:
    """Run queries over a second of rows a batch; return their results, and the last plan."""
    random = Random(5)
    with JoinSession(directory, "rstu", prober) as streams:
        for number, text in enumerate(texts):
            streams.session.add(text, name=f"q{number}")
        for batch in range(batches):
            rows = {
                name: [{"a": EACH * batch + k, "at": batch + k / EACH, **draw(random)} for k in range(EACH)] for name in "rstu"
            }
            streams.advance(rows)
        return [streams.results(f"q{number}") for number in range(len(texts))], streams.plan


@dataclass(frozen=True)
class Unchanged:
    """What there is without an optimizer."""

    results: list[Counter[tuple[Any, ...]]]
    plan: SlidingJoinPlan
    came: list[int]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Unchanged:
    still = Counting()
    return Unchanged(*run(tmp_path_factory.mktemp("still") / "c", still), still.came)


def test_an_order_that_is_far_cheaper_is_found_within_a_few_batches(unchanged: Unchanged, tmp_path: Path):
    watched, expected, first = Watched(), unchanged.results, unchanged.plan
    results, plan = run(tmp_path / "c", watched)
    assert format_probe_tree(first, "s")[0].split()[-1] == "r[b]"  # by name: first those that make far too many rows
    assert len(format_probe_tree(first, "s")) == 2
    assert results == expected
    assert len(expected[0]) > 100
    assert watched.chosen
    assert plan.choice != first.choice
    assert "t[" in format_probe_tree(plan, "s")[0]
    assert sum(watched.came[5:]) < sum(unchanged.came[5:]) / 10


def test_what_costs_as_little_as_can_be_stays(tmp_path: Path):
    watched = Watched(every=1)
    pair = join_sql("r.b = s.b", {"r": "5 s", "s": "5 s"})
    _, plan = run(tmp_path / "c", watched, [pair], even, batches=6)
    assert watched.chosen == []
    assert watched.last_solution is not None  # it has looked
    assert format_probe_tree(plan, "r") == ["stored s[b] !0"]


def test_plans_do_not_go_back_and_forth(tmp_path: Path):
    watched = Watched(every=1)
    run(tmp_path / "c", watched, batches=12)
    assert 1 <= len(watched.chosen) <= 3


def test_nothing_is_decided_before_all_relations_were_seen(tmp_path: Path):
    prober = Watched(every=1)
    with JoinSession(tmp_path / "c", "rst", prober) as streams:
        streams.session.add(CHAIN, name="q")
        for second in range(4):
            streams.advance({name: [{"a": 1, "b": 1, "c": second, "at": second}] * 9 for name in "rs"})
        assert prober.last_solution is None
        streams.advance({"t": [{"a": 1, "b": 1, "c": 1, "at": 4}]})
        streams.advance({"t": [{"a": 1, "b": 1, "c": 1, "at": 5}]})
        assert prober.last_solution is not None


def test_it_looks_when_queries_came_or_went_and_every_few_batches(tmp_path: Path):
    #   batch           0   1   2   3   4   5   6   7   8   9   10
    #   a query comes   +               +
    #   looks before            ×           ×               ×        rates are known from the second batch on
    looks: list[int] = []

    class Looking(Watched):
        def _find_cheaper_choice(self, probes: SlidingJoinPlan, figures: Any, parts: int) -> ProbeOrderChoice | None:
            looks.append(len(self.came))
            return None

    with JoinSession(tmp_path / "c", "rst", Looking(every=4)) as streams:
        streams.session.add(CHAIN, name="q")
        for second in range(11):
            if second == 4:
                streams.session.add(join_sql("s.c = t.c"), name="p")
            streams.advance({name: [{"a": 1, "b": 1, "c": 1, "at": second}] for name in "rst"})
    assert looks == [2, 5, 9]


# ---------------------------------------------------------------------------------------------------------------------- beside


class Slow(Watched):
    """Thinks until it is let go."""

    def __init__(self) -> None:
        super().__init__(every=1, background=True)
        self.go = Event()
        self.begun = Event()

    def _find_cheaper_choice(self, probes: SlidingJoinPlan, figures: Any, parts: int) -> ProbeOrderChoice | None:
        self.begun.set()
        assert self.go.wait(30)
        return super()._find_cheaper_choice(probes, figures, parts)


def test_beside_the_pipeline_nobody_waits(tmp_path: Path):
    #   batch     0   1   2   3   4   5     6
    #   thinks        ├───────────────┤     in force
    prober = Slow()
    random = Random(5)
    with JoinSession(tmp_path / "c", "rst", prober) as streams:
        streams.session.add(CHAIN, name="q")

        def tick(second: int) -> None:
            streams.advance({n: [{"a": k, "at": second + k / EACH, **skewed(random)} for k in range(EACH)] for n in "rst"})

        tick(0)
        first = streams.plan
        for second in range(1, 5):
            tick(second)  # the batches go on, by the old plan
        assert prober.begun.wait(30)
        assert (prober.chosen, streams.plan) == ([], first)
        prober.go.set()
        assert prober._pending_choice is not None
        found = prober._pending_choice.result(30)
        assert found is not None
        tick(5)
        assert prober.chosen == [found]
        assert streams.plan.choice.queries == found.queries


# ------------------------------------------------------------------------------------------------------------- what is left alone


def test_joins_that_nothing_ties_together_are_left_alone(tmp_path: Path):
    loose = join_sql("r.b = s.b AND t.c = u.c", dict.fromkeys("rstu", "0 s"))
    watched = Watched(every=1)
    _, plan = run(tmp_path / "c", watched, [loose], batches=5)
    assert watched.chosen == []
    assert watched.last_solution is None
    assert len(format_probe_tree(plan, "r")) == 3


def test_beside_joins_that_nothing_ties_together_others_are_changed(tmp_path: Path):
    loose = join_sql("r.b = s.b AND t.c = u.c", dict.fromkeys("rstu", "0 s"))
    watched = Watched()
    expected, first = run(tmp_path / "still", Counting(), [loose, CHAIN])
    results, plan = run(tmp_path / "c", watched, [loose, CHAIN])
    assert results == expected
    assert watched.chosen
    assert set(watched.chosen[0].queries) == {1}
    loose_one = next(one.id for one in plan.queries if len(one.inputs) == 4)
    visited = [[target.relation for target in order] for order in plan.choice.queries[loose_one].values()]
    assert visited == [[target.relation for target in order] for order in first.choice.queries[loose_one].values()]


# --------------------------------------------------------------------------------------------------------------------- sharing


@pytest.mark.parametrize("sharing", list(JoinSharing))
def test_how_far_queries_share(tmp_path: Path, sharing: JoinSharing):
    #   two queries that differ in a comparison only
    texts = [CHAIN, join_sql("r.b = s.b AND s.c = t.c AND r.a < t.a", dict.fromkeys("rst", "5 s"))]
    watched = Watched(sharing=sharing)
    _, plan = run(tmp_path / "c", watched, texts, batches=6)
    shared = [probe for _, probe in plan.probes if len(probe.query_ids) > 1]
    if sharing is JoinSharing.NONE:
        assert not shared
        assert sorted(plan.ranked_relations) == ["r@0", "r@1", "s@0", "s@1", "t@0", "t@1"]
        assert all("@" in name for one in plan.stores for name in one.relation.relations)
    else:
        assert shared
        assert sorted(plan.ranked_relations) == ["r", "s", "t"]


def test_sharing_nothing_still_finds_better_orders(unchanged: Unchanged, tmp_path: Path):
    watched = Watched(sharing=JoinSharing.NONE)
    results, _ = run(tmp_path / "c", watched)
    assert results == unchanged.results
    assert sum(watched.came[5:]) < sum(unchanged.came[5:]) / 10


def test_sharing_is_said_by_name():
    assert [parse_sharing(text) for text in ("global", "common", "none")] == list(JoinSharing)
    with pytest.raises(SessionError, match="invalid setting multiway='all'"):
        parse_sharing("all")
