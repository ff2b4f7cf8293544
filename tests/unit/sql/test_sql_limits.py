"""Size limits of queries: too large queries are refused with the limit; accepted queries run at any stack depth."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

import headrace as hr
from headrace.errors import SqlError
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.sql import Catalog, bind_query
from headrace.sql.limits import MAX_GROUP_KEYS, MAX_NESTING, MAX_OUTPUTS, MAX_TERMS, MAX_TREE_DEPTH, MAX_UNION_BRANCHES

COLUMNS = "user_id INT, gem_pack INT, price DOUBLE, time TIMESTAMP"
CATALOG = Catalog((Stream("purchases", Schema.parse(COLUMNS), "time", 0),))
WINDOW = "TUMBLE(purchases, '1 second')"


def write_cte_chain(first: str, following: Callable[[str], str], count: int, last: str = "SELECT a FROM {}") -> str:
    """Return a query of CTEs each of which reads the previous CTE."""
    ctes = [f"c0 AS ({first})", *(f"c{n} AS ({following(f'c{n - 1}')})" for n in range(1, count))]
    return f"WITH {', '.join(ctes)} {last.format(f'c{count - 1}')}"


def write_union(count: int) -> str:
    return " UNION ALL ".join(["SELECT price, time FROM purchases"] * count)


DEEP: dict[str, Callable[[int], str]] = {
    "ANDs": lambda n: "SELECT price FROM purchases WHERE " + " AND ".join(f"price > {i}" for i in range(n)),
    "ORs": lambda n: "SELECT price FROM purchases WHERE " + " OR ".join(f"price = {i}" for i in range(n)),
    "a sum": lambda n: f"SELECT {'+'.join(['price'] * n)} AS a FROM purchases",
    "a sum of constants": lambda n: f"SELECT {'+'.join(['1'] * n)} AS a FROM purchases",
    "casts": lambda n: f"SELECT price{'::DOUBLE' * n} AS a FROM purchases",
    "a sum as group key": lambda n: f"SELECT COUNT(*) AS n FROM {WINDOW} GROUP BY {'+'.join(['price'] * n)}",
    "a sum of aggregates": lambda n: f"SELECT {'+'.join(['COUNT(*)'] * n)} AS n FROM {WINDOW}",
    "parentheses": lambda n: f"SELECT {'(' * n}price{')' * n} AS a FROM purchases",
    "calls": lambda n: f"SELECT {'abs(' * n}price{')' * n} AS a FROM purchases",
    "CASEs": lambda n: f"SELECT {'CASE WHEN price > 1 THEN 1 ELSE ' * n}1{' END' * n} AS a FROM purchases",
    "NOTs": lambda n: f"SELECT price FROM purchases WHERE {'NOT ' * n}(price > 1)",
    "signs": lambda n: f"SELECT {'- ' * n}price AS a FROM purchases",
    "sub-queries": lambda n: f"{'SELECT a FROM (' * n}SELECT price AS a FROM purchases{')' * n}",
    "unions": write_union,
    "projections": lambda n: write_cte_chain("SELECT price AS a FROM purchases", lambda c: f"SELECT a + 1 AS a FROM {c}", n),
    "filters": lambda n: write_cte_chain("SELECT price AS a FROM purchases", lambda c: f"SELECT a FROM {c} WHERE a > {c[1:]}", n),
}


def can_bind(text: str) -> bool:
    """Return whether a query binds in a new thread, which has an empty stack."""
    outcomes: list[bool] = []

    def bind() -> None:
        try:
            bind_query(text, CATALOG)
        except SqlError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    return outcomes[0]


NESTED = frozenset({"parentheses", "calls", "CASEs", "NOTs", "signs", "sub-queries"})
OTHER_LEVELS = 4  # the rest of a query takes at most so many levels


def get_limit(kind: str) -> int:
    if kind == "unions":
        return MAX_UNION_BRANCHES
    return MAX_NESTING if kind in NESTED else MAX_TREE_DEPTH


def find_max_count(kind: str) -> int:
    """Return the largest accepted count of a construct, up to its limit; too small a count if many fewer are accepted."""
    low, high = get_limit(kind) - OTHER_LEVELS - 1, get_limit(kind)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if can_bind(DEEP[kind](middle)) else (low, middle - 1)
    return low


def call_at_depth(levels: int, call: Callable[[], None]) -> None:
    """Run `call` with `levels` more stack frames."""
    if levels:
        call_at_depth(levels - 1, call)
    else:
        call()


@pytest.mark.parametrize("kind", DEEP)
def test_large_queries_run_and_too_large_queries_are_refused(kind: str):
    """The engine walks the plan in other threads and deeper in the stack than `add` does; this must not overflow."""
    for count in (get_limit(kind) + 1, 450, 485, 490, 600):
        assert not can_bind(DEEP[kind](count))
    assert sys.getrecursionlimit() == 1000  # the limits assume this value
    largest = find_max_count(kind)
    assert largest >= get_limit(kind) - OTHER_LEVELS
    text = DEEP[kind](largest)
    session = hr.Session(backend="local", partitions=2)
    try:
        source = hr.MemorySource(COLUMNS)
        session.create_stream("purchases", source, time="time")
        query = session.add(text)
        source.append(
            [{"user_id": 1, "gem_pack": 1, "price": 2.5, "time": f"2026-01-01T00:00:0{second}Z"} for second in range(3)]
        )
        call_at_depth(100, session.advance)
        assert (query.status, query.error) == ("live", None)
        session.explain()
    finally:
        session.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (write_cte_chain("SELECT price AS a FROM purchases", lambda c: f"SELECT a * a AS a FROM {c}", 40), "terms"),
        (write_cte_chain("SELECT price AS a FROM purchases", lambda c: f"SELECT a FROM {c} WHERE a * a > a", 300), "deeply"),
        (
            write_cte_chain(
                "SELECT price AS a, time FROM purchases",
                lambda c: f"SELECT a, time FROM {c} UNION ALL SELECT a, time FROM {c}",
                30,
            ),
            f"detail: {MAX_UNION_BRANCHES} are possible",
        ),
        (
            write_cte_chain(
                "SELECT price AS a, time FROM purchases",
                lambda c: f"SELECT a * a AS a, time FROM {c}",
                12,
                f"SELECT {', '.join(f'SUM(a + {n}) AS s{n}' for n in range(400))} FROM TUMBLE({{}}, '1 second')",
            ),
            f"detail: {MAX_TERMS:,} are possible",
        ),
        (f"SELECT {', '.join(f'price + {n} AS c{n}' for n in range(600))} FROM purchases", f"detail: {MAX_OUTPUTS} are possible"),
        (f"SELECT {','.join('*' * 9_000)} FROM purchases", "outputs"),
        (
            f"SELECT COUNT(*) AS n FROM {WINDOW} GROUP BY {', '.join(f'price + {n}' for n in range(60))}",
            f"detail: {MAX_GROUP_KEYS} are possible",
        ),
        ("SELECT COUNT(*) AS n FROM HOP(purchases, '1 second', '1 us')", "start every 1 µs are too frequent"),
        ("SELECT COUNT(*) AS n FROM TUMBLE(purchases, '999 us')", "detail: the shortest slide is 1 ms"),
        ("SELECT COUNT(*) AS n FROM HOP(purchases, '36500 days', '1 ms')", "each row would be in 3,153,600,000,000 windows"),
        (f"SELECT {'INT(' * 25}1{')' * 25} AS a FROM purchases", "takes too long to read"),
        (f"SELECT {'STRING[' * 25}1{']' * 25} AS a FROM purchases", "takes too long to read"),
        (f"SELECT 1 AS a FROM purchases {' '.join(f'JOIN purchases p{n}' for n in range(25))}", "takes too long to read"),
        (f"SELECT {'(' * 40}1{')' * 40} AS a FROM purchases", f"detail: {MAX_NESTING} levels"),
        (f"SELECT {'1+' * 200}1 AS a FROM purchases", f"detail: {MAX_TREE_DEPTH} levels"),
    ],
)  # fmt: skip
def test_queries_above_a_limit_are_refused(text: str, message: str):
    with pytest.raises(SqlError) as caught:
        bind_query(text, CATALOG)
    assert message in str(caught.value)


def test_the_error_shows_line_and_column():
    with pytest.raises(SqlError) as caught:
        bind_query(f"SELECT price,\n{'(' * 40}1{')' * 40} AS a FROM purchases", CATALOG)
    assert caught.value.place.startswith(f"line 2, column {MAX_NESTING + 1}")


@pytest.mark.parametrize(
    "window", ["TUMBLE(purchases, '36500 days')", "HOP(purchases, '1 day', '1 second')", "HOP(purchases, '1 s', '1 ms')"]
)
def test_long_and_overlapping_windows_are_accepted(window: str):
    bind_query(f"SELECT COUNT(*) AS n FROM {window}", CATALOG)
