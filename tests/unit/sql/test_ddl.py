"""Statements about streams and queries: their parser, and what a session makes of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import HeadraceError, NotFoundError, SchemaError, SqlError
from headrace.sql.ddl import (
    AddSinkStatement,
    CreateQuery,
    CreateStream,
    DescribeObject,
    DropQuery,
    DropSinkStatement,
    DropStreamStatement,
    ShowObjects,
    parse_ddl,
)

RATE = (
    "CREATE STREAM p (WATERMARK FOR time AS time - INTERVAL '2 seconds')"
    " WITH (connector = 'rate', rows_per_second = 1000, rows = 500)"
)


def test_a_stream_has_columns_a_watermark_and_options():
    text = """
        CREATE STREAM purchases (
            user_id INT, price DECIMAL(10, 2), `a ``b` STRING,  -- a comment
            time TIMESTAMP, WATERMARK FOR time AS time - INTERVAL '2' MINUTES
        ) WITH (connector = 'kafka', Topic = 'it''s', 'properties.sasl.password' = 'env:X', max_rows_per_batch = -5, x = true);
    """
    assert parse_ddl(text) == CreateStream(
        "purchases",
        "`user_id` INT, `price` DECIMAL(10, 2), `a ``b` STRING, `time` TIMESTAMP",
        "time",
        "2 minutes",
        {
            "connector": "kafka",
            "topic": "it's",
            "properties.sasl.password": "env:X",
            "max_rows_per_batch": "-5",
            "x": "true",
        },
    )


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("CREATE STREAM s (t TIMESTAMP, WATERMARK FOR t AS t) WITH ()", CreateStream("s", "`t` TIMESTAMP", "t", "0 seconds")),
        ("drop stream `a b` cascade;", DropStreamStatement("a b", cascade=True)),
        ("CREATE QUERY q AS SELECT ';' FROM s;", CreateQuery("q", "SELECT ';' FROM s")),
        (
            "CREATE OR REPLACE MATERIALIZED VIEW q WITH (sink = 'jsonl:out') AS SELECT 1",
            CreateQuery("q", "SELECT 1", {"sink": "jsonl:out"}, replaces=True),
        ),
        ("DROP QUERY q", DropQuery("q")),
        (
            "alter query `a b` add sink with (sink = 'kafka', 'linger.ms' = 5);",
            AddSinkStatement("a b", {"sink": "kafka", "linger.ms": "5"}),
        ),
        ("ALTER QUERY q DROP SINK 12", DropSinkStatement("q", 12)),
        ("ALTER QUERY q DROP SINK 0 DISCARD", DropSinkStatement("q", 0, discard=True)),
        ("SHOW SINKS", ShowObjects("sinks")),
        ("show streams;", ShowObjects("streams")),
        ("DESCRIBE s", DescribeObject("s")),
    ],
)
def test_statements(text: str, statement: object):
    assert parse_ddl(text) == statement


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE x", "expected STREAM, QUERY or MATERIALIZED VIEW, found 'TABLE'\nline 1, column 8:"),
        ("CREATE STREAM p (a) WITH ()", "expected a type, found ')'"),
        ("CREATE STREAM p (a INT) WITH ()", "stream 'p' has no event time"),
        ("CREATE STREAM p (a INT, WATERMARK FOR b AS c) WITH ()", "expected 'b', the column of the watermark, found 'c'"),
        ("CREATE STREAM p (a INT, WATERMARK FOR a AS a) WITH (x = 1, X = 2)", "another option than 'X'"),
        ("CREATE STREAM p (a INT, WATERMARK FOR a AS a) WITH (x = y)", "expected a text in quotes, a number, TRUE or FALSE"),
        ("CREATE QUERY q AS", "expected a query, found the end"),
        ("DROP STREAM s now", "expected the end of the statement, found 'now'"),
        ("create stream 'x", "query cannot be read"),
        ("", "expected CREATE or ALTER or DROP or SHOW or DESCRIBE, found the end"),
    ],
)
def test_errors_have_a_place(text: str, message: str):
    with pytest.raises(SqlError) as caught:
        parse_ddl(text)
    assert message in str(caught.value)


def test_a_session_runs_statements(tmp_path: Path):
    with hr.Session(tmp_path, backend="local") as session:
        session.sql(RATE)
        query = session.sql("CREATE QUERY q AS SELECT COUNT(*) AS n FROM TUMBLE(p, '1 second')")
        assert isinstance(query, hr.Query)
        assert session.sql("SHOW STREAMS").to_pylist()[0]["source"] == "rate"
        assert session.sql("SHOW QUERIES")["name"].to_pylist() == ["q"]
        assert session.sql("DESCRIBE P")["column"].to_pylist()[0] == "user_id"
        assert session.sql("DESCRIBE q").to_pylist() == [{"column": "n", "type": "BIGINT"}]
        assert session.streams()["p"]["delay"] == 2_000_000
        session.sql("CREATE OR REPLACE QUERY q AS SELECT COUNT(*) AS m FROM TUMBLE(p, '1 second')")
        assert session.sql("DESCRIBE q")["column"].to_pylist() == ["m"]
        session.sql("DROP QUERY q")
        session.sql("DROP STREAM p")
        session.advance()
        assert session.sql("SHOW STREAMS").num_rows == 0
        with pytest.raises(NotFoundError):
            session.sql("DESCRIBE p")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("a INT", "connector = 'kafka', topic = 'x'", "connector 'kafka' needs option 'brokers'"),
        ("", "connector = 'kafka', topic = 'x', brokers = 'h:1'", "connector 'kafka' needs columns"),
        ("a INT", "connector = 'kavka'", "unknown connector 'kavka'"),
        ("a INT", "topic = 'x'", "unknown connector ''"),
        ("a INT", "connector = 'kafka', x = 1", "connector 'kafka' has no option 'x'"),
        ("a INT", "connector = 'rate', rows_per_second = 1", "connector 'rate' has columns of its own"),
        (
            "",
            "connector = 'rate', rows_per_second = 'many'",
            "option 'rows_per_second' of connector 'rate' has the invalid",
        ),
        ("a INT, t TIMESTAMP", "connector = 'files', path = 'x', idle = 'soon'", "invalid duration 'soon'"),
    ],
)
def test_options_of_connectors_are_checked(tmp_path: Path, columns: str, options: str, message: str):
    declared = f"{columns}, " if columns else ""
    with hr.Session(tmp_path, backend="local") as session, pytest.raises(HeadraceError) as caught:
        session.sql(f"CREATE STREAM s ({declared}WATERMARK FOR t AS t) WITH ({options})")
    assert message in str(caught.value)


def test_options_of_the_format_of_files(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"at": 5, "payload": {"v": 7}}\n')
    with hr.Session(tmp_path / "state", backend="local") as session:
        session.sql(
            f"CREATE STREAM s (v INT, at TIMESTAMP, WATERMARK FOR at AS at) WITH (connector = 'files',"
            f" path = '{tmp_path}/*.jsonl', 'format.field.v' = 'payload.v', 'format.timestamp_format' = 'epoch_s')"
        )
        query = session.add("SELECT v, at FROM s")
        session.drain()
        assert query.results().to_pylist() == [{"v": 7, "at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)}]


def test_files_and_options_of_the_stream(tmp_path: Path):
    (tmp_path / "a.csv").write_text("v;t\n1;2026-01-01T00:00:00Z\n")
    with hr.Session(tmp_path / "state", backend="local") as session:
        session.sql(
            f"CREATE STREAM s (v INT, t TIMESTAMP, WATERMARK FOR t AS t)"
            f" WITH (connector = 'files', path = '{tmp_path}/*.csv', delimiter = ';', max_ahead = '1 day')"
        )
        query = session.sql("CREATE QUERY q AS SELECT v FROM s")
        session.advance()
        assert isinstance(query, hr.Query)
        assert session.streams()["s"]["max_ahead"] == 86_400_000_000
        with pytest.raises(SchemaError, match="the source has no partitions"):
            session.sql(
                f"CREATE STREAM u (t TIMESTAMP, WATERMARK FOR t AS t)"
                f" WITH (connector = 'files', path = '{tmp_path}', watermark_by = 'partition')"
            )
