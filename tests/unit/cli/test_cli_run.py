"""`headrace run`: results, where they go, what is told, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

LOCAL = ("--backend", "local")


def rows_in(directory: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return lines + [row for path in sorted(directory.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_json_is_one_document(headrace, session_file):
    path = session_file()
    said = headrace("run", path, "--once", "--json", *LOCAL)
    assert said.code == 0
    assert said.document["session"] == str(path)
    assert said.document["streams"] == {"t": {"rows": 6, "untimed": 1, "skipped": {}}}
    query = said.document["queries"]["total"]
    assert {part: query[part] for part in ("rows", "sink", "path", "error")} == {
        "rows": 4,
        "sink": "memory",
        "path": None,
        "error": None,
    }
    assert sorted((row["k"], row["s"]) for row in query["results"]) == [(1, 5), (1, 10), (2, 20), (3, 9)]


def test_tables_for_people(headrace, session_file):
    said = headrace("run", session_file(), "--once", *LOCAL)
    assert said.code == 0
    assert "total · 4 rows" in said.out
    assert "stream t: 6 rows, 1 without event time, 0 files skipped" in said.out


def test_once_over_memory_leaves_nothing_behind(headrace, session_file, tmp_path):
    headrace("run", session_file(), "--once", *LOCAL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "session.toml"]


def test_out(headrace, session_file, tmp_path):
    out = tmp_path / "results"
    first = headrace("run", session_file(), "--once", "--json", "--out", out, *LOCAL).document
    assert first["queries"]["total"]["path"] == str(out / "total")
    assert first["checkpoint"] == str(out / ".checkpoint")
    assert len(rows_in(out / "total")) == 4
    again = headrace("run", session_file(), "--once", "--json", "--out", out, *LOCAL).document
    assert again == first
    assert len(rows_in(out / "total")) == 4


def test_file_sinks_keep_a_checkpoint_beside_the_file(headrace, session_file, tmp_path):
    path = session_file(queries='[queries.q]\nsql = "SELECT k, v FROM t"\nsink = "parquet:out/q"\n')
    document = headrace("run", path, "--once", "--json", *LOCAL).document
    assert document["checkpoint"] == str(tmp_path / ".headrace" / "session")
    assert len(rows_in(tmp_path / "out" / "q")) == document["queries"]["q"]["rows"] == 5


def test_new_files_are_read_by_the_next_run(headrace, session_file, tmp_path):
    path = session_file(queries='[queries.q]\nsql = "SELECT k, v FROM t"\nsink = "jsonl:out/q"\n')
    headrace("run", path, "--once", *LOCAL)
    (tmp_path / "data" / "c.csv").write_text("k,v,time\n9,9,2026-01-01T00:00:20Z\n")
    assert headrace("run", path, "--once", "--json", *LOCAL).document["queries"]["q"]["rows"] == 6
    assert len(rows_in(tmp_path / "out" / "q")) == 6


def test_console_output_stays_out_of_the_document(headrace, session_file):
    path = session_file(queries='[queries.q]\nsql = "SELECT k, v FROM t WHERE k = 3"\nsink = "console"\n')
    said = headrace("run", path, "--once", "--json", *LOCAL)
    assert said.document["queries"]["q"]["rows"] == 1
    assert "q: 1 row" in said.err


def test_a_failed_query_is_told_and_the_others_go_on(headrace, session_file, tmp_path):
    queries = """
[queries.good]
sql = "SELECT window_start, SUM(v) AS s FROM TUMBLE(t, '1 minute')"
[queries.bad]
sql = "SELECT window_start, SUM(v * 9223372036854775807) AS s FROM TUMBLE(t, '1 minute')"
"""
    for _ in range(2):  # the second run finds it failed
        said = headrace("run", session_file(queries=queries), "--once", "--json", "--out", tmp_path / "out", *LOCAL)
        assert said.code == 1
        found = said.document["queries"]
        assert found["bad"]["status"] == "failed"
        assert found["bad"]["error"]
        assert (found["good"]["status"], found["good"]["rows"]) == ("live", 1)


def test_a_failed_source_is_told(headrace, session_file, tmp_path):
    path = session_file(stream='on_error = "fail"')
    (tmp_path / "data" / "c.csv").write_text('k,v,time\n1,x,"\n')
    said = headrace("run", path, "--once", "--json", *LOCAL)
    assert said.code == 1
    assert "c.csv" in said.document["error"]
    assert "c.csv" in said.err


def test_a_bad_file_can_be_skipped(headrace, session_file, tmp_path):
    path = session_file(stream='on_error = "skip"')
    (tmp_path / "data" / "c.csv").write_text('k,v,time\n1,x,"\n')
    said = headrace("run", path, "--once", "--json", *LOCAL)
    assert said.code == 0
    assert list(said.document["streams"]["t"]["skipped"]) == [str(tmp_path / "data" / "c.csv")]


def test_a_bad_query_is_refused_before_anything_starts(headrace, session_file, tmp_path):
    said = headrace("run", session_file(queries='[queries.bad]\nsql = "SELEC"\n'), "--once", "--out", tmp_path / "out", *LOCAL)
    assert said.code == 1
    assert "query 'bad'" in said.err
    assert not (tmp_path / "out").exists()


def test_made_up_rows(headrace, session_file):
    text = """
[streams.purchases]
source = "rate"
rows_per_second = 1000
rows = 5000
time = "time"
[queries.n]
sql = "SELECT window_start, COUNT(*) AS n FROM TUMBLE(purchases, '1 second')"
"""
    document = headrace("run", session_file(text), "--once", "--json", *LOCAL).document
    assert [row["n"] for row in document["queries"]["n"]["results"]] == [1000] * 5
    said = headrace("run", session_file(text.replace("rows = 5000", "")), "--once", *LOCAL)
    assert said.code == 1
    assert "stream 'purchases' is unbounded" in said.err


ONE = '[queries.a]\nsql = "SELECT k FROM t"\nsink = "jsonl:out/a"\n'
TWO = ONE + '[queries.b]\nsql = "SELECT v FROM t"\nsink = "jsonl:out/b"\n'


def test_a_query_that_left_the_file_is_removed(headrace, session_file):
    headrace("run", session_file(queries=TWO), "--once", *LOCAL)
    said = headrace("run", session_file(queries=ONE), "--once", "--json", *LOCAL)
    assert said.code == 0
    assert list(said.document["queries"]) == ["a"]
    assert "removed query 'b', which is no longer in the file" in said.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("SELECT k", "SELECT v"), "query 'a' .* differs from its text in the checkpoint"),
        (("jsonl:out/a", "jsonl:out/c"), "query 'a' .* differs from its sink in the checkpoint"),
    ],
)
def test_a_changed_query_is_refused(headrace, session_file, change, message):
    headrace("run", session_file(queries=ONE), "--once", *LOCAL)
    said = headrace("run", session_file(queries=ONE.replace(*change)), "--once", *LOCAL)
    assert said.code == 1
    assert re.search(message, said.err)
    assert "--fresh" in said.err
    assert headrace("run", session_file(queries=ONE.replace(*change)), "--once", "--fresh", *LOCAL).code == 0


def test_results_of_others_are_not_mixed_in(headrace, session_file, tmp_path):
    headrace("run", session_file(queries=ONE), "--once", *LOCAL)
    said = headrace("run", session_file(queries=ONE), "--once", "--checkpoint", tmp_path / "new", *LOCAL)
    assert said.code == 1
    assert "contains results of another checkpoint" in said.err


def test_lost_results_are_noticed(headrace, session_file, tmp_path):
    headrace("run", session_file(queries=ONE), "--once", *LOCAL)
    shutil.rmtree(tmp_path / "out")
    said = headrace("run", session_file(queries=ONE), "--once", *LOCAL)
    assert said.code == 1
    assert "is missing, with 5 rows" in said.err


def test_fresh_removes_checkpoints_only(headrace, session_file, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    said = headrace("run", session_file(queries=ONE), "--once", "--fresh", "--checkpoint", tmp_path / "mine", *LOCAL)
    assert said.code == 1
    assert "not a headrace checkpoint" in said.err
    assert (tmp_path / "mine" / "file").exists()


def start(path: Path, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "run", str(path), *map(str, words), *LOCAL]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(condition, seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.005)


def test_it_runs_until_stopped_and_reads_new_files(headrace, session_file, tmp_path):
    path = session_file(queries=ONE)
    process = start(path, "--json")
    out = tmp_path / "out" / "a"
    until(lambda: len(rows_in(out)) == 5)
    (tmp_path / "data" / ".c").write_text("k,v,time\n9,9,2026-01-01T00:00:20Z\n")
    (tmp_path / "data" / ".c").rename(tmp_path / "data" / "c.csv")
    until(lambda: len(rows_in(out)) == 6)
    second = headrace("run", path, *LOCAL)
    assert second.code == 1
    assert "in use by another session" in second.err
    process.send_signal(signal.SIGINT)
    said, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert json.loads(said)["queries"]["a"]["rows"] == 6
    assert "live queries" in told


def many_files(folder: Path, number: int) -> None:
    folder.mkdir()
    for index in range(number):
        lines = [f"{row % 5},{index},2026-01-01T00:00:{index % 60:02d}.{row:03d}Z" for row in range(10)]
        (folder / f"{index:03d}.csv").write_text("\n".join(["k,v,time", *lines]) + "\n")


KILLED = """
rows_per_batch = 1
[streams.t]
path = "data"
schema = "k INT, v BIGINT, time TIMESTAMP"
time = "time"
watermark = "3 seconds"
[queries.hop]
sql = "SELECT window_start, k, SUM(v) AS s, COUNT(*) AS n FROM HOP(t, '7 seconds', '3 seconds') GROUP BY k"
[queries.visits]
sql = "SELECT window_start, window_end, k, COUNT(*) AS n FROM SESSION(t, '2 seconds') GROUP BY k"
[queries.rows]
sql = "SELECT k, v, time FROM t WHERE v > 3"
sink = "parquet:rows"
"""


def test_killed_and_started_again(headrace, tmp_path):
    """Every result once, none missing:  |--batches--✗|--batches--✗| … |--the rest--|  ==  |--all batches--|."""
    many_files(tmp_path / "data", 40)
    (tmp_path / "s.toml").write_text(KILLED)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = headrace("run", tmp_path / "s.toml", "--once", "--json", "--out", whole, *LOCAL).document
    kills = 0
    for batch in (0, 3, 11, 26):
        process = start(tmp_path / "s.toml", "--once", "--out", cut)
        log = cut / ".checkpoint" / "log" / f"{batch:010d}.json"
        until(lambda log=log, process=process: log.exists() or process.poll() is not None)
        kills += process.poll() is None
        process.kill()
        process.communicate()
    found = headrace("run", tmp_path / "s.toml", "--once", "--json", "--out", cut, *LOCAL)
    assert kills
    assert found.code == 0, found.err
    for name, query in expected["queries"].items():
        again = found.document["queries"][name]
        assert (again["rows"], again["late"]) == (query["rows"], query["late"])
        assert sorted(map(str, rows_in(cut / name))) == sorted(map(str, rows_in(whole / name)))
        assert len(rows_in(whole / name)) == query["rows"] > 0
    assert found.document["batches"] == expected["batches"]
