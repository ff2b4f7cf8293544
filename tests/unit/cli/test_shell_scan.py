"""The shell cuts text where the SQL parser would: a `;` in a string, a name or a comment ends nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from headrace.cli.shell.parser import TokenKind, split_statements, tokenize
from headrace.cli.shell.repl import read_statements


def texts(text: str) -> list[str]:
    return [piece.text for piece in split_statements(text)[0]]


@pytest.mark.parametrize(
    ("text", "pieces", "rest"),
    [
        ("a; b;", ["a", "b"], ""),
        ("a; b", ["a"], "b"),
        ("'x;y'; b;", ["'x;y'", "b"], ""),
        ("'it''s;'; b;", ["'it''s;'", "b"], ""),
        (r"'it\'s;'; b;", [r"'it\'s;'", "b"], ""),
        (r"r'\'; b;", [r"r'\'", "b"], ""),
        ('"x;y"; b;', ['"x;y"', "b"], ""),
        ("`x;``y`; b;", ["`x;``y`", "b"], ""),
        ("a -- no; end\n; b;", ["a -- no; end\n", "b"], ""),
        ("a /* no; /* and; */ no; */; b;", ["a /* no; /* and; */ no; */", "b"], ""),
        (";;a;;", ["a"], ""),
        ("-- only a comment;\n;a;", ["a"], ""),
        ("a; 'open; b;", ["a"], "'open; b;"),
        ("a; /* open; b;", ["a"], " /* open; b;"),
        ("a; `open; b;", ["a"], "`open; b;"),
    ],
)
def test_pieces(text, pieces, rest):
    found, left = split_statements(text)
    assert [piece.text for piece in found] == pieces
    assert left.text == rest


def test_a_piece_knows_where_it_begins():
    pieces, rest = split_statements("a;\n  -- about b\n  b\n ; c; d")
    assert [(piece.text.strip(), piece.line, piece.column) for piece in [*pieces, rest]] == [
        ("a", 1, 1),
        ("b", 3, 3),
        ("c", 4, 4),
        ("d", 4, 7),
    ]


ALPHABET = ["a", "1", " ", "\n", "'", '"', "`", ";", "--", "/* ", "*/", "\\", "r'", "(", "x'", "é"]


@given(st.lists(st.sampled_from(ALPHABET), max_size=14).map("".join))
@example("'\\';")
@example("a--\r;b;")
@example("ar'\\';b;")
def test_the_parser_sees_the_same_ends(text: str):
    """But for a comment that begins right behind the beginning of another: sqlglot does not see that one, Spark does."""
    try:
        tokens = Spark().tokenize(text)
    except TokenError:
        return
    ends = [token.start for token in tokens if token.token_type is TokenType.SEMICOLON]
    assert [token.start for token in tokenize(text) if token.kind is TokenKind.SIGN and token.text == ";"] == ends


@given(st.text(alphabet="a1 \n'\"`;-/*\\r(é", max_size=30))
def test_tokens_are_in_order_and_leave_out_only_blanks(text: str):
    at = 0
    for token in tokenize(text):
        assert text[at : token.start].strip() == ""
        assert text[token.start : token.end] == token.text != ""
        at = token.end
    assert text[at:].strip() == ""


@given(st.lists(st.sampled_from(["a;", "b 'x;\ny';", "\n", "-- c;\n", "/* ;\n */", "d", "`;`", " "]), max_size=10))
def test_a_script_can_come_in_any_parts(parts: list[str]):
    """Read line by line or at once, there are the same statements at the same places."""
    text = "".join(parts)
    whole = [(piece.text.rstrip(), piece.line, piece.column) for piece in read_statements([text])]
    assert [(piece.text.rstrip(), piece.line, piece.column) for piece in read_statements(text.splitlines(keepends=True))] == whole


def test_a_script_is_done_while_it_comes():
    def lines():
        yield "a;\n"
        pytest.fail("the second line was asked for before the first statement was done")

    assert next(read_statements(lines())).text == "a"
