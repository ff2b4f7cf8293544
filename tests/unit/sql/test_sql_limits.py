"""How large a query may be: refused in time, with what is possible; and what is not refused works wherever it is bound."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache

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


def chained(first: str, following: Callable[[str], str], count: int, last: str = "SELECT a FROM {}") -> str:
    """Return CTEs each of which reads the one before."""
    ctes = [f"c0 AS ({first})", *(f"c{n} AS ({following(f'c{n - 1}')})" for n in range(1, count))]
    return f"WITH {', '.join(ctes)} {last.format(f'c{count - 1}')}"


def united(count: int) -> str:
    return " UNION ALL ".join(["SELECT price, time FROM purchases"] * count)


DEEP: dict[str, Callable[[int], str]] = {
    "ANDs": lambda n: "SELECT price FROM purchases WHERE " + " AND ".join(f"price > {i}" for i in range(n)),
    "ORs": lambda n: "SELECT price FROM purchases WHERE " + " OR ".join(f"price = {i}" for i in range(n)),
    "a sum": lambda n: f"SELECT {'+'.join(['price'] * n)} AS a FROM purchases",
    "a sum of constants": lambda n: f"SELECT {'+'.join(['1'] * n)} AS a FROM purchases",
    "casts": lambda n: f"SELECT price{'::DOUBLE' * n} AS a FROM purchases",
    "a sum that is grouped by": lambda n: f"SELECT COUNT(*) AS n FROM {WINDOW} GROUP BY {'+'.join(['price'] * n)}",
    "a sum of aggregates": lambda n: f"SELECT {'+'.join(['COUNT(*)'] * n)} AS n FROM {WINDOW}",
    "parentheses": lambda n: f"SELECT {'(' * n}price{')' * n} AS a FROM purchases",
    "calls": lambda n: f"SELECT {'abs(' * n}price{')' * n} AS a FROM purchases",
    "CASEs": lambda n: f"SELECT {'CASE WHEN price > 1 THEN 1 ELSE ' * n}1{' END' * n} AS a FROM purchases",
    "NOTs": lambda n: f"SELECT price FROM purchases WHERE {'NOT ' * n}(price > 1)",
    "signs": lambda n: f"SELECT {'- ' * n}price AS a FROM purchases",
    "sub-queries": lambda n: f"{'SELECT a FROM (' * n}SELECT price AS a FROM purchases{')' * n}",
    "unions": united,
    "columns of columns": lambda n: chained("SELECT price AS a FROM purchases", lambda c: f"SELECT a + 1 AS a FROM {c}", n),
    "conditions on conditions": lambda n: chained(
        "SELECT price AS a FROM purchases", lambda c: f"SELECT a FROM {c} WHERE a > {c[1:]}", n
    ),
}


def is_bound(text: str) -> bool:
    """Tell whether a text is taken, in a thread of its own: there the stack is as empty as can be."""
    found: list[bool] = []

    def bind() -> None:
        try:
            bind_query(text, CATALOG)
        except SqlError:
            found.append(False)
        else:
            found.append(True)

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    return found[0]


@cache
def most(kind: str) -> int:
    """Return how many of a kind are taken."""
    low, high = 1, 600
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_bound(DEEP[kind](middle)) else (low, middle - 1)
    return low


def deeper(levels: int, call: Callable[[], None]) -> None:
    """Call from so many levels further down."""
    if levels:
        deeper(levels - 1, call)
    else:
        call()


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_just_taken_runs(kind: str):
    """What a query means is looked at in other threads, and deeper down, than where it was added: nothing may fail there."""
    text = DEEP[kind](most(kind))
    session = hr.Session(backend="local", partitions=2)
    try:
        source = hr.MemorySource(COLUMNS)
        session.create_stream("purchases", source, time="time")
        query = session.add(text)
        source.append(
            [{"user_id": 1, "gem_pack": 1, "price": 2.5, "time": f"2026-01-01T00:00:0{second}Z"} for second in range(3)]
        )
        deeper(100, session.advance)
        assert (query.status, query.error) == ("live", None)
        session.explain()
    finally:
        session.close()


@pytest.mark.parametrize("kind", DEEP)
def test_much_is_taken_and_too_much_is_refused(kind: str):
    nests = kind in {"parentheses", "calls", "CASEs", "NOTs", "signs", "sub-queries"}
    assert most(kind) >= (MAX_NESTING - 4 if nests else 90)
    for many in (150, 450, 485, 490, 600):
        assert not is_bound(DEEP[kind](many))
    assert sys.getrecursionlimit() == 1000  # the limits are made for it


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (chained("SELECT price AS a FROM purchases", lambda c: f"SELECT a * a AS a FROM {c}", 40), "terms"),
        (chained("SELECT price AS a FROM purchases", lambda c: f"SELECT a FROM {c} WHERE a * a > a", 300), "deeply"),
        (
            chained(
                "SELECT price AS a, time FROM purchases",
                lambda c: f"SELECT a, time FROM {c} UNION ALL SELECT a, time FROM {c}",
                30,
            ),
            f"detail: {MAX_UNION_BRANCHES} are possible",
        ),
        (
            chained(
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
def test_what_would_mean_too_much_is_refused(text: str, said: str):
    with pytest.raises(SqlError) as caught:
        bind_query(text, CATALOG)
    assert said in str(caught.value)


def test_the_place_is_shown():
    with pytest.raises(SqlError) as caught:
        bind_query(f"SELECT price,\n{'(' * 40}1{')' * 40} AS a FROM purchases", CATALOG)
    assert caught.value.place.startswith(f"line 2, column {MAX_NESTING + 1}")


@pytest.mark.parametrize(
    "window", ["TUMBLE(purchases, '36500 days')", "HOP(purchases, '1 day', '1 second')", "HOP(purchases, '1 s', '1 ms')"]
)
def test_windows_that_are_long_or_many_are_taken(window: str):
    bind_query(f"SELECT COUNT(*) AS n FROM {window}", CATALOG)
