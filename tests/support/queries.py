"""Random query texts over the streams of `support.rows`. Numbers are small: nothing overflows.

Every output has an alias, so that results can be compared by column whoever names columns.
"""

from __future__ import annotations

from hypothesis import strategies as st

Text = st.SearchStrategy[str]
Draw = st.DrawFn

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
    "CAST(x AS DOUBLE) / 4 > 1", "second(time) % 2 = 0", "time >= TIMESTAMP '2024-01-01 00:00:05'",
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


@st.composite
def comparisons(draw: Draw) -> str:
    """Draw one comparison of a column with a constant, the common case."""
    column = draw(st.sampled_from(tuple(_CONSTANTS)))
    return f"{column} {draw(st.sampled_from(_OPERATORS))} {draw(st.sampled_from(_CONSTANTS[column]))}"


@st.composite
def _choices(draw: Draw) -> str:
    column = draw(st.sampled_from(("x", "k", "s", "f", "d")))
    chosen = draw(st.lists(st.sampled_from(_CONSTANTS[column]), min_size=1, max_size=3, unique=True))
    return f"{column} {draw(st.sampled_from(('IN', 'NOT IN')))} ({', '.join(chosen)})"


@st.composite
def _between(draw: Draw) -> str:
    column = draw(st.sampled_from(_NUMBERS))
    low, high = (draw(st.sampled_from(_CONSTANTS[column])) for _ in range(2))
    return f"{column} {draw(st.sampled_from(('BETWEEN', 'NOT BETWEEN')))} {low} AND {high}"


def atoms() -> Text:
    """Draw a predicate without AND and OR, mostly a comparison."""
    return st.one_of(comparisons(), comparisons(), comparisons(), _choices(), _between(), st.sampled_from(_ODD_ATOMS))


@st.composite
def _combined(draw: Draw) -> str:
    parts = draw(st.lists(atoms(), min_size=2, max_size=3))
    text = f" {draw(st.sampled_from(('AND', 'AND', 'OR')))} ".join(f"({part})" for part in parts)
    return f"NOT ({text})" if draw(st.integers(0, 5)) == 5 else text


def predicates() -> Text:
    """Draw a WHERE condition."""
    return st.one_of(comparisons(), comparisons(), atoms(), _combined())


@st.composite
def _where(draw: Draw) -> str:
    return f" WHERE {draw(predicates())}" if draw(st.integers(0, 4)) else ""


@st.composite
def aggregates(draw: Draw) -> str:
    """Draw one aggregate call."""
    kind = draw(st.integers(0, 9))
    if kind <= 1:
        return "COUNT(*)"
    if kind <= 3:
        return f"{draw(st.sampled_from(('SUM', 'AVG')))}({draw(st.sampled_from(_ARGUMENTS))})"
    if kind <= 6:
        return f"{draw(st.sampled_from(('MIN', 'MAX', 'COUNT')))}({draw(st.sampled_from(_ANY))})"
    if kind == 7:
        return f"COUNT(DISTINCT {draw(st.sampled_from((*_ANY, 'x % 3', 's, k', 'x, y')))})"
    if kind == 8:
        spread = ("STDDEV", "STDDEV_POP", "VAR_POP", "VAR_SAMP")
        return f"{draw(st.sampled_from(spread))}({draw(st.sampled_from(('x', 'k', 'x + k')))})"
    return draw(_percentiles())


@st.composite
def _percentiles(draw: Draw) -> str:
    column, share = draw(st.sampled_from(_SMALL)), draw(st.sampled_from(("0.5", "0.25", "0.9", "0", "1")))
    forms = (
        f"MEDIAN({column})",
        f"PERCENTILE({column}, {share})",
        f"PERCENTILE_CONT({share}) WITHIN GROUP (ORDER BY {column})",
        f"PERCENTILE_DISC({share}) WITHIN GROUP (ORDER BY {column})",
    )
    return draw(st.sampled_from(forms))


_OVER_AGGREGATES = (
    "SUM(x) + 1", "SUM(x) / COUNT(*)", "MAX(x) - MIN(x)", "COALESCE(SUM(f), 0)", "SUM(d) * 2", "COUNT(*) % 2",
    "CASE WHEN COUNT(*) > 2 THEN 'many' ELSE 'few' END", "SUM(y) > 1", "AVG(x) * 2", "2 * COUNT(x) - COUNT(*)",
)  # fmt: skip
_HAVINGS = (
    "COUNT(*) > 1", "SUM(x) > 5", "MAX(x) IS NOT NULL", "MIN(x) < 2 OR COUNT(*) = 1", "COUNT(DISTINCT k) >= 1", "SUM(f) >= 0",
    "NOT COUNT(*) = 2",
)  # fmt: skip


def _length(milliseconds: int) -> str:
    if milliseconds % 60_000 == 0:
        return f"'{milliseconds // 60_000} minutes'"
    return f"'{milliseconds // 1000} seconds'" if milliseconds % 1000 == 0 else f"'{milliseconds} milliseconds'"


@st.composite
def _windows(draw: Draw) -> tuple[str, str]:
    """Draw the name of a window function and its arguments after the stream."""
    kind = draw(st.sampled_from(("TUMBLE", "HOP", "HOP", "SESSION")))
    if kind == "HOP":
        return kind, ", ".join(map(_length, draw(st.sampled_from(_SLIDES))))
    return kind, _length(draw(st.sampled_from(_LENGTHS if kind == "TUMBLE" else _LENGTHS[:7])))


@st.composite
def _unions(draw: Draw) -> str:
    first, second = draw(st.sampled_from((("alpha", "beta"), ("beta", "alpha"))))
    return f"(SELECT {COLUMNS} FROM {first}{draw(_where())} UNION ALL SELECT {COLUMNS} FROM {second}{draw(_where())})"


@st.composite
def aggregations(draw: Draw, *, sessions: bool = True, unions: bool = True) -> str:
    """Draw a windowed aggregation, in either spelling."""
    kind, lengths = draw(_windows().filter(lambda pair: sessions or pair[0] != "SESSION"))
    union = unions and draw(st.integers(0, 9)) == 9
    grouped = union or draw(st.booleans())  # GROUP BY window(…) rather than FROM HOP(…)
    stream = draw(_unions()) if union else draw(st.sampled_from(("alpha", "alpha", "beta")))
    keys = draw(st.lists(st.sampled_from(_KEYS), max_size=3, unique=True))
    values = draw(
        st.lists(st.one_of(aggregates(), aggregates(), aggregates(), st.sampled_from(_OVER_AGGREGATES)), min_size=1, max_size=4)
    )
    function = "session_window" if kind == "SESSION" else "window"
    edges = [f"{function}.start", f"{function}.end"] if grouped else ["window_start", "window_end"]
    outputs = [f"{edges[0]} AS w0", f"{edges[1]} AS w1", *(f"{key} AS g{i}" for i, key in enumerate(keys))]
    outputs += [f"{value} AS a{i}" for i, value in enumerate(values)]
    source = stream if grouped else f"{kind}({stream}, {lengths})"
    groups = [f"{function}(time, {lengths})", *keys] if grouped else keys
    group = f" GROUP BY {', '.join(groups)}" if groups else ""
    having = f" HAVING {draw(st.sampled_from(_HAVINGS))}" if draw(st.integers(0, 4)) == 4 else ""
    return f"SELECT {', '.join(outputs)} FROM {source}{draw(_where())}{group}{having}"


_OUTPUTS = (
    "k", "s", "x", "y", "d", "f", "b", "day", "time", "x + 1", "y * 2", "d * 2", "x / 2", "upper(s)", "x % 3",
    "coalesce(s, 'none')", "CASE WHEN b THEN x ELSE k END", "x > 2", "length(s)", "CAST(x AS STRING)",
)  # fmt: skip


@st.composite
def selections(draw: Draw, *, unions: bool = True) -> str:
    """Draw a stateless query."""
    chosen = draw(st.lists(st.sampled_from(_OUTPUTS), min_size=1, max_size=4))
    head = f"SELECT {', '.join(f'{text} AS c{i}' for i, text in enumerate(chosen))} FROM"
    if unions and draw(st.integers(0, 9)) == 9:
        return f"{head} alpha{draw(_where())} UNION ALL {head} beta{draw(_where())}"
    return f"{head} {draw(st.sampled_from(('alpha', 'beta')))}{draw(_where())}"


def queries() -> Text:
    """Draw any query, mostly an aggregation."""
    return st.one_of(aggregations(), aggregations(), aggregations(), aggregations(), selections())
