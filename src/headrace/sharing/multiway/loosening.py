"""Residual predicates: conditions to evaluate after a join, so that queries with and without them share it.

Where one query joins two streams by their keys, and another by the keys and a further condition, both can share the join by the
keys if the further condition does not reduce the rows much: it is then evaluated row by row, for the bits of the queries that
have it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from headrace.sharing.multiway.asked import NormalizedJoin
from headrace.sharing.multiway.relations import JoinPredicate

MAX_ROW_INCREASE = 4.0  # sharing may produce up to this many times the rows


def find_residual_predicates(queries: Iterable[NormalizedJoin], selectivities: Mapping[JoinPredicate, float]) -> frozenset[str]:
    """Return the texts of the conditions that are residual.

    For each pair of relations, the predicates common to all queries that join them remain in the join graph, if they contain an
    equality and pass at most MAX_ROW_INCREASE times the rows that the conditions of any of these queries pass.
    """
    pairs: dict[tuple[str, str], set[frozenset[JoinPredicate]]] = defaultdict(set)
    for query in queries:
        predicates_by_pair: dict[tuple[str, str], set[JoinPredicate]] = defaultdict(set)
        for predicate in query.predicates:
            predicates_by_pair[predicate.relations].add(predicate)
        for pair, predicates in predicates_by_pair.items():
            pairs[pair].add(frozenset(predicates))
    residual_texts: set[str] = set()
    for variants in pairs.values():
        common = frozenset.intersection(*variants)
        common_selectivity = _multiply_selectivities(common, selectivities)
        if any(predicate.sides for predicate in common) and all(
            common_selectivity <= MAX_ROW_INCREASE * _multiply_selectivities(variant, selectivities) for variant in variants
        ):
            residual_texts |= {predicate.text for variant in variants for predicate in variant - common}
    return frozenset(residual_texts)


def _multiply_selectivities(predicates: Iterable[JoinPredicate], selectivities: Mapping[JoinPredicate, float]) -> float:
    return math.prod(selectivities.get(predicate, 1.0) for predicate in predicates)
