"""Joins with figures, for tests of optimizers: chains, stars, cycles and cliques, given by hand or drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from random import Random

from headrace.planner.join.cost import HistoryCardinality, estimate_task_counts
from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate, make_equality
from headrace.planner.join.probe_orders import JoinCostModel

LINKS = {
    "chain": lambda names: list(pairwise(names)),
    "star": lambda names: [(names[0], name) for name in names[1:]],
    "cycle": lambda names: [*pairwise(names), (names[0], names[-1])],
    "clique": lambda names: list(combinations(names, 2)),
}


def tie(one: str, two: str) -> JoinPredicate:
    """An equality of attributes that nobody else compares, named after the other side."""
    return make_equality(Attribute(one, two.lower()), Attribute(two, one.lower()))


def linked(sizes: Mapping[str, float], ties: Mapping[tuple[str, str], float], *, last_only: bool = True) -> JoinCostModel:
    selectivities = {tie(*pair): share for pair, share in ties.items()}
    return JoinCostModel(
        JoinGraph(frozenset(sizes), frozenset(selectivities)), HistoryCardinality(sizes, selectivities, last_only)
    )


def chain(size: float, *selectivities: float) -> JoinCostModel:
    """R1, R2, … of one size, each joined with the next."""
    names = [f"R{number}" for number in range(1, len(selectivities) + 2)]
    return linked(dict.fromkeys(names, size), dict(zip(pairwise(names), selectivities, strict=True)))


def parts_of(join: JoinGraph) -> list[JoinGraph]:
    """Every part of a join that predicates hold together, single inputs included."""
    names = sorted(join.relations)
    parts = [join.subgraph(some) for size in range(1, len(names)) for some in combinations(names, size)]
    return [part for part in parts if part.is_connected()]


def with_capacity(setting: JoinCostModel, capacity: float) -> JoinCostModel:
    """The same join, with as many tasks for each store as its rows need."""
    return JoinCostModel(
        setting.join_graph,
        setting.cardinalities,
        estimate_task_counts(parts_of(setting.join_graph), setting.cardinalities, capacity),
    )


def drawn(seed: int, names: Sequence[str] = "ABCDE", kind: str = "") -> JoinCostModel:
    """Sizes of 100 to 10,000, joins a tenth to ten times as large as an input, stores of one to six tasks."""
    random = Random(seed)
    pairs = LINKS[kind or random.choice(sorted(LINKS))](list(names))
    sizes = {name: float(round(10 ** random.uniform(2, 4))) for name in names}
    ties = {pair: 10 ** random.uniform(-1, 1) / max(sizes[name] for name in pair) for pair in pairs}
    setting = linked(sizes, ties)
    return JoinCostModel(
        setting.join_graph, setting.cardinalities, {part: random.randint(1, 6) for part in parts_of(setting.join_graph)}
    )
