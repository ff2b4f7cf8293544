"""Query similarity: the equation, and joins that have the similarity they were asked for."""

from __future__ import annotations

import random

import pytest

from headrace.bench.queries.window_joins import StreamChain, StreamPool, compute_similarity
from headrace.errors import HeadraceError

POOL = StreamPool(tuple(f"r{number}" for number in range(1, 11)), ("key", "f1", "f2", "f3", "f4", "f5"))


def chain(*parts: str) -> StreamChain:
    """chain("A.a = B.b", "B.c = C.d")."""
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
def test_the_equation(query, pattern, expected):
    assert compute_similarity(chain(*query), chain(*pattern)) == pytest.approx(expected)


@pytest.mark.parametrize("ways", [2, 3, 4, 5])
@pytest.mark.parametrize("wanted", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_queries_have_the_similarity_that_was_asked_for(ways, wanted):
    chance = random.Random(1)
    pattern = POOL.draw_pattern(ways, chance)
    for _ in range(20):
        query = POOL.draw_similar_chain(pattern, wanted, chance)
        step = 1 / ways  # between one number of common attributes and the next, when all sources are common
        assert abs(compute_similarity(query, pattern) - wanted) <= step / 2
        assert len(set(query.streams)) == ways


def test_few_streams_leave_more_of_them_common():
    chance = random.Random(2)
    pool = StreamPool(("a", "b", "c"), POOL.columns)
    pattern = pool.draw_pattern(3, chance)
    assert pool.draw_similar_chain(pattern, 0.5, chance).streams == pattern.streams


def test_a_pattern_needs_streams_and_columns():
    with pytest.raises(HeadraceError, match="cannot draw a pattern of 11 streams"):
        POOL.draw_pattern(11, random.Random(1))
    with pytest.raises(HeadraceError, match="links cannot join"):
        StreamChain(("a", "b"), ())
