"""The canonical form of a sliding join does not depend on the order of inputs, however alike they are."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pyarrow as pa
import pytest

from headrace.model.expression import Call, Column, Expression, Literal
from headrace.model.types import Field, Schema
from headrace.plan.sliding_join import SlidingInput, SlidingJoinQuery, canonicalize_join

INT = pa.int32()
ONE = (Literal(1, INT),)
RESULT = Schema((Field("n", INT),))


def make_join(streams: str, pairs: list[tuple[int, int]], order: tuple[int, ...], output: int | None = None) -> SlidingJoinQuery:
    """A join whose input i reads the stream streams[i], with a condition for each pair; `order` is that of its inputs."""
    position = {number: place for place, number in enumerate(order)}

    def column(number: int) -> Expression:
        return Column(f"{position[number]}.a", INT)

    conditions = tuple(Call("eq", (column(left), column(right)), pa.bool_()) for left, right in pairs)
    outputs = ONE if output is None else (column(output),)
    return SlidingJoinQuery(tuple(SlidingInput(streams[number], 5) for number in order), conditions, outputs, RESULT)


def test_inputs_without_conditions_are_in_the_order_of_their_streams():
    forms = {canonicalize_join(make_join("abb", [], order)) for order in permutations(range(3))}
    assert [[source.stream for source in form.inputs] for form in forms] == [["a", "b", "b"]]


def test_the_input_of_the_output_has_one_place_among_equal_inputs():
    forms = {canonicalize_join(make_join("aabb", [], order, output)) for order in permutations(range(4)) for output in (0, 1)}
    assert len(forms) == 1


# a triangle 0–1–2 and a square 3–4–5–6: every input has two partners, yet those of the triangle differ from the others
@pytest.mark.parametrize("output", [None, 0, 3])
def test_inputs_that_only_their_partners_distinguish(output: int | None):
    pairs = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 6), (6, 3)]
    random = Random(1)
    orders = [tuple(random.sample(range(7), 7)) for _ in range(20)]
    assert len({canonicalize_join(make_join("aaaaaaa", pairs, order, output)) for order in orders}) == 1


@pytest.mark.parametrize(
    ("streams", "pairs", "output", "expected"),
    [
        ("aaa", [(0, 1), (1, 2)], 0, ["0.a = 1.a", "0.a = 2.a", "1.a"]),
        ("aaaaa", [(0, 1), (1, 2), (3, 4)], None, ["0.a = 1.a", "1.a = 2.a", "3.a = 4.a", "1"]),
    ],
)
def test_the_canonical_form_stays_the_same(streams: str, pairs: list[tuple[int, int]], output: int | None, expected: list[str]):
    """Queries of a checkpoint have the form of the version that stored them: another form would not be shared with them."""
    form = canonicalize_join(make_join(streams, pairs, tuple(range(len(streams))), output))
    assert list(map(str, (*form.conditions, *form.output))) == expected
