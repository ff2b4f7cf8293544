"""Killed at any step and opened again: every result once, none missing; callbacks get what they were not given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lives import Killed, Life, columns, rows

import headrace as hr
from headrace.errors import NameTakenError

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"
BY_KEY = "SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k"
STEPS = ["log", "logged", "planned", "stage one", "stage two", "commit", "committed"]


class Listener:
    """A callback that remembers, and dies when told to."""

    def __init__(self) -> None:
        self.tables: list[list[Any]] = []
        self.dies = False

    def __call__(self, table: pa.Table) -> None:
        if self.dies:
            raise Killed("in the callback")
        self.tables.append(sorted(table["total"].to_pylist()))

    @property
    def heard(self) -> list[Any]:
        return sorted(total for table in self.tables for total in table)


# Rows  1 | 6 | 11 | 16      killed in the batch of the row at 6


@pytest.mark.parametrize("step", STEPS)
def test_memory_results_survive_a_crash_at_any_step(life: Life, step: str):
    life.session.add(TOTAL, name="total")
    life.tick(1, n=1)
    life.give(6, n=2)
    life.killed_in(life.session.advance, step)
    life.begin()
    life.tick(11, n=4)
    life.again()
    life.tick(16, n=8)
    assert columns(life.session.query("total"), "total") == [1, 2, 4]
    life.session.drain()
    assert columns(life.session.query("total"), "total") == [1, 2, 4, 8]
    assert columns(life.again().query("total"), "total") == [1, 2, 4, 8]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_file_sinks_never_double(begin, tmp_path: Path, step: str, kind: str):
    life = begin(partitions=3)
    life.session.add(BY_KEY, name="total", sink={kind: tmp_path / "out"})
    for second in (1, 6, 11):
        life.source.append([row for k in range(20) for row in rows(second, k=k, n=second)])
        life.killed_in(life.session.advance, step)
        life.begin()
        if life.session.find("total") is None:  # nothing was logged yet
            life.session.add(BY_KEY, name="total", sink={kind: tmp_path / "out"})
        life.session.advance()
    life.session.drain()
    assert sorted(written(tmp_path / "out")) == sorted(second for second in (1, 6, 11) for _ in range(20))


def written(folder: Path) -> list[int]:
    found: list[int] = []
    for path in folder.iterdir():
        assert not path.name.startswith("."), f"half a file: {path.name}"
        table = pa.parquet.read_table(path) if path.suffix == ".parquet" else pa.json.read_json(path)
        found += table["total"].to_pylist()
    return found


@pytest.mark.parametrize("step", STEPS)
def test_a_callback_misses_nothing_when_killed_at_any_step(life: Life, step: str):
    listener = Listener()
    life.session.add(TOTAL, name="total", sink=listener)
    life.tick(1, n=1)
    life.give(6, n=2)
    life.killed_in(life.session.advance, step)
    life.begin()
    life.session.add(TOTAL, name="total", sink=listener)
    for second, n in ((11, 4), (16, 8)):
        life.tick(second, n=n)
    life.session.drain()
    assert sorted(set(listener.heard)) == [1, 2, 4, 8]
    assert listener.heard == [1, 2, 4, 8], "no crash hit a delivery, so nothing may come twice"


def test_a_callback_gets_a_batch_again_that_it_had_not_finished(life: Life):
    #   [0, 5) is committed, then the process dies inside the callback
    listener = Listener()
    life.session.add(TOTAL, name="total", sink=listener)
    life.tick(1, n=1)
    listener.dies = True
    with pytest.raises(Killed):
        life.tick(6, n=2)
    listener.dies = False
    life.again()
    life.session.add(TOTAL, name="total", sink=listener)
    assert listener.heard == [1]
    life.tick(11, n=4)
    assert listener.heard == [1, 2]


def test_several_batches_wait_for_a_callback_that_comes_back_late(life: Life):
    #   killed after a commit; the next session runs on before the callback is given back
    listener = Listener()
    life.session.add(TOTAL, name="total", sink=listener)
    life.session.add("SELECT COUNT(*) AS total FROM TUMBLE(s, '5 seconds')", name="kept")
    life.tick(1, n=1)
    life.give(6, n=2)
    life.killed_in(life.session.advance, "committed")
    life.begin()
    for second, n in ((11, 4), (16, 8), (21, 16)):
        life.tick(second, n=n)
    life.again()
    life.tick(26, n=32)
    assert listener.heard == []
    life.session.add(TOTAL, name="total", sink=listener)
    assert listener.heard == [1, 2, 4, 8, 16]
    assert listener.tables == [[1], [2], [4], [8], [16]], "in order, one call a batch"
    life.tick(31)
    assert listener.heard == [1, 2, 4, 8, 16, 32]
    assert columns(life.session.query("kept"), "total") == [1] * 6


def test_one_waiting_callback_does_not_starve_the_others_for_good(life: Life):
    """A callback that nobody gives back must not stop the rows of those that were."""
    heard: dict[str, list[Any]] = {"a": [], "b": []}
    for name, mine in heard.items():
        life.session.add(TOTAL, name=name, sink=lambda table, mine=mine: mine.extend(table["total"].to_pylist()))
    life.tick(1, n=1)
    life.again()
    life.session.add(TOTAL, name="a", sink=lambda table: heard["a"].extend(table["total"].to_pylist()))
    life.tick(6, n=2)
    life.session.remove("b")
    life.tick(11, n=4)
    life.tick(16, n=8)
    assert heard["a"] == [1, 2, 4]
    assert set(heard["b"]) <= {1}


def test_a_callback_with_several_partitions_dies_between_them(begin):
    """What was handed over before the crash may come again, nothing may be missing."""
    life = begin(partitions=4)
    heard: list[int] = []
    calls = 0

    def listen(table: pa.Table) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed("between partitions")
        heard.extend(table["k"].to_pylist())

    life.session.add(BY_KEY, name="keys", sink=listen)
    life.source.append([row for k in range(40) for row in rows(1, k=k)])
    life.session.advance()
    with pytest.raises(Killed):
        life.tick(9, k=99)
    life.again()
    life.session.add(BY_KEY, name="keys", sink=listen)
    assert set(heard) == set(range(40))


# Adding again


def test_adding_again_after_a_restart_returns_the_query(life: Life):
    life.session.add(TOTAL, name="total")
    life.tick(1)
    life.again()
    query = life.session.add(TOTAL, name="total")
    life.tick(6)
    assert columns(query, "total") == [1]
    with pytest.raises(NameTakenError, match="'total' already exists"):
        life.session.add(TOTAL, name="total")


def test_another_text_under_the_name_is_refused_after_a_restart(life: Life):
    life.session.add(TOTAL, name="total")
    life.tick(1)
    life.again()
    with pytest.raises(NameTakenError, match="already exists") as caught:
        life.session.add(TOTAL + " WHERE n > 1", name="total")
    assert TOTAL in caught.value.detail
    assert life.session.add(TOTAL, name="total").status == "live"


@pytest.mark.parametrize("step", ["logged", "planned", "stage one", "stage two", "commit"])
def test_adding_again_when_the_adding_batch_was_cut_off(life: Life, step: str):
    life.session.add(TOTAL, name="total")
    life.give(1)
    life.killed_in(life.session.advance, step)
    life.begin()
    with pytest.raises(NameTakenError):
        life.session.add("SELECT n FROM s", name="total")
    query = life.session.add(TOTAL, name="total")
    life.tick(6)
    assert query.status == "live"
    assert columns(query, "total") == [1]
    assert len(life.session.queries()) == 1


def test_a_query_that_was_not_logged_is_not_there(life: Life):
    life.session.add(TOTAL, name="total")
    life.give(1)
    life.killed_in(life.session.advance, "log")
    life.begin()
    assert life.session.find("total") is None
    query = life.session.add(TOTAL, name="total")
    life.tick(6)
    assert columns(query, "total") == [1]


@pytest.mark.parametrize("step", ["logged", "stage two", "commit"])
def test_a_removal_that_was_cut_off_holds(life: Life, step: str):
    life.session.add(TOTAL, name="total")
    life.tick(1)
    life.session.remove("total")
    life.give(6)
    life.killed_in(life.session.advance, step)
    life.begin()
    assert life.session.queries() == []
    life.tick(11)
    assert columns(life.session.find("total"), "total") == []
    assert life.session.find("total").status == "removed"


def test_a_query_added_and_removed_keeps_its_results_after_a_restart(life: Life):
    life.session.add(TOTAL, name="total")
    life.tick(1)
    life.tick(6)
    life.session.remove("total")
    life.tick(11)
    found = life.again().find("total")
    assert found.status == "removed"
    assert columns(found, "total") == [1]


def test_numbers_are_not_given_out_twice(life: Life):
    """A query added after a restart must not find rows of an older one."""
    first = life.session.add("SELECT n FROM s", name="first")
    life.tick(1, n=1)
    life.session.remove("first")
    life.session.advance()
    life.again()
    second = life.session.add("SELECT n FROM s", name="second")
    life.tick(2, n=2)
    assert columns(second, "n") == [2]
    assert columns(life.session.find("first"), "n") == [1]
    assert first.name == "first"


# Other circumstances


@pytest.mark.parametrize("widths", [(3, 1), (1, 4), (2, 5)])
def test_another_number_of_partitions_takes_over_what_was_kept(begin, widths: tuple[int, int]):
    life = begin(partitions=widths[0])
    life.session.add(BY_KEY, name="keys")
    life.source.append([row for k in range(30) for row in rows(1, k=k)])
    life.session.advance()
    life.again(partitions=widths[1])
    life.source.append([row for k in range(30) for row in rows(2, k=k)])
    life.session.advance()
    life.session.drain()
    assert columns(life.session.query("keys"), "k", "total") == [(k, 2) for k in range(30)]


def test_another_number_of_partitions_while_the_first_batch_is_unfinished(begin):
    life = begin(partitions=3)
    life.session.add(BY_KEY, name="keys")
    life.source.append([row for k in range(30) for row in rows(1, k=k)])
    life.killed_in(life.session.advance, "stage two", 2)
    life.begin(partitions=1)
    life.session.advance()
    life.session.drain()
    assert columns(life.session.query("keys"), "k", "total") == [(k, 1) for k in range(30)]


def test_rows_given_before_a_crash_are_not_lost(life: Life):
    query_text = "SELECT n FROM s"
    life.session.add(query_text, name="q")
    life.session.advance()
    life.give(1, n=1)
    life.again()
    life.give(2, n=2)
    life.again()
    life.session.advance()
    assert columns(life.session.query("q"), "n") == [1, 2]


def test_sessions_survive_a_restart(life: Life):
    #   rows   1 | 3 | 5       gap 2: one session over three processes
    sql = "SELECT COUNT(*) AS n, MIN(n) AS low, COUNT(DISTINCT n) AS kinds FROM SESSION(s, '2 seconds')"
    life.session.add(sql, name="visits")
    life.tick(1, n=4)
    life.again()
    life.tick(3, n=2)
    life.again()
    life.tick(5, n=2)
    life.again()
    life.session.drain()
    assert columns(life.session.query("visits"), "n", "low", "kinds") == [(3, 2, 2)]


def test_late_rows_stay_counted_after_a_restart(life: Life):
    life.session.add(TOTAL, name="total")
    life.tick(9)
    life.tick(1)
    life.again()
    life.tick(2)
    assert life.session.query("total").late == {"s": 2}


def test_a_drain_that_was_cut_off_is_finished(life: Life):
    life.session.add(TOTAL, name="total")
    life.tick(1)
    life.killed_in(life.session.drain, "stage two")
    life.begin()
    life.session.drain()
    assert columns(life.session.query("total"), "total") == [1]
    assert columns(life.again().query("total"), "total") == [1]


def test_a_session_is_a_context_and_gives_everything_back(tmp_path: Path):
    with hr.Session(tmp_path / "c", backend="local") as session:
        assert not session.is_closed
    with pytest.raises(hr.HeadraceError, match="closed"):
        session.advance()
    hr.Session(tmp_path / "c", backend="local").close()
