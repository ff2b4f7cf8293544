"""Live sliding joins over streams r … v, and a short notation to write their probe orders and to read their plans.

make_join(0, "r.b = s.b AND s.c = t.c")         query 0 over r, s and t, each with a range of ten seconds
parse_choice((q, {"r": "s[b] t[c]", …}))        rows of r probe the store of s by s.b, then the store of t by t.c
st[s.b], st[]                                   the store of s⋈t, partitioned by s.b; the same, not partitioned
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headrace.model.stream import Stream
from headrace.model.time import MIN_TIME
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
from headrace.sql import Catalog, bind_query

COLUMNS = "a INT, b INT, c INT, d INT, x DOUBLE, n STRING, time TIMESTAMP"
CATALOG = Catalog.of(Stream(name, Schema.parse(COLUMNS), "time") for name in "rstuv")


def join_sql(conditions: str, ranges: Mapping[str, str] | None = None, lateness: str = "0 s", output: str = "") -> str:
    """Return the SQL of a sliding join over the streams that the conditions name."""
    names = sorted(set(re.findall(r"\b([r-v])\.", conditions)))
    sides = [f"SLIDING({name}, '{(ranges or {}).get(name, '10 s')}', '{lateness}') {name}" for name in names]
    outputs = output or ", ".join(f"{name}.a AS {name}" for name in names)
    return f"SELECT {outputs} FROM {', '.join(sides)} WHERE {conditions}"


def make_join(
    number: int,
    conditions: str,
    ranges: Mapping[str, str] | None = None,
    *,
    lateness: str = "0 s",
    isolated: bool = False,
    bit: int | None = None,
) -> NormalizedJoin:
    """Return a live query; its bit defaults to its number."""
    plan = bind_query(join_sql(conditions, ranges, lateness), CATALOG)
    return normalize_join(LiveQuery(number, f"q{number}", plan, MIN_TIME, number if bit is None else bit), isolated=isolated)


def parse_targets(join: JoinGraph, text: str) -> tuple[ProbeTarget, ...]:
    """Parse the steps of a probe order; an intermediate result joins its relations as `join` does."""
    parsed = []
    for names, by in re.findall(r"(\w+)\[([\w.]*)\]", text):
        attribute = by if "." in by or not by else f"{names}.{by}"
        parsed.append(ProbeTarget(join.subgraph(names), Attribute(*attribute.split(".")) if attribute else None))
    return tuple(parsed)


def parse_orders(join: JoinGraph, **steps: str) -> OrdersByRelation:
    """Parse the probe orders of a join, by start relation."""
    return {start: parse_targets(join, text) for start, text in sorted(steps.items())}


def parse_choice(
    *chosen: tuple[NormalizedJoin, Mapping[str, str]], materialized: Mapping[JoinGraph, Mapping[str, str]] | None = None
) -> ProbeOrderChoice:
    """Parse the probe orders of queries and of materialized intermediate results."""
    return ProbeOrderChoice(
        {query.id: parse_orders(query.join_graph, **steps) for query, steps in chosen},
        {join: parse_orders(join, **steps) for join, steps in (materialized or {}).items()},
    )


def format_store(store: StoreSpec) -> str:
    """Return the notation of a store, such as s[b] or st[s.b]."""
    names = "".join(sorted(store.relation.relations))
    by = (
        ""
        if store.partitioned_by is None
        else store.partitioned_by.name
        if store.relation.is_input
        else str(store.partitioned_by)
    )
    return f"{names}[{by}]"


def format_probe_tree(plan: SlidingJoinPlan, start: str) -> list[str]:
    """Return the probe tree of a relation, one line per probe: routing, store, completed queries (!) and fed stores (→).

    A star marks a store that takes no more rows; <7 restricts a probe to rows inserted before batch 7.
    """
    stores = {store.number: store for store in plan.stores}

    def lines(probe: ProbeStep, indent: str) -> list[str]:
        store = stores[probe.store_number]
        text = f"{indent}{_format_routing(probe.routing)} {format_store(store)}{'*' if store.until_batch is not None else ''}"
        text += f"<{probe.before_batch}" if probe.before_batch is not None else ""
        text += "".join(f" !{number}" for number in probe.completed_queries)
        text += "".join(f" →{format_store(stores[feed.store_number])}" for feed in probe.feeds)
        return [text, *(line for child in probe.children for line in lines(child, indent + "  "))]

    return [line for root in plan.root_probes[start] for line in lines(root, "")]


def _format_routing(routing: ProbeRouting) -> str:
    kind = routing.kind.value
    return kind if routing.key is None or kind == "stored" else f"{kind} {format_expression(routing.key)}"


def format_stores(plan: SlidingJoinPlan) -> list[str]:
    """Return the stores of a plan as text, by number."""
    ordered: Sequence[StoreSpec] = sorted(plan.stores, key=lambda store: store.number)
    return [
        f"{format_store(store)} since {store.from_batch}{'' if store.until_batch is None else f' until {store.until_batch}'}"
        for store in ordered
    ]
