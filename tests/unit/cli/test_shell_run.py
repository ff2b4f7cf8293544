"""Outcomes of statements, and how the screen, plain and JSON views render them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json

import pyarrow as pa
import pytest
from rich.console import Console

from headrace.cli.shell.executor import StatementRunner
from headrace.cli.shell.outcomes import (
    ColumnList,
    FollowedQuery,
    FollowEnded,
    PartitionsChanged,
    PlanText,
    QueryChanged,
    QueryList,
    QuerySharing,
    ResultRows,
    StreamList,
    UsageList,
)
from headrace.cli.shell.parser import StopCondition
from headrace.cli.shell.render import JsonLinesView, NewestRows, PlainView, ScreenView, limit_tables, make_lines
from headrace.cli.shell.repl import run_statement
from headrace.cli.shell.tokenizer import split_statements
from headrace.errors import EvaluationError, HeadraceError, NotFoundError
from support.shell_targets import embedded_target, wait_until

SUMS = "SELECT window_start, k, SUM(v) AS s FROM TUMBLE(t, '10 seconds') GROUP BY k"


@pytest.fixture
def shell():
    """A shell on an embedded session; `shell(text)` runs statements and returns their view."""
    with embedded_target() as (target, append):
        yield Shell(target, append)


class RecordingView:
    """A view that records outcomes; it reads the tables of a followed query to the end."""

    def __init__(self):
        self.outcomes = []
        self.rows = []

    def show(self, outcome):
        self.outcomes.append(outcome)
        if isinstance(outcome, FollowedQuery):
            tables = outcome.open(None if outcome.from_beginning else 0)
            self.rows += [row for make_table in limit_tables(tables, outcome.stop) for row in make_table.to_pylist()]


class Shell:
    def __init__(self, target, append):
        self.target, self.append = target, append
        names = (f"watched_{number}" for number in itertools.count(1))
        self.runner = StatementRunner(target, rows=20, name=lambda: next(names))

    def __call__(self, text, view=None):
        recorded = RecordingView() if view is None else view
        for piece in split_statements(text)[0]:
            run_statement(piece, self.runner, recorded)
        return recorded

    def render_plain(self, text):
        out = io.StringIO()
        self(text, PlainView(out))
        return out.getvalue()

    def render_json(self, text):
        out = io.StringIO()
        self(text, JsonLinesView(out))
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def wait_for_rows(self, name, count):
        wait_until(lambda: self.target.query(name).emitted == count)


def test_queries_are_added_replaced_and_removed(shell):
    (added,) = shell("ADD SELECT k FROM t AS q;").outcomes
    assert isinstance(added, QueryChanged)
    assert (added.verb, added.query.name, added.query.status) == ("added", "q", "live")
    (replaced,) = shell("REPLACE q AS SELECT v FROM t;").outcomes
    assert (replaced.verb, replaced.query.columns) == ("replaced", {"v": "BIGINT"})
    removed = shell("ADD SELECT k FROM t AS r; REMOVE q, r;").outcomes[1:]
    assert [(change.verb, change.query.name) for change in removed] == [("removed", "q"), ("removed", "r")]
    assert shell("SHOW QUERIES;").outcomes == [QueryList(())]


def test_show_and_describe_list_queries_streams_and_columns(shell):
    shell(f"ADD {SUMS} AS sums;")
    queries, streams, plan, stream, query = shell("SHOW QUERIES; SHOW STREAMS; SHOW PLAN; DESCRIBE T; DESC sums;").outcomes
    assert isinstance(queries, QueryList)
    assert isinstance(streams, StreamList)
    assert isinstance(plan, PlanText)
    assert [item.name for item in queries.queries] == ["sums"]
    assert [item.name for item in streams.streams] == ["t"]
    assert "used by 1 query: sums" in plan.text
    assert stream == ColumnList("stream", "t", (("k", "INT"), ("v", "BIGINT"), ("time", "TIMESTAMP")))
    assert query == ColumnList("query", "sums", (("window_start", "TIMESTAMP"), ("k", "INT"), ("s", "BIGINT")), SUMS)
    with pytest.raises(NotFoundError, match="no stream or query 'x' exists") as caught:
        shell("DESCRIBE x;")
    assert "streams: t; queries: sums" in caught.value.detail


def test_explain_lists_shared_operators(shell):
    shell(f"ADD {SUMS} AS sums; ADD SELECT k FROM t AS rows;")
    (sharing,) = shell(
        "EXPLAIN SELECT window_start, k, MAX(v) AS m FROM TUMBLE(t, '20 seconds') WHERE v > 3 GROUP BY k;"
    ).outcomes
    assert isinstance(sharing, QuerySharing)
    assert sharing.columns == {"window_start": "TIMESTAMP", "k": "INT", "m": "BIGINT"}
    assert [(use.operator, use.shared_with) for use in sharing.uses] == [("aggregation by k of t", ("sums",))]
    (session_sharing,) = shell("EXPLAIN SELECT window_start, COUNT(*) AS n FROM SESSION(t, '1 second');").outcomes
    assert [use.shared_with for use in session_sharing.uses] == [()]
    (rows_sharing,) = shell("EXPLAIN rows;").outcomes
    assert (rows_sharing.name, [use.shared_with for use in rows_sharing.uses]) == ("rows", [()])
    assert isinstance(shell("EXPLAIN;").outcomes[0], PlanText)
    assert [query.name for query in shell.target.queries()] == ["sums", "rows"]


JOIN = "SELECT a.v, b.v AS w FROM {0}(t, '2 seconds') a JOIN {0}(t, '2 seconds') b ON a.k = b.k"


@pytest.mark.parametrize(
    ("other", "explained", "shared"),
    [
        (JOIN.format("TUMBLE"), JOIN.format("TUMBLE"), "join buffer of t by k"),
        (JOIN.format("SLIDING"), JOIN.format("SLIDING"), "store"),
        (f"SELECT MAX(s) AS m FROM TUMBLE(({SUMS}), '20 seconds')", SUMS, "aggregation by k of t"),
    ],
)
def test_explain_of_joins_and_nested_queries(shell, other, explained, shared):
    shell(f"ADD other AS {other};")
    (sharing,) = shell(f"EXPLAIN {explained};").outcomes
    assert any(shared in use.operator and use.shared_with == ("other",) for use in sharing.uses), sharing.uses


def test_results_are_limited(shell):
    shell("ADD SELECT k, v FROM t AS q;")
    shell.append((1, 1, 0), (2, 2, 1), (3, 3, 2))
    shell.wait_for_rows("q", 3)
    (rows,) = shell("RESULTS q LIMIT 2;").outcomes
    assert isinstance(rows, ResultRows)
    assert (rows.rows.num_rows, rows.emitted) == (2, 3)
    assert shell("RESULTS q;").outcomes[0].rows.num_rows == 3


def test_tail_stops_at_its_limit(shell):
    shell("ADD SELECT k, v FROM t AS q;")
    shell.append((1, 1, 0), (2, 2, 1), (3, 3, 2))
    shell.wait_for_rows("q", 3)
    view = shell("TAIL q FROM BEGINNING LIMIT 2;")
    assert [row["k"] for row in view.rows] == [1, 2]
    assert isinstance(view.outcomes[-1], FollowEnded)
    assert shell("TAIL q FOR 300 ms;").rows == []
    shell("REMOVE q;")
    assert shell("TAIL q FROM BEGINNING;").outcomes[-1].query.status == "removed"


def test_a_bare_select_is_removed_at_its_end(shell):
    shell.append((1, 1, 0))
    wait_until(lambda: shell.target.streams()[0].rows == 1)
    outcomes = shell.runner.run(parse_first("SELECT k FROM t LIMIT 1;"))
    added, followed = next(outcomes), next(outcomes)
    assert (added.verb, added.is_temporary, added.query.name) == ("added", True, "watched_1")
    assert followed.stop == StopCondition(rows=1)
    assert [query.name for query in shell.target.queries()] == ["watched_1"]
    shell.append((7, 7, 1))
    assert [row for make_table in limit_tables(followed.open(None), followed.stop) for row in make_table.to_pylist()] == [
        {"k": 7}
    ]
    assert isinstance(next(outcomes), FollowEnded)
    removed = next(outcomes)
    assert (removed.verb, removed.is_temporary) == ("removed", True)
    assert shell.target.queries() == []


def test_a_bare_select_is_removed_by_an_interrupt(shell):
    class Interrupted(RecordingView):
        def show(self, outcome):
            if isinstance(outcome, FollowedQuery):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shell("SELECT k FROM t;", Interrupted())
    assert shell.target.queries() == []


def test_a_bare_select_ends_if_another_client_removes_its_query(shell):
    class Removing(RecordingView):
        def show(self, outcome):
            super().show(outcome)
            if isinstance(outcome, QueryChanged) and outcome.verb == "added":
                shell.target.remove(outcome.query.name)

    view = shell("SELECT k FROM t;", Removing())
    assert view.outcomes[-1].query.status == "removed"


def test_tail_of_a_failed_query_raises(shell):
    shell("ADD SELECT v * 9223372036854775807 AS w FROM t AS bad;")
    shell.append((1, 5, 0))
    with pytest.raises(EvaluationError, match="query 'bad' failed"):
        shell("TAIL bad;")


def parse_first(text):
    from headrace.cli.shell.parser import parse_statement

    return parse_statement(split_statements(text)[0][0])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("ADD SELECT w FROM t;", "line 1, column 12:\n  ADD SELECT w FROM t\n             ^"),
        ("SHOW QUERIES;\n  ADD SELECT k,\n   w FROM t AS q;", "line 3, column 4:\n     w FROM t AS q\n     ^"),
        ("HELP; EXPLAIN SELECT w FROM t;", "line 1, column 22:\n  EXPLAIN SELECT w FROM t\n                 ^"),
        ("\nSELECT w FROM t LIMIT 1;", "line 2, column 8:\n  SELECT w FROM t LIMIT 1\n         ^"),
        ("HELP;\nTAIL q LIMIT x;", "line 2, column 14:\n  TAIL q LIMIT x\n               ^"),
    ],
)
def test_errors_have_line_and_column_of_the_script(shell, text, place):
    with pytest.raises(HeadraceError) as caught:
        shell(text)
    assert caught.value.place == place


def test_the_error_hints_at_an_alias_parsed_as_the_name(shell):
    with pytest.raises(HeadraceError) as caught:
        shell("ADD SELECT x.k FROM t AS x;")
    assert "'AS x' at the end names the query" in caught.value.hint
    assert "ADD name AS SELECT" in caught.value.hint
    with pytest.raises(HeadraceError) as caught:
        shell("ADD SELECT w FROM t AS x;")
    assert "at the end" not in caught.value.hint
    shell("ADD q AS SELECT x.k FROM t AS x;")
    assert shell.target.query("q").status == "live"


def make_table(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (StopCondition(), [1, 2, 3, 4]),
        (StopCondition(rows=3), [1, 2, 3]),
        (StopCondition(rows=2), [1, 2]),
        (StopCondition(rows=9), [1, 2, 3, 4]),
    ],
)
def test_tables_are_limited_by_rows(stop, expected):
    tables = iter([make_table(1, 2), make_table(), make_table(3, 4)])
    assert [value for limited in limit_tables(tables, stop) for value in limited["v"].to_pylist()] == expected


def test_tables_are_limited_by_time():
    """Start 0 s, limit 2.5 s: the table at 3 s is the last."""
    clock = itertools.count()
    tables = (make_table(number) for number in itertools.count())
    assert len(list(limit_tables(tables, StopCondition(seconds=2.5), lambda: float(next(clock))))) == 3


def test_the_newest_rows_have_count_and_rate():
    """10,000 rows/s for 10 s: all are counted, the last five are kept, and the rate is a recent one."""
    now = [0.0]
    newest = NewestRows(make_table().schema, 5, lambda: now[0])
    for tick in range(1, 41):
        now[0] = tick / 4
        newest.add(make_table(*range(2500)))
    assert newest.row_count == 100_000
    assert newest.rate == pytest.approx(10_000, rel=0.1)
    assert newest.render_table().row_count == 5
    now[0] += 60
    newest.add(make_table())
    assert newest.rate == 0
    newest.add_earlier(make_table(1))
    assert newest.row_count == 100_000


def test_columns_never_become_narrower():
    newest = NewestRows(make_table().schema, 1)
    newest.add(make_table(123_456_789))
    newest.add(make_table(1))
    assert newest.render_table().columns[0].min_width == 9


def render_screen(shell, text, height=24):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None)
    shell(text, ScreenView(console))
    return console.file.getvalue()


def test_screen_view(shell):
    shell("ADD SELECT k, v FROM t AS q;")
    shell.append(*[(number, number, number) for number in range(1, 41)])
    shell.wait_for_rows("q", 40)
    output = render_screen(
        shell, "TAIL q FROM BEGINNING LIMIT 40; RESULTS q LIMIT 3; SHOW QUERIES; SHOW STREAMS; EXPLAIN q; HELP;"
    )
    assert "q · 40 rows" in output
    assert "the last 3 of 40 rows" in output
    assert "SELECT k, v FROM t" in output
    assert "uses routing of t, not shared" in output
    assert "ADD SELECT … AS name;" in output


def test_a_live_table_shows_earlier_rows(shell):
    shell("ADD SELECT k, v FROM t AS q;")
    shell.append((1, 1_234_567, 0))
    shell.wait_for_rows("q", 1)
    output = render_screen(shell, "TAIL q FOR 100 ms;")
    assert "1234567" in output
    assert "q · 0 rows" in output


def test_plain_view(shell):
    assert shell.render_plain("SHOW QUERIES;") == "no queries: ADD SELECT … AS name; adds one\n"
    assert shell.render_plain("ADD SELECT k, v FROM t AS q;").startswith("q added, live after ")
    assert shell.render_plain("RESULTS q;") == "q has emitted nothing yet\n"
    shell.append((1, 10, 0), (20, 2, 1))
    shell.wait_for_rows("q", 2)
    rows = " k   v\n--  --\n 1  10\n20   2\n"
    assert shell.render_plain("RESULTS q;") == f"{rows}2 rows\n"
    assert shell.render_plain("TAIL q FROM BEGINNING LIMIT 2;") == rows
    assert shell.render_plain("DESCRIBE q;") == "column  type\n------  ------\nk       INT\nv       BIGINT\nSELECT k, v FROM t\n"
    assert shell.render_plain("EXPLAIN SELECT k FROM t;") == "would give k INT\nwould use routing of t, shared with q\n"
    assert shell.render_plain("REMOVE q;") == "q removed\n"
    assert shell.render_plain("TAIL q;") == "query 'q' was removed\n"


def test_json_lines_view(shell):
    (added,) = shell.render_json("ADD SELECT k, v FROM t AS q;")
    assert {part: added[part] for part in ("kind", "name", "status", "columns", "error")} == {
        "kind": "added",
        "name": "q",
        "status": "live",
        "columns": {"k": "INT", "v": "BIGINT"},
        "error": None,
    }
    shell.append((1, 10, 0), (2, 20, 1))
    shell.wait_for_rows("q", 2)
    row, ended = shell.render_json("TAIL q FROM BEGINNING LIMIT 1;")
    assert row == {"kind": "row", "query": "q", "row": {"k": 1, "v": 10}}
    assert ended == {"kind": "ended", "query": "q", "status": "live"}
    assert [document["row"]["k"] for document in shell.render_json("RESULTS q;")] == [1, 2]
    (stream,) = shell.render_json("SHOW STREAMS;")
    assert (stream["kind"], stream["name"], stream["rows"], stream["delay_seconds"]) == ("stream", "t", 2, 1.0)
    (query,) = shell.render_json("SHOW QUERIES;")
    assert (query["kind"], query["emitted"]) == ("query", 2)
    (sharing,) = shell.render_json("EXPLAIN SELECT k FROM t;")
    assert sharing["uses"] == [{"what": "routing of t", "shared_with": ["q"]}]
    assert [document["kind"] for document in shell.render_json("SHOW PLAN; DESCRIBE t; REMOVE q;")] == [
        "plan",
        "columns",
        "removed",
    ]
    assert {document["kind"] for document in shell.render_json("HELP;")} == {"usage"}


def test_a_long_list_of_sharing_queries_is_shortened():
    from headrace.cli.shell.outcomes import OperatorUse

    (_, line) = make_lines(QuerySharing("", {"k": "INT"}, (OperatorUse("routing of t", tuple(f"q{n}" for n in range(9))),)))
    assert line.plain == "would use routing of t, shared with q0, q1, q2, q3, q4, q5 and 3 more"


def test_help_names_every_statement():
    assert make_lines(UsageList()) == []
    with contextlib.closing(io.StringIO()) as out:
        PlainView(out).show(UsageList())
        assert all(
            word in out.getvalue() for word in ("SELECT", "ADD", "REPLACE", "REMOVE", "TAIL", "RESULTS", "SHOW", "EXPLAIN")
        )


def test_rescale_says_what_comes_next(shell):
    (outcome,) = shell("RESCALE 3;").outcomes
    assert outcome == PartitionsChanged(2, 3, is_auto=False)
    assert [line.plain for line in make_lines(outcome)] == ["2 key partitions; 3 from the next micro-batch on"]
    (automatic,) = shell("RESCALE AUTO;").outcomes
    assert "follows the cores and the load" in make_lines(automatic)[0].plain
    out = io.StringIO()
    JsonLinesView(out).show(automatic)
    assert json.loads(out.getvalue()) == {"kind": "rescaled", "partitions": 2, "next": 2, "auto": True}
