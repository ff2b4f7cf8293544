"""The two queries of the worked examples, and short names for what is made of them.

q1   R ─b─ S ─c─ T             q2   S ─c─ T ─d─ U
"""

from __future__ import annotations

from headrace.sharing.multiway.cost import Whole
from headrace.sharing.multiway.relations import Attribute, Join, equal

RB, SB, SC, TC, TD, UD = (Attribute(*text.split(".")) for text in ("R.b", "S.b", "S.c", "T.c", "T.d", "U.d"))
RS, ST, TU = equal(RB, SB), equal(SC, TC), equal(TD, UD)
Q1 = Join(frozenset("RST"), frozenset({RS, ST}))
Q2 = Join(frozenset("STU"), frozenset({ST, TU}))
FIGURES = Whole(dict.fromkeys("RSTU", 100.0), {RS: 0.01, ST: 0.015, TU: 0.01})  # S⋈T has 150 rows, R⋈S and T⋈U have 100


def names(order):
    """R ST"""
    return " ".join("".join(sorted(relation.relations)) for relation in order)


def labels(stores):
    """S[b] T[c]"""
    return " ".join(f"{names([store.relation])}[{store.by.name if store.by else ''}]" for store in stores)
