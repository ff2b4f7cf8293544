"""The target interface of the shell: the same tests for an embedded session and for a remote service."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headrace.cli.shell.embedded import EmbeddedTarget, open_demo_session
from headrace.cli.shell.executor import StatementRunner
from headrace.cli.shell.parser import parse_statement
from headrace.cli.shell.remote import open_remote
from headrace.cli.shell.tokenizer import split_statements
from headrace.cli.spark_options import SparkOptions
from headrace.client import RemoteSession, ServiceUnreachableError
from headrace.errors import HeadraceError, NameTakenError, NotFoundError, SessionError, SqlError
from headrace.service.auth import TokenRegistry
from support.shell_targets import embedded_target, remote_target, serve_session, wait_until

ROWS = "SELECT k, v FROM t WHERE v > 0"
SUMS = "SELECT window_start, k, SUM(v) AS s FROM TUMBLE(t, '10 seconds') GROUP BY k"


@pytest.fixture(params=[embedded_target, remote_target], ids=["embedded", "remote"])
def opened_target(request):
    with request.param() as opened:
        yield opened


@pytest.fixture
def target(opened_target):
    return opened_target[0]


@pytest.fixture
def append(opened_target):
    return opened_target[1]


def read_rows(table: pa.Table) -> list[tuple]:
    return [tuple(row.values()) for row in table.to_pylist()]


def take_rows(tables, count: int) -> list[tuple]:
    """Take tables until they have `count` rows."""
    taken_rows = []
    while len(taken_rows) < count:
        taken_rows += read_rows(next(tables))
    return taken_rows


def test_sinks_of_a_live_query_are_added_listed_and_taken_away(target):
    def run(text: str) -> list:
        return list(StatementRunner(target).run(parse_statement(split_statements(f"{text};")[0][0])))

    def list_sinks() -> list[tuple]:
        return [(row["query"], row["number"], row["sink"], row["state"]) for row in run("SHOW SINKS")[0].rows.to_pylist()]

    target.add(ROWS, "q")
    assert list_sinks() == [("q", 0, "memory", "ok")]
    (changed,) = run("ALTER QUERY q ADD SINK WITH (sink = 'noop')")
    assert (changed.verb, changed.query.name) == ("changed", "q")
    assert list_sinks() == [("q", 0, "memory", "ok"), ("q", 1, "noop", "ok")]
    run("ALTER QUERY q DROP SINK 1")
    wait_until(lambda: list_sinks() == [("q", 0, "memory", "ok")])
    with pytest.raises(HeadraceError, match="sink 7 does not exist"):
        run("ALTER QUERY q DROP SINK 7")


def test_a_query_is_created_with_a_sink_and_keeps_it_when_it_is_replaced(target):
    runner = StatementRunner(target)

    def run(text: str) -> list[str]:
        return [outcome.verb for outcome in runner.run(parse_statement(split_statements(f"{text};")[0][0]))]

    assert run("CREATE OR REPLACE QUERY q WITH (sink = 'noop') AS SELECT k FROM t") == ["added"]
    assert run("CREATE OR REPLACE QUERY q AS SELECT k + 1 AS k FROM t") == ["replaced"]
    query = target._session.query("q")
    sinks = [sink["kind"] for sink in query.info["sinks"]] if hasattr(query, "info") else [sink.kind for sink in query.sinks]
    assert sinks == ["memory", "noop"]
    assert run("DROP QUERY q") == ["removed"]
    assert run("CREATE OR REPLACE QUERY q AS SELECT k FROM t") == ["added"]


def test_streams_are_listed(target, append):
    append((1, 1, 0), (2, 2, 1))
    wait_until(lambda: target.streams()[0].rows == 2)
    (stream,) = target.streams()
    assert (stream.name, stream.source, stream.stream.time, stream.stream.delay) == ("t", "memory", "time", 1_000_000)
    assert stream.columns == {"k": "INT", "v": "BIGINT", "time": "TIMESTAMP"}
    age = (datetime.now(UTC) - datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)).total_seconds()
    assert stream.lag_seconds == pytest.approx(age, abs=60)


def test_a_query_is_added_and_removed(target):
    added = target.add(ROWS, "q")
    assert (added.name, added.sql, added.status, added.columns) == ("q", ROWS, "live", {"k": "INT", "v": "BIGINT"})
    assert added.deployment_seconds > 0
    assert [query.name for query in target.queries()] == ["q"]
    assert target.query("q").error == ""
    target.remove("q")
    assert target.queries() == []
    wait_until(lambda: target.query("q").status == "removed")


def test_an_invalid_name_is_refused(target):
    with pytest.raises(HeadraceError, match="invalid query name"):
        target.add(ROWS, "a\u202eb")
    assert target.queries() == []


def test_a_stream_is_dropped(target):
    target.add(ROWS, "q")
    with pytest.raises(HeadraceError, match="stream 't' is read by 1 query") as caught:
        target.drop_stream("t", cascade=False)
    assert caught.value.detail == "queries: q"
    target.drop_stream("t", cascade=True)
    assert (target.streams(), target.queries()) == ([], [])
    with pytest.raises(NotFoundError, match="stream 't' does not exist"):
        target.drop_stream("t", cascade=False)


def test_names_are_generated(target):
    first, second = target.add(ROWS, None), target.add(ROWS, None)
    assert first.name != second.name


def test_a_query_is_replaced(target, append):
    target.add(ROWS, "q")
    assert target.replace("q", SUMS).columns == {"window_start": "TIMESTAMP", "k": "INT", "s": "BIGINT"}
    assert [(query.name, query.sql) for query in target.queries()] == [("q", SUMS)]
    with pytest.raises(SqlError):
        target.replace("q", "SELECT nothing FROM t")
    assert target.query("q").sql == SUMS


def test_sql_is_checked_without_adding_a_query(target):
    assert target.check(SUMS).names == ["window_start", "k", "s"]
    with pytest.raises(SqlError, match="unknown column 'w'") as caught:
        target.check("SELECT k,\n w FROM t")
    assert caught.value.place.startswith("line 2, column 2:")
    assert target.queries() == []


def test_invalid_sql_and_names_are_refused(target):
    with pytest.raises(SqlError, match="unknown column") as caught:
        target.add("SELECT w FROM t", "q")
    assert caught.value.place.startswith("line 1, column 8:")
    target.add(ROWS, "q")
    with pytest.raises(NameTakenError):
        target.add(ROWS, "q")
    for act in (target.remove, target.query, lambda name: target.results(name, None), lambda name: next(target.follow(name, 0))):
        with pytest.raises(NotFoundError, match="query 'none'"):
            act("none")


def test_explain_names_the_queries(target):
    target.add(SUMS, "sums")
    assert "sums" in target.explain()


def test_results_return_the_last_rows(target, append):
    target.add(ROWS, "q")
    assert target.results("q", None).num_rows == 0
    append((1, 1, 0), (2, 2, 1), (3, 0, 2))
    append((4, 4, 3))
    wait_until(lambda: target.query("q").emitted == 3)
    assert read_rows(target.results("q", None)) == [(1, 1), (2, 2), (4, 4)]
    assert read_rows(target.results("q", 2)) == [(2, 2), (4, 4)]
    assert target.results("q", 20).schema.names == ["k", "v"]
    target.remove("q")
    assert read_rows(target.results("q", 1)) == [(4, 4)]


@pytest.mark.parametrize(("back", "before"), [(0, []), (1, [(2, 2)]), (9, [(1, 1), (2, 2)]), (None, [(1, 1), (2, 2)])])
def test_follow_returns_earlier_and_new_rows(target, append, back, before):
    """Earlier rows  |1|2|  and new rows  |3|4|  each once."""
    target.add(ROWS, "q")
    append((1, 1, 0))
    append((2, 2, 1))
    wait_until(lambda: target.query("q").emitted == 2)
    tables = target.follow("q", back)
    assert read_rows(next(tables)) == before
    append((3, 3, 2))
    append((4, 4, 3))
    assert take_rows(tables, 2) == [(3, 3), (4, 4)]


def test_follow_returns_empty_tables_while_idle(target):
    target.add(ROWS, "q")
    tables = target.follow("q", 0)
    assert [next(tables).num_rows for _ in range(3)] == [0, 0, 0]


def test_follow_ends_with_the_query(target, append):
    target.add(ROWS, "q")
    append((1, 1, 0))
    wait_until(lambda: target.query("q").emitted == 1)
    tables = target.follow("q", None)
    assert take_rows(tables, 1) == [(1, 1)]
    timer = threading.Timer(0.03, target.remove, ["q"])
    timer.start()
    assert [table.num_rows for table in tables if table.num_rows] == []
    timer.join()
    assert [read_rows(table) for table in target.follow("q", None) if table.num_rows] == [[(1, 1)]]


def test_a_failed_query_does_not_fail_others(target, append):
    target.add("SELECT v * 9223372036854775807 AS w FROM t", "bad")
    target.add(ROWS, "good")
    append((1, 5, 0))
    wait_until(lambda: target.query("bad").status == "failed")
    assert "overflow" in target.query("bad").error.lower()
    wait_until(lambda: target.query("good").emitted == 1)
    assert [query.name for query in target.queries() if query.status == "live"] == ["good"]


def test_results_span_several_pages(target, append):
    """More rows than a page of the service holds."""
    target.add("SELECT v FROM t", "q")
    append(*[(1, number, number % 3000) for number in range(25_000)])
    wait_until(lambda: target.query("q").emitted == 25_000)
    assert sorted(target.results("q", None)["v"].to_pylist()) == list(range(25_000))
    assert target.results("q", 3).num_rows == 3
    assert next(target.follow("q", 5)).num_rows == 5
    assert sum(table.num_rows for table, _ in zip(target.follow("q", None), range(4), strict=False)) == 25_000


def test_a_service_with_tokens_needs_a_token(tmp_path):
    (tmp_path / "tokens").write_text("read ann a-secret-of-ann-and-nobody-else\n")
    (tmp_path / "tokens").chmod(0o600)
    with serve_session(TokenRegistry.load(tmp_path / "tokens")) as (url, _):
        with pytest.raises(HeadraceError, match="token") as caught:
            open_remote(url, None)
        assert "--token" in caught.value.hint
        with pytest.raises(HeadraceError, match=f"'{url}': this service requires a valid token"):
            open_remote(url, "a-guess-that-is-not-right")
        target = open_remote(url, "a-secret-of-ann-and-nobody-else")
        assert target.streams()[0].name == "t"
        with pytest.raises(HeadraceError, match="has only the role read"):
            target.add(ROWS, "q")
        target.close()


def test_follow_survives_a_short_outage(monkeypatch):
    failures_left, ask = [0], RemoteSession.ask

    def fail_or_ask(session, *args, **options):
        if failures_left[0]:
            failures_left[0] -= 1
            raise ServiceUnreachableError("no service answers")
        return ask(session, *args, **options)

    monkeypatch.setattr(RemoteSession, "ask", fail_or_ask)
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("headrace.client.time", clock)
    with remote_target() as (target, append):
        target.add(ROWS, "q")
        tables = target.follow("q", 0)
        next(tables)
        append((1, 1, 0))
        failures_left[0] = 3
        assert take_rows(tables, 1) == [(1, 1)]
        assert len(pauses) == 3
        failures_left[0] = 10**9
        with pytest.raises(SessionError, match="no service answers"):
            list(tables)
        assert sum(pauses) > 10
        failures_left[0] = 0


def test_an_unreachable_service_is_refused():
    with pytest.raises(HeadraceError, match="no service answers"):
        open_remote("http://127.0.0.1:1", None)


def test_the_demo_session_generates_rows_at_once():
    target = EmbeddedTarget(open_demo_session("local", SparkOptions()))
    try:
        wait_until(lambda: all(stream.rows for stream in target.streams()))
        assert [stream.name for stream in target.streams()] == ["purchases", "ads"]
        assert all(stream.lag_seconds < 60 for stream in target.streams())
    finally:
        target.close()


def test_the_number_of_partitions_is_changed(target, append):
    assert target.rescale(3) == (2, 3, False)
    append((1, 1, 0))
    wait_until(lambda: target.rescale(3) == (3, 3, False))
    assert target.rescale("auto") == (3, 3, True)
    with pytest.raises(HeadraceError):
        target.rescale(10_001)
