"""Random SQL of joins in SLIDING windows over the streams of `support.rows`: 2 to 5 inputs, conditions of every kind.

Inputs are named t0, t1 …; self-joins are frequent, because there are only two streams. Inputs stand in any order, in JOIN … ON,
in a list with WHERE, or inside sub-queries that are joins themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from hypothesis import strategies as st

from support.band_conditions import draw_band
from support.join_queries import joins
from support.queries import aggregations, draw_from_pool, duration_text, predicate

_RANGES = (0, 1, 1000, 2000, 5000, 5000, 10_000, 30_000, 30_000, 60_000)
_LATENESS = (0, 0, 0, 0, 500, 3000)
_KEYS = ("k", "k", "k", "k", "b", "b", "s", "x", "day", "d", "y", "f")
_EQUALITIES = (
    ("{0}.x % 3", "{1}.k"), ("{0}.k + 1", "{1}.x"), ("upper({0}.s)", "upper({1}.s)"), ("{0}.x", "{1}.f"), ("{0}.k", "{1}.y"),
)  # fmt: skip
_THETA = (
    "{0}.x < {1}.x", "{0}.y >= {1}.y", "{0}.s <> {1}.s", "{0}.x + {1}.k > 2", "{0}.time < {1}.time", "{0}.b OR {1}.b",
    "{0}.x BETWEEN {1}.x - 1 AND {1}.x + 1", "{0}.f <= {1}.f", "{0}.d > {1}.d", "concat({0}.s, {1}.s) LIKE '%ab%'",
    "{0}.k <> {1}.k", "abs({0}.x - {1}.x) <= 2", "{0}.day >= {1}.day", "{0}.s < {1}.s", "{0}.x >= {1}.k AND {0}.x <= {1}.k + 2",
    "{0}.s LIKE concat('%', {1}.s)",
)  # fmt: skip
_THREE = ("{0}.x + {1}.x > {2}.x", "{0}.k = {1}.x - {2}.x")
_OUTPUTS = ("{0}.k", "{0}.s", "{0}.x", "{0}.y", "{0}.d", "{0}.time", "{0}.x + 1", "coalesce({0}.x, -1)", "{0}.b")


def _condition(random: Random, left: str, right: str) -> str:
    draw = random.random()
    if draw < 0.5:
        key = random.choice(_KEYS)
        return f"{left}.{key} = {right}.{key}"
    if draw < 0.6:
        return " = ".join(text.format(left, right) for text in random.choice(_EQUALITIES))
    if draw < 0.8:
        return f"({draw_band(random, left, right)})"
    return f"({random.choice(_THETA).format(left, right)})"


@dataclass(frozen=True)
class Side:
    """A stream, or a selection of it, in a SLIDING window; lengths as SQL text."""

    name: str
    stream: str
    lengths: tuple[str, ...]
    predicate: str | None = None

    @property
    def text(self) -> str:
        source = self.stream if self.predicate is None else f"(SELECT * FROM {self.stream} WHERE {self.predicate})"
        return f"SLIDING({', '.join([source, *self.lengths])}) {self.name}"


@dataclass(frozen=True)
class SlidingJoin:
    """A join before it becomes SQL: inputs, the conditions of each input with earlier ones, outputs c0, c1, …"""

    sides: tuple[Side, ...]
    conditions: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]

    @property
    def selected(self) -> str:
        return ", ".join(f"{value} AS c{i}" for i, value in enumerate(self.outputs))

    @property
    def all_conditions(self) -> list[str]:
        return [condition for conditions in self.conditions for condition in conditions]

    def to_list_sql(self, random: Random) -> str:
        """Return SQL with the inputs in a list and all conditions in WHERE, both in random order."""
        sides = [side.text for side in random.sample(self.sides, len(self.sides))]
        conditions = self.all_conditions
        return f"SELECT {self.selected} FROM {', '.join(sides)} WHERE {' AND '.join(random.sample(conditions, len(conditions)))}"

    def to_join_sql(self) -> str:
        """Return SQL with the inputs in order, in JOIN … ON."""
        text = self.sides[0].text
        for side, conditions in zip(self.sides[1:], self.conditions[1:], strict=True):
            text += f" JOIN {side.text} ON {' AND '.join(conditions)}"
        return f"SELECT {self.selected} FROM {text}"


def _side(random: Random, number: int) -> Side:
    stream = random.choice(("alpha", "beta"))
    chosen = predicate(random) if random.random() < 0.15 else None
    lateness = random.choice(_LATENESS)
    length = "UNBOUNDED" if random.random() < 0.05 else duration_text(random.choice(_RANGES))
    lengths = (length, *((duration_text(lateness),) if lateness else ()))
    return Side(f"t{number}", stream, lengths, chosen)


def _conditions(random: Random, names: list[str]) -> Iterator[tuple[str, ...]]:
    for number in range(1, len(names)):
        conditions = [_condition(random, random.choice(names[:number]), names[number])]
        if random.random() < 0.15 or (len(names) > 3 and random.random() < 0.3):
            conditions.append(_condition(random, random.choice(names[:number]), names[number]))
        if number > 1 and random.random() < 0.1:
            conditions.append(random.choice(_THREE).format(*random.sample(names[: number + 1], 3)))
        yield tuple(conditions)


def draw_join(random: Random) -> SlidingJoin:
    """Draw a join in SLIDING windows."""
    count = random.choice((2, 2, 2, 3, 3, 3, 4, 4, 5))
    names = [f"t{number}" for number in range(count)]
    sides = tuple(_side(random, number) for number in range(count))
    conditions = ((), *_conditions(random, names))
    chosen = [random.choice(_OUTPUTS).format(random.choice(names)) for _ in range(random.randint(1, 4))]
    return SlidingJoin(sides, conditions, tuple(chosen))


def sliding_join(random: Random) -> str:
    """Return the SQL of a join in SLIDING windows."""
    join = draw_join(random)
    return join.to_list_sql(random) if random.random() < 0.3 else join.to_join_sql()


_OUTER_KINDS = ("LEFT", "LEFT", "RIGHT", "FULL", "FULL", "ANTI")
_ONE_SIDED = ("t0.x > 1", "t1.k < 2", "t0.s IS NOT NULL", "t1.b", "t0.k = 1", "1 = 0")
_FILTERS = ("t1.k IS NULL", "t0.x > 0", "t0.k IS NULL OR t1.x > 0", "coalesce(t1.x, 5) > 2")


def outer_sliding_join(random: Random) -> str:
    """Return the SQL of an outer or anti join of two streams in SLIDING windows."""
    sides, kind = (_side(random, 0), _side(random, 1)), random.choice(_OUTER_KINDS)
    conditions = [_condition(random, "t0", "t1")]
    if random.random() < 0.25:
        conditions.append(random.choice(_ONE_SIDED))
    if random.random() < 0.1:
        conditions.append(_condition(random, "t0", "t1"))
    names = ["t0"] if kind == "ANTI" else ["t0", "t1"]
    outputs = [random.choice(_OUTPUTS).format(random.choice(names)) for _ in range(random.randint(1, 4))]
    join = SlidingJoin(sides, ((), tuple(conditions)), tuple(outputs))
    where = f" WHERE {random.choice(_FILTERS)}" if kind != "ANTI" and random.random() < 0.25 else ""
    return join.to_join_sql().replace(" JOIN ", f" {kind} JOIN ") + where


def outer_sliding_joins(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw the SQL of an outer or anti join in SLIDING windows."""
    return draw_from_pool(outer_sliding_join, size, seed)


def sliding_joins(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw the SQL of a join in SLIDING windows."""
    return draw_from_pool(sliding_join, size, seed)


def sliding_join_in_windows(random: Random, *, is_outer: bool = False) -> str:
    """Return the SQL of an aggregation of rows joined in SLIDING windows, in windows of their own."""
    length = random.choice((1000, 2000, 5000, 10_000))
    window = random.choice((
        f"TUMBLE(({{}}), {duration_text(length)})",
        f"HOP(({{}}), {duration_text(2 * length)}, {duration_text(length)})",
        f"SESSION(({{}}), {duration_text(length)})",
    ))  # fmt: skip
    source = window.format(outer_sliding_join(random) if is_outer else sliding_join(random))
    return f"SELECT window_start, c0, COUNT(*) AS n, MAX(c0) AS top FROM {source} GROUP BY c0"


def sliding_joins_in_windows(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw the SQL of an aggregation of rows joined in SLIDING windows."""
    return draw_from_pool(sliding_join_in_windows, size, seed)


def outer_sliding_joins_in_windows(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw the SQL of an aggregation of the rows of an outer join in SLIDING windows."""
    return draw_from_pool(partial(sliding_join_in_windows, is_outer=True), size, seed)


def queries_with_sliding_joins(seed: int = 0) -> st.SearchStrategy[str]:
    """Draw any query, mostly a join in SLIDING windows."""
    return st.one_of(sliding_joins(seed), sliding_joins(seed), outer_sliding_joins(seed), joins(seed), aggregations(seed))
