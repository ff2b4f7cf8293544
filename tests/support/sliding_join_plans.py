"""Live multi-way joins over streams r … v, and short ways to write and to read how they are worked off.

ask(0, "r.b = s.b AND s.c = t.c")           query 0 over r, s and t, each in a window of ten seconds
choice(q, r="s[b] t[c]", …)                 rows of r visit the store of s by s.b, then that of t by t.c
kept joins                                  st[s.b] is the store of s⋈t by s.b; st[] is by nothing
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.join.join_graph import Attribute, JoinGraph
from headrace.planner.join.normalized_join import NormalizedJoin, format_expression, normalize_join
from headrace.planner.join.sliding_join_plan import (
    OrdersByRelation,
    ProbeOrderChoice,
    ProbeRouting,
    ProbeStep,
    ProbeTarget,
    SlidingJoinPlan,
    StoreSpec,
)
from headrace.planner.shared_plan import LiveQuery
from headrace.planner.slicing import MIN_TIME
from headrace.sql import Catalog, bind_query

COLUMNS = "a INT, b INT, c INT, d INT, x DOUBLE, n STRING, time TIMESTAMP"
CATALOG = Catalog.of(Stream(name, Schema.parse(COLUMNS), "time") for name in "rstuv")


def text_of(conditions: str, ranges: Mapping[str, str] | None = None, lateness: str = "0 s", output: str = "") -> str:
    """Return a query over the streams that its conditions name."""
    names = sorted(set(re.findall(r"\b([r-v])\.", conditions)))
    sides = [f"SLIDING({name}, '{(ranges or {}).get(name, '10 s')}', '{lateness}') {name}" for name in names]
    outputs = output or ", ".join(f"{name}.a AS {name}" for name in names)
    return f"SELECT {outputs} FROM {', '.join(sides)} WHERE {conditions}"


def ask(
    number: int,
    conditions: str,
    ranges: Mapping[str, str] | None = None,
    *,
    lateness: str = "0 s",
    apart: bool = False,
    bit: int | None = None,
) -> NormalizedJoin:
    """Return a live query; its bit is its number, if it is not given one."""
    plan = bind_query(text_of(conditions, ranges, lateness), CATALOG)
    return normalize_join(LiveQuery(number, f"q{number}", plan, MIN_TIME, number if bit is None else bit), isolated=apart)


def targets(join: JoinGraph, text: str) -> tuple[ProbeTarget, ...]:
    """Read the steps of an order; the relations of kept joins are joined as they are in `join`."""
    found = []
    for names, by in re.findall(r"(\w+)\[([\w.]*)\]", text):
        at = by if "." in by or not by else f"{names}.{by}"
        found.append(ProbeTarget(join.subgraph(names), Attribute(*at.split(".")) if at else None))
    return tuple(found)


def orders(join: JoinGraph, **steps: str) -> OrdersByRelation:
    """Read the orders of a join, by start."""
    return {start: targets(join, text) for start, text in sorted(steps.items())}


def choice(
    *chosen: tuple[NormalizedJoin, Mapping[str, str]], kept: Mapping[JoinGraph, Mapping[str, str]] | None = None
) -> ProbeOrderChoice:
    """Read the orders of queries, and of joins that are kept."""
    return ProbeOrderChoice(
        {one.id: orders(one.join, **steps) for one, steps in chosen},
        {join: orders(join, **steps) for join, steps in (kept or {}).items()},
    )


def label(store: StoreSpec) -> str:
    """s[b], st[s.b]"""
    names = "".join(sorted(store.relation.relations))
    by = (
        ""
        if store.partitioned_by is None
        else store.partitioned_by.name
        if store.relation.is_input
        else str(store.partitioned_by)
    )
    return f"{names}[{by}]"


def drawn(plan: SlidingJoinPlan, start: str) -> list[str]:
    """Write the tree of probes of a relation: how rows get there, to which store, and who is complete (!) or fed (→).

    A star is a store that is no longer filled, <7 stands for rows of before batch 7.
    """
    stores = {one.number: one for one in plan.stores}

    def lines(probe: ProbeStep, indent: str) -> list[str]:
        store = stores[probe.store_number]
        text = f"{indent}{_edge(probe.routing)} {label(store)}{'*' if store.until_batch is not None else ''}"
        text += f"<{probe.before_batch}" if probe.before_batch is not None else ""
        text += "".join(f" !{number}" for number in probe.completed_queries)
        text += "".join(f" →{label(stores[feed.store_number])}" for feed in probe.feeds)
        return [text, *(line for child in probe.children for line in lines(child, indent + "  "))]

    return [line for root in plan.root_probes[start] for line in lines(root, "")]


def _edge(edge: ProbeRouting) -> str:
    return (
        edge.kind.value if edge.key is None or edge.kind.value == "stored" else f"{edge.kind.value} {format_expression(edge.key)}"
    )


def stores(plan: SlidingJoinPlan) -> list[str]:
    """Write the stores of a plan, by number."""
    found: Sequence[StoreSpec] = sorted(plan.stores, key=lambda one: one.number)
    return [
        f"{label(one)} since {one.from_batch}{'' if one.until_batch is None else f' until {one.until_batch}'}" for one in found
    ]
