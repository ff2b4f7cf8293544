"""Query similarity: how much of a pattern join a query has, and queries of a wanted similarity.

    similarity = common sources × join attributes of common sources that are common / (sources of the pattern)²

A chain of n sources has 2 (n − 1) join attributes, so that for n > 2 the quotient can exceed 1; it counts as 1 then.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.queries.join import Chain
from headrace.errors import HeadraceError


def similarity(chain: Chain, pattern: Chain) -> float:
    """Return the similarity of a join with the pattern, in [0, 1]."""
    sources = set(chain.streams) & set(pattern.streams)
    attributes = chain.attributes() & pattern.attributes()
    return min(1.0, len(sources) * len(attributes) / len(pattern.streams) ** 2)


@dataclass(frozen=True, slots=True)
class Pool:
    """What joins are made of: streams with the same columns, all of which may be joined by."""

    streams: tuple[str, ...]
    columns: tuple[str, ...]

    def pattern(self, ways: int, chance: random.Random) -> Chain:
        """Return a chain of different streams; one in the middle is joined by two different columns."""
        if not 2 <= ways <= len(self.streams) or len(self.columns) < 3:
            raise HeadraceError(f"{len(self.streams)} streams of {len(self.columns)} columns give no pattern of {ways} streams")
        slots = [chance.sample(self.columns, 2) for _ in range(ways)]
        links = tuple(((slots[place][1], slots[place + 1][0]),) for place in range(ways - 1))
        return Chain(tuple(chance.sample(self.streams, ways)), links)

    def similar(self, pattern: Chain, wanted: float, chance: random.Random) -> Chain:
        """Return a chain as long as the pattern, as similar to it as whole numbers of sources and attributes allow."""
        ways = len(pattern.streams)
        others = [stream for stream in self.streams if stream not in pattern.streams]
        fewest = max(1, ways - len(others))
        sources, attributes, first = _choice(ways, wanted, chance.randint(fewest, ways), chance)
        common = range(first, first + sources)
        chance.shuffle(others)
        streams = [pattern.streams[place] if place in common else others.pop() for place in range(ways)]
        kept = set(chance.sample(_slots(ways, common), attributes))
        taken = {stream: {column for name, column in pattern.attributes() if name == stream} for stream in streams}
        slots = {slot: _column(pattern, slot) for slot in kept}
        for slot in _slots(ways, range(ways)):
            if slot not in kept:
                stream = streams[slot[0]]
                slots[slot] = chance.choice([column for column in self.columns if column not in taken[stream]])
        return Chain(tuple(streams), tuple(((slots[place, 1], slots[place + 1, 0]),) for place in range(ways - 1)))


def _choice(ways: int, wanted: float, sources: int, chance: random.Random) -> tuple[int, int, int]:
    """Return how many sources and attributes to keep, and the first source; more sources if the attributes do not fit."""
    while sources < ways:
        attributes = round(wanted * ways**2 / sources)
        firsts = [first for first in range(ways - sources + 1) if len(_slots(ways, range(first, first + sources))) >= attributes]
        if firsts:
            return sources, attributes, chance.choice(firsts)
        sources += 1
    return ways, min(round(wanted * ways), 2 * (ways - 1)), 0


def _slots(ways: int, places: Sequence[int]) -> list[tuple[int, int]]:
    """Return the join attributes of some places of a chain: (place, 0) towards the left, (place, 1) towards the right."""
    return [(place, side) for place in places for side in (0, 1) if 0 <= place - 1 + 2 * side < ways]


def _column(chain: Chain, slot: tuple[int, int]) -> str:
    place, side = slot
    return chain.links[place][0][0] if side else chain.links[place - 1][0][1]
