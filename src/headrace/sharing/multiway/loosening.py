"""Which conditions are better looked at afterwards, so that queries with and without them share a join.

Where one query joins two streams by their keys, and another by the keys and something more, both can share the join by the keys
if the something more does not leave much fewer rows: who wants it has it checked, row by row, by its bit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from headrace.sharing.multiway.asked import Asked
from headrace.sharing.multiway.relations import Predicate

MORE = 4.0  # times as many rows are worth sharing for


def loose_conditions(queries: Iterable[Asked], selectivities: Mapping[Predicate, float]) -> frozenset[str]:
    """Return the texts of conditions that queries need not be joined by.

    Of two relations, what all queries that join them have in common stays, if there is an equality in it and it lets pass
    at most MORE times what the conditions of any of them do.
    """
    pairs: dict[tuple[str, str], set[frozenset[Predicate]]] = defaultdict(set)
    for query in queries:
        mine: dict[tuple[str, str], set[Predicate]] = defaultdict(set)
        for predicate in query.predicates:
            mine[predicate.relations].add(predicate)
        for between, found in mine.items():
            pairs[between].add(frozenset(found))
    loose: set[str] = set()
    for variants in pairs.values():
        common = frozenset.intersection(*variants)
        passing = _passing(common, selectivities)
        if any(one.sides for one in common) and all(passing <= MORE * _passing(found, selectivities) for found in variants):
            loose |= {one.text for found in variants for one in found - common}
    return frozenset(loose)


def _passing(predicates: Iterable[Predicate], selectivities: Mapping[Predicate, float]) -> float:
    return math.prod(selectivities.get(one, 1.0) for one in predicates)
