"""Plans and graphs of sliding joins, for tests: two inputs, shared queries, materialized joins, transitions.

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


def sliding_join_sql(relations: str, condition: str, seconds: int = 5) -> str:
    """Return a join that selects column a of the first relation; all windows have `seconds` seconds."""
    sides = ", ".join(f"SLIDING({name}, '{seconds} seconds') {name}" for name in relations)
    return f"SELECT {relations[0]}.a AS out FROM {sides} WHERE {condition}"


def normalize_queries(**texts: str) -> tuple[NormalizedJoin, ...]:
    parts = [
        part.addition for n, (name, text) in enumerate(texts.items()) for part in split_query(n, name, bind_query(text, CATALOG))
    ]
    return tuple(map(normalize_join, apply_changelog((), Changelog(tuple(parts)))))


def plan_first_batch(
    joins: tuple[NormalizedJoin, ...], partitions: int = 3, choice: ProbeOrderChoice | None = None
) -> SlidingJoinPlan:
    """Return the plan of queries that are all live from the first batch on."""
    chosen = choice or choose_orders(joins, None, None)
    return plan_sliding_joins(joins, chosen, 0, partitions, {join.id: 0 for join in joins})


def two_way(condition: str, partitions: int = 3) -> PhysicalGraph:
    return build_physical_graph(plan_first_batch(normalize_queries(q=sliding_join_sql("RS", condition)), partitions), partitions)


def make_orders(join: JoinGraph, by: Mapping[str, str], **steps_by_start: str) -> dict[str, tuple[ProbeTarget, ...]]:
    """R="ST" probes the materialized join of S and T, R="S T" both in turn; `by` has the partitioning attributes."""
    return {start: tuple(_target(join, names, by) for names in steps.split()) for start, steps in steps_by_start.items()}


def _target(join: JoinGraph, names: str, by: Mapping[str, str]) -> ProbeTarget:
    attribute = by.get(names)
    return ProbeTarget(join.subgraph(names), None if attribute is None else Attribute(*attribute.split(".")))


BY = {"R": "R.a", "S": "S.b", "T": "T.b", "ST": "S.a"}
TWO = normalize_queries(q1=sliding_join_sql("RST", CHAIN), q2=sliding_join_sql("STU", TAIL))


def sharing_choice() -> ProbeOrderChoice:
    """q1 = R ⋈ S ⋈ T, q2 = S ⋈ T ⋈ U; S ⋈ T is materialized for R of q1."""
    first, second = TWO[0].join_graph, TWO[1].join_graph
    chosen = {0: make_orders(first, BY, R="ST", S="T R", T="S R"), 1: make_orders(second, BY, S="T U", T="S U", U="T S")}
    return ProbeOrderChoice(chosen, {first.subgraph("ST"): make_orders(first, BY, S="T", T="S")})


def two_queries(partitions: int = 4) -> PhysicalGraph:
    return build_physical_graph(plan_first_batch(TWO, partitions, sharing_choice()), partitions)


def plan_transition(partitions: int = 2) -> SlidingJoinPlan:
    """Return the plan of batch 7, in which S ⋈ T is materialized and S repartitioned; all stores hold rows since batch 3."""
    before = plan_first_batch(TWO, partitions)
    return plan_sliding_joins(
        TWO, sharing_choice(), 7, partitions, {0: 0, 1: 0}, before, {store.number: 3 for store in before.stores}
    )


def four_queries() -> PhysicalGraph:
    """Four queries over five streams."""
    joins = normalize_queries(
        q1=sliding_join_sql("RST", CHAIN),
        q2=sliding_join_sql("STU", TAIL, 2),
        q3=sliding_join_sql("TUV", "T.c = U.c AND T.c = V.c AND U.b <> V.b"),
        q4=sliding_join_sql("RSTUV", f"{CHAIN} AND T.c = U.c AND U.a = V.a AND R.b > V.b"),
    )
    return build_physical_graph(plan_first_batch(joins, 2), 2)
