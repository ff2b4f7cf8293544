"""`headrace sql` without a terminal: scripts from standard input, statements of the command line, JSON, exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys

import pytest

from headrace.cli.shell.remote import open_remote
from support.shell_targets import serve_session, wait_until

ALL = "it will see all rows: reading starts with the first SELECT, TAIL or RESULTS"
FILES = ("--backend", "local")


@pytest.fixture
def sql(headrace, session_file, monkeypatch):
    """Run a script over the two small files of `session_file`, whose windows are closed by rows of later times."""

    def run(script, *words, place=None):
        monkeypatch.setattr("sys.stdin", io.StringIO(script))
        return headrace("sql", place or session_file(queries=""), *words)

    return run


def documents(said):
    return [json.loads(line) for line in said.out.splitlines()]


def test_a_script(sql):
    said = sql("""
        -- all queries that are added before somebody asks for results see all rows
        ADD SELECT k, v FROM t WHERE v > 6 AS large;
        ADD total AS
            SELECT window_start, SUM(v) AS s
            FROM TUMBLE(t, '10 seconds');
        TAIL total FROM BEGINNING LIMIT 1;
        RESULTS large
    """)
    assert said.code == 0, said.err
    assert said.out == (
        f"large added, accepted\n{ALL}\ntotal added, accepted\n{ALL}\n"
        "window_start          s\n"
        "-------------------  --\n"
        "2026-01-01 00:00:00  30\n"
        "k   v\n-  --\n1  10\n2  20\n3   9\n3 rows\n"
    )


def test_who_comes_late_is_told_so(sql):
    """Rows of files are read once:  |ADD early|SELECT: all rows are read|ADD late: none is left|."""
    said = sql("ADD SELECT k FROM t AS early; RESULTS early; ADD SELECT k FROM t AS late; SELECT k FROM t FOR 100 ms;")
    assert said.code == 0, said.err
    assert "5 rows" in said.out
    assert said.out.count("it sees only new rows") == 2


def test_json(sql):
    said = sql("SELECT k, v FROM t WHERE k = 1 LIMIT 2; SHOW QUERIES; SHOW STREAMS;", "--json")
    assert said.code == 0, said.err
    kinds = [one["kind"] for one in documents(said)]
    assert kinds == ["added", "row", "row", "ended", "removed", "stream"]
    assert [one["row"] for one in documents(said) if one["kind"] == "row"] == [{"k": 1, "v": 10}, {"k": 1, "v": None}]


def test_the_queries_of_the_file_are_there(headrace, session_file):
    said = headrace("sql", session_file(), "-c", "SHOW QUERIES", "--json", *FILES)
    assert [(one["kind"], one["name"]) for one in documents(said)] == [("query", "total")]
    assert said.err == ""


def test_the_first_error_ends_it(sql):
    said = sql("SHOW STREAMS;\n\n ADD SELECT nothing\n FROM t AS q;\nSHOW STREAMS;")
    assert said.code == 1
    assert said.out.count("stream ") == 1
    assert "error: line 3: unknown column 'nothing'" in said.err
    assert "line 3, column 13:\n  ADD SELECT nothing\n             ^" in said.err


def test_keep_going(sql):
    said = sql("TAIL none;\nFROBNICATE;\nTAIL none LIMIT 1;\nDESCRIBE t;", "--keep-going")
    assert said.code == 1
    assert "line 1: TAIL in a script needs an end" in said.err
    assert "line 2: unknown statement 'FROBNICATE'" in said.err
    assert "line 3: query 'none' does not exist" in said.err
    assert "column  type" in said.out


def test_errors_in_json(sql):
    said = sql("HELP;\nTAIL none LIMIT 1;\nSHOW STREAMS;", "--json", "--keep-going")
    assert said.code == 1
    (error,) = [one for one in documents(said) if one["kind"] == "error"]
    assert error == {"kind": "error", "line": 2, "error": "query 'none' does not exist", "detail": "queries: none"}
    assert documents(said)[-1]["kind"] == "stream"


@pytest.mark.parametrize("statement", ["SELECT k FROM t;", "ADD SELECT k FROM t AS q; TAIL q;"])
def test_following_needs_an_end(sql, statement):
    said = sql(statement)
    assert said.code == 1
    assert "in a script needs an end" in said.err
    assert "LIMIT 10 or FOR 5 SECONDS" in said.err


def test_quit_ends_a_script(sql):
    said = sql("DESCRIBE t; QUIT; FROBNICATE;")
    assert said.code == 0
    assert said.err == ""


def test_nothing_to_do(sql):
    said = sql("  -- nothing\n")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_statements_of_the_command_line(headrace, session_file):
    said = headrace("sql", session_file(queries=""), "-c", "DESCRIBE t; HELP", "-c", "SHOW PLAN;", *FILES)
    assert said.code == 0
    assert said.out.index("column  type") < said.out.index("SELECT …") < said.out.index("one shared pipeline")
    said = headrace("sql", session_file(queries=""), "-c", "FROBNICATE", *FILES)
    assert said.code == 1
    assert "error: unknown statement 'FROBNICATE'" in said.err


def test_a_session_of_its_own_with_made_up_streams(headrace):
    said = headrace("sql", *FILES, "-c", "SELECT user_id, price FROM purchases LIMIT 3", "--json")
    assert said.code == 0, said.err
    assert [one["kind"] for one in documents(said)] == ["added", "row", "row", "row", "ended", "removed"]
    assert "a session in this process (local) with generated streams" in said.err


def test_wrong_usage(headrace, tmp_path):
    assert headrace("sql", "http://127.0.0.1:1", *FILES, "-c", "HELP").code == 2
    said = headrace("sql", "127.0.0.1:1", "-c", "HELP")
    assert said.code == 1
    assert "no service answers at 'http://127.0.0.1:1'" in said.err
    said = headrace("sql", tmp_path / "none.toml", "-c", "HELP")
    assert said.code == 1
    assert "none.toml" in said.err


def test_a_service(headrace, monkeypatch):
    with serve_session() as (url, append):
        said = headrace("sql", url, "-c", "ADD SELECT k, v FROM t AS q; SHOW QUERIES", "--json")
        assert [one["kind"] for one in documents(said)] == ["added", "query"]
        append((1, 10, 0))
        monkeypatch.setenv("HEADRACE_TOKEN", "is not asked for")
        said = headrace("sql", url.removeprefix("http://"), "-c", "TAIL q FROM BEGINNING LIMIT 1; REMOVE q", "--json")
        assert [one["kind"] for one in documents(said)] == ["row", "ended", "removed"]


def test_a_service_is_found(headrace, monkeypatch):
    with serve_session() as (url, _):
        monkeypatch.setattr("headrace.cli.sql.PORT", int(url.rpartition(":")[2]))
        monkeypatch.setattr("headrace.cli.sql.SERVICE", url)
        said = headrace("sql", "-c", "DESCRIBE t")
        assert said.code == 0
        assert f"headrace sql: the service at {url}" in said.err


def _hear_interrupts() -> None:
    """What runs in the background of a shell, as these tests may, ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def started(*words):
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "sql", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, preexec_fn=_hear_interrupts) as process:  # noqa: PLW1509  no threads here
        try:
            yield process
        finally:
            process.kill()


def is_live(target):
    return lambda: [query.status for query in target.queries()] == ["live"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_watched_query_goes_with_its_shell(number, code):
    with (
        serve_session() as (url, append),
        contextlib.closing(open_remote(url, None)) as target,
        started(url, "-c", "SELECT k FROM t", "--json") as process,
    ):
        wait_until(is_live(target))
        append((5, 5, 0))
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert lines[1]["row"] == {"k": 5}
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
        assert process.returncode == code, told
        assert "Traceback" not in told
        assert target.queries() == []


def test_whoever_reads_may_stop_to():
    with (
        serve_session() as (url, append),
        contextlib.closing(open_remote(url, None)) as target,
        started(url, "-c", "SELECT k FROM t", "--json") as process,
    ):
        wait_until(is_live(target))
        assert json.loads(process.stdout.readline())["kind"] == "added"
        process.stdout.close()
        append((5, 5, 0))
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
        assert target.queries() == []
