"""Any text binds to a plan or raises a specific SqlError, never an InternalError or the error of a failing parser."""

# ruff: noqa: E501 – a table reads best with one case a line

from __future__ import annotations

import random
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import SqlError
from headrace.sql import Catalog, bind_query
from support.examples import scale_examples

SEEDS = (
    "SELECT window.start, gem_pack, sum(price) FROM purchases WHERE price > 10 GROUP BY window(time, '8 seconds', '4 s'), gem_pack",
    "SELECT window_start, g, count(*) c FROM (SELECT gem_pack AS g, time FROM purchases) GROUP BY window(time, '8 s'), g HAVING c > 1",
    "WITH x AS (SELECT * FROM purchases WHERE ok) SELECT a.user_id, upper(name) || 'x', -cost * 2 FROM x a WHERE d > '2020-01-01'",
    "SELECT count(DISTINCT u), avg(p) FILTER (WHERE p > 1) FROM TUMBLE((SELECT user_id u, price p FROM ads UNION ALL SELECT 1, 2 FROM `my stream`), INTERVAL 5 SECONDS)",
    "SELECT CASE WHEN ok THEN 1 ELSE 2.5 END AS k, percentile_cont(0.5) WITHIN GROUP (ORDER BY price) FROM HOP(purchases, '1 min', '5 s') GROUP BY 1",
    "SELECT CAST(price AS INT) x, name LIKE 'a%', user_id IN (1, 2), cost BETWEEN 1 AND 2, time + INTERVAL 1 DAY FROM purchases",
)
WORDS = re.compile(r"\w+|'[^']*'|\s+|.")
EXTRA = (
    "'",
    "(",
    ")",
    ",",
    "window",
    "OVER",
    "NULL",
    "1e400",
    "*",
    ".",
    "SELECT",
    "JOIN",
    "ORDER BY",
    "INTERVAL",
    "::",
    "-",
    "sum",
    "``",
)
PARSER_FAILURE = "query cannot be parsed"


def get_error_message(text: str, catalog: Catalog) -> str:
    try:
        bind_query(text, catalog)
    except SqlError as problem:
        return str(problem)
    return ""


def check_error_message(text: str, catalog: Catalog) -> None:
    message = get_error_message(text, catalog)
    assert not message.startswith(PARSER_FAILURE), (text, message)
    assert "\x1b" not in message or "\x1b" in text


@settings(max_examples=scale_examples(150), deadline=None)
@given(text=st.text(max_size=60))
@example(text="")
@example(text="\0")
@example(text="(" * 3000)
@example(text="SELECT " + "(" * 2000 + "price" + ")" * 2000 + " FROM purchases")
def test_random_text_raises_no_internal_error(text: str, catalog: Catalog) -> None:
    check_error_message(text, catalog)


@settings(max_examples=scale_examples(400), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_mutated_queries_raise_no_internal_error(seed: int, catalog: Catalog) -> None:
    dice = random.Random(seed)
    words = WORDS.findall(dice.choice(SEEDS))
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(words))
        match dice.randrange(4):
            case 0:
                del words[at : at + dice.randint(1, 3)]
            case 1:
                words.insert(at, f" {dice.choice(EXTRA)} ")
            case 2:
                words[at] = dice.choice(WORDS.findall(dice.choice(SEEDS)))
            case _:
                words[at], words[at - 1] = words[at - 1], words[at]
        words = words or ["x"]
    check_error_message("".join(words), catalog)


def test_a_long_chain_of_ors_raises_no_internal_error(catalog: Catalog) -> None:
    check_error_message("SELECT price FROM purchases WHERE " + " OR ".join(f"user_id = {i}" for i in range(5000)), catalog)
