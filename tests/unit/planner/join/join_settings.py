"""Join cost models for tests of optimizers: chains, stars, cycles and cliques, given by hand or random."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations, pairwise
from random import Random

from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate
from headrace.planner.join.join_trees import OperatorTree
from headrace.planner.join.probe_orders import JoinCostModel
from support.join_models import HistoryCardinality, estimate_task_counts, make_equality
from support.join_tree_search import enumerate_connected_trees

LINKS = {
    "chain": lambda names: list(pairwise(names)),
    "star": lambda names: [(names[0], name) for name in names[1:]],
    "cycle": lambda names: [*pairwise(names), (names[0], names[-1])],
    "clique": lambda names: list(combinations(names, 2)),
}


def make_link(left: str, right: str) -> JoinPredicate:
    """Return an equality of two attributes that no other predicate uses; each is named after the other relation."""
    return make_equality(Attribute(left, right.lower()), Attribute(right, left.lower()))


def make_setting(sizes: Mapping[str, float], links: Mapping[tuple[str, str], float], *, last_only: bool = True) -> JoinCostModel:
    selectivities = {make_link(*pair): share for pair, share in links.items()}
    return JoinCostModel(
        JoinGraph(frozenset(sizes), frozenset(selectivities)), HistoryCardinality(sizes, selectivities, last_only)
    )


def make_chain(size: float, *selectivities: float) -> JoinCostModel:
    """Return a chain R1, R2, … of inputs of equal size."""
    names = [f"R{number}" for number in range(1, len(selectivities) + 2)]
    return make_setting(dict.fromkeys(names, size), dict(zip(pairwise(names), selectivities, strict=True)))


def list_connected_parts(join: JoinGraph) -> list[JoinGraph]:
    """Return all connected parts of a join, single inputs included."""
    names = sorted(join.relations)
    parts = [join.subgraph(some) for size in range(1, len(names)) for some in combinations(names, size)]
    return [part for part in parts if part.is_connected()]


@cache  # drawn joins of the same kind have the same trees
def list_connected_trees(join: JoinGraph) -> tuple[OperatorTree, ...]:
    """Return all trees in which all operators except the root join connected inputs."""
    return tuple(enumerate_connected_trees(join))


def with_capacity(setting: JoinCostModel, capacity: float) -> JoinCostModel:
    """Return the same join with as many tasks for each store as its rows need."""
    return JoinCostModel(
        setting.join_graph,
        setting.cardinalities,
        estimate_task_counts(list_connected_parts(setting.join_graph), setting.cardinalities, capacity),
    )


@cache  # a cost model remembers the costs of operators
def draw_setting(seed: int, names: str = "ABCDE", kind: str = "") -> JoinCostModel:
    """Draw sizes of 100 to 10,000, joins a tenth to ten times as large as an input, stores of one to six tasks."""
    random = Random(seed)
    pairs = LINKS[kind or random.choice(sorted(LINKS))](list(names))
    sizes = {name: float(round(10 ** random.uniform(2, 4))) for name in names}
    links = {pair: 10 ** random.uniform(-1, 1) / max(sizes[name] for name in pair) for pair in pairs}
    setting = make_setting(sizes, links)
    return JoinCostModel(
        setting.join_graph,
        setting.cardinalities,
        {part: random.randint(1, 6) for part in list_connected_parts(setting.join_graph)},
    )
