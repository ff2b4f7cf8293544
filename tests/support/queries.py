"""Random SQL queries over the streams of `support.rows`. Numbers are small: nothing overflows.

Every output has an alias, so that results of different engines have the same column names. A grammar over `Random` fills a pool
of texts, shortest first; a strategy draws from the pool, so that a query costs one draw and shrinks to a short text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

from hypothesis import strategies as st

COLUMNS = "k, s, x, y, d, f, b, day, time"
_OPERATORS = (">", "<", "=", ">=", "<=", "<>")
_CONSTANTS = {
    "k": ("0", "1", "2"),
    "x": ("0", "1", "2", "5", "10", "50", "-1", "2.5"),
    "y": ("0", "0.5", "1.25", "10", "-1"),
    "d": ("0", "0.5", "1.00", "50", "-2.25"),
    "f": ("0", "1", "1000", "5000000000"),
    "s": ("'a'", "'b'", "'ab'", "''"),
    "day": ("DATE '2024-01-01'", "DATE '2024-01-02'"),
}
_NUMBERS = ("x", "y", "d", "f", "k")
_ODD_ATOMS = (
    "b", "NOT b", "b IS NULL", "s IS NOT NULL", "x IS NULL", "k IS NOT NULL", "TRUE", "NULL",
    "s LIKE 'a%'", "s LIKE '%b'", "s LIKE '_'", "s NOT LIKE '%a%'", "x <=> NULL", "x <=> 5",
    "x + k > 3", "x * 2 >= f", "x % 3 = 1", "x / 2 > 1.5", "f / k > 0", "abs(x) > 2", "y * 2 < 5", "d + 1 > x", "-x < 2",
    "x DIV 2 = 1", "CASE WHEN x > 2 THEN 1 WHEN x IS NULL THEN 2 ELSE 0 END = 1", "coalesce(x, k, 0) > 1",
    "length(s) > 1", "upper(s) = 'A'", "year(day) = 2024", "greatest(x, k) > 2", "x = k", "x > y", "substring(s, 1, 1) = 'a'",
    "CAST(x AS DOUBLE) / 4 > 1", "TRY_CAST(f AS TINYINT) > 0", "second(time) % 2 = 0", "time >= TIMESTAMP '2024-01-01 00:00:05'",
)  # fmt: skip
_KEYS = (
    "k",
    "s",
    "b",
    "x",
    "day",
    "d",
    "y",
    "f",
    "x % 3",
    "upper(s)",
    "CASE WHEN x > 2 THEN 'hi' ELSE 'lo' END",
    "x > 2",
    "k + 1",
)
_ARGUMENTS = ("x", "y", "d", "f", "k", "x + k", "y * 2", "coalesce(x, 0)", "x % 3", "-x")
_SMALL = ("x", "k", "y", "d", "x + k")
_ANY = ("s", "day", "b", "time", *_NUMBERS)
_LENGTHS = (5000, 1000, 10_000, 2000, 3000, 8000, 20_000, 250, 60_000)
_SLIDES = (
    (8000, 4000),
    (5000, 1000),
    (5000, 2000),
    (7000, 3000),
    (2000, 5000),
    (1500, 500),
    (250, 100),
    (1000, 2500),
    (20_000, 5000),
)


def comparison(random: Random) -> str:
    """Return a comparison of a column with a constant, the common case."""
    column = random.choice(tuple(_CONSTANTS))
    return f"{column} {random.choice(_OPERATORS)} {random.choice(_CONSTANTS[column])}"


def _choices(random: Random) -> str:
    column = random.choice(("x", "k", "s", "f", "d"))
    chosen = random.sample(_CONSTANTS[column], random.randint(1, 3))
    return f"{column} {random.choice(('IN', 'NOT IN'))} ({', '.join(chosen)})"


def _between(random: Random) -> str:
    column = random.choice(_NUMBERS)
    low, high = random.choices(_CONSTANTS[column], k=2)
    return f"{column} {random.choice(('BETWEEN', 'NOT BETWEEN'))} {low} AND {high}"


def atom(random: Random) -> str:
    """Return a predicate without AND and OR, mostly a comparison."""
    odd: Callable[[Random], str] = lambda random: random.choice(_ODD_ATOMS)  # noqa: E731
    return random.choice((comparison, comparison, comparison, _choices, _between, odd, odd))(random)


def _combination(random: Random) -> str:
    parts = [atom(random) for _ in range(random.randint(2, 3))]
    text = f" {random.choice(('AND', 'AND', 'OR'))} ".join(f"({part})" for part in parts)
    return f"NOT ({text})" if random.random() < 0.15 else text


def predicate(random: Random) -> str:
    """Return a condition for WHERE."""
    return random.choice((comparison, comparison, atom, _combination))(random)


def _where(random: Random) -> str:
    return f" WHERE {predicate(random)}" if random.random() < 0.75 else ""


def aggregate(random: Random) -> str:
    """Return an aggregate call."""
    kind = random.randrange(10)
    if kind <= 1:
        return "COUNT(*)"
    if kind <= 3:
        return f"{random.choice(('SUM', 'AVG'))}({random.choice(_ARGUMENTS)})"
    if kind <= 6:
        return f"{random.choice(('MIN', 'MAX', 'COUNT'))}({random.choice(_ANY)})"
    if kind == 7:
        return f"COUNT(DISTINCT {random.choice((*_ANY, 'x % 3', 's, k', 'x, y'))})"
    if kind == 8:
        return f"{random.choice(('STDDEV', 'STDDEV_POP', 'VAR_POP', 'VAR_SAMP'))}({random.choice(('x', 'k', 'x + k'))})"
    return _percentile(random)


def _percentile(random: Random) -> str:
    column, share = random.choice(_SMALL), random.choice(("0.5", "0.25", "0.9", "0", "1"))
    forms = (
        f"MEDIAN({column})",
        f"PERCENTILE({column}, {share})",
        f"PERCENTILE_CONT({share}) WITHIN GROUP (ORDER BY {column})",
        f"PERCENTILE_DISC({share}) WITHIN GROUP (ORDER BY {column})",
    )
    return random.choice(forms)


_OVER_AGGREGATES = (
    "SUM(x) + 1", "SUM(x) / COUNT(*)", "MAX(x) - MIN(x)", "COALESCE(SUM(f), 0)", "SUM(d) * 2", "COUNT(*) % 2",
    "CASE WHEN COUNT(*) > 2 THEN 'many' ELSE 'few' END", "SUM(y) > 1", "AVG(x) * 2", "2 * COUNT(x) - COUNT(*)",
)  # fmt: skip
_HAVINGS = (
    "COUNT(*) > 1", "SUM(x) > 5", "MAX(x) IS NOT NULL", "MIN(x) < 2 OR COUNT(*) = 1", "COUNT(DISTINCT k) >= 1", "SUM(f) >= 0",
    "NOT COUNT(*) = 2",
)  # fmt: skip


def duration_text(milliseconds: int) -> str:
    """Return a duration as SQL text."""
    if milliseconds % 60_000 == 0:
        return f"'{milliseconds // 60_000} minutes'"
    return f"'{milliseconds // 1000} seconds'" if milliseconds % 1000 == 0 else f"'{milliseconds} milliseconds'"


def _window(random: Random) -> tuple[str, str]:
    """Return the name of a window function and its arguments after the stream."""
    kind = random.choice(("TUMBLE", "HOP", "HOP", "SESSION"))
    if kind == "HOP":
        return kind, ", ".join(map(duration_text, random.choice(_SLIDES)))
    return kind, duration_text(random.choice(_LENGTHS if kind == "TUMBLE" else _LENGTHS[:7]))


def _union(random: Random) -> str:
    first, second = random.sample(("alpha", "beta"), 2)
    return f"(SELECT {COLUMNS} FROM {first}{_where(random)} UNION ALL SELECT {COLUMNS} FROM {second}{_where(random)})"


def _value(random: Random) -> str:
    return aggregate(random) if random.random() < 0.75 else random.choice(_OVER_AGGREGATES)


def aggregation(random: Random) -> str:
    """Return a windowed aggregation, in either syntax of windows."""
    kind, lengths = _window(random)
    union = random.random() < 0.1
    grouped = union or random.random() < 0.5  # GROUP BY window(…) rather than FROM HOP(…)
    stream = _union(random) if union else random.choice(("alpha", "alpha", "beta"))
    keys = random.sample(_KEYS, random.choice((0, 1, 1, 2, 3)))
    values = [_value(random) for _ in range(random.randint(1, 4))]
    function = "session_window" if kind == "SESSION" else "window"
    edges = [f"{function}.start", f"{function}.end"] if grouped else ["window_start", "window_end"]
    outputs = [f"{edges[0]} AS w0", f"{edges[1]} AS w1", *(f"{key} AS g{i}" for i, key in enumerate(keys))]
    outputs += [f"{value} AS a{i}" for i, value in enumerate(values)]
    source = stream if grouped else f"{kind}({stream}, {lengths})"
    groups = [f"{function}(time, {lengths})", *keys] if grouped else keys
    group = f" GROUP BY {', '.join(groups)}" if groups else ""
    having = f" HAVING {random.choice(_HAVINGS)}" if random.random() < 0.2 else ""
    return f"SELECT {', '.join(outputs)} FROM {source}{_where(random)}{group}{having}"


_OUTPUTS = (
    "k", "s", "x", "y", "d", "f", "b", "day", "time", "x + 1", "y * 2", "d * 2", "x / 2", "upper(s)", "x % 3",
    "coalesce(s, 'none')", "CASE WHEN b THEN x ELSE k END", "x > 2", "length(s)", "CAST(x AS STRING)",
)  # fmt: skip


def selection(random: Random) -> str:
    """Return a stateless query."""
    chosen = random.choices(_OUTPUTS, k=random.randint(1, 4))
    head = f"SELECT {', '.join(f'{text} AS c{i}' for i, text in enumerate(chosen))} FROM"
    if random.random() < 0.1:
        return f"{head} alpha{_where(random)} UNION ALL {head} beta{_where(random)}"
    return f"{head} {random.choice(('alpha', 'beta'))}{_where(random)}"


@lru_cache
def pool(make: Callable[[Random], str], size: int, seed: int) -> tuple[str, ...]:
    """Return distinct texts made by `make`, shortest first."""
    random, texts = Random(seed), dict[str, None]()
    while len(texts) < size:
        texts[make(random)] = None
    return tuple(sorted(texts, key=lambda text: (len(text), text)))


def draw_from_pool(make: Callable[[Random], str], size: int, seed: int) -> st.SearchStrategy[str]:
    """Draw a text of a pool, which is made at the first draw: importing a test module must not cost seconds."""
    return st.deferred(lambda: st.sampled_from(pool(make, size, seed)))


def aggregations(seed: int = 0, size: int = 3000) -> st.SearchStrategy[str]:
    """Draw a windowed aggregation."""
    return draw_from_pool(aggregation, size, seed)


def selections(seed: int = 0, size: int = 500) -> st.SearchStrategy[str]:
    """Draw a stateless query."""
    return draw_from_pool(selection, size, seed)


def queries(seed: int = 0) -> st.SearchStrategy[str]:
    """Draw any query, mostly an aggregation; each seed has its own texts."""
    return st.one_of(aggregations(seed), aggregations(seed), aggregations(seed), aggregations(seed), selections(seed))
