"""Random multi-way joins over relations that can be joined in one way a pair, as experiments on shared probe orders draw them.

Every relation has the same rate and a few attributes. Which attributes join two relations is drawn once, with the
environment; queries are trees over relations of it, and an exact repetition is drawn again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from headrace.planner.join.cost import HistoryCardinality
from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate, make_equality

_ATTEMPTS = 50  # for each query, before an environment is said to be too small


@dataclass(frozen=True)
class Environment:
    """Relations, and the equality that joins each pair of them."""

    relations: tuple[str, ...]
    equalities: dict[frozenset[str], JoinPredicate]

    @staticmethod
    def drawn(random: Random, relations: int, attributes: int = 3) -> Environment:
        names = tuple(f"R{number:02d}" for number in range(relations))
        columns = "abcdefgh"[:attributes]
        pairs = {}
        for one, two in combinations(names, 2):
            pairs[frozenset({one, two})] = make_equality(
                Attribute(one, random.choice(columns)), Attribute(two, random.choice(columns))
            )
        return Environment(names, pairs)

    def figures(self, rate: float = 100.0) -> HistoryCardinality:
        """All relations have the same rate, and a join makes as many rows as its inputs have."""
        return HistoryCardinality(dict.fromkeys(self.relations, rate), dict.fromkeys(self.equalities.values(), 1 / rate))

    def query(self, random: Random, size: int) -> JoinGraph:
        """Draw a tree: every relation but the first is joined to one before it."""
        names = random.sample(self.relations, size)
        edges = [self.equalities[frozenset({names[k], random.choice(names[:k])})] for k in range(1, size)]
        return JoinGraph(frozenset(names), frozenset(edges))

    def queries(self, random: Random, number: int, size: int) -> list[JoinGraph]:
        """Draw so many different ones."""
        found: dict[JoinGraph, None] = {}
        for _ in range(number * _ATTEMPTS):
            if len(found) == number:
                break
            found[self.query(random, size)] = None
        return list(found)


def workload(
    seed: int, relations: int, number: int, size: int, attributes: int = 3
) -> tuple[Sequence[JoinGraph], HistoryCardinality]:
    """Return queries drawn from a drawn environment, and its figures."""
    random = Random(seed)
    environment = Environment.drawn(random, relations, attributes)
    return environment.queries(random, number, size), environment.figures()
