"""Text search with patterns that differ by row: equal to the oracle, row by row, and to DuckDB."""

from __future__ import annotations

import importlib
import random

import duckdb
import pyarrow as pa
import pytest

from headrace.engine.compute.evaluator import Evaluator
from headrace.model.expression import Call, Column, Expression, Literal

oracle = importlib.import_module("headrace.backends.reference.evaluate")  # the package has a function of that name

BOOL, STRING = pa.bool_(), pa.string()
TEXT, PATTERN = Column("text", STRING), Column("pattern", STRING)
SEARCHES = ("starts_with", "ends_with", "contains")
LETTERS = "aaabbbc\n.é😀"


def draw_text(rng: random.Random, letters: str, most: int, nulls: float = 0.1) -> str | None:
    return None if rng.random() < nulls else "".join(rng.choices(letters, k=rng.randint(0, most)))


def draw_pattern(rng: random.Random, text: str | None, escape: str) -> str | None:
    """Draw a pattern that matches the text, or nearly so: pieces become wildcards, special characters are escaped."""
    if text is None or rng.random() < 0.2:
        return draw_text(rng, LETTERS + "%%%__" + escape, 7)
    out, at = "", 0
    while at < len(text):
        kind = rng.random()
        if kind < 0.2:
            out, at = out + "%" * rng.randint(1, 2), at + rng.randint(0, 3)
        elif kind < 0.35:
            out, at = out + "_", at + 1
        else:
            letter = text[at] if kind < 0.97 else "x"
            out, at = out + (escape if letter in ("%", "_", escape) or kind > 0.9 else "") + letter, at + 1
    return out + rng.choice(("", "", "%", "_", escape))


def table_of(seed: int, escape: str = "\\", rows: int = 300) -> pa.Table:
    rng = random.Random(seed)
    texts = [draw_text(rng, LETTERS + "%_" + escape, 8) for _ in range(rows)]
    patterns = [draw_pattern(rng, text, escape) for text in texts]
    return pa.table({"text": pa.array(texts, STRING), "pattern": pa.array(patterns, STRING)})


def check(expression: Expression, table: pa.Table) -> list[bool | None]:
    evaluator = Evaluator(table, table.num_rows)
    found = evaluator(expression)
    assert found.type == BOOL
    assert evaluator.errors(expression) is None
    wanted = [oracle.evaluate(expression, row) for row in table.to_pylist()]
    assert found.to_pylist() == wanted, str(expression)
    return wanted


@pytest.mark.parametrize("escape", ["\\", "/", "%", "_", "a", "é", "😀"])
def test_like_equals_row_by_row(escape: str):
    seen: set[bool | None] = set()
    for seed in range(10):
        seen |= {*check(Call("like", (TEXT, PATTERN, Literal(escape, STRING)), BOOL), table_of(seed, escape))}
    assert seen == {True, False, None}


def test_backslash_is_the_default_escape():
    plain, named = (Call("like", (TEXT, PATTERN, *more), BOOL) for more in ((), (Literal("\\", STRING),)))
    for seed in range(5):
        table = table_of(seed)
        assert check(plain, table) == check(named, table)


@pytest.mark.parametrize("function", SEARCHES)
def test_searches_equal_row_by_row(function: str):
    rng = random.Random(1)
    for _ in range(5):
        texts = [draw_text(rng, LETTERS, 6) for _ in range(200)]
        parts = [(text or "")[rng.choice((0, 0, 1)) :][: rng.choice((1, 2, 9))] for text in texts]
        pieces = [draw_text(rng, LETTERS, 2) if rng.random() < 0.3 else part for part in parts]
        table = pa.table({"text": pa.array(texts, STRING), "pattern": pa.array(pieces, STRING)})
        assert set(check(Call(function, (TEXT, PATTERN), BOOL), table)) == {True, False, None}


@pytest.mark.parametrize("function", ["like", *SEARCHES])
def test_a_constant_text_is_searched_with_patterns_of_rows(function: str):
    for text in ("ab", "", "é%_", None):
        check(Call(function, (Literal(text, STRING), PATTERN), BOOL), table_of(2))


@pytest.mark.parametrize("function", ["like", *SEARCHES])
def test_chunked_and_sliced_columns_are_searched(function: str):
    call, table = Call(function, (TEXT, PATTERN), BOOL), table_of(3)
    empty = pa.table({"text": pa.array(["", None], STRING), "pattern": pa.array(["", ""], STRING)})
    nothing = pa.table({name: pa.nulls(3, STRING) for name in ("text", "pattern")})
    chunks = pa.concat_tables([table.slice(5, 9), table.slice(1, 20)])
    for layout in (table.slice(0, 0), table.slice(7, 50), chunks, empty, nothing):
        check(call, layout)


def test_a_pattern_may_be_an_expression():
    check(Call("like", (TEXT, Call("concat", (Literal("%", STRING), PATTERN), STRING)), BOOL), table_of(4))
    constant = Call("concat", (Literal("a/", STRING), Literal("%%", STRING)), STRING)
    check(Call("like", (TEXT, constant, Literal("/", STRING)), BOOL), table_of(4))


@pytest.mark.parametrize("escape", ["\\", "/"])
def test_like_equals_duckdb(escape: str):
    """Patterns that end with the escape character are left out: DuckDB refuses them."""
    rows = [row for seed in range(10) for row in table_of(seed, escape).to_pylist()]
    rows = [row for row in rows if not (row["pattern"] or "").endswith(escape)]
    table = pa.Table.from_pylist(rows, schema=table_of(0).schema)
    judge = duckdb.connect()
    judge.register("rows", table)
    wanted = judge.execute(f"SELECT text LIKE pattern ESCAPE '{escape}' FROM rows").fetchall()
    assert check(Call("like", (TEXT, PATTERN, Literal(escape, STRING)), BOOL), table) == [value for (value,) in wanted]
    assert len(rows) > 2000


def test_a_pattern_of_many_parts_takes_no_exponential_time():
    """Backtracking would try all 2000²⁰ ways to assign `a`s to the parts."""
    texts, patterns = ["a" * 2000, "a" * 2000 + "b"], ["%a" * 20 + "b"] * 2
    table = pa.table({"text": pa.array(texts), "pattern": pa.array(patterns)})
    assert Evaluator(table, 2)(Call("like", (TEXT, PATTERN), BOOL)).to_pylist() == [False, True]
