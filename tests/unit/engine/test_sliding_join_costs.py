"""Estimated and actual costs of sliding join plans, on a four-way chain of medium selectivity.

r ──a──▶ s ──b──▶ t ──c──▶ u        every pair matches with probability 1/N, windows hold all rows
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.engine.batch_job import ReduceReport
from headrace.planner.join.cost import estimate_step_costs
from headrace.planner.join.join_graph import JoinGraph, input_relation
from headrace.planner.join.sliding_join_plan import OrdersByRelation, ProbeOrderChoice, ProbeTarget, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import SlidingJoinOptimizer
from support.join_models import HistoryCardinality

ROWS, BATCHES = 1000, 20
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = """
SELECT r.n AS r, u.n AS u FROM SLIDING(r, '1 hour') r JOIN SLIDING(s, '1 hour') s ON r.y = s.x
JOIN SLIDING(t, '1 hour') t ON s.y = t.x JOIN SLIDING(u, '1 hour') u ON t.y = u.x
"""


class FixedChoice(SlidingJoinOptimizer):
    """Sets a fixed choice, and counts the probing rows."""

    def __init__(self, shape: str) -> None:
        super().__init__(background=False)
        self.shape, self.probing_rows, self.made = shape, 0, 0

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        (query,) = probes.queries
        return make_choice(query.id, query.join_graph, self.shape)

    def record_batch(self, outcomes: list[ReduceReport]) -> None:
        self.probing_rows += sum(rows for outcome in outcomes for rows, _ in outcome.probe_counts.values())


def flat_orders(join: JoinGraph) -> OrdersByRelation:
    """Return orders that probe the neighbours in the chain, the nearest first."""
    chain = ("r", "s", "t", "u")
    orders = {}
    for start in sorted(join.relations, key=chain.index):
        order = sorted(join.relations - {start}, key=lambda name, s=start: (abs(chain.index(name) - chain.index(s)), name))
        orders[start] = tuple(ProbeTarget(input_relation(name)) for name in order)
    return orders


def make_choice(query: int, join: JoinGraph, shape: str) -> ProbeOrderChoice:
    if shape == "flat":
        return ProbeOrderChoice({query: flat_orders(join)})
    rs, rst = join.subgraph("rs"), join.subgraph("rst")
    orders = {name: (*flat_orders(rs)[name], ProbeTarget(input_relation("t")), ProbeTarget(input_relation("u"))) for name in "rs"}
    orders |= {"t": (ProbeTarget(rs), ProbeTarget(input_relation("u"))), "u": (ProbeTarget(rst),)}
    materialized = {
        rs: flat_orders(rs),
        rst: {**{n: (*flat_orders(rs)[n], ProbeTarget(input_relation("t"))) for n in "rs"}, "t": (ProbeTarget(rs),)},
    }
    return ProbeOrderChoice({query: orders}, materialized)


def draw_rows(number: int) -> Mapping[str, list[dict[str, object]]]:
    """Draw the rows of a batch; the streams advance together."""
    random = np.random.default_rng(number)
    each = ROWS // BATCHES
    time = [BEGIN + timedelta(milliseconds=number * each + k) for k in range(each)]
    keys = {name: random.integers(0, ROWS, (each, 2)).tolist() for name in "rstu"}
    return {
        name: [{"n": number * each + k, "x": x, "y": y, "time": time[k]} for k, (x, y) in enumerate(pairs)]
        for name, pairs in keys.items()
    }


@pytest.fixture(params=["flat", "left deep"])
def run(request: pytest.FixtureRequest, tmp_path: Path):
    optimizer = FixedChoice(request.param)
    with hr.Session(tmp_path / "checkpoint", backend="local", partitions=1) as session:
        session._coordinator.optimizers.sliding_joins = optimizer
        sources = {name: hr.MemorySource("n INT, x INT, y INT, time TIMESTAMP") for name in "rstu"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        session.add(TEXT, name="q", sink="noop")
        session.advance()  # the choice is in force from the next batch on
        given: dict[str, list[dict[str, object]]] = {name: [] for name in "rstu"}
        for number in range(BATCHES):
            for name, new_rows in draw_rows(number).items():
                sources[name].append(new_rows)
                given[name] += new_rows
            session.advance()
        coordinator = session._coordinator
        assert coordinator.sliding_join_plan is not None
        yield optimizer, given, coordinator.sliding_join_plan, list(coordinator.state.store_refs)


def count_joined_rows(given: Mapping[str, list[dict[str, object]]], among: str) -> int:
    """Return the number of rows of the join of neighbouring relations."""
    counts = {row["y"]: 0 for row in given[among[0]]}
    for row in given[among[0]]:
        counts[row["y"]] += 1
    for name in among[1:]:
        following: dict[object, int] = {}
        for row in given[name]:
            following[row["y"]] = following.get(row["y"], 0) + counts.get(row["x"], 0)
        counts = following
    return sum(counts.values())


def test_storage_equals_the_estimate_and_probe_cost_is_close(run):
    optimizer, given, plan, stores = run
    (query,) = plan.queries
    stored = {str(store.relation): sum(ref.row_count for ref in stores if ref.store == store.number) for store in plan.stores}
    expected = dict.fromkeys("rstu", ROWS)
    if optimizer.shape == "left deep":
        expected |= {"r⋈s": count_joined_rows(given, "rs"), "r⋈s⋈t": count_joined_rows(given, "rst")}
    assert stored == expected
    selectivity = {
        predicate: count_joined_rows(given, "".join(predicate.relations)) / ROWS**2 for predicate in query.join_graph.predicates
    }
    figures = HistoryCardinality(dict.fromkeys("rstu", float(ROWS)), selectivity)
    estimate = 0.0
    chosen = make_choice(query.id, query.join_graph, optimizer.shape)
    steps: dict[tuple[str, ...], float] = {}
    for join, orders in ((query.join_graph, chosen.queries[query.id]), *chosen.materialized.items()):
        for start, order in orders.items():
            visited = (input_relation(start), *(target.relation for target in order))
            costs = estimate_step_costs(visited, join, figures, {})
            steps |= {tuple(map(str, visited[: k + 2])): cost for k, cost in enumerate(costs)}
    estimate = sum(steps.values())  # equal prefixes are counted once
    assert optimizer.probing_rows == pytest.approx(estimate, rel=0.2)
