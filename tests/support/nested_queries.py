"""Random SQL of nested queries, which read the results of windowed queries; `support.queries` explains how texts are drawn.

    WITH results AS (
    SELECT window_start AS w0, window_end AS w1, k AS g, COUNT(*) AS n, SUM(x) AS t, MAX(y) AS m FROM TUMBLE(alpha, …) GROUP BY k
    )
    SELECT … FROM HOP(results, …)

The line breaks are fixed, so that `support.duckdb_judge` can split the text.
"""

from __future__ import annotations

from functools import cache
from random import Random

from hypothesis import strategies as st

from headrace.errors import SqlError
from headrace.model.stream import Stream
from headrace.sql import Catalog, bind_query
from support.queries import aggregations, draw_from_pool, duration_text, predicate, selections
from support.rows import SCHEMA

_CATALOG = Catalog.of(Stream(name, SCHEMA, "time") for name in ("alpha", "beta"))

_WINDOWS = (
    ("TUMBLE", (2000,)), ("TUMBLE", (1000,)), ("HOP", (4000, 2000)), ("HOP", (5000, 1000)), ("HOP", (5000, 2000)),
    ("TUMBLE", (250,)), ("HOP", (1000, 2500)),
)  # fmt: skip
_OUTER_WINDOWS = (("TUMBLE", (5000,)), ("TUMBLE", (4000,)), ("HOP", (8000, 4000)), ("HOP", (5000, 2000)), ("TUMBLE", (60_000,)))
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
_JOIN_KINDS = ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


def _window_call(window: tuple[str, tuple[int, ...]], stream: str) -> str:
    kind, lengths = window
    return f"{kind}({stream}, {', '.join(map(duration_text, lengths))})"


def _make_inner_query(random: Random, window: tuple[str, tuple[int, ...]]) -> str:
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
            return f"{edges}, MIN(k) AS g, {grouped} FROM {_window_call(window, stream)}{where}{having}"
        return f"{edges}, k AS g, {grouped} FROM {_window_call(window, stream)}{where} GROUP BY k{having}"
    other = random.choice(("alpha", "beta"))
    on = random.choice(
        ("t0.k = t1.k", "t0.k = t1.k", "t0.k = t1.k", "t0.x < t1.x AND t0.k <> t1.k", "t0.y BETWEEN t1.y - 1 AND t1.y")
    )
    sides = f"{_window_call(window, stream)} t0 JOIN {_window_call(window, other)} t1 ON {on}"
    if random.random() < 0.4:
        sides += f" JOIN {_window_call(window, 'alpha')} t2 ON {random.choice(('t1.x = t2.x', 't0.s = t2.s', 't1.k = t2.k'))}"
        if random.random() < 0.5:  # one or two shuffles, depending on the join order
            sides += f" JOIN {_window_call(window, 'beta')} t3 ON t0.k = t3.k"
    if kind < 0.8:
        return f"{edges}, t0.k AS g, COUNT(*) AS n, SUM(t1.x) AS t, MAX(t0.y) AS m FROM {sides} GROUP BY t0.k"
    return f"{edges}, t0.k AS g, t0.x AS n, t1.x AS t, t0.y AS m FROM {sides}"


def _make_aggregation(random: Random, source: str) -> str:
    chosen = random.sample(_AGGREGATES, random.randint(1, 3))
    key = random.choice(("", "", "g", "n % 2"))
    outputs = ["window_start AS v0", "window_end AS v1", *([f"{key} AS h"] if key else [])]
    outputs += [f"{aggregate} AS a{i}" for i, aggregate in enumerate(chosen)]
    where = f" WHERE {random.choice(_WHERE)}" if random.random() < 0.3 else ""
    group = f" GROUP BY {key}" if key else ""
    having = " HAVING COUNT(*) > 1" if random.random() < 0.2 else ""
    return f"SELECT {', '.join(outputs)} FROM {source}{where}{group}{having}"


def _make_outer_query(random: Random, window: tuple[str, tuple[int, ...]]) -> str:
    """Return the outer query, which reads `results`."""
    kind, outer_window = random.random(), random.choice(_OUTER_WINDOWS)
    if kind < 0.3:
        return _make_aggregation(random, _window_call(outer_window, "results"))
    if kind < 0.4:
        return _make_aggregation(random, "results")
    if kind < 0.45:
        return _make_aggregation(random, _window_call(("SESSION", (random.choice((1000, 3000)),)), "results"))
    if kind < 0.5:
        both = "(SELECT g, n, t, m, w1 FROM results UNION ALL SELECT k, x, x AS t, y, time FROM alpha)"
        return _make_aggregation(random, _window_call(outer_window, both))
    if kind < 0.55:
        return f"SELECT g + 1 AS c, n AS d FROM results WHERE {random.choice(_WHERE)}"
    if kind < 0.6:
        return "SELECT g AS c, n AS d FROM results UNION ALL SELECT k, x FROM beta"
    join = random.choice(_JOIN_KINDS)
    shown = "t0.g AS c0, t0.n AS c1" + ("" if "SEMI" in join or "ANTI" in join else ", t1.x AS c2")
    edges = "SELECT window_start AS v0, window_end AS v1"
    if kind < 0.75:
        on = random.choice(("t0.g = t1.k", "t0.g = t1.k", "t0.g < t1.k", "t0.n <> t1.x"))
        left, right = (_window_call(outer_window, name) for name in ("results", "beta"))
        return f"{edges}, {shown} FROM {left} t0 {join} {right} t1 ON {on}"
    if kind < 0.85:
        on = random.choice(("t0.g = t1.k AND t1.x <> t0.n", "t1.x <> t0.n", "t0.t BETWEEN t1.x - 2 AND t1.x"))
        return f"{edges}, {shown} FROM results t0 {join} {_window_call(window, 'alpha')} t1 ON {on}"
    more = "(SELECT MAX(n) AS x FROM results)" if random.random() < 0.5 else "(SELECT g + 1 AS g, n AS x FROM results)"
    return f"{edges}, {shown} FROM results t0 {join} {more} t1 ON {random.choice(('t0.n = t1.x', 't0.n = t1.x', 't0.n >= t1.x'))}"


def make_nested_query(random: Random) -> str:
    """Return a query over results, or over results of results."""
    window = random.choice(_WINDOWS)
    text = f"WITH results AS (\n{_make_inner_query(random, window)}\n)\n"
    if random.random() < 0.2:
        again = "SELECT window_start AS w0, window_end AS w1, g, COUNT(*) AS n, SUM(n) AS t, MAX(m) AS m"
        source = random.choice(("results", _window_call(("TUMBLE", (2000,)), "results")))
        text += f", more AS (\n{again} FROM {source} GROUP BY g\n)\n"
        return text + _make_aggregation(random, _window_call(random.choice(_OUTER_WINDOWS), "more"))
    return text + _make_outer_query(random, window)


@cache
def _is_valid_query(text: str) -> bool:
    """Say whether a query binds: results of sessions need a window, results of uneven windows cannot be joined."""
    try:
        bind_query(text, _CATALOG)
    except SqlError:
        return False
    return True


def nested_queries(seed: int = 0, size: int = 2000) -> st.SearchStrategy[str]:
    """Draw a nested query."""
    return draw_from_pool(make_nested_query, size, seed).filter(_is_valid_query)


def queries_with_nesting(seed: int = 0) -> st.SearchStrategy[str]:
    """Draw any query, mostly a nested one."""
    return st.one_of(
        nested_queries(seed),
        nested_queries(seed),
        nested_queries(seed),
        nested_queries(seed),
        aggregations(seed),
        selections(seed),
    )
