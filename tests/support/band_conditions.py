"""Random conditions between two inputs without an equality of columns: bands in every spelling, and other comparisons.

The columns are those of `support.rows`. The inputs are {0} and {1}.
"""

from __future__ import annotations

from random import Random

_COLUMNS = ("x", "x", "x", "f", "y", "y", "d", "k")
_MIXED = (("x", "f"), ("f", "x"), ("x", "y"), ("y", "x"), ("d", "x"), ("x", "d"), ("k", "x"))
_WIDTHS = {
    "x": ("0", "1", "2", "7", "0.5"),
    "f": ("0", "2", "1000"),
    "y": ("0.1", "0.5", "3"),
    "d": ("0.25", "1", "2.5"),
    "k": ("1", "2"),
}
_BANDS = (
    "{0}.{a} BETWEEN {1}.{b} - {w} AND {1}.{b} + {w}",
    "{1}.{b} BETWEEN {0}.{a} - {w} AND {0}.{a} + {v}",
    "{0}.{a} >= {1}.{b} - {w} AND {0}.{a} <= {1}.{b} + {v}",
    "{0}.{a} - {1}.{b} <= {w} AND {1}.{b} - {0}.{a} <= {v}",
    "abs({0}.{a} - {1}.{b}) <= {w}",
    "abs({0}.{a} - {1}.{b}) < {w}",
    "{w} > abs({1}.{b} - {0}.{a})",
    "{0}.{a} - {1}.{b} BETWEEN -{w} AND {v}",
    "{0}.{a} + {v} > {1}.{b} AND NOT ({0}.{a} > {1}.{b} + {w})",
    "{0}.{a} - {w} <= {1}.{b} - {v} AND {1}.{b} + {w} < {0}.{a} + {v} + {w}",
    "{0}.{a} <= -{1}.{b} + {w} AND -{0}.{a} < {1}.{b}",
    "{v} - {0}.{a} >= {1}.{b} - {w}",
    "{0}.{a} + {1}.{b} = {w}",
    "{0}.{a} > {1}.{b} - {w}",
    "{0}.{a} < {1}.{b}",
)
_TIMES = (
    "{0}.time BETWEEN {1}.time - INTERVAL '{w} seconds' AND {1}.time + INTERVAL '{v} seconds'",
    "{0}.time >= {1}.time - INTERVAL '{w} seconds' AND {0}.time - INTERVAL '{v} seconds' < {1}.time",
    "{0}.day BETWEEN {1}.day - {w} AND date_add({1}.day, {v})",
    "datediff({0}.day, {1}.day) <= {w} AND {1}.day < {0}.day + {v}",
    "abs(unix_seconds({0}.time) - unix_seconds({1}.time)) <= {w}",
)
_OTHER = (
    "{0}.s <> {1}.s", "{0}.x <> {1}.x", "{0}.b OR {1}.b", "{0}.x * {1}.x < 9", "{0}.x BETWEEN {1}.k AND {1}.y",
    "{0}.x + {1}.k > 2", "CASE WHEN {0}.b THEN {0}.x < {1}.x ELSE {1}.b END", "{0}.x % 3 <= {1}.x % 3 + 1", "{1}.x > 2",
)  # fmt: skip


def draw_band(random: Random, left: str, right: str) -> str:
    """Return a band, or a comparison, between two inputs."""
    if random.random() < 0.2:
        w, v = (random.choice(("0", "1", "2", "5")) for _ in range(2))
        return random.choice(_TIMES).format(left, right, w=w, v=v)
    a = b = random.choice(_COLUMNS)
    if random.random() < 0.15:
        a, b = random.choice(_MIXED)
    w, v = (random.choice(_WIDTHS[a]) for _ in range(2))
    return random.choice(_BANDS).format(left, right, a=a, b=b, w=w, v=v)


def draw_condition(random: Random, left: str, right: str) -> str:
    """Return a condition between two inputs, often with further ones."""
    parts = [draw_band(random, left, right)] if random.random() < 0.85 else [random.choice(_OTHER).format(left, right)]
    while random.random() < 0.25:
        parts.append(draw_band(random, right, left) if random.random() < 0.5 else random.choice(_OTHER).format(left, right))
    return " AND ".join(f"({part})" for part in parts)
