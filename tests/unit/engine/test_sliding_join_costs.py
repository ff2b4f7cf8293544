"""What plans of multi-way joins are estimated to cost, and what they do cost, on the four-way chain of medium selectivity.

r ──a──▶ s ──b──▶ t ──c──▶ u        every pair matches with chance 1/N, windows hold everything
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.engine.batch_job import ReduceReport
from headrace.planner.join.cost import HistoryCardinality, estimate_step_costs
from headrace.planner.join.join_graph import JoinGraph, input_relation
from headrace.planner.join.sliding_join_plan import OrdersByRelation, ProbeOrderChoice, ProbeTarget, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import SlidingJoinOptimizer

ROWS, BATCHES = 1500, 50
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = """
SELECT r.n AS r, u.n AS u FROM SLIDING(r, '1 hour') r JOIN SLIDING(s, '1 hour') s ON r.y = s.x
JOIN SLIDING(t, '1 hour') t ON s.y = t.x JOIN SLIDING(u, '1 hour') u ON t.y = u.x
"""


class Fixed(SlidingJoinOptimizer):
    """Puts one choice into force, and counts what probes do under it."""

    def __init__(self, shape: str) -> None:
        super().__init__(background=False)
        self.shape, self.came, self.made = shape, 0, 0

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        (query,) = probes.queries
        return choice(query.id, query.join_graph_graph, self.shape)

    def record_batch(self, outcomes: list[ReduceReport]) -> None:
        self.came += sum(came for outcome in outcomes for came, _ in outcome.probe_counts.values())


def flat(join: JoinGraph) -> OrdersByRelation:
    """Rows go to the neighbours in the chain, one after the other."""
    chain = ("r", "s", "t", "u")
    found = {}
    for start in sorted(join.relations, key=chain.index):
        order = sorted(join.relations - {start}, key=lambda name, s=start: (abs(chain.index(name) - chain.index(s)), name))
        found[start] = tuple(ProbeTarget(input_relation(name)) for name in order)
    return found


def choice(query: int, join: JoinGraph, shape: str) -> ProbeOrderChoice:
    if shape == "flat":
        return ProbeOrderChoice({query: flat(join)})
    rs, rst = join.subgraph("rs"), join.subgraph("rst")
    orders = {name: (*flat(rs)[name], ProbeTarget(input_relation("t")), ProbeTarget(input_relation("u"))) for name in "rs"}
    orders |= {"t": (ProbeTarget(rs), ProbeTarget(input_relation("u"))), "u": (ProbeTarget(rst),)}
    kept = {rs: flat(rs), rst: {**{n: (*flat(rs)[n], ProbeTarget(input_relation("t"))) for n in "rs"}, "t": (ProbeTarget(rs),)}}
    return ProbeOrderChoice({query: orders}, kept)


def rows(number: int) -> Mapping[str, list[dict[str, object]]]:
    """Rows of one batch, in an order in which no stream is ahead of another."""
    chance = np.random.default_rng(number)
    each = ROWS // BATCHES
    time = [BEGIN + timedelta(milliseconds=number * each + k) for k in range(each)]
    keys = {name: chance.integers(0, ROWS, (each, 2)).tolist() for name in "rstu"}
    return {
        name: [{"n": number * each + k, "x": x, "y": y, "time": time[k]} for k, (x, y) in enumerate(found)]
        for name, found in keys.items()
    }


@pytest.fixture(params=["flat", "left deep"])
def run(request: pytest.FixtureRequest, tmp_path: Path):
    prober = Fixed(request.param)
    with hr.Session(tmp_path / "checkpoint", backend="local", partitions=1) as session:
        session._coordinator.sliding_join_optimizer = prober
        sources = {name: hr.MemorySource("n INT, x INT, y INT, time TIMESTAMP") for name in "rstu"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        session.add(TEXT, name="q", sink="noop")
        session.advance()  # from the next batch on the choice is in force
        given: dict[str, list[dict[str, object]]] = {name: [] for name in "rstu"}
        for number in range(BATCHES):
            for name, found in rows(number).items():
                sources[name].append(found)
                given[name] += found
            session.advance()
        coordinator = session._coordinator
        assert coordinator.sliding_join_plan is not None
        yield prober, given, coordinator.sliding_join_plan, list(coordinator.state.store_refs)


def joined(given: Mapping[str, list[dict[str, object]]], among: str) -> int:
    """How many rows the join of neighbouring relations has."""
    ways = {row["y"]: 0 for row in given[among[0]]}
    for row in given[among[0]]:
        ways[row["y"]] += 1
    for name in among[1:]:
        following: dict[object, int] = {}
        for row in given[name]:
            following[row["y"]] = following.get(row["y"], 0) + ways.get(row["x"], 0)
        ways = following
    return sum(ways.values())


def test_storage_is_exactly_as_estimated_and_probes_nearly(run):
    prober, given, plan, stores = run
    (query,) = plan.queries
    held = {str(one.relation): sum(ref.row_count for ref in stores if ref.store == one.number) for one in plan.stores}
    expected = dict.fromkeys("rstu", ROWS)
    if prober.shape == "left deep":
        expected |= {"r⋈s": joined(given, "rs"), "r⋈s⋈t": joined(given, "rst")}
    assert held == expected
    selectivity = {one: joined(given, "".join(one.relations)) / ROWS**2 for one in query.join_graph.predicates}
    figures = HistoryCardinality(dict.fromkeys("rstu", float(ROWS)), selectivity)
    estimate = 0.0
    chosen = choice(query.id, query.join_graph, prober.shape)
    steps: dict[tuple[str, ...], float] = {}
    for join, orders in ((query.join_graph, chosen.queries[query.id]), *chosen.materialized.items()):
        for start, order in orders.items():
            visited = (input_relation(start), *(target.relation for target in order))
            costs = estimate_step_costs(visited, join, figures, {})
            steps |= {tuple(map(str, visited[: k + 2])): cost for k, cost in enumerate(costs)}
    estimate = sum(steps.values())  # what begins alike is done once
    assert prober.came == pytest.approx(estimate, rel=0.2)
