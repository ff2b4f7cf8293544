"""Random joins in SLIDING windows over the streams of `support.rows`, as texts: 2 to 5 relations, conditions of every kind.

Sides are called t0, t1 …; a stream is joined with itself often, since there are only two. Sides stand in the text in any
order, in JOIN … ON, in a list with WHERE, or inside sub-queries that are joins themselves.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from support.join_queries import joins
from support.queries import aggregations, length, pool, predicate

_RANGES = (0, 1, 1000, 2000, 5000, 5000, 10_000, 30_000, 30_000, 60_000)
_LATENESS = (0, 0, 0, 0, 500, 3000)
_KEYS = ("k", "k", "k", "k", "b", "b", "s", "x", "day", "d", "y", "f")
_EQUAL = (
    ("{0}.x % 3", "{1}.k"), ("{0}.k + 1", "{1}.x"), ("upper({0}.s)", "upper({1}.s)"), ("{0}.x", "{1}.f"), ("{0}.k", "{1}.y"),
)  # fmt: skip
_THETA = (
    "{0}.x < {1}.x", "{0}.y >= {1}.y", "{0}.s <> {1}.s", "{0}.x + {1}.k > 2", "{0}.time < {1}.time", "{0}.b OR {1}.b",
    "{0}.x BETWEEN {1}.x - 1 AND {1}.x + 1", "{0}.f <= {1}.f", "{0}.d > {1}.d", "concat({0}.s, {1}.s) LIKE '%ab%'",
    "{0}.k <> {1}.k", "abs({0}.x - {1}.x) <= 2", "{0}.day >= {1}.day", "{0}.s < {1}.s", "{0}.x >= {1}.k AND {0}.x <= {1}.k + 2",
)  # fmt: skip
_THREE = ("{0}.x + {1}.x > {2}.x", "{0}.k = {1}.x - {2}.x")
_OUTPUTS = ("{0}.k", "{0}.s", "{0}.x", "{0}.y", "{0}.d", "{0}.time", "{0}.x + 1", "coalesce({0}.x, -1)", "{0}.b")


def _condition(random: Random, left: str, right: str) -> str:
    draw = random.random()
    if draw < 0.5:
        key = random.choice(_KEYS)
        return f"{left}.{key} = {right}.{key}"
    if draw < 0.6:
        return " = ".join(text.format(left, right) for text in random.choice(_EQUAL))
    return f"({random.choice(_THETA).format(left, right)})"


def _side(random: Random, number: int) -> str:
    stream = random.choice(("alpha", "beta"))
    source = f"(SELECT * FROM {stream} WHERE {predicate(random)})" if random.random() < 0.15 else stream
    late = random.choice(_LATENESS)
    lengths = [length(random.choice(_RANGES)), *([length(late)] if late else [])]
    return f"SLIDING({source}, {', '.join(lengths)}) t{number}"


def sliding_join(random: Random) -> str:
    """Return a join in sliding windows."""
    count = random.choice((2, 2, 2, 3, 3, 3, 4, 4, 5))
    names = [f"t{number}" for number in range(count)]
    sides = [_side(random, number) for number in range(count)]
    conditions: list[list[str]] = [[]]
    for number in range(1, count):
        found = [_condition(random, random.choice(names[:number]), names[number])]
        if random.random() < 0.15 or (count > 3 and random.random() < 0.3):
            found.append(_condition(random, random.choice(names[:number]), names[number]))
        if number > 1 and random.random() < 0.1:
            found.append(random.choice(_THREE).format(*random.sample(names[: number + 1], 3)))
        conditions.append(found)
    chosen = [random.choice(_OUTPUTS).format(random.choice(names)) for _ in range(random.randint(1, 4))]
    outputs = ", ".join(f"{value} AS c{i}" for i, value in enumerate(chosen))
    every = [one for found in conditions for one in found]
    if random.random() < 0.3:
        order = random.sample(range(count), count)
        return (
            f"SELECT {outputs} FROM {', '.join(sides[i] for i in order)} WHERE {' AND '.join(random.sample(every, len(every)))}"
        )
    text = sides[0]
    for number in range(1, count):
        text += f" JOIN {sides[number]} ON {' AND '.join(conditions[number])}"
    return f"SELECT {outputs} FROM {text}"


def sliding_joins(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw a join in sliding windows."""
    return st.sampled_from(pool(sliding_join, size, seed))


def queries_with_sliding_joins(seed: int = 0) -> st.SearchStrategy[str]:
    """Draw any query, mostly a join in sliding windows."""
    return st.one_of(sliding_joins(seed), sliding_joins(seed), sliding_joins(seed), joins(seed), aggregations(seed))
