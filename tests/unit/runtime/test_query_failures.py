"""Overflow, callback errors and sink errors fail one query only; the failed query keeps its results and its error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lives import SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.connectors import OutputPlace, PendingFile
from headrace.connectors.sinks import files as sink_files
from headrace.errors import EvaluationError
from headrace.runtime import epochs

MOST = 2**63 - 1
BACKENDS = pytest.mark.parametrize("backend", ["local", "reference"])
TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"


class FailingCallback:
    """A callback that raises on its n-th call."""

    def __init__(self, nth: int = 1) -> None:
        self.nth, self.tables = nth, []

    def __call__(self, table: pa.Table) -> None:
        self.tables.append(table)
        if len(self.tables) == self.nth:
            raise RuntimeError("printer on fire")


# Overflow. Rows  1 | 6 (too large) | 12     windows [0, 5) [5, 10) [10, 15)


@BACKENDS
def test_an_overflowing_sum_fails_its_query_only(open_harness, backend: str):
    harness = open_harness(backend=backend)
    bad = harness.session.add(TOTAL)
    good = harness.session.add("SELECT COUNT(*) AS n, MAX(n) AS top FROM TUMBLE(s, '5 seconds')")
    narrow = harness.session.add(TOTAL + " WHERE n < 100")
    harness.tick(1, 2)
    harness.tick(6, 7, n=MOST)
    harness.tick(12)
    harness.tick(20)
    assert bad.status == "failed"
    assert "overflow" in bad.error.lower()
    assert read_columns(bad, "total") == [2]
    assert read_columns(good, "n", "top") == [(1, 1), (2, 1), (2, MOST)]
    assert read_columns(narrow, "total") == [1, 2]
    assert (good.status, narrow.status) == ("live", "live")


@BACKENDS
def test_a_failing_inner_query_fails_its_own_outer_query_only(open_harness, backend: str):
    #   two queries with the same inner query; the second is added after the overflowing rows, in [0, 5)
    inner = f"SELECT MAX(total) AS most FROM TUMBLE(({TOTAL.replace('window_start, ', '')}), '10 seconds')"
    harness = open_harness(backend=backend)
    bad = harness.session.add(inner)
    tops = "SELECT MAX(n) AS most FROM TUMBLE(s, '1 second')"
    outer = harness.session.add(f"SELECT SUM(most) AS total FROM TUMBLE(({tops}), '5 seconds')")
    harness.tick(1, 2, n=MOST)
    good = harness.session.add(inner)
    harness.tick(6)
    assert (bad.status, outer.status) == ("failed", "failed")
    assert "overflow" in bad.error.lower()
    harness.tick(12, 13, n=4)
    harness.tick(21)
    assert read_columns(bad, "most") == []
    assert good.status == "live"
    assert read_columns(good, "most") == [8]
    assert len(harness.session._coordinator.live_queries) == 2  # the outer query and its inner part; the failed queries are gone


def test_inner_queries_are_recovered_after_a_crash(harness: SessionHarness):
    inner = "SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k"
    harness.session.add(f"SELECT MAX(total) AS most FROM TUMBLE(({inner}), '10 seconds')", name="q")
    harness.tick(1, 2, n=3)
    harness.tick(7)
    harness.append_rows(8)
    harness.kill_during(harness.session.advance, "stage two", 2)
    harness.open_session()
    harness.session.advance()
    harness.tick(15)
    assert read_columns(harness.session.query("q"), "most") == [6]


@BACKENDS
def test_a_sum_may_exceed_the_limit_between_batches(open_harness, backend: str):
    harness = open_harness(backend=backend)
    query = harness.session.add(TOTAL)
    harness.tick(1, 2, n=MOST)
    harness.tick(3, 4, n=-MOST)
    harness.tick(9)
    assert read_columns(query, "total") == [0]


@BACKENDS
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SUM(n * 4) AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT COUNT(*) AS v FROM TUMBLE(s, '5 seconds') GROUP BY n * 4",
        "SELECT COUNT(*) AS v FROM TUMBLE(s, '5 seconds') WHERE n * 4 > 0",
        "SELECT COUNT(n * 4) AS v FROM SESSION(s, '2 seconds')",
        "SELECT MAX(n) * 4 AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT COUNT(*) AS v FROM TUMBLE(s, '5 seconds') HAVING MAX(n) * 4 > 0",
        "SELECT n * 4 AS v FROM s",
        "SELECT n AS v FROM s WHERE n * 4 > 0",
        "SELECT COUNT(DISTINCT n * 4) AS v FROM TUMBLE(s, '5 seconds')",
    ],
)
def test_an_expression_that_overflows_fails_its_query_only(open_harness, backend: str, sql: str):
    harness = open_harness(backend=backend)
    bad, good = harness.session.add(sql), harness.session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds')")
    harness.tick(1, 6)
    before = read_columns(bad, "v")
    harness.tick(7, n=MOST)
    harness.tick(12)
    harness.tick(30)
    assert bad.status == "failed"
    assert "overflow" in bad.error.lower()
    assert read_columns(bad, "v") == before
    assert read_columns(good, "n") == [1, 1, 2]


@BACKENDS
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SUM(n * 4) AS v FROM TUMBLE(s, '5 seconds') WHERE n < 100",
        "SELECT SUM(CASE WHEN n < 100 THEN n * 4 ELSE 0 END) AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT n * 4 AS v, COUNT(*) AS c FROM TUMBLE(s, '5 seconds') WHERE k = 1 GROUP BY n * 4",
        "SELECT n * 4 AS v FROM s WHERE n < 100",
        "SELECT n * 4 AS v FROM s WHERE k = 1",
        "SELECT SUM(n * 4) AS v FROM SESSION(s, '2 seconds') WHERE k = 1",
        "SELECT SUM(n * 4) AS v FROM HOP(s, '1 second', '5 seconds')",
    ],
)
def test_overflow_in_rows_outside_the_predicate_or_the_windows_is_ignored(open_harness, backend: str, sql: str):
    #   rows (k 1)  1       6       (k 2, too large)  2.5    gap of the last query: [1, 5)
    harness = open_harness(backend=backend)
    query = harness.session.add(sql)
    other = harness.session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds') WHERE n > 1000")
    harness.source.append([*make_rows(0.5), *make_rows(2.5, k=2, n=MOST)])
    harness.session.advance()
    harness.tick(5.5)
    harness.tick(20)
    harness.session.drain()
    assert query.error is None
    assert read_columns(other, "n") == [1]
    assert set(read_columns(query, "v")) <= {0, 4}
    assert len(read_columns(query, "v")) >= 2


@BACKENDS
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SUM(n * 4) AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT SUM(n) AS v FROM TUMBLE(s, '5 seconds') GROUP BY n * 4",
        "SELECT SUM(n * 4) AS v FROM SESSION(s, '2 seconds')",
    ],
)
def test_overflow_in_a_late_row_is_ignored(open_harness, backend: str, sql: str):
    #   rows   1   6 | 2 (too large, late) | 20
    harness = open_harness(backend=backend)
    query = harness.session.add(sql)
    harness.tick(1, 6)
    harness.tick(2, n=MOST)
    harness.tick(20)
    assert (query.status, query.error) == ("live", None)
    assert query.late == {"s": 1}
    assert len(read_columns(query, "v")) == 2


@BACKENDS
@pytest.mark.parametrize("sql", ["SELECT SUM(n * 4) AS v FROM TUMBLE(s, '5 seconds')", "SELECT n * 4 AS v FROM s"])
def test_overflow_in_a_row_older_than_the_query_is_ignored(open_harness, backend: str, sql: str):
    #   rows   6 | 2 (too large)  12        added at |, T = 6.000001
    harness = open_harness(backend=backend)
    harness.session.add(TOTAL)
    harness.tick(6)
    query = harness.session.add(sql)
    harness.source.append([*make_rows(2, n=MOST), *make_rows(12)])
    harness.session.advance()
    harness.session.drain()
    assert query.error is None
    assert read_columns(query, "v") == [4]


@BACKENDS
def test_a_failed_query_keeps_its_error_and_removal_frees_its_name(open_harness, backend: str):
    harness = open_harness(backend=backend)
    bad = harness.session.add(TOTAL, name="bad")
    harness.tick(1, 2, n=MOST)
    harness.tick(9)
    for second in (12, 20, 30):
        harness.tick(second)
        assert (bad.status, bool(bad.error)) == ("failed", True)
    with pytest.raises(EvaluationError, match="bad"):
        bad.wait_live(1)
    harness.session.remove("bad")
    harness.session.advance()
    again = harness.session.add("SELECT n FROM s", name="bad")
    harness.tick(40)
    assert (again.status, bad.status) == ("live", "failed")


def test_a_failure_survives_a_restart(harness: SessionHarness):
    harness.session.add(TOTAL, name="bad")
    harness.tick(1, 2, n=MOST)
    harness.tick(9)
    query = harness.restart().find("bad")
    assert query.status == "failed"
    assert "overflow" in query.error.lower()


# Callbacks


def test_a_failing_callback_fails_its_own_query_only(open_harness):
    harness = open_harness(partitions=3)
    values: list[int] = []
    bad = harness.session.add("SELECT n FROM s", name="bad", sink=FailingCallback(2))
    good = harness.session.add("SELECT n FROM s", name="good", sink=lambda table: values.extend(table["n"].to_pylist()))
    kept = harness.session.add("SELECT n FROM s", name="kept")
    for second in range(1, 6):
        harness.tick(second, n=second)
        if second > 1:
            assert bad.status == "failed"
            assert "printer on fire" in bad.error
    assert values == read_columns(kept, "n") == [1, 2, 3, 4, 5]
    assert (good.status, kept.status) == ("live", "live")
    assert "bad" not in harness.session.explain()


def test_a_failed_callback_is_not_called_again(harness: SessionHarness):
    callback = FailingCallback(1)
    harness.session.add("SELECT n FROM s", name="bad", sink=callback)
    for second in range(1, 5):
        harness.tick(second)
    assert len(callback.tables) == 1
    harness.restart()
    assert harness.session.find("bad").status == "failed"
    assert "printer on fire" in harness.session.find("bad").error


def test_a_callback_gets_every_row_once_with_several_partitions(open_harness):
    harness = open_harness(partitions=5)
    received: list[tuple[Any, ...]] = []

    def listen(table: pa.Table) -> None:
        received.extend((row["k"], row["total"]) for row in table.to_pylist())

    harness.session.add("SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k", sink=listen)
    harness.session.add("SELECT k FROM s", sink="memory")
    for second in (1, 6, 11):
        harness.source.append([row for k in range(50) for row in make_rows(second, second + 1, k=k, n=k)])
        harness.session.advance()
    harness.session.drain()
    assert sorted(received) == sorted((k, 2 * k) for k in range(50) for _ in range(3))


def test_delivered_callback_rows_are_deleted(open_harness):
    harness = open_harness(partitions=2)
    harness.session.add("SELECT k, n FROM s", sink=lambda table: None)
    for second in range(20):
        harness.tick(second)
    assert harness.list_files("results") == []


def test_a_callback_may_add_queries_to_its_session(harness: SessionHarness):
    added: list[hr.Query] = []

    def listen(table: pa.Table) -> None:
        if not added:
            added.append(harness.session.add("SELECT n FROM s", name="child"))

    harness.session.add("SELECT n FROM s", name="parent", sink=listen)
    harness.tick(1)
    harness.tick(2, n=2)
    assert read_columns(added[0], "n") == [2]


# Files


@BACKENDS
def test_an_unwritable_sink_fails_its_query_only(open_harness, tmp_path: Path, backend: str):
    harness = open_harness(backend=backend)
    (tmp_path / "taken").write_text("I am a file")
    bad = harness.session.add(TOTAL, name="bad", sink=hr.ParquetSink(str(tmp_path / "taken")))
    good = harness.session.add(TOTAL, name="good", sink=hr.ParquetSink(str(tmp_path / "good")))
    kept = harness.session.add(TOTAL, name="kept")
    for second in (1, 6, 11, 16):
        harness.tick(second)
    assert bad.status == "failed"
    assert "taken" in bad.error
    assert (good.status, kept.status) == ("live", "live")
    assert read_columns(kept, "total") == read_parquet_totals(tmp_path / "good") == [1, 1, 1]
    assert (tmp_path / "taken").read_text() == "I am a file"


def test_a_sink_error_in_a_partition_publishes_no_file_of_the_whole_batch(open_harness, tmp_path: Path, monkeypatch):
    #   batch 1: all partitions write; batch 2: one partition fails, and the files of the others are not published
    harness = open_harness(partitions=4)
    query = harness.session.add(
        "SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k", sink={"parquet": tmp_path / "out"}
    )
    many_rows: Callable[[float], list[dict[str, Any]]] = lambda second: [row for k in range(40) for row in make_rows(second, k=k)]  # noqa: E731
    harness.source.append(many_rows(1))
    harness.session.advance()
    harness.source.append(many_rows(6))
    harness.session.advance()
    assert len(read_parquet_totals(tmp_path / "out")) == 40
    write = sink_files.write_pending_file

    def refuse_last_partition(folder: str, place: OutputPlace, *more: Any) -> PendingFile:
        if place.partition == 3:
            raise OSError("this partition is refused")
        return write(folder, place, *more)

    monkeypatch.setattr(sink_files, "write_pending_file", refuse_last_partition)
    harness.source.append(many_rows(11))
    harness.session.advance()
    assert query.status == "failed"
    assert "this partition is refused" in query.error
    assert len(read_parquet_totals(tmp_path / "out")) == 40
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith((".", "part-0000000002"))]
    assert not list((tmp_path / "out" / "_pending").iterdir())


def test_two_queries_with_the_same_sink_directory_are_refused(harness: SessionHarness, tmp_path: Path):
    harness.session.add(TOTAL, name="a", sink={"parquet": tmp_path / "out"})
    with pytest.raises(hr.HeadraceError, match="already writes to"):
        harness.session.add(TOTAL, name="b", sink={"jsonl": tmp_path / "out"})
    harness.tick(1)


def read_parquet_totals(folder: Path) -> list[Any]:
    files = sorted(folder.glob("*.parquet"))
    return sorted(total for file in files for total in pa.parquet.read_table(file)["total"].to_pylist())


def test_an_accepted_query_that_cannot_be_bound_fails_alone_and_is_not_retried(open_harness, monkeypatch):
    """This happens if another version of headrace opens the checkpoint."""
    harness = open_harness()
    good = harness.session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds')")
    bad = harness.session.add(TOTAL)
    bind = epochs.bind_query

    def bind_or_raise(sql: str, catalog: Any) -> Any:
        if sql == TOTAL:
            raise RecursionError("maximum recursion depth exceeded")
        return bind(sql, catalog)

    monkeypatch.setattr(epochs, "bind_query", bind_or_raise)
    harness.tick(1, 2)
    assert (bad.status, good.status) == ("failed", "live")
    assert "recursion" in bad.error
    harness.tick(6)
    assert read_columns(good, "n") == [2]
    again = harness.session.add(TOTAL + " WHERE n < 100")
    harness.tick(12)
    assert again.status == "live"
