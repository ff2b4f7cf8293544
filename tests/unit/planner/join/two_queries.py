"""The two queries of the worked examples, and short labels of their orders and stores.

q1   R ─b─ S ─c─ T             q2   S ─c─ T ─d─ U
"""

from __future__ import annotations

from headrace.planner.join.join_graph import Attribute, JoinGraph
from support.join_models import HistoryCardinality, make_equality

RB, SB, SC, TC, TD, UD = (Attribute(*text.split(".")) for text in ("R.b", "S.b", "S.c", "T.c", "T.d", "U.d"))
RS, ST, TU = make_equality(RB, SB), make_equality(SC, TC), make_equality(TD, UD)
Q1 = JoinGraph(frozenset("RST"), frozenset({RS, ST}))
Q2 = JoinGraph(frozenset("STU"), frozenset({ST, TU}))
FIGURES = HistoryCardinality(
    dict.fromkeys("RSTU", 100.0), {RS: 0.01, ST: 0.015, TU: 0.01}
)  # S⋈T has 150 rows, R⋈S and T⋈U have 100


def names(order):
    """R ST"""
    return " ".join("".join(sorted(relation.relations)) for relation in order)


def labels(stores):
    """S[b] T[c]"""
    return " ".join(f"{names([store.relation])}[{store.partitioned_by.name if store.partitioned_by else ''}]" for store in stores)
