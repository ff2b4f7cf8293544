"""RLIKE has the meaning of Java's regular expressions, or is refused."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.backends.reference.text import match_regex
from headrace.errors import SqlError
from headrace.sql.regex import translate_regex

MATCHES = [  # the results are those of java.util.regex.Matcher.find
    (r"\d+", "१", False), (r"\d+", "a1", True), (r"\w", "é", False), (r"\s", "\v", True), (r"\S", "\v", False), (r"[\s]", "\v",
    True),
    ("a.b", "a\rb", False), ("a.b", "a\u2028b", False), ("(?s)a.b", "a\rb", True), ("(?s:a.)b", "a\nb", True), ("^..$", "\t1\n",
    True),
    ("x$", "x\n", True), ("x$", "x\r\n", True), ("x$", "x\n\n", False), (r"x\Z", "x\u0085", True), (r"x\z", "x\n", False),
    ("(x|y$)", "y\r", True),
    ("(?i)k", "K", True), ("(?i)k", "\u212a", False), ("(?i)é", "É", False), ("(?i)[^a-c]", "B", False), ("(?i)a(?-i)b", "AB",
    False),
    ("(?i:a)b", "Ab", True), ("(?i:a)b", "AB", False), (r"\Qa.b\E+", "a.ba.b", True), (r"\Qa.b", "axb", False),
    (r"\x41\u0042\0103", "ABC", True),
    (r"\x{1F600}", "😀", True), (r"\h", "\xa0", True), (r"[\v]", "\x85", True), (r"\p{Alpha}\P{Digit}", "a-", True),
    (r"\p{Alpha}", "é", False),
    ("(?<year>2)0", "20", True), ("a{2,3}?b", "aab", True), ("[a-]", "-", True), ("[^-a]", "a", False), (r"[\]\[^]", "^", True),
    ("a|", "", True),
    (r"\A1\.5\z", "1.5", True), ("}]", "}]", True), (r"[+--]", ",", True), (r"\e\t", "\x1b\t", True), (r"\_\-", "_-", True),
    ("", "", True),
    ("😀{2}", "😀😀", True), ("^", "", True), (r"\bx", "a x", True), (r"\Bx", "ax", True), ("[&~#|]", "#", True), (r"(?:\d\D)*",
    "", True),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "text", "wanted"), MATCHES)
def test_both_evaluators_match_as_java(pattern: str, text: str, wanted: bool) -> None:
    translated = translate_regex(pattern)
    assert pc.match_substring_regex(pa.array([text]), pattern=translated)[0].as_py() is wanted
    assert match_regex(text, translated) is wanted


@pytest.mark.parametrize(
    "pattern",
    ["a++", "a?+", r"(a)\1", r"\k<n>", "(?=1)", "(?<=2)0", "(?>a)", "(?m)^b", "(?x) 1", "(?u)a", "(?U)a", "(?P<n>a)", "[a[b]]",
    "[a-z&&[^b]]", "[[:alpha:]]",
     "[]a]", "[^]", "[a", "(", ")", "*", "a**", "a{,2}", "a{", "{", "x{2,1}", "a{1001}", "(a{1000}){1000}", "^*", "x$y",
     "(x$)y", r"x\Z\n", r"\p{L}", r"\pL",
     r"\p{IsAlphabetic}", r"\R", r"\X", r"\N", r"\G1", r"\y", r"\C", r"\x4", r"\x{110000}", r"\uD83D", "[z-a]", r"[\d-z]", "\\",
     "(?i)*", r"\E"],
)  # fmt: skip
def test_what_has_no_equal_meaning_is_refused(pattern: str) -> None:
    with pytest.raises(SqlError, match="regular expression"):
        translate_regex(pattern)
