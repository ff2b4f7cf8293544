"""Graphs for tests: of two inputs, of trees over four, of two queries that share."""

from __future__ import annotations

from headrace.sharing.multiway.cost import Whole
from headrace.sharing.multiway.graph import Graph, Store, build, from_tree
from headrace.sharing.multiway.probe_orders import Setting
from headrace.sharing.multiway.relations import Attribute, Join, Predicate, equal, theta
from headrace.sharing.multiway.trees import every_tree, flat, stores

RS = equal(Attribute("R", "a"), Attribute("S", "a"))
ST = equal(Attribute("S", "b"), Attribute("T", "b"))
TU = theta("T", "U", "T.x < U.y")
FOUR = Join(frozenset("RSTU"), frozenset({RS, ST, TU}))
THREE = FOUR.within("RST")
BY = {"R": Attribute("R", "a"), "S": Attribute("S", "a"), "T": Attribute("T", "b")}


def setting(join: Join, tasks: int = 3, by: dict[str, Attribute] = BY) -> Setting:
    partitioning = {join.within(names): attribute for names, attribute in by.items()}
    everything = {one: tasks for tree in every_tree(join.relations) for one in stores(tree, join)}
    return Setting(join, Whole(dict.fromkeys(join.relations, 100.0)), everything, partitioning)


def two_way(predicate: Predicate, tasks: int = 3, by: dict[str, Attribute] | None = None) -> Graph:
    join = Join(frozenset(predicate.relations), frozenset({predicate}))
    return from_tree(flat(join.relations), "q", setting(join, tasks, by or {}))


def two_queries() -> Graph:
    """q1 = R ⋈ S ⋈ T, q2 = S ⋈ T ⋈ U; S ⋈ T is kept for R of q1."""
    by = {"R": BY["R"], "S": Attribute("S", "b"), "T": BY["T"], "ST": BY["S"]}
    r, s, t, u, st = ((FOUR.within(names), by.get(names)) for names in ("R", "S", "T", "U", "ST"))
    orders = {
        ("q1", "R"): (st,),
        ("q1", "S"): (t, r),
        ("q1", "T"): (s, r),
        ("q2", "S"): (t, u),
        ("q2", "T"): (s, u),
        ("q2", "U"): (t, s),
        (st[0], "S"): (t,),
        (st[0], "T"): (s,),
    }
    return build({"q1": THREE, "q2": FOUR.within("STU")}, [Store(*one, 4) for one in (r, s, t, u, st)], orders)
