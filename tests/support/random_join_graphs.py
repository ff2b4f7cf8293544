"""Random join graphs over relations with one equality per pair, as in experiments on shared probe orders.

Every relation has the same rate and a few attributes. The equality that joins two relations is drawn once, with the environment.
Queries are trees over relations of the environment; no query is drawn twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate
from support.join_models import HistoryCardinality, make_equality

_ATTEMPTS = 50  # draws per query, before a smaller workload is returned


@dataclass(frozen=True)
class JoinEnvironment:
    """Relations, and the equality of each pair of them."""

    relations: tuple[str, ...]
    equalities: dict[frozenset[str], JoinPredicate]

    @staticmethod
    def draw(random: Random, relations: int, attributes: int = 3) -> JoinEnvironment:
        names = tuple(f"R{number:02d}" for number in range(relations))
        columns = "abcdefgh"[:attributes]
        pairs = {}
        for left, right in combinations(names, 2):
            pairs[frozenset({left, right})] = make_equality(
                Attribute(left, random.choice(columns)), Attribute(right, random.choice(columns))
            )
        return JoinEnvironment(names, pairs)

    def statistics(self, rate: float = 100.0) -> HistoryCardinality:
        """Return statistics: all relations have the same rate, and a join emits as many rows as each input has."""
        return HistoryCardinality(dict.fromkeys(self.relations, rate), dict.fromkeys(self.equalities.values(), 1 / rate))

    def draw_query(self, random: Random, size: int) -> JoinGraph:
        """Draw a tree: every relation but the first joins an earlier one."""
        names = random.sample(self.relations, size)
        edges = [self.equalities[frozenset({names[k], random.choice(names[:k])})] for k in range(1, size)]
        return JoinGraph(frozenset(names), frozenset(edges))

    def draw_queries(self, random: Random, number: int, size: int) -> list[JoinGraph]:
        """Draw distinct queries."""
        drawn: dict[JoinGraph, None] = {}
        for _ in range(number * _ATTEMPTS):
            if len(drawn) == number:
                break
            drawn[self.draw_query(random, size)] = None
        return list(drawn)


def draw_workload(
    seed: int, relations: int, number: int, size: int, attributes: int = 3
) -> tuple[Sequence[JoinGraph], HistoryCardinality]:
    """Return queries drawn from a random environment, and its statistics."""
    random = Random(seed)
    environment = JoinEnvironment.draw(random, relations, attributes)
    return environment.draw_queries(random, number, size), environment.statistics()
