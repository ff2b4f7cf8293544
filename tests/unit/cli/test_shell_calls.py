"""What each statement of the shell asks of its target, and what it reports; the target here only records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli.shell.executor import StatementRunner, place_in_source, shift_place
from headrace.cli.shell.parser import parse_statement
from headrace.cli.shell.tokenizer import split_statements
from headrace.errors import SqlError


class RecordingTarget:
    """Has the query `old`; every call is recorded with its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def query(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, status="live", emitted=5, error="")

    def queries(self) -> list[SimpleNamespace]:
        return [self.query("old")]

    def add(self, sql: str, name: str, *sink: Any) -> SimpleNamespace:
        self.calls.append(("add", sql, name, *sink))
        return self.query(name)

    def results(self, name: str, rows: int | None) -> pa.Table:
        self.calls.append(("results", name, rows))
        return pa.table({"n": [1, 2]})

    def rescale(self, partitions: Any) -> tuple[int, int, bool]:
        self.calls.append(("rescale", partitions))
        return 4, 8, partitions == "auto"

    def explain(self) -> str:
        return "the plan"

    def __getattr__(self, verb: str) -> Any:
        def call(*positional: Any, **named: Any) -> SimpleNamespace:
            self.calls.append((verb, *positional, *named.values()))
            return self.query(str(positional[0]))

        return call


def run(text: str, rows: int | None = None) -> tuple[list[tuple[Any, ...]], list[Any]]:
    target = RecordingTarget()
    runner = StatementRunner(target, rows=rows, name=lambda: "generated")
    ((piece,), _) = split_statements(text + ";")
    return target.calls, list(runner.run(parse_statement(piece)))


CREATE = "CREATE STREAM s (k INT, time TIMESTAMP, WATERMARK FOR time AS time) WITH (source = 'memory')"


@pytest.mark.parametrize(
    ("text", "calls", "verb"),
    [
        ("ADD SELECT 1 AS q", [("add", "SELECT 1", "q", None)], "added"),
        ("CREATE QUERY q WITH (sink = 'noop') AS SELECT 1", [("add", "SELECT 1", "q", "noop")], "added"),
        ("REPLACE old AS SELECT 1", [("replace", "old", "SELECT 1", None)], "replaced"),
        ("REPLACE new AS SELECT 1", [("replace", "new", "SELECT 1", None)], "replaced"),  # the target refuses it
        ("CREATE OR REPLACE QUERY old AS SELECT 1", [("replace", "old", "SELECT 1", None)], "replaced"),
        ("CREATE OR REPLACE QUERY new AS SELECT 1", [("add", "SELECT 1", "new", None)], "added"),
        ("REMOVE a, b", [("remove", "a"), ("remove", "b")], "removed"),
        ("ALTER QUERY q DROP SINK 1", [("alter_query", "ALTER QUERY q DROP SINK 1")], "changed"),
        ("SELECT 1", [("add", "SELECT 1", "generated"), ("remove", "generated")], "removed"),
        (CREATE, [("create_stream", CREATE)], None),
        ("DROP STREAM s", [("drop_stream", "s", False)], None),
        ("DROP STREAM s CASCADE", [("drop_stream", "s", True)], None),
        ("RESCALE 8", [("rescale", 8)], None),
        ("RESCALE AUTO", [("rescale", "auto")], None),
        ("SHOW PLAN", [], None),
        ("QUIT", [], None),
    ],
)
def test_the_calls_of_a_statement(text: str, calls: list[tuple[Any, ...]], verb: str | None):
    made, outcomes = run(text)
    assert made == calls
    assert getattr(outcomes[-1] if outcomes else None, "verb", None) == verb


def test_results_have_the_number_of_rows_that_is_asked_for():
    for text, default, rows in (("RESULTS q", 20, 20), ("RESULTS q LIMIT 3", 20, 3), ("RESULTS q", None, None)):
        calls, (outcome,) = run(text, default)
        assert calls == [("results", "q", rows)]
        assert (outcome.rows.num_rows, outcome.emitted) == (2, 5)


def test_the_number_of_partitions_now_and_next():
    _, (outcome,) = run("RESCALE AUTO")
    assert (outcome.partitions, outcome.next, outcome.is_auto) == (4, 8, True)


def test_the_place_of_an_error_in_a_larger_text():
    first, later = SqlError("m", place="line 1, column 4:\nx"), SqlError("m", place="line 3, column 4:\nx", hint="h")
    assert shift_place(first, 2, 10).place == "line 2, column 13:\nx"
    moved = shift_place(later, 2, 10)
    assert (moved.place, moved.hint) == ("line 4, column 4:\nx", "h")
    nowhere = SqlError("m")
    assert shift_place(nowhere, 2, 10) is nowhere


def test_the_place_of_an_error_in_a_script_shows_its_line():
    ((_, piece), _) = split_statements("HELP;\n  ADD SELECT a\n  FROM nowhere;")
    error = place_in_source(SqlError("m", place="line 2, column 8:\nold"), piece)
    head, *excerpt = error.place.split("\n")
    assert head == "line 3, column 8:"
    assert "FROM nowhere" in excerpt[0]
    assert excerpt[1].index("^") == excerpt[0].index("nowhere")
    first = place_in_source(SqlError("m", place="line 1, column 5:\nold"), piece)
    assert first.place.startswith("line 2, column 7:\n")
    nowhere = SqlError("m")
    assert place_in_source(nowhere, piece) is nowhere
