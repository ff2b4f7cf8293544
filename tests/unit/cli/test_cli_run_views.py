"""What `headrace run` shows: the status line, the live table and the summary; and what a session file sets."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from headrace.cli.run import KnownQuery, StatusLog, format_status_line, print_summary, render_live
from headrace.cli.session_file import SessionFile
from headrace.cli.spark_options import SparkOptions
from headrace.connectors import parse_sink
from headrace.errors import HeadraceError
from headrace.model.join_slices import JoinSlices
from headrace.model.late_materialization import LateMaterialization
from headrace.model.sliding_join_options import PlanSearch

METER = {
    "rows_per_second": 20_000.0,
    "median_batch_seconds": 0.1,
    "rows": 5_000,
    "emitted": 1_200,
    "batches": 1,
    "elapsed_seconds": 0.0,
}
STREAM: dict[str, Any] = {
    "rows": 1_000, "untimed": 2, "skipped": {}, "ahead": 0, "skipped_rows": 0, "kind": "files", "lost": {}, "error": None,
    "status": "ok", "skipped_samples": [],
}  # fmt: skip


def make_query(status: str = "live", sink: Any = "memory", error: str | None = None, rows: int = 1_500) -> KnownQuery:
    handle = SimpleNamespace(
        status=status,
        emitted=rows,
        error=error,
        late={"a": 1_000, "b": 1},
        results=lambda: pa.table({"number_of_rows": list(range(25))}),
    )
    return KnownQuery(handle, (parse_sink(sink),))


def make_session(*statuses: str, problem: str = "") -> SimpleNamespace:
    queue = SimpleNamespace(problem=problem, description="a topic", query="q9")
    return SimpleNamespace(
        queries=lambda: [SimpleNamespace(status=status) for status in statuses], last_batch=7,
        streams=lambda: {"s": {"status": "degraded" if problem else "ok"}, "t": {"status": "ok"}},
        sink_changes=SimpleNamespace(list_queues=lambda: [queue]),
    )  # fmt: skip


def make_console() -> Console:
    return Console(file=io.StringIO(), width=150, force_terminal=False)


def read_lines(console: Console) -> list[str]:
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_the_status_line_names_what_is_degraded():
    text = "batch 7 · 20 k rows/s · 100 ms a batch · 2 live queries · 5,000 rows read · 1,200 results"
    meter: Any = SimpleNamespace(**METER)
    assert format_status_line(make_session("live", "failed", "live"), meter) == text
    degraded = make_session("live", "live", problem="refused")
    assert format_status_line(degraded, meter) == f"{text} · degraded: s, a topic of q9"


def test_a_log_has_a_line_every_five_seconds_if_there_were_batches():
    meter, console = SimpleNamespace(**METER), make_console()
    log = StatusLog(make_session("live"), meter, console)
    counts = []
    for meter.elapsed_seconds, meter.batches in (
        (0.0, 0),
        (0.5, 1),
        (1.0, 2),
        (5.4, 3),
        (5.5, 4),
        (10.5, 4),
        (12.0, 5),
        (12.5, 9),
    ):
        log()
        counts.append(len(read_lines(console)))
    assert counts == [0, 1, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("number", "shown", "more"), [(2, 2, None), (25, 25, None), (28, 25, "… and 3 more queries")])
def test_the_live_table_shows_the_first_queries(number: int, shown: int, more: str | None):
    console = make_console()
    queries = {f"q{index}": make_query() for index in range(number)}
    console.print(render_live(make_session("live"), queries, SimpleNamespace(**METER)))
    lines = read_lines(console)
    assert [line.split()[:4] for line in lines if line.lstrip().startswith("q") and "status" not in line] == [
        [f"q{index}", "live", "1,500", "1,001"] for index in range(shown)
    ]
    assert next((line for line in lines if "more" in line), None) == more


def summarize(queries: dict[str, KnownQuery], *, results: bool = False, sinks: tuple[Any, ...] = (), **changes: Any) -> list[str]:
    console = make_console()
    outcome = {"streams": {"s": {**STREAM, **changes}}, "degraded_sinks": sinks, "batches": 4}
    print_summary(queries, outcome, 2.34, console, results=results)
    return read_lines(console)


def test_the_summary_has_a_row_for_each_query_and_a_line_for_each_stream():
    lines = summarize({"q": make_query(), "r": make_query("failed", {"jsonl": "/data/r"}, "too large")})
    assert [line.split() for line in lines[2:5]] == [
        ["q", "live", "1,500", "1,001", *parse_sink("memory").describe().split()],
        ["r", "failed", "1,500", "1,001", "/data/r"], ["too", "large"],
    ]  # fmt: skip
    assert lines[5:] == [
        "stream s: 1,000 rows, 2 without event time, 0 files skipped", "4 micro-batches, 2 queries, one pipeline, 2.3 s"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ahead": 1_200}, [", 1,200 rows too far in the future"]),
        ({"skipped_rows": 3}, [", 3 lines skipped"]),
        ({"skipped_rows": 3, "kind": "kafka"}, [", 3 messages skipped"]),
        ({"lost": {"0": 1_000, "1": 5}}, [", 1,005 messages were deleted before they were read"]),
        ({"status": "degraded", "error": "no route"}, ["  degraded: no route"]),
        ({"skipped": {"x.csv": "no header"}}, ["1 files skipped", "  skipped x.csv: no header"]),
        ({"skipped_samples": [{"line": 4, "file": "x.csv", "reason": "short"}]}, ["  skipped line 4 of x.csv: short"]),
        (
            {"skipped_samples": [{"line": 4, "file": "t", "reason": "short"}], "kind": "kafka"},
            ["  skipped message 4 of t: short"],
        ),
    ],
)
def test_the_summary_says_what_was_not_read(changes: dict[str, Any], expected: list[str]):
    text = "\n".join(summarize({}, **changes))
    assert all(part in text for part in expected)
    unexpected = (" ahead", "future", "deleted", "degraded", "  skipped")
    assert all(any(word in part for part in expected) for word in unexpected if word in text)


def test_the_summary_names_results_that_wait_for_a_destination():
    sink = {"description": "a topic", "query": "q", "waiting_batches": 3, "problem": "refused"}
    assert "sink a topic of query 'q' is degraded, 3 micro-batches wait: refused; the same command publishes them" in summarize(
        {}, sinks=(sink,)
    )


def test_the_summary_of_a_bounded_run_begins_with_results_that_the_session_keeps():
    queries = {"q": make_query(), "none": make_query(rows=0), "quiet": make_query(sink="noop")}
    lines = summarize(queries, results=True)
    assert lines[0] == "q · 1,500 rows"
    assert sum(" rows" in line and "·" in line for line in lines) == 1
    assert "… and 5 more" in [line.strip() for line in lines]
    assert "q · 1,500 rows" not in summarize(queries)


def load(tmp_path: Path, text: str, **options: Any) -> SessionFile:
    path = tmp_path / "s.toml"
    path.write_text(text)
    return SessionFile.load(path, **options)


STREAMS = '[streams.t]\npath = "data"\ntime = "time"\nschema = "time TIMESTAMP"\n'
QUERIES = '[queries.q]\nsql = " SELECT 1 "\n'


def test_a_session_file_without_settings_leaves_them_to_the_session(tmp_path: Path):
    file = load(tmp_path, STREAMS + QUERIES)
    assert (file.checkpoint, file.rows_per_batch, file.partitions, file.functions, file.changes) == (None, None, None, True, {})
    assert (file.spark, file.storage, file.window_joins) == (SparkOptions(), {}, {})
    (stream,), (query,) = file.streams, file.queries
    assert (stream.kind, stream.watermark, stream.max_ahead, stream.watermark_by, stream.idle) == (
        "files", "0 seconds", None, None, "10 seconds",
    )  # fmt: skip
    assert (query.sql, query.sinks, query.budget) == ("SELECT 1", (), None)
    assert (stream.to_stream().delay, stream.to_stream().max_ahead) == (0, None)


def test_a_session_file_sets_all_of_them(tmp_path: Path):
    head = (
        'rows_per_batch = 1\npartitions = "auto"\nfunctions = false\nchange_delay = 2\nmax_waiting_changes = 3\n'
        'late_materialization = "never"\njoin_slices = "found"\njoin_slices_bytes = 7\n'
        '[sliding_joins]\nplan = "flat"\nbudget = 9\nsharing = false\n[window_joins]\ngrouping = false\n'
        '[storage]\nendpoint = "e"\nretries = 3\n[storage."s3://x"]\nsecure = true\n'
        '[spark]\nmaster = "yarn"\nconfig = {"a.b" = 1}\n'
    )
    stream = 'watermark = "2 s"\nmax_ahead = "1 min"\n'
    file = load(
        tmp_path, head + STREAMS + stream + QUERIES + 'sinks = ["noop", {kind = "jsonl", path = "x"}]\nbudget = {join_pairs = 5}'
    )
    assert (file.rows_per_batch, file.partitions, file.functions) == (1, "auto", False)
    assert file.changes == {"change_delay": 2, "max_waiting_changes": 3}
    assert file.storage == {"endpoint": "e", "retries": "3", "s3://x": {"secure": "true"}}
    assert file.spark == SparkOptions("yarn", {"a.b": "1"})
    assert (file.sliding_joins.search, file.sliding_joins.budget, file.sliding_joins.is_shared) == (PlanSearch.FLAT, 9.0, False)
    assert (file.join_slices.mode, file.join_slices.max_bytes) == (JoinSlices.FOUND, 7)
    assert file.late_materialization is LateMaterialization.NEVER
    arguments = file.get_join_arguments()
    assert (arguments["window_joins"], arguments["sliding_plan"], arguments["join_slices"]) == (
        {"grouping": False},
        "flat",
        "found",
    )
    declared = file.streams[0].to_stream()
    assert (declared.delay, declared.max_ahead) == (2_000_000, 60_000_000)
    assert [sink.kind for sink in file.make_sinks(file.queries[0], None)] == ["noop", "jsonl"]
    assert file.queries[0].budget == {"join_pairs": 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('master = "local"\n[spark]\nmaster = "yarn"\n', "'master' .* is given twice"),
        ("[spark]\nconfig = {a = [1]}\n", r"'spark\.config' .* is invalid"),
        ("[storage]\nx = 1.5\n", r"'storage\.x' .* must be a text, a number or a boolean"),
        ("[storage.x]\ny = 1\n", r"'storage\.x' .* a table is named by a URL"),
        ('[storage."s3://x"]\ny = [1]\n', "must be a text, a number or a boolean"),
        ('late_materialization = "some"\n', "'late_materialization' .* is 'some'"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(HeadraceError, match=message):
        load(tmp_path, text + STREAMS + QUERIES)


@pytest.mark.parametrize("sinks", ["sinks = []", "sinks = [1]", 'sink = "noop"\nsinks = ["noop"]'])
def test_sinks_are_one_or_a_list(tmp_path: Path, sinks: str):
    with pytest.raises(HeadraceError, match="is not a list of sinks, or there is a sink besides it"):
        load(tmp_path, STREAMS + QUERIES + sinks)


def test_queries_may_be_left_out_where_they_are_added_later(tmp_path: Path):
    assert load(tmp_path, STREAMS, require_queries=False).queries == ()
    with pytest.raises(HeadraceError, match="has no streams"):
        load(tmp_path, QUERIES, require_queries=False)


def test_a_folder_of_results_is_not_hidden(tmp_path: Path):
    file = load(tmp_path, STREAMS + '[queries.".a/b"]\nsql = "SELECT 1"\n')
    assert [sink.path for sink in file.make_sinks(file.queries[0], "/out")] == ["/out/%2Ea%2Fb"]
