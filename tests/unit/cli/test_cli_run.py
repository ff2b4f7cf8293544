"""`headrace run`: results, sinks, checkpoints, messages and refusals."""

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

from headrace.errors import OwnershipLostError
from headrace.session import Session
from headrace.storage.locations import open_store

pytestmark = pytest.mark.usefixtures("preloaded")

LOCAL = ("--backend", "local")


def read_rows(directory: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return lines + [row for path in sorted(directory.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_json_output_is_a_single_document(headrace, session_file):
    path = session_file()
    result = headrace("run", path, "--once", "--json", *LOCAL)
    assert result.code == 0
    assert result.document["session"] == str(path)
    stream = result.document["streams"]["t"]
    assert (stream["rows"], stream["untimed"], stream["skipped"], stream["skipped_rows"]) == (6, 1, {}, 0)
    assert (stream["status"], stream["error"]) == ("ok", None)
    query = result.document["queries"]["total"]
    assert {part: query[part] for part in ("rows", "sink", "path", "error")} == {
        "rows": 4,
        "sink": "memory",
        "path": None,
        "error": None,
    }
    assert sorted((row["k"], row["s"]) for row in query["results"]) == [(1, 5), (1, 10), (2, 20), (3, 9)]


def test_text_output_has_tables(headrace, session_file):
    result = headrace("run", session_file(), "--once", *LOCAL)
    assert result.code == 0
    assert "total · 4 rows" in result.out
    assert "stream t: 6 rows, 1 without event time, 0 files skipped" in result.out


def test_once_with_memory_sinks_leaves_no_files(headrace, session_file, tmp_path):
    headrace("run", session_file(), "--once", *LOCAL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "session.toml"]


def test_out_writes_results_and_a_checkpoint(headrace, session_file, tmp_path):
    out = tmp_path / "results"
    first = headrace("run", session_file(), "--once", "--json", "--out", out, *LOCAL).document
    assert first["queries"]["total"]["path"] == str(out / "total")
    assert first["checkpoint"] == str(out / ".checkpoint")
    assert len(read_rows(out / "total")) == 4
    again = headrace("run", session_file(), "--once", "--json", "--out", out, *LOCAL).document
    assert again == first
    assert len(read_rows(out / "total")) == 4


def test_out_in_an_object_store_has_results_and_checkpoint_there(headrace, session_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = headrace("run", session_file(), "--once", "--json", "--out", "memory://run-out/x", *LOCAL).document
    assert document["queries"]["total"]["path"] == "memory://run-out/x/total"
    assert document["checkpoint"] == "memory://run-out/x/.checkpoint"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "session.toml"]
    assert list(open_store("memory://run-out/x/total").list(""))
    refused = headrace("run", session_file(), "--once", "--out", "hdfs://nn/out", *LOCAL)
    assert (refused.code, "--out 'hdfs://nn/out' has the unsupported scheme" in refused.err) == (1, True)


def test_file_sinks_keep_a_checkpoint_beside_the_session_file(headrace, session_file, tmp_path):
    path = session_file(queries='[queries.q]\nsql = "SELECT k, v FROM t"\nsink = "parquet:out/q"\n')
    document = headrace("run", path, "--once", "--json", *LOCAL).document
    assert document["checkpoint"] == str(tmp_path / ".headrace" / "session")
    assert len(read_rows(tmp_path / "out" / "q")) == document["queries"]["q"]["rows"] == 5


def test_new_files_are_read_by_the_next_run(headrace, session_file, tmp_path):
    path = session_file(queries='[queries.q]\nsql = "SELECT k, v FROM t"\nsink = "jsonl:out/q"\n')
    headrace("run", path, "--once", *LOCAL)
    (tmp_path / "data" / "c.csv").write_text("k,v,time\n9,9,2026-01-01T00:00:20Z\n")
    assert headrace("run", path, "--once", "--json", *LOCAL).document["queries"]["q"]["rows"] == 6
    assert len(read_rows(tmp_path / "out" / "q")) == 6


def test_console_output_stays_out_of_the_json_document(headrace, session_file):
    path = session_file(queries='[queries.q]\nsql = "SELECT k, v FROM t WHERE k = 3"\nsink = "console"\n')
    result = headrace("run", path, "--once", "--json", *LOCAL)
    assert result.document["queries"]["q"]["rows"] == 1
    assert "q: 1 row" in result.err


def test_a_failed_query_is_reported_and_the_others_continue(headrace, session_file, tmp_path):
    queries = """
[queries.good]
sql = "SELECT window_start, SUM(v) AS s FROM TUMBLE(t, '1 minute')"
[queries.bad]
sql = "SELECT window_start, SUM(v * 9223372036854775807) AS s FROM TUMBLE(t, '1 minute')"
"""
    for _ in range(2):  # the second run loads the failed query
        result = headrace("run", session_file(queries=queries), "--once", "--json", "--out", tmp_path / "out", *LOCAL)
        assert result.code == 1
        summaries = result.document["queries"]
        assert summaries["bad"]["status"] == "failed"
        assert summaries["bad"]["error"]
        assert (summaries["good"]["status"], summaries["good"]["rows"]) == ("live", 1)


def test_results_that_wait_for_a_destination_are_reported(headrace, session_file, tmp_path):
    queries = '[queries.q]\nsql = "SELECT k, v FROM t WHERE k = 3"\nsinks = ["memory", {kind = "webhook", url = "http://127.0.0.1:1/"}]\n'
    path = session_file(queries=queries)
    result = headrace("run", path, "--once", "--json", "--checkpoint", tmp_path / "state", *LOCAL)
    assert (result.code, result.document["queries"]["q"]["status"]) == (1, "live")
    (sink,) = result.document["degraded_sinks"]
    assert (sink["description"], sink["waiting_batches"]) == ("webhook:127.0.0.1:1", 1)
    text = headrace("run", path, "--once", "--checkpoint", tmp_path / "state", *LOCAL)
    assert text.code == 1
    assert "of query 'q' is degraded, 1 micro-batches wait: ConnectError" in text.out


def test_a_failed_source_is_reported(headrace, session_file, tmp_path):
    path = session_file(stream='on_error = "fail"')
    (tmp_path / "data" / "c.csv").write_text('k,v,time\n1,x,"\n')
    result = headrace("run", path, "--once", "--json", *LOCAL)
    assert result.code == 1
    assert "c.csv" in result.document["error"]
    assert "c.csv" in result.err


def test_an_unreadable_file_can_be_skipped(headrace, session_file, tmp_path):
    path = session_file(stream='on_error = "skip"')
    (tmp_path / "data" / "c.csv").write_text('k,v,time\n1,x,"\n')
    result = headrace("run", path, "--once", "--json", *LOCAL)
    assert result.code == 3
    assert list(result.document["streams"]["t"]["skipped"]) == [str(tmp_path / "data" / "c.csv")]


def test_skipped_lines_are_reported_and_kept(headrace, session_file, tmp_path):
    path = session_file(stream='on_error = "skip_row"\ndead_letter = "jsonl:rejected"')
    (tmp_path / "data" / "c.csv").write_text("k,v,time\n1,x,\n1,2,2026-01-01T00:00:20Z\n")
    result = headrace("run", path, "--once", *LOCAL)
    assert result.code == 3
    assert "stream t: 7 rows, 1 without event time, 0 files skipped, 1 lines skipped" in result.out
    assert f"skipped line 2 of {tmp_path / 'data' / 'c.csv'}" in result.out
    assert [row["text"] for row in read_rows(tmp_path / "rejected")] == ["1,x,"]


def test_a_failed_source_does_not_keep_other_streams_from_their_results(headrace, session_file, tmp_path):
    streams = """
[streams.u]
path = "other/*.csv"
schema = "k INT, time TIMESTAMP"
time = "time"
[queries.of_u]
sql = "SELECT window_start, COUNT(*) AS n FROM TUMBLE(u, '1 minute')"
"""
    path = session_file(stream='on_error = "fail"' + streams)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.csv").write_text("k,time\n1,2026-01-01T00:00:20Z\n")
    (tmp_path / "data" / "c.csv").write_text('k,v,time\n1,x,"\n')
    result = headrace("run", path, "--once", "--json", *LOCAL)
    assert result.code == 1
    assert result.document["streams"]["t"]["status"] == "degraded"
    assert "c.csv" in result.document["streams"]["t"]["error"]
    assert result.document["queries"]["of_u"]["rows"] == 1


def test_an_invalid_query_is_refused_before_the_session_starts(headrace, session_file, tmp_path):
    result = headrace("run", session_file(queries='[queries.bad]\nsql = "SELEC"\n'), "--once", "--out", tmp_path / "out", *LOCAL)
    assert result.code == 1
    assert "query 'bad'" in result.err
    assert not (tmp_path / "out").exists()


def test_generated_rows(headrace, session_file):
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
    result = headrace("run", session_file(text.replace("rows = 5000", "")), "--once", *LOCAL)
    assert result.code == 1
    assert "stream 'purchases' is unbounded" in result.err


ONE_QUERY = '[queries.a]\nsql = "SELECT k FROM t"\nsink = "jsonl:out/a"\n'
TWO_QUERIES = ONE_QUERY + '[queries.b]\nsql = "SELECT v FROM t"\nsink = "jsonl:out/b"\n'


def test_a_query_over_its_budget_fails_with_the_figure(headrace, session_file):
    queries = """
[queries.good]
sql = "SELECT k FROM t"
[queries.bad]
sql = "SELECT v FROM t"
budget = {output_rows = 2}
"""
    result = headrace("run", session_file(queries=queries), "--once", "--json", *LOCAL)
    assert result.code == 1
    summaries = result.document["queries"]
    assert summaries["bad"]["error"] == "query emits 5 rows in a micro-batch, more than 2 (output_rows)"
    assert (summaries["good"]["status"], summaries["good"]["rows"]) == ("live", 5)


def test_rows_too_far_in_the_future_are_dropped(headrace, session_file, tmp_path):
    path = session_file(stream='max_ahead = "1 hour"')
    (tmp_path / "data" / "c.csv").write_text("k,v,time\n9,10,9999-01-01T00:00:01Z\n")
    result = headrace("run", path, "--once", "--json", *LOCAL)
    assert result.code == 0
    assert result.document["streams"]["t"]["ahead"] == 1
    assert "1 rows too far in the future" in headrace("run", path, "--once", *LOCAL).out


def test_a_query_deleted_from_the_file_is_removed(headrace, session_file):
    headrace("run", session_file(queries=TWO_QUERIES), "--once", *LOCAL)
    result = headrace("run", session_file(queries=ONE_QUERY), "--once", "--json", *LOCAL)
    assert result.code == 0
    assert list(result.document["queries"]) == ["a"]
    assert "removed query 'b', which is no longer in the file" in result.err
    again = headrace("run", session_file(queries=ONE_QUERY), "--once", "--json", *LOCAL)
    assert (again.code, "removed query" in again.err) == (0, False), "it is gone from the checkpoint, too"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("SELECT k", "SELECT v"), "query 'a' .* differs from its text in the checkpoint"),
        (("jsonl:out/a", "jsonl:out/c"), "query 'a' .* differs from its sink in the checkpoint"),
        (("sink =", "budget = {output_rows = 99}\nsink ="), "query 'a' .* differs from its budget in the checkpoint"),
    ],
)
def test_a_changed_query_is_refused(headrace, session_file, change, message):
    headrace("run", session_file(queries=ONE_QUERY), "--once", *LOCAL)
    result = headrace("run", session_file(queries=ONE_QUERY.replace(*change)), "--once", *LOCAL)
    assert result.code == 1
    assert re.search(message, result.err)
    assert "--fresh" in result.err
    assert headrace("run", session_file(queries=ONE_QUERY.replace(*change)), "--once", "--fresh", *LOCAL).code == 0


def test_results_of_another_checkpoint_are_refused(headrace, session_file, tmp_path):
    headrace("run", session_file(queries=ONE_QUERY), "--once", *LOCAL)
    result = headrace("run", session_file(queries=ONE_QUERY), "--once", "--checkpoint", tmp_path / "new", *LOCAL)
    assert result.code == 1
    assert "contains results of another checkpoint" in result.err


def test_missing_results_are_detected(headrace, session_file, tmp_path):
    headrace("run", session_file(queries=ONE_QUERY), "--once", *LOCAL)
    shutil.rmtree(tmp_path / "out")
    result = headrace("run", session_file(queries=ONE_QUERY), "--once", *LOCAL)
    assert result.code == 1
    assert "is missing, with 5 rows" in result.err


def test_fresh_removes_checkpoints_only(headrace, session_file, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    result = headrace("run", session_file(queries=ONE_QUERY), "--once", "--fresh", "--checkpoint", tmp_path / "mine", *LOCAL)
    assert result.code == 1
    assert "not a headrace checkpoint" in result.err
    assert (tmp_path / "mine" / "file").exists()


def start_run(path: Path, *options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "run", str(path), *map(str, options), *LOCAL]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition, seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition was not met in time"
        time.sleep(0.005)


def test_run_reads_new_files_until_an_interrupt(headrace, session_file, tmp_path):
    path = session_file(queries=ONE_QUERY)
    process = start_run(path, "--json")
    out = tmp_path / "out" / "a"
    wait_until(lambda: len(read_rows(out)) == 5)
    (tmp_path / "data" / ".c").write_text("k,v,time\n9,9,2026-01-01T00:00:20Z\n")
    (tmp_path / "data" / ".c").rename(tmp_path / "data" / "c.csv")
    wait_until(lambda: len(read_rows(out)) == 6)
    second = headrace("run", path, *LOCAL)
    assert second.code == 1
    assert "in use by another session" in second.err
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert json.loads(output)["queries"]["a"]["rows"] == 6
    assert "live queries" in errors


def write_csv_files(folder: Path, number: int) -> None:
    folder.mkdir()
    for index in range(number):
        lines = [f"{row % 5},{index},2026-01-01T00:00:{index % 60:02d}.{row:03d}Z" for row in range(10)]
        (folder / f"{index:03d}.csv").write_text("\n".join(["k,v,time", *lines]) + "\n")


SESSION_FILE = """
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


def test_settings_of_query_changes_are_those_of_the_session_file(headrace, tmp_path):
    write_csv_files(tmp_path / "data", 1)
    (tmp_path / "s.toml").write_text(f"max_waiting_changes = 2\n{SESSION_FILE}")
    for command in (("run", tmp_path / "s.toml", "--once"), ("sql", tmp_path / "s.toml", "-c", "SHOW QUERIES")):
        refused = headrace(*command, *LOCAL)
        assert refused.code == 1
        assert "2 query changes wait already" in refused.err


def test_a_killed_run_resumes_without_loss_or_duplicates(headrace, tmp_path):
    """Every result exactly once:  |--batches--✗|--batches--✗| … |--the rest--|  ==  |--all batches--|."""
    write_csv_files(tmp_path / "data", 40)
    (tmp_path / "s.toml").write_text(SESSION_FILE)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = headrace("run", tmp_path / "s.toml", "--once", "--json", "--out", whole, *LOCAL).document
    kills = 0
    for batch in (0, 3, 11, 26):
        process = start_run(tmp_path / "s.toml", "--once", "--out", cut)
        log = cut / ".checkpoint" / "log" / f"{batch:010d}.json"
        wait_until(lambda log=log, process=process: log.exists() or process.poll() is not None)
        kills += process.poll() is None
        process.kill()
        process.communicate()
    result = headrace("run", tmp_path / "s.toml", "--once", "--json", "--out", cut, *LOCAL)
    assert kills
    assert result.code == 0, result.err
    for name, query in expected["queries"].items():
        summary = result.document["queries"][name]
        assert (summary["rows"], summary["late"]) == (query["rows"], query["late"])
        assert sorted(map(str, read_rows(cut / name))) == sorted(map(str, read_rows(whole / name)))
        assert len(read_rows(whole / name)) == query["rows"] > 0
    assert result.document["batches"] == expected["batches"]


@pytest.mark.parametrize("step", ["create_stream", "add", "advance"])
def test_a_standby_waits_again_after_it_has_lost_its_checkpoint(headrace, session_file, monkeypatch, step):
    """Another process takes the checkpoint over at the first call of a step; without --standby that is the end."""
    runs, run_step = [], getattr(Session, step)

    def lose_first(session, *arguments, **options):
        runs.append(session)
        if len(runs) == 1:
            raise OwnershipLostError("this session no longer owns the checkpoint", detail="process 7 on host 'other'")
        return run_step(session, *arguments, **options)

    monkeypatch.setattr(Session, step, lose_first)
    result = headrace("run", session_file(), "--once", "--backend", "local")
    assert (result.code, "process 7 on host 'other'" in result.err) == (1, True)
    runs.clear()
    result = headrace("run", session_file(), "--once", "--backend", "local", "--standby")
    assert (result.code, "process 7 on host 'other'" in result.err) == (0, True)
    assert len({id(session) for session in runs}) == 2
