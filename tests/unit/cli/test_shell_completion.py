"""Completion, word by word: what may follow what has been typed."""

from __future__ import annotations

import pytest

from headrace.cli.shell.completion import Vocabulary, classify_tokens, suggest_words

VOCABULARY = Vocabulary({"purchases": ("user_id", "price"), "ads": ("ad_id", "cost"), "limit": ("n",)}, ("revenue", "a b"))
BOUNDS = ["window_start", "window_end"]


def suggest(text: str, *kinds: str) -> list[str]:
    return [found.text for found in suggest_words(text, VOCABULARY) if not kinds or found.kind in kinds]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SHOW QUERIES ", []),
        ("HELP ", []),
        ("DROP ", ["STREAM"]),
        ("DROP STREAM ", ["purchases", "ads", "`limit`"]),
        ("DROP STREAM ads ", ["CASCADE"]),
        ("DROP STREAM ads CASCADE ", []),
        ("DROP QUERY ", []),
        ("ALTER QUERY ", ["revenue", "`a b`"]),
        ("ALTER QUERY revenue ", ["ADD", "DROP"]),
        ("ALTER QUERY revenue DROP ", ["SINK"]),
        ("ALTER QUERY revenue DROP SINK ", []),
        ("ALTER QUERY revenue ADD SINK WITH ", []),
        ("TAIL ", ["revenue", "`a b`"]),
        ("TAIL `a", ["`a b`"]),
        ("DESC ", ["revenue", "`a b`", "purchases", "ads", "`limit`"]),
        ("DESCRIBE ads ", []),
        ("REPLACE ", ["revenue", "`a b`", "SELECT", "WITH"]),
        ("REMOVE revenue, a", ["`a b`"]),
        ("TAIL revenue FOR ", []),
        ("TAIL revenue FOR 5 ", ["SECONDS", "MINUTES", "MILLISECONDS"]),
        ("TAIL revenue FOR now ", []),
        ("RESULTS revenue LIMIT ", []),
        ("TAIL revenue FROM BEGINNING l", ["limit"]),
        ("ADD SELECT n FROM ads FOR 5 ", ["SECONDS", "MINUTES", "MILLISECONDS"]),
        ("ADD S", ["SELECT"]),
        ("SELECT * FROM ADS", ["ads"]),
        ("SELECT * FROM ads a JOIN ", ["purchases", "ads", "`limit`", "TUMBLE", "HOP", "SESSION", "SLIDING"]),
        ("SELECT * FROM HOP(", ["purchases", "ads", "`limit`", "SELECT"]),
    ],
)
def test_all_words_that_may_follow(text: str, words: list[str]):
    assert suggest(text) == words


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT * FROM ads WHERE ads.", ["ad_id", "cost", *BOUNDS]),
        ("SELECT * FROM ads x, purchases AS y WHERE Y.", ["user_id", "price", *BOUNDS]),
        ("SELECT * FROM TUMBLE(ads, '1 second') AS x WHERE X.", ["ad_id", "cost", *BOUNDS]),
        ("SELECT * FROM ads WHERE z.", BOUNDS),
        ("SELECT * FROM ads JOIN HOP(purchases, '1 second') y ON y.pr", ["price"]),
        ("SELECT ads.x FROM purchases WHERE ", ["user_id", "price", *BOUNDS]),
        ("SELECT ", ["user_id", "price", "ad_id", "cost", "n", *BOUNDS]),
        ("SELECT n FROM `limit` WHERE ", ["n", *BOUNDS]),
        ("EXPLAIN SELECT * FROM ads WHERE c", ["cost"]),
        ("REPLACE revenue AS SELECT * FROM ads WHERE c", ["cost"]),
        ("(SELECT * FROM ads WHERE c", ["cost"]),
        ("FROM ads SELECT c", ["cost"]),
    ],
)
def test_columns_are_those_of_the_streams_in_the_query(text: str, columns: list[str]):
    assert suggest(text, "column") == columns


def test_what_a_suggestion_replaces():
    for text, length in (("SELECT * FROM pur", 3), ("TAIL `a", 2), ("SELECT * FROM ", 0), ("SELECT a -- FROM pur\n + pri", 3)):
        assert {found.prefix_length for found in suggest_words(text, VOCABULARY)} == {length}


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT 'a", "SELECT a -- c", "SELECT a /* c"])
def test_nothing_is_suggested_inside_numbers_texts_and_comments(text: str):
    assert suggest(text) == []


def test_the_colour_of_a_word_is_that_of_its_meaning():
    text = "SELECT sum(price) , upper(x), 1, 'a', `b` FROM Ads -- c"
    kinds = [(token.text, kind) for token, kind in classify_tokens(text, VOCABULARY) if kind != "sign"]
    assert kinds == [
        ("SELECT", "keyword"), ("sum", "function"), ("price", "name"), ("upper", "function"), ("x", "name"), ("1", "number"),
        ("'a'", "text"), ("`b`", "name"), ("FROM", "keyword"), ("Ads", "stream"), ("-- c", "comment"),
    ]  # fmt: skip
