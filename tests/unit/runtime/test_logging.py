"""Logs as JSON: one object per line, with batch and query where they are known."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
import headrace.logging

ROWS = [{"k": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}] * 2


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """JSON lines of level info; the set-up of the process is restored afterwards."""
    root, own, out = logging.getLogger(), logging.getLogger("headrace"), io.StringIO()
    handlers, level = list(root.handlers), own.level
    headrace.logging.configure("json", "info", out)
    yield out
    root.handlers[:] = handlers
    own.setLevel(level)


def read_lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_line_has_time_level_logger_and_message(log: io.StringIO) -> None:
    logging.getLogger("headrace.part").warning("lost %d\nrows", 3)
    (line,) = read_lines(log)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is UTC
    assert line == {"level": "warning", "logger": "headrace.part", "message": "lost 3\nrows"}


def test_a_line_has_batch_query_and_traceback_where_they_are_known(log: io.StringIO) -> None:
    with headrace.logging.label_logs(7):
        logging.getLogger("headrace").error("failed", exc_info=ValueError("bad"), extra={"query": "q"})
    logging.getLogger("headrace").info("afterwards")
    first, second = read_lines(log)
    assert (first["batch"], first["query"], first["level"]) == (7, "q", "error")
    assert first["error"] == "ValueError: bad"
    assert not {"batch", "query", "error"} & second.keys()


def test_a_second_set_up_replaces_the_first(log: io.StringIO) -> None:
    other = io.StringIO()
    headrace.logging.configure("text", "error", other)
    logging.getLogger("headrace").warning("unheard")
    logging.getLogger("headrace").error("heard")
    assert log.getvalue() == ""
    assert other.getvalue().endswith("ERROR headrace: heard\n")


def test_a_session_logs_batches_and_failed_queries(log: io.StringIO) -> None:
    with hr.Session(backend="local") as session:
        source = hr.MemorySource("k INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        session.add("SELECT k FROM a", name="q", budget={"output_rows": 1})
        source.append(ROWS)
        session.advance()
    failed, committed = read_lines(log)
    assert (failed["level"], failed["batch"], failed["query"]) == ("warning", 0, "q")
    assert (committed["level"], committed["batch"]) == ("info", 0)
    assert committed["message"].startswith("batch 0: 2 rows in, 0 rows out, 0 live queries")


def test_the_command_line_writes_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,time\n1,2026-01-01 00:00:00\n")
    (tmp_path / "s.toml").write_text(
        f"[streams.a]\npath = '{tmp_path}/a.csv'\nschema = 'k INT, time TIMESTAMP'\ntime = 'time'\n"
        "[queries.q]\nsql = 'SELECT k FROM a'\n"
    )
    words = ["run", str(tmp_path / "s.toml"), "--once", "--json", "--backend", "local", "--log-format", "json"]
    code = "from headrace.cli import main; main()"
    command = [sys.executable, "-c", code, *words, "--log-level", "info"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["batch"] for line in lines if line["message"].startswith("batch 0:")] == [0]
    assert json.loads(done.stdout)["queries"]["q"]["rows"] == 1
