# ruff: noqa: S608, INP001  generated queries; a module of the script measure-hostile
"""Invalid, oversized and hostile queries, for `measure-hostile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

MAX_CHARACTERS = 19_900  # slightly below the limit of a query


def fill_text(head: str, piece: Callable[[int], str], between: str, tail: str = "") -> str:
    """Return a text of as many pieces as fit below the limit."""
    pieces, size, number = [], len(head) + len(tail), 0
    while size + len(piece(number)) + len(between) <= MAX_CHARACTERS:
        pieces.append(piece(number))
        size, number = size + len(pieces[-1]) + len(between), number + 1
    return f"{head}{between.join(pieces)}{tail}"


def nest_ctes(step: str, count: int, last: str = "SELECT a FROM {}") -> str:
    """Return a chain of CTEs that each read the previous one, often twice."""
    ctes = ["c0 AS (SELECT price AS a, time FROM purchases)", *(f"c{n} AS ({step.format(f'c{n - 1}')})" for n in range(1, count))]
    return f"WITH {', '.join(ctes)} {last.format(f'c{count - 1}')}"


def iter_hostile_queries() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each query."""
    window, of = "TUMBLE(purchases, '1 second')", " FROM purchases"
    yield "a million tokens", f"SELECT {'1,' * 500_000}1{of}"
    yield "8 MiB of text", f"SELECT '{'x' * (8 * 1024 * 1024 - 200)}'{of}"
    yield "ANDs", fill_text("SELECT price FROM purchases WHERE ", lambda n: f"price>{n}", " AND ")
    yield "110 ANDs", "SELECT price FROM purchases WHERE " + " AND ".join(f"price>{n}" for n in range(110))
    yield "ORs", fill_text("SELECT price FROM purchases WHERE ", lambda n: f"price={n}", " OR ")
    yield "UNION ALL", fill_text("", lambda _: f"SELECT price{of}", " UNION ALL ")
    yield "UNION ALL, doubled", nest_ctes("SELECT a, time FROM {0} UNION ALL SELECT a, time FROM {0}", 40)
    yield "columns, doubled", nest_ctes("SELECT a * a AS a, time FROM {0}", 60)
    yield "CASE", fill_text("SELECT CASE ", lambda n: f"WHEN price={n} THEN {n}", " ", f" END AS a{of}")
    yield "CASE, nested", f"SELECT {'CASE WHEN TRUE THEN ' * 800}1{' END' * 800} AS a{of}"
    yield "columns", fill_text("SELECT ", lambda n: f"price+{n} AS c{n}", ",", of)
    yield "aggregates", fill_text("SELECT ", lambda n: f"SUM(price+{n}) AS c{n}", ",", f" FROM {window}")
    yield "stars", fill_text("SELECT ", lambda _: "*", ",", of)
    yield "IN", fill_text("SELECT price FROM purchases WHERE user_id IN (", str, ",", ")")
    yield "GROUP BY", fill_text(f"SELECT COUNT(*) AS n FROM {window} GROUP BY ", lambda n: f"price+{n}", ",")
    yield "1,000 keys", f"SELECT COUNT(*) AS n FROM {window} GROUP BY {','.join(f'price+{n}' for n in range(1_000))}"
    yield "parentheses", f"SELECT {'(' * 9_000}1{')' * 9_000} AS a{of}"
    yield "open parentheses", f"SELECT {'(' * 19_000}"
    yield "sub-queries", f"{'SELECT a FROM (' * 900}SELECT price AS a{of}{')' * 900}"
    yield "types as calls", f"SELECT {'INT(' * 30}1{')' * 30} AS a{of}"
    yield "joins without ON", "SELECT 1 AS a FROM purchases p " + " ".join(f"JOIN purchases p{n}" for n in range(40))
    sides = ", ".join(f"SLIDING(ads, '100 days') p{n}" for n in range(9))
    yield "SLIDING joins of 9", f"SELECT p0.cost FROM {sides}"
    yield "a long name", f"SELECT {'x' * 19_000}{of}"
    yield "a long string", f"SELECT '{'x' * 19_000}' AS a{of}"
    yield "a long number", f"SELECT {'9' * 19_000} AS a{of}"
    yield "1e999999", f"SELECT 1e999999 AS a, CAST('1e999999999' AS DECIMAL(38, 0)) AS b{of}"
    yield "a long duration", f"SELECT COUNT(*) AS n FROM TUMBLE(purchases, '{'9' * 19_000} s')"
    yield "LIKE", f"SELECT price FROM purchases WHERE CAST(price AS STRING) LIKE '{'%1' * 9_000}'"
    yield "RLIKE", "SELECT price FROM purchases WHERE CAST(price AS STRING) RLIKE '(1+)+(1+)+(1+)+$'"
    yield "RLIKE, repeated", "SELECT price FROM purchases WHERE CAST(price AS STRING) RLIKE '((((1{900}){900}){900}){900})'"
    yield "HOP, a century every µs", "SELECT COUNT(*) AS n FROM HOP(purchases, '36500 days', '1 us')"
    yield "HOP, 10⁹ windows of a row", "SELECT COUNT(*) AS n FROM HOP(purchases, '1000 seconds', '1 us')"
    yield "TUMBLE, 1 µs", "SELECT COUNT(*) AS n FROM TUMBLE(purchases, '1 us')"
    yield "controls", "SELECT \x00\x01\x02 FROM purchases"
    yield "comments", f"SELECT price {'/*' * 9_000}{of}"
