"""Measure how similar a join is to a pattern join, and draw joins of a requested similarity.

    similarity = common sources × common join attributes of these sources / (sources of the pattern)²

A chain of n sources has 2 (n − 1) join attributes, so for n > 2 the quotient can exceed 1; it is then capped at 1.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.queries.join import StreamChain
from headrace.errors import HeadraceError


def compute_similarity(chain: StreamChain, pattern: StreamChain) -> float:
    """Return the similarity of a join to the pattern, in [0, 1]."""
    sources = set(chain.streams) & set(pattern.streams)
    attributes = chain.collect_attributes() & pattern.collect_attributes()
    return min(1.0, len(sources) * len(attributes) / len(pattern.streams) ** 2)


@dataclass(frozen=True, slots=True)
class StreamPool:
    """Streams with the same columns from which joins are drawn; every column can be a join column."""

    streams: tuple[str, ...]
    columns: tuple[str, ...]

    def draw_pattern(self, ways: int, rng: random.Random) -> StreamChain:
        """Draw a chain of different streams; an inner stream joins its neighbours by two different columns."""
        if not 2 <= ways <= len(self.streams) or len(self.columns) < 3:
            raise HeadraceError(
                f"cannot draw a pattern of {ways} streams from {len(self.streams)} streams of {len(self.columns)} columns"
            )
        slots = [rng.sample(self.columns, 2) for _ in range(ways)]
        links = tuple(((slots[position][1], slots[position + 1][0]),) for position in range(ways - 1))
        return StreamChain(tuple(rng.sample(self.streams, ways)), links)

    def draw_similar_chain(self, pattern: StreamChain, similarity_goal: float, rng: random.Random) -> StreamChain:
        """Draw a chain as long as the pattern, with the nearest similarity that whole numbers of sources and attributes allow."""
        ways = len(pattern.streams)
        others = [stream for stream in self.streams if stream not in pattern.streams]
        min_sources = max(1, ways - len(others))
        sources, attributes, first = _choose_overlap(ways, similarity_goal, rng.randint(min_sources, ways), rng)
        common = range(first, first + sources)
        rng.shuffle(others)
        streams = [pattern.streams[position] if position in common else others.pop() for position in range(ways)]
        kept = set(rng.sample(_list_slots(ways, common), attributes))
        pattern_columns = {
            stream: {column for name, column in pattern.collect_attributes() if name == stream} for stream in streams
        }
        slots = {slot: _column_of_slot(pattern, slot) for slot in kept}
        for slot in _list_slots(ways, range(ways)):
            if slot not in kept:
                stream = streams[slot[0]]
                slots[slot] = rng.choice([column for column in self.columns if column not in pattern_columns[stream]])
        return StreamChain(tuple(streams), tuple(((slots[position, 1], slots[position + 1, 0]),) for position in range(ways - 1)))


def _choose_overlap(ways: int, similarity_goal: float, sources: int, rng: random.Random) -> tuple[int, int, int]:
    """Return how many sources and attributes to keep, and the first source kept; add sources until the attributes fit."""
    while sources < ways:
        attributes = round(similarity_goal * ways**2 / sources)
        firsts = [
            first for first in range(ways - sources + 1) if len(_list_slots(ways, range(first, first + sources))) >= attributes
        ]
        if firsts:
            return sources, attributes, rng.choice(firsts)
        sources += 1
    return ways, min(round(similarity_goal * ways), 2 * (ways - 1)), 0


def _list_slots(ways: int, positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return the join attributes at some positions: (position, 0) joins to the left, (position, 1) to the right."""
    return [(position, side) for position in positions for side in (0, 1) if 0 <= position - 1 + 2 * side < ways]


def _column_of_slot(chain: StreamChain, slot: tuple[int, int]) -> str:
    position, side = slot
    return chain.links[position][0][0] if side else chain.links[position - 1][0][1]
