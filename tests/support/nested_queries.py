"""Random queries over the results of other windows, as texts; see `support.queries` for how texts are drawn.

    WITH results AS (
    SELECT window_start AS w0, window_end AS w1, k AS g, COUNT(*) AS n, SUM(x) AS t, MAX(y) AS m FROM TUMBLE(alpha, …) GROUP BY k
    )
    SELECT … FROM HOP(results, …)

The lines are cut so that whoever judges the text can take it apart.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from headrace.errors import SqlError
from headrace.model.stream import Stream
from headrace.sql import Catalog, bind_query
from support.queries import aggregations, length, pool, predicate, selections
from support.rows import SCHEMA

_CATALOG = Catalog.of(Stream(name, SCHEMA, "time") for name in ("alpha", "beta"))

_WINDOWS = (
    ("TUMBLE", (2000,)), ("TUMBLE", (1000,)), ("HOP", (4000, 2000)), ("HOP", (5000, 1000)), ("HOP", (5000, 2000)),
    ("TUMBLE", (250,)), ("HOP", (1000, 2500)),
)  # fmt: skip
_OUTER = (("TUMBLE", (5000,)), ("TUMBLE", (4000,)), ("HOP", (8000, 4000)), ("HOP", (5000, 2000)), ("TUMBLE", (60_000,)))
_AGGREGATES = (
    "COUNT(*)",
    "SUM(n)",
    "MAX(t)",
    "MIN(g)",
    "AVG(m)",
    "COUNT(DISTINCT g)",
    "MEDIAN(n)",
    "MAX(w1)",
    "SUM(t) + COUNT(*)",
)
_WHERE = ("n > 1", "t IS NOT NULL", "g <> 1", "m > 0.5", "n % 2 = 0", "w1 > TIMESTAMP '2024-01-01 00:00:04'")
_PAIRS = ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


def _windowed(window: tuple[str, tuple[int, ...]], stream: str) -> str:
    kind, lengths = window
    return f"{kind}({stream}, {', '.join(map(length, lengths))})"


def _inner(random: Random, window: tuple[str, tuple[int, ...]]) -> str:
    stream = random.choice(("alpha", "beta"))
    where = f" WHERE {predicate(random)}" if random.random() < 0.4 else ""
    edges = "SELECT window_start AS w0, window_end AS w1"
    if random.random() < 0.15:
        window = ("SESSION", (random.choice((1000, 3000)),))
    kind = random.random()
    if kind < 0.65 or window[0] == "SESSION":
        grouped = "COUNT(*) AS n, SUM(x) AS t, MAX(y) AS m"
        having = random.choice(("", "", " HAVING COUNT(*) > 1"))
        if random.random() < 0.2:
            return f"{edges}, MIN(k) AS g, {grouped} FROM {_windowed(window, stream)}{where}{having}"
        return f"{edges}, k AS g, {grouped} FROM {_windowed(window, stream)}{where} GROUP BY k{having}"
    other = random.choice(("alpha", "beta"))
    on = random.choice(
        ("t0.k = t1.k", "t0.k = t1.k", "t0.k = t1.k", "t0.x < t1.x AND t0.k <> t1.k", "t0.y BETWEEN t1.y - 1 AND t1.y")
    )
    sides = f"{_windowed(window, stream)} t0 JOIN {_windowed(window, other)} t1 ON {on}"
    if random.random() < 0.4:
        sides += f" JOIN {_windowed(window, 'alpha')} t2 ON {random.choice(('t1.x = t2.x', 't0.s = t2.s', 't1.k = t2.k'))}"
        if random.random() < 0.5:  # rows move once or twice, as inputs are ordered
            sides += f" JOIN {_windowed(window, 'beta')} t3 ON t0.k = t3.k"
    if kind < 0.8:
        return f"{edges}, t0.k AS g, COUNT(*) AS n, SUM(t1.x) AS t, MAX(t0.y) AS m FROM {sides} GROUP BY t0.k"
    return f"{edges}, t0.k AS g, t0.x AS n, t1.x AS t, t0.y AS m FROM {sides}"


def _aggregation(random: Random, source: str) -> str:
    chosen = random.sample(_AGGREGATES, random.randint(1, 3))
    key = random.choice(("", "", "g", "n % 2"))
    outputs = ["window_start AS v0", "window_end AS v1", *([f"{key} AS h"] if key else [])]
    outputs += [f"{one} AS a{i}" for i, one in enumerate(chosen)]
    where = f" WHERE {random.choice(_WHERE)}" if random.random() < 0.3 else ""
    group = f" GROUP BY {key}" if key else ""
    having = " HAVING COUNT(*) > 1" if random.random() < 0.2 else ""
    return f"SELECT {', '.join(outputs)} FROM {source}{where}{group}{having}"


def _outer(random: Random, window: tuple[str, tuple[int, ...]]) -> str:
    """Return what is asked of the results."""
    kind, around = random.random(), random.choice(_OUTER)
    if kind < 0.3:
        return _aggregation(random, _windowed(around, "results"))
    if kind < 0.4:
        return _aggregation(random, "results")
    if kind < 0.45:
        return _aggregation(random, _windowed(("SESSION", (random.choice((1000, 3000)),)), "results"))
    if kind < 0.5:
        both = "(SELECT g, n, t, m, w1 FROM results UNION ALL SELECT k, x, x AS t, y, time FROM alpha)"
        return _aggregation(random, _windowed(around, both))
    if kind < 0.55:
        return f"SELECT g + 1 AS c, n AS d FROM results WHERE {random.choice(_WHERE)}"
    if kind < 0.6:
        return "SELECT g AS c, n AS d FROM results UNION ALL SELECT k, x FROM beta"
    join = random.choice(_PAIRS)
    shown = "t0.g AS c0, t0.n AS c1" + ("" if "SEMI" in join or "ANTI" in join else ", t1.x AS c2")
    edges = "SELECT window_start AS v0, window_end AS v1"
    if kind < 0.75:
        on = random.choice(("t0.g = t1.k", "t0.g = t1.k", "t0.g < t1.k", "t0.n <> t1.x"))
        return f"{edges}, {shown} FROM {_windowed(around, 'results')} t0 {join} {_windowed(around, 'beta')} t1 ON {on}"
    if kind < 0.85:
        on = random.choice(("t0.g = t1.k AND t1.x <> t0.n", "t1.x <> t0.n", "t0.t BETWEEN t1.x - 2 AND t1.x"))
        return f"{edges}, {shown} FROM results t0 {join} {_windowed(window, 'alpha')} t1 ON {on}"
    more = "(SELECT MAX(n) AS x FROM results)" if random.random() < 0.5 else "(SELECT g + 1 AS g, n AS x FROM results)"
    return f"{edges}, {shown} FROM results t0 {join} {more} t1 ON {random.choice(('t0.n = t1.x', 't0.n = t1.x', 't0.n >= t1.x'))}"


def stacked(random: Random) -> str:
    """Return a query over results, or over results of results."""
    window = random.choice(_WINDOWS)
    text = f"WITH results AS (\n{_inner(random, window)}\n)\n"
    if random.random() < 0.2:
        again = "SELECT window_start AS w0, window_end AS w1, g, COUNT(*) AS n, SUM(n) AS t, MAX(m) AS m"
        source = random.choice(("results", _windowed(("TUMBLE", (2000,)), "results")))
        text += f", more AS (\n{again} FROM {source} GROUP BY g\n)\n"
        return text + _aggregation(random, _windowed(random.choice(_OUTER), "more"))
    return text + _outer(random, window)


def _accepted(random: Random) -> str:
    """Return a text that is not refused: results of sessions need a window, those of uneven windows cannot be joined."""
    while True:
        text = stacked(random)
        try:
            bind_query(text, _CATALOG)
        except SqlError:
            continue
        return text


def stacks(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw a query over results."""
    return st.sampled_from(pool(_accepted, size, seed))


def queries_with_stacks(seed: int = 0) -> st.SearchStrategy[str]:
    """Draw any query, mostly one over results."""
    return st.one_of(stacks(seed), stacks(seed), stacks(seed), stacks(seed), aggregations(seed), selections(seed))
