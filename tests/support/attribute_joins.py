"""Random SQL of window joins whose inputs are joined by several attributes, and of chains whose keys change.

Few windows and selections, so that queries share join buffers; outputs that the steps of the joins do not read.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from support.queries import draw_from_pool

_ATTRIBUTES = ("k", "x", "s", "day")
_WINDOWS = ("TUMBLE({}, '5 seconds')", "HOP({}, '8 seconds', '4 seconds')", "TUMBLE({}, '2 seconds')")
_KINDS = ("JOIN", "JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
_SELECTIONS = ("", "", " WHERE x > 1", " WHERE k IS NOT NULL", " WHERE y < 3 OR b")
_RESIDUALS = ("", "", "", " AND {0}.x <= {1}.x", " AND {0}.y >= {1}.y")
_OUTPUTS = ("{0}.k", "{0}.s", "{0}.x", "{0}.y", "{0}.d", "{0}.time", "{0}.f", "{0}.b", "{0}.day", "coalesce({0}.s, '-')")


def _join(random: Random) -> str:
    window, count = random.choice(_WINDOWS), random.choice((2, 2, 3))
    text, visible = _input(random, window, 0), ["t0"]
    for number in range(1, count):
        kind, left, right = random.choice(_KINDS), random.choice(visible), f"t{number}"
        attribute = random.choice(_ATTRIBUTES)
        other = {"k": "x", "x": "k"}.get(attribute, attribute) if random.random() < 0.5 else attribute
        residual = random.choice(_RESIDUALS).format(left, right)
        text += f" {kind} {_input(random, window, number)} ON {left}.{attribute} = {right}.{other}{residual}"
        visible += [] if "SEMI" in kind or "ANTI" in kind else [right]
    where = f" WHERE {random.choice(visible)}.y IS NOT NULL" if random.random() < 0.2 else ""
    if random.random() < 0.2:
        key, value = random.choice(visible), random.choice(visible)
        return (
            f"SELECT window_end AS w1, {key}.s AS g, COUNT(*) AS n, MAX({value}.y) AS m, SUM({value}.x) AS t "
            f"FROM {text}{where} GROUP BY {key}.s"
        )
    outputs = [f"{random.choice(_OUTPUTS).format(random.choice(visible))} AS c{i}" for i in range(random.randint(1, 4))]
    return f"SELECT window_start AS w0, window_end AS w1, {', '.join(outputs)} FROM {text}{where}"


def _input(random: Random, window: str, number: int) -> str:
    source, selection = window.format(random.choice(("alpha", "alpha", "beta"))), random.choice(_SELECTIONS)
    return f"(SELECT * FROM {source}{selection}) t{number}" if selection else f"{source} t{number}"


def attribute_joins(size: int = 2000) -> st.SearchStrategy[str]:
    """Draw a window join of streams that other joins join by other attributes."""
    return draw_from_pool(_join, size, 0)
