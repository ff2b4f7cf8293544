"""Unsupported queries are refused with a caret at the position and a hint."""

# ruff: noqa: E501 – a table reads best with one case a line

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import SqlError
from headrace.plan.logical import LogicalQuery

Bind = Callable[[str], LogicalQuery]

# (query, text at the caret, message, part of the hint)
CASES = [
    # names
    ("SELECT pric FROM purchases", "pric", "unknown column 'pric'", "did you mean 'price'?"),
    ("SELECT price FROM purchase", "purchase", "unknown stream 'purchase'", "did you mean 'purchases'?"),
    ("SELECT x.price FROM purchases p", "x.price", "unknown table 'x'", ""),
    ("SELECT lenght(name) FROM purchases", "lenght", "unknown function 'lenght'", "did you mean 'length'?"),
    ("SELECT price, price FROM purchases", "price FROM", "output name 'price' is used twice", "alias"),
    ("SELECT price FROM db.purchases", "db", "unknown stream 'db.purchases'", "purchases"),
    ("SELECT window_start, count(*) FROM TUMBLE(`my stream`, '5 s')", "window_start", "column 'window_start' is ambiguous", "rename"),
    # windows and intervals
    ("SELECT count(*) AS n FROM TUMBLE(purchases, INTERVAL '1-2' YEAR TO MONTH)", "TUMBLE", "invalid interval", "INTERVAL 8 SECONDS"),
    ("SELECT SUM(price) WITHIN GROUP (ORDER BY price) AS n FROM TUMBLE(purchases, '5 s')", "SUM(", "WITHIN GROUP is for percentiles, not for 'SUM'", "leave it out"),
    # types
    ("SELECT price FROM purchases WHERE name > user_id", "name >", "cannot compare STRING with INT", "CAST"),
    ("SELECT price FROM purchases WHERE ok = 1", "ok = 1", "cannot compare BOOLEAN with INT", "CAST"),
    ("SELECT price FROM purchases WHERE user_id = 'abc'", "user_id =", "string 'abc' cannot be read as INT", ""),
    ("SELECT price FROM purchases WHERE user_id = '1.5'", "user_id =", "string '1.5' cannot be read as INT", ""),
    ("SELECT price FROM purchases WHERE d = '2020-01-01 10:00'", "d =", "string '2020-01-01 10:00' cannot be read as DATE", ""),
    ("SELECT TIMESTAMP 'foo' FROM purchases", "'foo'", "string 'foo' cannot be read as TIMESTAMP", ""),
    ("SELECT price + name FROM purchases", "price +", "operator '+' needs numbers, not DOUBLE and STRING", "||"),
    ("SELECT time - time FROM purchases", "time -", "operator '-' needs numbers, not TIMESTAMP and TIMESTAMP", "unix_seconds"),
    ("SELECT -name FROM purchases", "name", "operator '-' needs a number, not STRING", ""),
    ("SELECT 1.5 DIV 2 FROM purchases", "1.5", "operator 'DIV' needs integers", "floor"),
    ("SELECT price FROM purchases WHERE price", "price", "WHERE needs a BOOLEAN, not DOUBLE", ""),
    ("SELECT price FROM purchases WHERE ok AND user_id", "ok AND", "AND needs a BOOLEAN, not INT", ""),
    ("SELECT 300::TINYINT FROM purchases", "300", "number 300 does not fit TINYINT", "wider"),
    ("SELECT CAST(time AS INT) FROM purchases", "time", "cannot cast TIMESTAMP to INT", "unix_seconds"),
    ("SELECT CAST(name AS ARRAY<INT>) FROM purchases", "name", "type 'ARRAY<INT>' is not supported", "known"),
    ("SELECT NULL AS n FROM purchases", "n FROM", "output has no type: it is always NULL", "CAST(NULL AS type)"),
    ("SELECT sqrt(name) FROM purchases", "sqrt", "function 'sqrt': a number is needed, not STRING", "CAST"),
    ("SELECT upper() FROM purchases", "upper", "function 'upper' takes 1 argument, not 0", ""),
    ("SELECT IF(ok, 1, name) FROM purchases", "IF", "function 'IF': cannot choose between INT with STRING", "cast"),
    ("SELECT name LIKE user_id FROM purchases", "name LIKE", "LIKE needs a STRING, not INT", "CAST"),
    ("SELECT user_id LIKE name FROM purchases", "user_id LIKE", "LIKE needs a STRING, not INT", "CAST"),
    ("SELECT name ILIKE user_id FROM purchases", "name ILIKE", "ILIKE needs a STRING, not INT", "CAST"),
    ("SELECT name RLIKE name FROM purchases", "name RLIKE", "the pattern must be a string literal", ""),
    ("SELECT name LIKE name ESCAPE 'ab' FROM purchases", "name LIKE", "ESCAPE needs LIKE and a single character", ""),
    ("SELECT name ILIKE name ESCAPE '/' FROM purchases", "name ILIKE", "ESCAPE needs LIKE and a single character", ""),
    ("SELECT 1" + "0" * 40 + " FROM purchases", "10", "has more than 38 digits", "exponent"),
    # shapes
    ("SELECT p.price FROM purchases p JOIN ads a ON p.user_id = a.user_id", "purchases p", "a join needs windows, and 'p' has no window", "TUMBLE"),
    ("SELECT p.price FROM TUMBLE(purchases, '5 s') p JOIN ads a ON p.user_id = a.user_id", "ads a", "a join needs windows, and 'a' has no window", "TUMBLE"),
    ("SELECT p.price FROM TUMBLE(purchases, '5 s') p JOIN SESSION(ads, '5 s') a ON p.user_id = a.user_id", "SESSION(ads", "'a' is in a SESSION window", "HOP"),
    ("SELECT p.price FROM TUMBLE(purchases, '5 s') p LEFT CROSS JOIN TUMBLE(ads, '5 s') a", "TUMBLE(ads", "LEFT CROSS JOIN is not supported", ""),
    ("SELECT user_id FROM TUMBLE(purchases, '5 s') p JOIN TUMBLE(ads, '5 s') a ON p.user_id = a.user_id", "user_id FROM", "column 'user_id' is ambiguous", "table before it"),
    ("SELECT p.price FROM TUMBLE(purchases, '5 s') p JOIN TUMBLE(ads, '5 s') a ON p.name = a.user_id", "p.name =", "cannot compare STRING with BIGINT", "CAST"),
    ("SELECT p.price FROM HOP(purchases, '4 s', '2 s') p JOIN HOP(ads, '3 s', '2 s') a ON p.user_id = a.user_id", "HOP(ads", "never end at the same time", "same window"),
    ("SELECT p.price FROM TUMBLE(purchases, '5 s') p JOIN TUMBLE(ads, '5 s') p ON p.user_id = p.user_id", "TUMBLE(ads", "repeats the name 'p' of an earlier side", "alias"),
    ("SELECT a.price FROM TUMBLE(purchases, '5 s') p LEFT SEMI JOIN TUMBLE(ads, '5 s') a ON p.user_id = a.user_id", "a.price", "unknown table 'a'", "left side only"),
    ("SELECT p.price FROM TUMBLE(purchases, '5 s') p JOIN TUMBLE(ads, '5 s') a USING (name)", "name)", "column 'name' of USING is not on both sides", "ON"),
    ("SELECT p.price FROM TUMBLE(purchases, '5 s') p NATURAL JOIN TUMBLE(ads, '5 s') a", "TUMBLE(ads", "a NATURAL join is not supported", "USING"),
    ("SELECT price FROM SLIDING(purchases, '5 s')", "SLIDING", "there is nothing to join", "JOIN SLIDING(other"),
    ("SELECT price FROM purchases ORDER BY price", "price", "ORDER BY is not supported", "sort"),
    ("SELECT price FROM purchases LIMIT 3", "3", "LIMIT is not supported", ""),
    ("SELECT DISTINCT price FROM purchases", "price", "SELECT DISTINCT is not supported", "GROUP BY"),
    ("SELECT sum(price) OVER (PARTITION BY user_id) FROM purchases", "sum", "a window function (OVER …) is not supported", "GROUP BY"),
    ("SELECT price FROM purchases WHERE user_id IN (SELECT user_id FROM ads)", "user_id IN", "IN over a sub-query is not supported", "list"),
    ("SELECT price FROM purchases WHERE EXISTS (SELECT 1 FROM ads)", "1", "EXISTS is not supported", "FROM"),
    ("SELECT price FROM purchases UNION SELECT price FROM ads", "price FROM ads", "UNION without ALL is not supported", "UNION ALL"),
    ("SELECT price FROM purchases EXCEPT SELECT price FROM ads", "price", "EXCEPT is not supported", ""),
    ("SELECT name FROM purchases UNION ALL SELECT price FROM ads", "price FROM ads", "cannot unite column STRING with INT", "cast"),
    ("SELECT name, d FROM purchases UNION ALL SELECT price FROM ads", "price FROM ads", "UNION ALL of 2 and 1 columns", "same number"),
    ("SELECT price FROM purchases LATERAL VIEW explode(x) t AS y", "explode", "only lists of registered functions can be exploded", "words(text)"),
    ("SELECT * EXCEPT (price) FROM purchases", "price", "EXCEPT is not supported", ""),
    ("SELECT count(*) AS n FROM (SELECT count(*) AS c FROM SESSION(purchases, '5 s'))", "count(*) AS n", "an aggregation over a stream needs a window", "TUMBLE"),
    ("SELECT window_start FROM TUMBLE((SELECT window_start, count(*) AS c FROM TUMBLE(purchases, '5 s')), '10 s') GROUP BY c", "window_start FROM TUMBLE((", "column 'window_start' is ambiguous", "rename"),
    ("SELECT c FROM TUMBLE((SELECT count(*) AS c FROM TUMBLE(purchases, '5 s')), '10 s')", "TUMBLE((", "a windowed query must aggregate or join", "GROUP BY"),
    ("SELECT count(*) AS n FROM (SELECT count(*) AS `#c` FROM TUMBLE(purchases, '5 s'))", "count(*) AS `", "an output of a sub-query cannot be called '#c'", "leave out"),
    ("SELECT a FROM (VALUES (1)) t(a)", "1", "VALUES in FROM is not supported", ""),
    ("SELECT x FROM (SELECT price FROM purchases) t(x, y)", "price", "alias 't' names 2 columns, but there are 1", ""),
    ("SELECT current_timestamp() FROM purchases", "current_timestamp", "function 'current_timestamp' is not supported", "same result"),
    ("SELECT 1", "1", "query reads no stream", "FROM"),
    # windows
    ("SELECT sum(price) FROM purchases", "sum", "an aggregation over a stream needs a window", "TUMBLE"),
    ("SELECT name FROM purchases GROUP BY name", "name", "an aggregation over a stream needs a window", "TUMBLE"),
    ("SELECT price FROM TUMBLE(purchases, '5 s')", "TUMBLE", "a windowed query must aggregate", "COUNT(*)"),
    ("SELECT count(*) FROM TUMBLE(purchases)", "TUMBLE", "window 'TUMBLE' has the wrong number of arguments", "TUMBLE(stream, '8 seconds')"),
    ("SELECT count(*) FROM HOP(purchases, '5 s')", "HOP", "window 'HOP' has the wrong number of arguments", "slide"),
    ("SELECT count(*) FROM TUMBLE(purchases, '0 s')", "TUMBLE", "window 'TUMBLE' needs lengths greater than zero", ""),
    ("SELECT count(*) FROM TUMBLE(purchases, '5 lightyears')", "TUMBLE", "invalid duration '5 lightyears'", "8 seconds"),
    ("SELECT count(*) FROM TUMBLE(purchases, '9999999 days')", "TUMBLE", "duration '9999999 days' is too long", ""),
    ("SELECT count(*) FROM TUMBLE(purchases, price)", "TUMBLE", "the length of a window must be a constant", "INTERVAL"),
    ("SELECT count(*) FROM TUMBLE(TUMBLE(purchases, '1 s'), '1 s')", "TUMBLE(purchases", "a window needs a stream", ""),
    ("SELECT count(*) FROM TUMBLE(purchases, '5 s') GROUP BY window(time, '5 s')", "window(", "query has two windows", ""),
    ("SELECT count(*) FROM purchases GROUP BY window(d, '5 s')", "window(", "a window must be over event time", "unchanged"),
    ("SELECT count(*) FROM purchases GROUP BY window(time, '5 s', '5 s', '1 s')", "window(", "windows are aligned to 1970", "leave it out"),
    ("SELECT count(*) FROM TUMBLE((SELECT time + INTERVAL 1 HOUR AS time FROM purchases), '5 s')", "TUMBLE", "over event time", ""),
    ("SELECT window, count(*) FROM purchases GROUP BY window(time, '5 s')", "window,", "window has no value 'window'", "window.start"),
    ("SELECT window(time, '6 s').end FROM purchases GROUP BY window(time, '5 s')", "window(time, '6", "the query groups by another window", ""),
    ("SELECT window_start FROM purchases", "window_start", "'window_start' cannot be used in SELECT", ""),
    ("SELECT count(*) FROM TUMBLE(purchases, '5 s') WHERE window_start > time", "window_start", "cannot be used in WHERE", "HAVING"),
    # aggregates
    ("SELECT price, sum(price) FROM TUMBLE(purchases, '5 s')", "price", "column 'price' is neither grouped nor aggregated", "GROUP BY"),
    ("SELECT count(*) FROM TUMBLE(purchases, '5 s') HAVING name = 'a'", "name", "column 'name' is neither grouped", "MAX(name)"),
    ("SELECT *, count(*) FROM TUMBLE(purchases, '5 s')", "*,", "* cannot be selected from an aggregation", ""),
    ("SELECT price FROM purchases WHERE sum(price) > 3", "sum", "aggregate 'sum' cannot be used in WHERE", "HAVING"),
    ("SELECT sum(count(*)) FROM TUMBLE(purchases, '5 s')", "count", "aggregate 'count' cannot be used in an aggregate", ""),
    ("SELECT avg(name) FROM TUMBLE(purchases, '5 s')", "avg", "aggregate 'avg' needs a number, not STRING", "CAST"),
    ("SELECT sum(DISTINCT price) FROM TUMBLE(purchases, '5 s')", "sum", "SUM(DISTINCT …) is not supported", "COUNT(DISTINCT …)"),
    ("SELECT first(price) FROM TUMBLE(purchases, '5 s')", "first", "aggregate 'first' is not supported", ""),
    ("SELECT percentile(price, 2) FROM TUMBLE(purchases, '5 s')", "percentile", "the percentile must be a number literal", ""),
    ("SELECT count(*) FROM TUMBLE(purchases, '5 s') GROUP BY CUBE(name)", "name", "CUBE is not supported", ""),
    ("SELECT count(*) AS c FROM TUMBLE(purchases, '5 s') GROUP BY c", "c", "'c' is an aggregate and cannot be grouped by", ""),
    ("SELECT count(*) FROM TUMBLE(purchases, '5 s') GROUP BY 2", "2", "GROUP BY 2 names no item", ""),
    # syntax
    ("SELECT price pp x FROM purchases", "x FROM", "syntax error near 'x'", ""),
    ("SELECT price FROM purchases WHERE", "WHERE", "syntax error near 'WHERE'", ""),
    ("SELECT price FROM purchases; SELECT ad_id FROM ads", "ad_id", "query has more than one statement", "one by one"),
    ("DROP TABLE purchases", "purchases", "DROP is not a query", "SELECT"),
    ("INSERT INTO ads SELECT * FROM ads", "ads", "INSERT is not a query", "SELECT"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "spot", "message", "hint"), CASES, ids=[case[0][:90] for case in CASES])
def test_unsupported_queries_are_refused_with_a_caret_and_a_hint(
    bind: Bind, text: str, spot: str, message: str, hint: str
) -> None:
    with pytest.raises(SqlError) as caught:
        bind(text)
    problem = caught.value
    assert message in problem.message
    assert hint in problem.hint
    caret = problem.place.splitlines()[-1].index("^") - 2
    assert text[caret:].startswith(spot), f"the caret is at: {text[caret:]}"


def test_the_error_shows_the_line_and_a_caret(bind: Bind) -> None:
    with pytest.raises(SqlError) as caught:
        bind("SELECT *\nFROM ads\nWHERE price > 3 AND\n\tpirce < 4 -- so")
    assert str(caught.value).splitlines() == [
        "unknown column 'pirce'",
        "line 4, column 2:",
        "  \tpirce < 4 -- so",
        "  \t^",
        "detail: columns: user_id, ad_id, price, ts",
        "hint: did you mean 'price'?",
    ]


@pytest.mark.parametrize("text", ["", "  ", "-- nothing", ";"])
def test_an_empty_query_is_refused(bind: Bind, text: str) -> None:
    with pytest.raises(SqlError, match="query is empty"):
        bind(text)


def test_an_unknown_stream_error_lists_the_streams(bind: Bind) -> None:
    with pytest.raises(SqlError) as caught:
        bind("SELECT * FROM zzz")
    assert caught.value.detail == "streams: ads, my stream, purchases"
