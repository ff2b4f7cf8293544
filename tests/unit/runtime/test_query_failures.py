"""A query that cannot go on fails alone: overflow, callback, sink. What it emitted before stays, its error too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lives import Life, columns, rows

import headrace as hr
from headrace.errors import EvaluationError
from headrace.runtime import coordinator

MOST = 2**63 - 1
BACKENDS = pytest.mark.parametrize("backend", ["local", "reference"])
TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"


class Failing:
    """A callback that fails on its n-th call."""

    def __init__(self, nth: int = 1) -> None:
        self.nth, self.seen = nth, []

    def __call__(self, table: pa.Table) -> None:
        self.seen.append(table)
        if len(self.seen) == self.nth:
            raise RuntimeError("printer on fire")


# Overflow. Rows  1 | 6 (too large) | 12     windows [0, 5) [5, 10) [10, 15)


@BACKENDS
def test_a_sum_that_does_not_fit_fails_its_query_only(begin, backend: str):
    life = begin(backend=backend)
    bad = life.session.add(TOTAL)
    good = life.session.add("SELECT COUNT(*) AS n, MAX(n) AS top FROM TUMBLE(s, '5 seconds')")
    narrow = life.session.add(TOTAL + " WHERE n < 100")
    life.tick(1, 2)
    life.tick(6, 7, n=MOST)
    life.tick(12)
    life.tick(20)
    assert bad.status == "failed"
    assert "overflow" in bad.error.lower()
    assert columns(bad, "total") == [2]
    assert columns(good, "n", "top") == [(1, 1), (2, 1), (2, MOST)]
    assert columns(narrow, "total") == [1, 2]
    assert (good.status, narrow.status) == ("live", "live")


@BACKENDS
def test_an_inner_query_that_fails_takes_its_own_query_along_and_no_other(begin, backend: str):
    #   both have the same inner query; the second came after the rows that are too large, in [0, 5)
    inner = f"SELECT MAX(total) AS most FROM TUMBLE(({TOTAL.replace('window_start, ', '')}), '10 seconds')"
    life = begin(backend=backend)
    bad = life.session.add(inner)
    tops = "SELECT MAX(n) AS most FROM TUMBLE(s, '1 second')"
    outer = life.session.add(f"SELECT SUM(most) AS total FROM TUMBLE(({tops}), '5 seconds')")
    life.tick(1, 2, n=MOST)
    good = life.session.add(inner)
    life.tick(6)
    assert (bad.status, outer.status) == ("failed", "failed")
    assert "overflow" in bad.error.lower()
    life.tick(12, 13, n=4)
    life.tick(21)
    assert columns(bad, "most") == []
    assert good.status == "live"
    assert columns(good, "most") == [8]
    assert len(life.session._coordinator.live_queries) == 2  # the query and its part: what failed left nothing


def test_after_a_kill_parts_are_there_again(life: Life):
    inner = "SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k"
    life.session.add(f"SELECT MAX(total) AS most FROM TUMBLE(({inner}), '10 seconds')", name="q")
    life.tick(1, 2, n=3)
    life.tick(7)
    life.give(8)
    life.killed_in(life.session.advance, "stage two", 2)
    life.begin()
    life.session.advance()
    life.tick(15)
    assert columns(life.session.query("q"), "most") == [6]


@BACKENDS
def test_a_sum_may_pass_the_limit_and_come_back(begin, backend: str):
    life = begin(backend=backend)
    query = life.session.add(TOTAL)
    life.tick(1, 2, n=MOST)
    life.tick(3, 4, n=-MOST)
    life.tick(9)
    assert columns(query, "total") == [0]


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
def test_an_expression_that_overflows_fails_its_query_only(begin, backend: str, sql: str):
    life = begin(backend=backend)
    bad, good = life.session.add(sql), life.session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds')")
    life.tick(1, 6)
    before = columns(bad, "v")
    life.tick(7, n=MOST)
    life.tick(12)
    life.tick(30)
    assert bad.status == "failed"
    assert "overflow" in bad.error.lower()
    assert columns(bad, "v") == before
    assert columns(good, "n") == [1, 1, 2]


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
def test_overflow_outside_the_selection_or_in_a_gap_does_not_matter(begin, backend: str, sql: str):
    #   rows (k 1)  1       6       (k 2, too large)  2.5    gap of the last query: [1, 5)
    life = begin(backend=backend)
    query = life.session.add(sql)
    other = life.session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds') WHERE n > 1000")
    life.source.append([*rows(0.5), *rows(2.5, k=2, n=MOST)])
    life.session.advance()
    life.tick(5.5)
    life.tick(20)
    life.session.drain()
    assert query.error is None
    assert columns(other, "n") == [1]
    assert set(columns(query, "v")) <= {0, 4}
    assert len(columns(query, "v")) >= 2


@BACKENDS
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SUM(n * 4) AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT SUM(n) AS v FROM TUMBLE(s, '5 seconds') GROUP BY n * 4",
        "SELECT SUM(n * 4) AS v FROM SESSION(s, '2 seconds')",
    ],
)
def test_overflow_in_a_late_row_does_not_matter(begin, backend: str, sql: str):
    #   rows   1   6 | 2 (too large, late) | 20
    life = begin(backend=backend)
    query = life.session.add(sql)
    life.tick(1, 6)
    life.tick(2, n=MOST)
    life.tick(20)
    assert (query.status, query.error) == ("live", None)
    assert query.late == {"s": 1}
    assert len(columns(query, "v")) == 2


@BACKENDS
@pytest.mark.parametrize("sql", ["SELECT SUM(n * 4) AS v FROM TUMBLE(s, '5 seconds')", "SELECT n * 4 AS v FROM s"])
def test_overflow_in_a_row_from_before_the_query_does_not_matter(begin, backend: str, sql: str):
    #   rows   6 | 2 (too large)  12        added at |, T = 6.000001
    life = begin(backend=backend)
    life.session.add(TOTAL)
    life.tick(6)
    query = life.session.add(sql)
    life.source.append([*rows(2, n=MOST), *rows(12)])
    life.session.advance()
    life.session.drain()
    assert query.error is None
    assert columns(query, "v") == [4]


@BACKENDS
def test_a_failed_query_stays_failed_with_its_error_and_its_name_is_free_after_removal(begin, backend: str):
    life = begin(backend=backend)
    bad = life.session.add(TOTAL, name="bad")
    life.tick(1, 2, n=MOST)
    life.tick(9)
    for second in (12, 20, 30):
        life.tick(second)
        assert (bad.status, bool(bad.error)) == ("failed", True)
    with pytest.raises(EvaluationError, match="bad"):
        bad.wait_live(1)
    life.session.remove("bad")
    life.session.advance()
    again = life.session.add("SELECT n FROM s", name="bad")
    life.tick(40)
    assert (again.status, bad.status) == ("live", "failed")


def test_a_failure_survives_a_restart(life: Life):
    life.session.add(TOTAL, name="bad")
    life.tick(1, 2, n=MOST)
    life.tick(9)
    found = life.again().find("bad")
    assert found.status == "failed"
    assert "overflow" in found.error.lower()


# Callbacks


def test_a_failing_callback_fails_its_own_query_only(begin):
    life = begin(partitions=3)
    heard: list[int] = []
    bad = life.session.add("SELECT n FROM s", name="bad", sink=Failing(2))
    good = life.session.add("SELECT n FROM s", name="good", sink=lambda table: heard.extend(table["n"].to_pylist()))
    kept = life.session.add("SELECT n FROM s", name="kept")
    for second in range(1, 6):
        life.tick(second, n=second)
        if second > 1:
            assert bad.status == "failed"
            assert "printer on fire" in bad.error
    assert heard == columns(kept, "n") == [1, 2, 3, 4, 5]
    assert (good.status, kept.status) == ("live", "live")
    assert "bad" not in life.session.explain()


def test_a_failed_callback_is_not_called_again(life: Life):
    callback = Failing(1)
    life.session.add("SELECT n FROM s", name="bad", sink=callback)
    for second in range(1, 5):
        life.tick(second)
    assert len(callback.seen) == 1
    life.again()
    assert life.session.find("bad").status == "failed"
    assert "printer on fire" in life.session.find("bad").error


def test_a_callback_gets_every_row_once_with_several_partitions(begin):
    life = begin(partitions=5)
    heard: list[tuple[Any, ...]] = []

    def listen(table: pa.Table) -> None:
        heard.extend((row["k"], row["total"]) for row in table.to_pylist())

    life.session.add("SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k", sink=listen)
    life.session.add("SELECT k FROM s", sink="memory")
    for second in (1, 6, 11):
        life.source.append([row for k in range(50) for row in rows(second, second + 1, k=k, n=k)])
        life.session.advance()
    life.session.drain()
    assert sorted(heard) == sorted((k, 2 * k) for k in range(50) for _ in range(3))


def test_rows_for_callbacks_do_not_pile_up(begin):
    life = begin(partitions=2)
    life.session.add("SELECT k, n FROM s", sink=lambda table: None)
    for second in range(20):
        life.tick(second)
    assert life.files("results") == []


def test_a_callback_may_use_its_session(life: Life):
    added: list[hr.Query] = []

    def listen(table: pa.Table) -> None:
        if not added:
            added.append(life.session.add("SELECT n FROM s", name="child"))

    life.session.add("SELECT n FROM s", name="parent", sink=listen)
    life.tick(1)
    life.tick(2, n=2)
    assert columns(added[0], "n") == [2]


# Files


@BACKENDS
def test_a_sink_that_cannot_be_written_fails_its_own_query_only(begin, tmp_path: Path, backend: str):
    life = begin(backend=backend)
    (tmp_path / "taken").write_text("I am a file")
    bad = life.session.add(TOTAL, name="bad", sink=hr.ParquetSink(str(tmp_path / "taken")))
    good = life.session.add(TOTAL, name="good", sink=hr.ParquetSink(str(tmp_path / "good")))
    kept = life.session.add(TOTAL, name="kept")
    for second in (1, 6, 11, 16):
        life.tick(second)
    assert bad.status == "failed"
    assert "taken" in bad.error
    assert (good.status, kept.status) == ("live", "live")
    assert columns(kept, "total") == parquet(tmp_path / "good") == [1, 1, 1]
    assert (tmp_path / "taken").read_text() == "I am a file"


def test_a_sink_that_fails_in_one_partition_leaves_nothing_of_that_batch(begin, tmp_path: Path):
    #   batch 0: all partitions write; batch 2: one cannot, and what the others wrote goes away
    life = begin(partitions=4)
    query = life.session.add(
        "SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k", sink={"parquet": tmp_path / "out"}
    )
    many: Callable[[float], list[dict[str, Any]]] = lambda second: [row for k in range(40) for row in rows(second, k=k)]  # noqa: E731
    life.source.append(many(1))
    life.session.advance()
    life.source.append(many(6))
    life.session.advance()
    assert len(parquet(tmp_path / "out")) == 40
    (tmp_path / "out" / "part-0000000002-00003.parquet").mkdir()
    life.source.append(many(11))
    life.session.advance()
    assert query.status == "failed"
    (tmp_path / "out" / "part-0000000002-00003.parquet").rmdir()
    assert len(parquet(tmp_path / "out")) == 40
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith((".", "part-0000000002"))]


def test_two_queries_may_not_write_to_one_directory(life: Life, tmp_path: Path):
    life.session.add(TOTAL, name="a", sink={"parquet": tmp_path / "out"})
    with pytest.raises(hr.HeadraceError, match="already writes to"):
        life.session.add(TOTAL, name="b", sink={"jsonl": tmp_path / "out"})
    life.tick(1)


def parquet(folder: Path) -> list[Any]:
    files = sorted(folder.glob("*.parquet"))
    return sorted(total for file in files for total in pa.parquet.read_table(file)["total"].to_pylist())


def test_what_can_no_longer_be_understood_fails_alone_and_is_not_tried_again(begin, monkeypatch):
    """It was accepted, and then another version of headrace, say, is to run it."""
    life = begin()
    good = life.session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds')")
    bad = life.session.add(TOTAL)
    bind = coordinator.bind_query

    def picky(sql: str, catalog: Any) -> Any:
        if sql == TOTAL:
            raise RecursionError("maximum recursion depth exceeded")
        return bind(sql, catalog)

    monkeypatch.setattr(coordinator, "bind_query", picky)
    life.tick(1, 2)
    assert (bad.status, good.status) == ("failed", "live")
    assert "recursion" in bad.error
    life.tick(6)
    assert columns(good, "n") == [2]
    again = life.session.add(TOTAL + " WHERE n < 100")
    life.tick(12)
    assert again.status == "live"
