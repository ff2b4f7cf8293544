"""Statements of the shell: how they are parsed, and the errors of invalid statements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.shell.parser import (
    AddStatement,
    AlterStatement,
    DescribeStatement,
    DropStatement,
    ExplainStatement,
    HelpStatement,
    QuitStatement,
    RemoveStatement,
    ReplaceStatement,
    RescaleStatement,
    ResultsStatement,
    SelectStatement,
    ShowKind,
    ShowStatement,
    SqlText,
    StopCondition,
    TailStatement,
    parse_statement,
)
from headrace.cli.shell.tokenizer import split_statements
from headrace.errors import SqlError
from headrace.sql.parser import quote_identifier


def parse_text(text: str):
    (piece,), rest = split_statements(text if text.endswith(";") else f"{text}\n;")
    assert not rest.significant_tokens
    return parse_statement(piece)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 FROM s", SelectStatement(SqlText("SELECT 1 FROM s"))),
        ("select * from s limit 10", SelectStatement(SqlText("select * from s"), StopCondition(rows=10))),
        ("SELECT * FROM s FOR 5 SECONDS", SelectStatement(SqlText("SELECT * FROM s"), StopCondition(seconds=5))),
        ("SELECT * FROM s FOR '1 minute 30 seconds' LIMIT 3", SelectStatement(SqlText("SELECT * FROM s"), StopCondition(3, 90))),
        ("SELECT * FROM s LIMIT 3 FOR 250 ms", SelectStatement(SqlText("SELECT * FROM s"), StopCondition(3, 0.25))),
        ("SELECT * FROM (SELECT a FROM s LIMIT 3)", SelectStatement(SqlText("SELECT * FROM (SELECT a FROM s LIMIT 3)"))),
        ("(SELECT 1)", SelectStatement(SqlText("(SELECT 1)"))),
        ("WITH a AS (SELECT 1) SELECT * FROM a", SelectStatement(SqlText("WITH a AS (SELECT 1) SELECT * FROM a"))),
        ("REMOVE a", RemoveStatement(("a",))),
        ("remove a, `b c` ,d", RemoveStatement(("a", "b c", "d"))),
        ("DROP STREAM s", DropStatement("s")),
        ("ALTER QUERY `a b` DROP SINK 1", AlterStatement("a b", "ALTER QUERY `a b` DROP SINK 1")),
        ("SHOW sinks", ShowStatement(ShowKind.sinks)),
        ("drop stream `a b` cascade", DropStatement("a b", cascade=True)),
        ("DROP QUERY `a b`", RemoveStatement(("a b",))),
        (
            "CREATE OR REPLACE QUERY q WITH (sink = 'parquet', path = 'd') AS SELECT 1",
            ReplaceStatement("q", SqlText("SELECT 1", 1, 66), adds_missing=True, sink={"kind": "parquet", "path": "d"}),
        ),
        ("RESCALE 8", RescaleStatement(8)),
        ("rescale auto", RescaleStatement(None)),
        ("SHOW QUERIES", ShowStatement(ShowKind.queries)),
        ("show\nstreams", ShowStatement(ShowKind.streams)),
        ("SHOW PLAN -- all of it", ShowStatement(ShowKind.plan)),
        ("EXPLAIN", ExplainStatement()),
        ("EXPLAIN q", ExplainStatement("q")),
        ("EXPLAIN `select`", ExplainStatement("select")),
        ("EXPLAIN SELECT 1 LIMIT 3", ExplainStatement(SqlText("SELECT 1 LIMIT 3", 1, 9))),
        ("EXPLAIN\n  SELECT 1", ExplainStatement(SqlText("SELECT 1", 2, 3))),
        ("DESCRIBE s", DescribeStatement("s")),
        ("DESC s", DescribeStatement("s")),
        ("TAIL q", TailStatement("q")),
        ("TAIL q FOR 5 SECONDS", TailStatement("q", StopCondition(seconds=5))),
        ("TAIL q LIMIT 10", TailStatement("q", StopCondition(rows=10))),
        ("TAIL q FROM BEGINNING LIMIT 10 FOR 1.5 s", TailStatement("q", StopCondition(10, 1.5), from_beginning=True)),
        ("TAIL q FROM NOW", TailStatement("q")),
        ("TAIL limit LIMIT 1", TailStatement("limit", StopCondition(rows=1))),
        ("RESULTS q", ResultsStatement("q")),
        ("RESULTS q LIMIT 7", ResultsStatement("q", 7)),
        ("HELP", HelpStatement()),
        ("quit", QuitStatement()),
        ("EXIT", QuitStatement()),
    ],
)
def test_statements_are_parsed(text, expected):
    assert parse_text(text) == expected


@pytest.mark.parametrize(
    ("text", "sql", "name"),
    [
        ("ADD SELECT a FROM s AS q", "SELECT a FROM s", "q"),
        ("ADD SELECT a FROM s", "SELECT a FROM s", None),
        # the last AS names the query, even where it could be an alias
        ("ADD SELECT a AS b FROM s AS t", "SELECT a AS b FROM s", "t"),
        ("ADD SELECT a AS b", "SELECT a", "b"),
        ("ADD SELECT a FROM s AS t AS q", "SELECT a FROM s AS t", "q"),
        # a name in front is unambiguous
        ("ADD q AS SELECT a FROM s AS t", "SELECT a FROM s AS t", "q"),
        ("ADD q AS WITH c AS (SELECT 1) SELECT * FROM c AS t", "WITH c AS (SELECT 1) SELECT * FROM c AS t", "q"),
        ("ADD `select` AS SELECT 1", "SELECT 1", "select"),
        # an AS inside parentheses, or before something other than a name, belongs to the SQL
        ("ADD SELECT CAST(a AS INT) FROM s", "SELECT CAST(a AS INT) FROM s", None),
        ("ADD SELECT * FROM (SELECT a FROM s AS t)", "SELECT * FROM (SELECT a FROM s AS t)", None),
        ("ADD WITH c AS (SELECT 1) SELECT * FROM c", "WITH c AS (SELECT 1) SELECT * FROM c", None),
        ("ADD SELECT a FROM s WHERE b = 'x AS y'", "SELECT a FROM s WHERE b = 'x AS y'", None),
        ("ADD SELECT a FROM s AS 'q'", "SELECT a FROM s AS 'q'", None),
        ("ADD SELECT a FROM s -- AS q", "SELECT a FROM s", None),
        ("ADD SELECT a -- AS b\nFROM s /* as */ AS /* c */ q", "SELECT a -- AS b\nFROM s", "q"),
        ("ADD SELECT a FROM s AS `of, all; things`", "SELECT a FROM s", "of, all; things"),
        ("ADD (SELECT a FROM s) AS q", "(SELECT a FROM s)", "q"),
        ("add select a from s as as as q", "select a from s as as", "q"),
    ],
)
def test_add_takes_the_name_before_or_after_the_query(text, sql, name):
    added = parse_text(text)
    assert isinstance(added, AddStatement)
    assert (added.sql.text, added.name) == (sql, name)


def test_replace_takes_the_name_before_or_after_the_query():
    assert parse_text("REPLACE q AS SELECT 1") == ReplaceStatement("q", SqlText("SELECT 1", 1, 14))
    assert parse_text("REPLACE SELECT 1 AS q") == ReplaceStatement("q", SqlText("SELECT 1", 1, 9), is_name_at_end=True)


@pytest.mark.parametrize(
    ("text", "message", "place", "hint"),
    [
        ("SELEKT 1", "unknown statement 'SELEKT'", "column 1", "did you mean SELECT?"),
        ("frobnicate", "unknown statement 'frobnicate'", "column 1", "HELP; lists"),
        ("`tail` q", "unknown statement '`tail`'", "column 1", "statements: SELECT, ADD"),
        ("TAIL", "TAIL ends too early", "column 5", "usage: TAIL name"),
        ("TAIL a-b", "unexpected '-' in TAIL", "column 7", "back-quotes"),
        ("TAIL q LIMIT", "TAIL ends too early", "column 13", "usage"),
        ("TAIL q LIMIT x", "unexpected 'x' in TAIL", "column 14", "usage"),
        ("TAIL q LIMIT 0", "invalid number of rows 0", "column 14", "greater than 0"),
        ("TAIL q LIMIT 1 LIMIT 2", "unexpected 'LIMIT' in TAIL", "column 16", "usage"),
        ("TAIL q FOR 5", "unexpected '5' in TAIL", "column 12", "usage"),
        ("TAIL q FOR 5 PARSECS", "invalid duration '5 parsecs'", "column 12", "'8 seconds'"),
        ("TAIL q FOR 0 SECONDS", "invalid duration of 0 seconds", "column 12", ""),
        ("TAIL q FROM THEN", "unexpected 'THEN' in TAIL", "column 13", "usage"),
        ("SELECT a FROM s FOR 5 PARSECS", "duration '5 parsecs'", "column 21", "'8 seconds'"),
        ("SELECT a FROM s LIMIT 1 LIMIT 2", "unexpected 'LIMIT' in SELECT", "column 25", "usage: SELECT"),
        ("SHOW", "SHOW ends too early", "column 5", "QUERIES | STREAMS | SINKS | PLAN"),
        ("SHOW TABLES", "unexpected 'TABLES' in SHOW", "column 6", "QUERIES | STREAMS | SINKS | PLAN"),
        ("SHOW PLAN now", "unexpected 'now' in SHOW", "column 11", "usage"),
        ("ADD", "ADD ends too early", "column 4", "usage: ADD SELECT … AS name"),
        ("ADD q", "ADD ends too early", "column 6", "usage"),
        ("ADD q AS", "ADD ends too early", "column 9", "usage"),
        ("ADD q AS 5", "unexpected '5' in ADD", "column 10", "usage"),
        ("ADD q SELECT 1", "unexpected 'SELECT' in ADD", "column 7", "usage"),
        ("REPLACE SELECT 1", "REPLACE ends too early", "column 17", "REPLACE name AS SELECT"),
        ("REMOVE a b", "unexpected 'b' in REMOVE", "column 10", "usage"),
        ("REMOVE a,", "REMOVE ends too early", "column 10", "usage"),
        ("REMOVE ``", "unexpected '``' in REMOVE", "column 8", "usage"),
        ("EXPLAIN a b", "unexpected 'b' in EXPLAIN", "column 11", "usage"),
        ("EXIT now", "unexpected 'now' in EXIT", "column 6", ""),
        ("DESCRIBE\n\n 'x'", "unexpected ''x'' in DESCRIBE", "line 3, column 2", "usage"),
    ],
)
def test_invalid_statements_are_refused(text, message, place, hint):
    with pytest.raises(SqlError) as caught:
        parse_text(text)
    assert message in caught.value.message
    assert place in caught.value.place
    assert hint in str(caught.value)


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
QUERIES = st.sampled_from([
    "SELECT a FROM s",
    "SELECT a AS b FROM s AS t",
    "SELECT 'AS x;' FROM s",
    "WITH c AS (SELECT 1) SELECT * FROM c",
    "SELECT CAST(a AS INT) FROM TUMBLE(s, '1 second') AS t WHERE a = `b;`",
])  # fmt: skip


@given(NAMES, QUERIES)
def test_any_name_is_accepted_before_and_after_the_query(name: str, query: str):
    quoted = quote_identifier(name)
    assert parse_text(f"ADD {query} AS {quoted};") == AddStatement(SqlText(query, 1, 5), name, is_name_at_end=True)
    front = parse_text(f"ADD {quoted} AS {query};")
    assert isinstance(front, AddStatement)
    assert (front.sql.text, front.name, front.is_name_at_end) == (query, name, False)
    assert parse_text(f"TAIL {quoted};") == TailStatement(name)


@given(st.lists(QUERIES, min_size=1, max_size=5))
def test_several_statements_are_split_and_parsed(queries: list[str]):
    pieces, rest = split_statements("\n".join(f"{query};" for query in queries))
    assert [parse_statement(piece) for piece in pieces] == [SelectStatement(SqlText(query)) for query in queries]
    assert not rest.significant_tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RESCALE", "RESCALE ends too early"),
        ("RESCALE 0", "invalid number of partitions 0"),
        ("RESCALE many", "unexpected 'many' in RESCALE"),
        ("RESCALE 2 3", "unexpected '3' in RESCALE"),
    ],
)
def test_rescale_takes_one_number_or_auto(text, message):
    with pytest.raises(SqlError, match=message):
        parse_text(text)
