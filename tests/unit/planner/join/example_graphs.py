"""Plans of probes and their graphs, for tests: of two inputs, of queries that share, with joins that are kept, in transition.

Streams are R, S, T, U, V, each with columns a, b, c.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.changelog import Changelog, apply_changelog, split_query
from headrace.planner.explain.plan_graph import build_physical_graph
from headrace.planner.explain.render_graph import PhysicalGraph
from headrace.planner.join.join_graph import Attribute, JoinGraph
from headrace.planner.join.normalized_join import NormalizedJoin, normalize_join
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, ProbeTarget, SlidingJoinPlan
from headrace.planner.join.sliding_join_planner import plan_sliding_joins
from headrace.runtime.sliding_join_epochs import choose_orders
from headrace.sql import Catalog, bind_query

CATALOG = Catalog.of(Stream(name, Schema.parse("a INT, b INT, c INT, time TIMESTAMP"), "time") for name in "RSTUV")
CHAIN = "R.a = S.a AND S.b = T.b"
TAIL = "S.b = T.b AND T.c < U.c"


def sliding(relations: str, condition: str, seconds: int = 5) -> str:
    """SELECT the first column of the first relation; every one in a window of that many seconds."""
    sides = ", ".join(f"SLIDING({name}, '{seconds} seconds') {name}" for name in relations)
    return f"SELECT {relations[0]}.a AS out FROM {sides} WHERE {condition}"


def queries(**texts: str) -> tuple[NormalizedJoin, ...]:
    parts = [
        part.addition for n, (name, text) in enumerate(texts.items()) for part in split_query(n, name, bind_query(text, CATALOG))
    ]
    return tuple(map(normalize_join, apply_changelog((), Changelog(tuple(parts)))))


def first_plan(found: tuple[NormalizedJoin, ...], partitions: int = 3, choice: ProbeOrderChoice | None = None) -> SlidingJoinPlan:
    """The plan of queries that are all there from the first batch on."""
    chosen = choice or choose_orders(found, None, None)
    return plan_sliding_joins(found, chosen, 0, partitions, {one.id: 0 for one in found})


def two_way(condition: str, partitions: int = 3) -> PhysicalGraph:
    return build_physical_graph(first_plan(queries(q=sliding("RS", condition)), partitions), partitions)


def orders(join: JoinGraph, by: Mapping[str, str], **found: str) -> dict[str, tuple[ProbeTarget, ...]]:
    """R="ST" probes the kept join of S and T, R="S T" one after the other; `by` has what stores are partitioned by."""
    return {start: tuple(_target(join, names, by) for names in steps.split()) for start, steps in found.items()}


def _target(join: JoinGraph, names: str, by: Mapping[str, str]) -> ProbeTarget:
    attribute = by.get(names)
    return ProbeTarget(join.subgraph(names), None if attribute is None else Attribute(*attribute.split(".")))


BY = {"R": "R.a", "S": "S.b", "T": "T.b", "ST": "S.a"}
TWO = queries(q1=sliding("RST", CHAIN), q2=sliding("STU", TAIL))


def sharing_choice() -> ProbeOrderChoice:
    """q1 = R ⋈ S ⋈ T, q2 = S ⋈ T ⋈ U; S ⋈ T is kept for R of q1."""
    one, two = TWO[0].join_graph, TWO[1].join_graph
    chosen = {0: orders(one, BY, R="ST", S="T R", T="S R"), 1: orders(two, BY, S="T U", T="S U", U="T S")}
    return ProbeOrderChoice(chosen, {one.subgraph("ST"): orders(one, BY, S="T", T="S")})


def two_queries(partitions: int = 4) -> PhysicalGraph:
    return build_physical_graph(first_plan(TWO, partitions, sharing_choice()), partitions)


def transition(partitions: int = 2) -> SlidingJoinPlan:
    """q1 and q2 in batch 7, when S ⋈ T begins to be kept and S is partitioned otherwise; all stores hold rows since batch 3."""
    before = first_plan(TWO, partitions)
    return plan_sliding_joins(
        TWO, sharing_choice(), 7, partitions, {0: 0, 1: 0}, before, {store.number: 3 for store in before.stores}
    )


def many() -> PhysicalGraph:
    """Four queries over five streams."""
    found = queries(
        q1=sliding("RST", CHAIN),
        q2=sliding("STU", TAIL, 2),
        q3=sliding("TUV", "T.c = U.c AND T.c = V.c AND U.b <> V.b"),
        q4=sliding("RSTUV", f"{CHAIN} AND T.c = U.c AND U.a = V.a AND R.b > V.b"),
    )
    return build_physical_graph(first_plan(found, 2), 2)
