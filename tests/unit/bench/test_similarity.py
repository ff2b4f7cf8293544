"""Query similarity: the equation, and joins drawn with a requested similarity."""

from __future__ import annotations

import random

import pytest

from headrace.bench.queries.window_joins import StreamChain, StreamPool, compute_similarity
from headrace.errors import HeadraceError

POOL = StreamPool(tuple(f"r{number}" for number in range(1, 11)), ("key", "f1", "f2", "f3", "f4", "f5"))


def parse_chain(*parts: str) -> StreamChain:
    """Parse a chain, for example parse_chain("A.a = B.b", "B.c = C.d")."""
    sides = [[side.split(".") for side in part.split(" = ")] for part in parts]
    streams = [sides[0][0][0], *(right[0] for _, right in sides)]
    return StreamChain(tuple(streams), tuple(((left[1], right[1]),) for left, right in sides))


@pytest.mark.parametrize(
    ("query", "pattern", "expected"),
    [
        (("A.a = B.a",), ("A.a = B.b",), 2 * 1 / 4),
        (("A.a = B.b",), ("A.a = B.b",), 1.0),
        (("A.a = C.c",), ("A.a = B.b",), 1 * 1 / 4),
        (("C.a = D.b",), ("A.a = B.b",), 0.0),
        (("A.a = B.b", "B.c = D.d"), ("A.a = B.b", "B.c = C.d"), 2 * 3 / 9),
        (("A.a = B.b", "B.c = C.d"), ("A.a = B.b", "B.c = C.d"), 1.0),
    ],
)
def test_compute_similarity(query, pattern, expected):
    assert compute_similarity(parse_chain(*query), parse_chain(*pattern)) == pytest.approx(expected)


@pytest.mark.parametrize("ways", [2, 3, 4, 5])
@pytest.mark.parametrize("similarity", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_drawn_queries_have_the_requested_similarity(ways, similarity):
    rng = random.Random(1)
    pattern = POOL.draw_pattern(ways, rng)
    for _ in range(20):
        query = POOL.draw_similar_chain(pattern, similarity, rng)
        step = 1 / ways  # the effect of one common attribute when all sources are common
        assert abs(compute_similarity(query, pattern) - similarity) <= step / 2
        assert len(set(query.streams)) == ways


def test_a_small_pool_reuses_the_streams_of_the_pattern():
    rng = random.Random(2)
    pool = StreamPool(("a", "b", "c"), POOL.columns)
    pattern = pool.draw_pattern(3, rng)
    assert pool.draw_similar_chain(pattern, 0.5, rng).streams == pattern.streams


def test_a_pattern_needs_streams_and_columns():
    with pytest.raises(HeadraceError, match="cannot draw a pattern of 11 streams"):
        POOL.draw_pattern(11, random.Random(1))
    with pytest.raises(HeadraceError, match="links cannot join"):
        StreamChain(("a", "b"), ())
