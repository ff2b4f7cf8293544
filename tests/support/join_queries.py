"""Random SQL of window joins over the streams of `support.rows`; `support.queries` explains how texts are drawn.

Inputs are named t0, t1 …; self-joins are frequent, because there are only two streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import strategies as st

from support.band_conditions import draw_band
from support.queries import aggregations, draw_from_pool, duration_text, predicate, selections

_WINDOWS = (
    ("TUMBLE", (5000,)), ("TUMBLE", (2000,)), ("TUMBLE", (10_000,)), ("HOP", (8000, 4000)), ("HOP", (5000, 1000)),
    ("HOP", (5000, 2000)), ("HOP", (2000, 5000)), ("HOP", (1500, 500)), ("TUMBLE", (250,)), ("TUMBLE", (60_000,)),
)  # fmt: skip
_WINDOW_PAIRS = (  # windows of two inputs whose ends coincide at times
    (("TUMBLE", (5000,)), ("HOP", (10_000, 5000))),
    (("TUMBLE", (2000,)), ("TUMBLE", (4000,))),
    (("HOP", (5000, 1000)), ("TUMBLE", (2000,))),
    (("HOP", (7000, 3000)), ("HOP", (5000, 2000))),
)
_KEYS = ("k", "k", "k", "s", "x", "b", "day", "d", "y", "f")
_COMPUTED = (
    ("{0}.x % 3", "{1}.k"), ("{0}.k + 1", "{1}.x"), ("upper({0}.s)", "upper({1}.s)"), ("{0}.x", "{1}.f"), ("{0}.k", "{1}.y"),
)  # fmt: skip
_EXTRA_CONDITIONS = (
    "{0}.x < {1}.x", "{0}.y >= {1}.y", "{0}.s <> {1}.s", "{0}.x + {1}.k > 2", "{0}.time < {1}.time", "{0}.b OR {1}.b",
    "{0}.s NOT LIKE concat({1}.s, '%')",
)  # fmt: skip
_THETA = (  # conditions of a join step without an equality; TRUE is a cross join
    "{0}.x < {1}.x", "{0}.y >= {1}.y", "{0}.f <= {1}.f", "{0}.d > {1}.d", "{0}.day >= {1}.day", "{0}.time < {1}.time",
    "{0}.x BETWEEN {1}.x - 1 AND {1}.x + 1", "{0}.x >= {1}.k AND {0}.x <= {1}.k + 2 AND {0}.s <> {1}.s", "{0}.y < {1}.y * 2",
    "{0}.time BETWEEN {1}.time - INTERVAL '1 second' AND {1}.time", "{0}.s <> {1}.s", "{0}.k <> {1}.k", "{0}.s < {1}.s",
    "{0}.x + {1}.k > 2", "abs({0}.x - {1}.x) <= 2", "concat({0}.s, {1}.s) LIKE '%a%b%'", "{0}.b OR {1}.b", "TRUE",
    "{0}.x > {1}.k AND {0}.b", "{0}.d BETWEEN {1}.d - 1 AND {1}.x", "{0}.f > {1}.y", "{0}.b < {1}.b",
)  # fmt: skip
_SINGLE_SIDE = ("{0}.x > 1", "{0}.k IS NOT NULL", "{0}.s = 'a'", "{0}.b", "{0}.x <> 5")
_KINDS = ("JOIN", "JOIN", "JOIN", "INNER JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
_OUTPUTS = ("{0}.k", "{0}.s", "{0}.x", "{0}.y", "{0}.d", "{0}.time", "{0}.x + 1", "coalesce({0}.x, -1)", "{0}.b")
_BOTH = ("{0}.x + {1}.x", "{0}.x > {1}.x", "concat({0}.s, {1}.s)", "coalesce({0}.k, {1}.k)")
_AGGREGATES = (
    "COUNT(*)", "COUNT({0}.x)", "SUM({0}.x)", "AVG({0}.y)", "MAX({0}.s)", "MIN({0}.d)", "COUNT(DISTINCT {0}.k)", "MEDIAN({0}.x)",
    "SUM({0}.x + {1}.x)", "MAX({1}.y)", "SUM({1}.f)", "VAR_POP({0}.x)",
)  # fmt: skip


def _window_call(window: tuple[str, tuple[int, ...]], stream: str) -> str:
    kind, lengths = window
    return f"{kind}({stream}, {', '.join(map(duration_text, lengths))})"


def _side(random: Random, number: int, window: tuple[str, tuple[int, ...]]) -> str:
    source = _window_call(window, random.choice(("alpha", "beta")))
    if random.random() < 0.5:
        return f"(SELECT * FROM {source} WHERE {predicate(random)}) t{number}"
    return f"{source} t{number}"


def _pair(random: Random, texts: Sequence[str | tuple[str, str]], left: str, right: str) -> str:
    chosen = random.choice(texts)
    if isinstance(chosen, tuple):
        return " = ".join(text.format(left, right) for text in chosen)
    return chosen.format(left, right)


def _condition(random: Random, visible: Sequence[str], right: str) -> str:
    left = random.choice(visible)
    key = random.choice(_KEYS)
    parts = [_pair(random, _COMPUTED, left, right) if random.random() < 0.2 else f"{left}.{key} = {right}.{key}"]
    if random.random() < 0.2:
        other, more = random.choice(visible), random.choice(_KEYS)
        parts.append(f"{right}.{more} = {other}.{more}")
    if random.random() < 0.25:
        parts.append(_pair(random, _EXTRA_CONDITIONS, left, right))
    if random.random() < 0.25:
        parts.append(random.choice(_SINGLE_SIDE).format(random.choice((left, right))))
    return " AND ".join(f"({part})" if " OR " in part else part for part in parts)


def _theta(random: Random, visible: Sequence[str], right: str) -> str:
    """Return a condition without an equality."""
    left = random.choice(visible)
    sides = random.sample((left, right), 2)
    parts = [draw_band(random, *sides) if random.random() < 0.5 else random.choice(_THETA).format(*sides)]
    if random.random() < 0.25:
        parts.append(random.choice(_THETA).format(random.choice(visible), right))
    if random.random() < 0.25:
        parts.append(random.choice(_SINGLE_SIDE).format(random.choice((left, right))))
    return " AND ".join(f"({part})" if " OR " in part else part for part in parts)


def _without_equality(random: Random, count: int) -> set[int]:
    """Return the steps without an equality: sometimes all, but a single one with four inputs or more, to limit the rows."""
    if random.random() < 0.5 and count < 4:
        return set(range(1, count))
    return {random.randrange(1, count)}


def join(random: Random) -> str:
    """Return a window join, mostly of two inputs, sometimes with an aggregation over it."""
    count = random.choice((2, 2, 2, 2, 3, 3, 4, 5))
    return _join(random, count, _without_equality(random, count) if random.random() < 0.25 else set())


def join_without_equality(random: Random) -> str:
    """Return a window join that has a step without an equality."""
    count = random.choice((2, 2, 2, 2, 2, 2, 3, 3, 4))
    return _join(random, count, _without_equality(random, count))


def _join(random: Random, count: int, theta: set[int]) -> str:
    windows = [random.choice(_WINDOWS[:-1] if theta and count > 2 else _WINDOWS)] * count
    if random.random() < 0.2:
        pair = random.choice(_WINDOW_PAIRS)
        windows = [random.choice(pair) for _ in range(count)]
    text, visible = _side(random, 0, windows[0]), ["t0"]
    for number in range(1, count):
        kind = random.choice(_KINDS if random.random() < 0.5 else _KINDS[:4])
        right = f"t{number}"
        side = _side(random, number, windows[number])
        if number in theta and kind == "JOIN" and random.random() < 0.15:
            text += f" CROSS JOIN {side}"
        else:
            text += f" {kind} {side} ON {(_theta if number in theta else _condition)(random, visible, right)}"
        visible += [] if "SEMI" in kind or "ANTI" in kind else [right]
    where = _where(random, visible)
    if random.random() < 0.3:
        return f"SELECT window_start AS w0, window_end AS w1, {_grouped(random, visible, f' FROM {text}{where}')}"
    chosen = [random.choice(_OUTPUTS).format(random.choice(visible)) for _ in range(random.randint(1, 3))]
    if random.random() < 0.3:
        chosen.append(_pair(random, _BOTH, random.choice(visible), random.choice(visible)))
    outputs = [f"{value} AS c{i}" for i, value in enumerate(chosen)]
    return f"SELECT window_start AS w0, window_end AS w1, {', '.join(outputs)} FROM {text}{where}"


def _where(random: Random, visible: Sequence[str]) -> str:
    left, right = random.choice(visible), random.choice(visible)
    if random.random() < 0.6:
        return ""
    if random.random() < 0.6:
        return f" WHERE {random.choice((*_SINGLE_SIDE, '{0}.x IS NULL')).format(left)}"
    return f" WHERE {_pair(random, _EXTRA_CONDITIONS, left, right)}"


def _grouped(random: Random, visible: Sequence[str], source: str) -> str:
    """Return outputs, FROM and GROUP BY of an aggregation over a join."""
    keys = list(dict.fromkeys(f"{random.choice(visible)}.{random.choice(_KEYS)}" for _ in range(random.choice((0, 1, 1, 2)))))
    chosen = random.choices(_AGGREGATES, k=random.randint(1, 3))
    values = [value.format(random.choice(visible), random.choice(visible)) for value in chosen]
    outputs = [*(f"{key} AS g{i}" for i, key in enumerate(keys)), *(f"{value} AS a{i}" for i, value in enumerate(values))]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    having = " HAVING COUNT(*) > 1" if random.random() < 0.2 else ""
    return f"{', '.join(outputs)}{source}{group}{having}"


def joins(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw a window join."""
    return draw_from_pool(join, size, seed)


def joins_without_equality(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw a window join that has a step without an equality."""
    return draw_from_pool(join_without_equality, size, seed)


def queries_with_joins(seed: int = 0) -> st.SearchStrategy[str]:
    """Draw any query, mostly a window join."""
    return st.one_of(joins(seed), joins(seed), joins(seed), joins(seed), aggregations(seed), selections(seed))
