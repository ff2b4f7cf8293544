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

pytestmark = pytest.mark.usefixtures("preloaded")

SEES_ALL_ROWS = "it will see all rows: reading starts with the first SELECT, TAIL or RESULTS"
LOCAL = ("--backend", "local")


@pytest.fixture
def sql(headrace, session_file, monkeypatch):
    """Return a function that runs a script over the two small files of `session_file`."""

    def run(script, *options, place=None):
        monkeypatch.setattr("sys.stdin", io.StringIO(script))
        return headrace("sql", place or session_file(queries=""), *options)

    return run


def parse_documents(result):
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_script_adds_queries_and_prints_results(sql):
    result = sql("""
        -- all queries added before the first TAIL or RESULTS see all rows
        ADD SELECT k, v FROM t WHERE v > 6 AS large;
        ADD total AS
            SELECT window_start, SUM(v) AS s
            FROM TUMBLE(t, '10 seconds');
        TAIL total FROM BEGINNING LIMIT 1;
        RESULTS large
    """)
    assert result.code == 0, result.err
    assert result.out == (
        f"large added, accepted\n{SEES_ALL_ROWS}\ntotal added, accepted\n{SEES_ALL_ROWS}\n"
        "window_start          s\n"
        "-------------------  --\n"
        "2026-01-01 00:00:00  30\n"
        "k   v\n-  --\n1  10\n2  20\n3   9\n3 rows\n"
    )


def test_a_query_added_after_the_first_read_reports_new_rows_only(sql):
    """Files are read once:  |ADD early|RESULTS: all rows are read|ADD late: no rows are left|."""
    result = sql("ADD SELECT k FROM t AS early; RESULTS early; ADD SELECT k FROM t AS late; SELECT k FROM t FOR 100 ms;")
    assert result.code == 0, result.err
    assert "5 rows" in result.out
    assert result.out.count("it sees only new rows") == 2


def test_json_output(sql):
    result = sql("SELECT k, v FROM t WHERE k = 1 LIMIT 2; SHOW QUERIES; SHOW STREAMS;", "--json")
    assert result.code == 0, result.err
    kinds = [document["kind"] for document in parse_documents(result)]
    assert kinds == ["added", "row", "row", "ended", "removed", "stream"]
    assert [document["row"] for document in parse_documents(result) if document["kind"] == "row"] == [
        {"k": 1, "v": 10},
        {"k": 1, "v": None},
    ]


def test_the_queries_of_the_session_file_are_added(headrace, session_file):
    result = headrace("sql", session_file(), "-c", "SHOW QUERIES", "--json", *LOCAL)
    assert [(document["kind"], document["name"]) for document in parse_documents(result)] == [("query", "total")]
    assert result.err == ""


def test_the_first_error_ends_the_script(sql):
    result = sql("SHOW STREAMS;\n\n ADD SELECT nothing\n FROM t AS q;\nSHOW STREAMS;")
    assert result.code == 1
    assert result.out.count("stream ") == 1
    assert "error: line 3: unknown column 'nothing'" in result.err
    assert "line 3, column 13:\n  ADD SELECT nothing\n             ^" in result.err


def test_keep_going_runs_statements_after_an_error(sql):
    result = sql("TAIL none;\nFROBNICATE;\nTAIL none LIMIT 1;\nDESCRIBE t;", "--keep-going")
    assert result.code == 1
    assert "line 1: TAIL in a script needs an end" in result.err
    assert "line 2: unknown statement 'FROBNICATE'" in result.err
    assert "line 3: query 'none' does not exist" in result.err
    assert "column  type" in result.out


def test_errors_are_printed_as_json(sql):
    result = sql("HELP;\nTAIL none LIMIT 1;\nSHOW STREAMS;", "--json", "--keep-going")
    assert result.code == 1
    (error,) = [document for document in parse_documents(result) if document["kind"] == "error"]
    assert error == {"kind": "error", "line": 2, "error": "query 'none' does not exist", "detail": "queries: none"}
    assert parse_documents(result)[-1]["kind"] == "stream"


@pytest.mark.parametrize("statement", ["SELECT k FROM t;", "ADD SELECT k FROM t AS q; TAIL q;"])
def test_following_in_a_script_needs_a_limit(sql, statement):
    result = sql(statement)
    assert result.code == 1
    assert "in a script needs an end" in result.err
    assert "LIMIT 10 or FOR 5 SECONDS" in result.err


def test_quit_ends_a_script(sql):
    result = sql("DESCRIBE t; QUIT; FROBNICATE;")
    assert result.code == 0
    assert result.err == ""


def test_an_empty_script_prints_nothing(sql):
    result = sql("  -- nothing\n")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_statements_of_the_command_line(headrace, session_file):
    result = headrace("sql", session_file(queries=""), "-c", "DESCRIBE t; HELP", "-c", "SHOW PLAN;", *LOCAL)
    assert result.code == 0
    assert result.out.index("column  type") < result.out.index("SELECT …") < result.out.index("one shared pipeline")
    result = headrace("sql", session_file(queries=""), "-c", "FROBNICATE", *LOCAL)
    assert result.code == 1
    assert "error: unknown statement 'FROBNICATE'" in result.err


def test_without_a_target_a_session_with_generated_streams_starts(headrace):
    result = headrace("sql", *LOCAL, "-c", "SELECT user_id, price FROM purchases LIMIT 3", "--json")
    assert result.code == 0, result.err
    assert [document["kind"] for document in parse_documents(result)] == ["added", "row", "row", "row", "ended", "removed"]
    assert "a session in this process (local) with generated streams" in result.err


def test_a_checkpoint_keeps_the_queries_of_a_session_in_this_process(headrace, session_file, tmp_path):
    """On a cluster the temporary folder would have to be shared; a checkpoint of one's own continues."""
    place = ["--checkpoint", tmp_path / "checkpoint"]
    file = session_file(queries="")
    result = headrace("sql", file, *place, "-c", "ADD SELECT k FROM t AS kept; RESULTS kept", *LOCAL)
    assert result.code == 0, result.err
    result = headrace("sql", file, *place, "-c", "SHOW QUERIES", "--json", *LOCAL)
    assert [document["name"] for document in parse_documents(result)] == ["kept"], result.err
    assert headrace("sql", "http://127.0.0.1:1", *place, "-c", "HELP").code == 2


def test_invalid_targets_are_refused(headrace, tmp_path):
    assert headrace("sql", "http://127.0.0.1:1", *LOCAL, "-c", "HELP").code == 2
    result = headrace("sql", "127.0.0.1:1", "-c", "HELP")
    assert result.code == 1
    assert "no service answers at 'http://127.0.0.1:1'" in result.err
    result = headrace("sql", tmp_path / "none.toml", "-c", "HELP")
    assert result.code == 1
    assert "none.toml" in result.err


def test_statements_run_against_a_service(headrace, monkeypatch):
    with serve_session() as (url, append):
        result = headrace("sql", url, "-c", "ADD SELECT k, v FROM t AS q; SHOW QUERIES", "--json")
        assert [document["kind"] for document in parse_documents(result)] == ["added", "query"]
        append((1, 10, 0))
        monkeypatch.setenv("HEADRACE_TOKEN", "is not asked for")
        result = headrace("sql", url.removeprefix("http://"), "-c", "TAIL q FROM BEGINNING LIMIT 1; REMOVE q", "--json")
        assert [document["kind"] for document in parse_documents(result)] == ["row", "ended", "removed"]


def test_a_local_service_is_detected(headrace, monkeypatch):
    with serve_session() as (url, _):
        monkeypatch.setattr("headrace.cli.sql.PORT", int(url.rpartition(":")[2]))
        monkeypatch.setattr("headrace.cli.sql.SERVICE", url)
        result = headrace("sql", "-c", "DESCRIBE t")
        assert result.code == 0
        assert f"headrace sql: the service at {url}" in result.err


def _restore_sigint() -> None:
    """Restore the default handler: background jobs of a shell, and their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def start_shell(*args):
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "sql", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, preexec_fn=_restore_sigint) as process:  # noqa: PLW1509  no threads here
        try:
            yield process
        finally:
            process.kill()


def query_is_live(target):
    return lambda: [query.status for query in target.queries()] == ["live"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_removes_the_temporary_query(number, code):
    with (
        serve_session() as (url, append),
        contextlib.closing(open_remote(url, None)) as target,
        start_shell(url, "-c", "SELECT k FROM t", "--json") as process,
    ):
        wait_until(query_is_live(target))
        append((5, 5, 0))
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert lines[1]["row"] == {"k": 5}
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        assert target.queries() == []


def test_a_closed_pipe_ends_the_command():
    with (
        serve_session() as (url, append),
        contextlib.closing(open_remote(url, None)) as target,
        start_shell(url, "-c", "SELECT k FROM t", "--json") as process,
    ):
        wait_until(query_is_live(target))
        assert json.loads(process.stdout.readline())["kind"] == "added"
        process.stdout.close()
        append((5, 5, 0))
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
        assert target.queries() == []
