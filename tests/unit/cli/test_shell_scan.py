"""The shell splits statements where the SQL parser does: a `;` in a string, a name or a comment does not end a statement."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from headrace.cli.shell.repl import read_statements
from headrace.cli.shell.tokenizer import TokenKind, split_statements, tokenize


def split_texts(text: str) -> list[str]:
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
def test_statements_are_split_at_semicolons(text, pieces, rest):
    statements, remainder = split_statements(text)
    assert [piece.text for piece in statements] == pieces
    assert remainder.text == rest


def test_statements_have_line_and_column():
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
def test_the_sql_parser_finds_the_same_semicolons(text: str):
    """Except for a comment that starts directly after the start of another: Spark nests it, sqlglot does not."""
    try:
        tokens = Spark().tokenize(text)
    except TokenError:
        return
    ends = [token.start for token in tokens if token.token_type is TokenType.SEMICOLON]
    assert [token.start for token in tokenize(text) if token.kind is TokenKind.SIGN and token.text == ";"] == ends


@given(st.text(alphabet="a1 \n'\"`;-/*\\r(é", max_size=30))
def test_tokens_are_in_order_and_skip_only_whitespace(text: str):
    position = 0
    for token in tokenize(text):
        assert text[position : token.start].strip() == ""
        assert text[token.start : token.end] == token.text != ""
        position = token.end
    assert text[position:].strip() == ""


@given(st.lists(st.sampled_from(["a;", "b 'x;\ny';", "\n", "-- c;\n", "/* ;\n */", "d", "`;`", " "]), max_size=10))
def test_a_script_is_split_alike_in_any_chunks(parts: list[str]):
    """Reading line by line and reading at once give the same statements at the same positions."""
    text = "".join(parts)
    whole = [(piece.text.rstrip(), piece.line, piece.column) for piece in read_statements([text])]
    assert [(piece.text.rstrip(), piece.line, piece.column) for piece in read_statements(text.splitlines(keepends=True))] == whole


def test_a_statement_is_returned_before_the_next_line_is_read():
    def lines():
        yield "a;\n"
        pytest.fail("the second line was read before the first statement was returned")

    assert next(read_statements(lines())).text == "a"
