"""Recovery after a crash at any step: results are exactly once; callbacks get every batch that was not delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lives import Killed, SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.errors import CheckpointError, NameTakenError

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"
BY_KEY = "SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k"
STEPS = ["log", "logged", "planned", "stage one", "stage two", "commit", "committed", "published"]


class Listener:
    """A callback that records the totals of each call, and raises `Killed` while `dies` is set."""

    def __init__(self) -> None:
        self.tables: list[list[Any]] = []
        self.dies = False

    def __call__(self, table: pa.Table) -> None:
        if self.dies:
            raise Killed("in the callback")
        self.tables.append(sorted(table["total"].to_pylist()))

    @property
    def totals(self) -> list[Any]:
        return sorted(total for table in self.tables for total in table)


# Rows  1 | 6 | 11 | 16      crash in the batch of the row at 6


@pytest.mark.parametrize("step", STEPS)
def test_memory_results_survive_a_crash_at_any_step(harness: SessionHarness, step: str):
    harness.session.add(TOTAL, name="total")
    harness.tick(1, n=1)
    harness.append_rows(6, n=2)
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    harness.tick(11, n=4)
    harness.restart()
    harness.tick(16, n=8)
    assert read_columns(harness.session.query("total"), "total") == [1, 2, 4]
    harness.session.drain()
    assert read_columns(harness.session.query("total"), "total") == [1, 2, 4, 8]
    assert read_columns(harness.restart().query("total"), "total") == [1, 2, 4, 8]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_file_sinks_write_every_row_once_after_crashes(open_harness, tmp_path: Path, step: str, kind: str):
    harness = open_harness(partitions=3)
    harness.session.add(BY_KEY, name="total", sink={kind: tmp_path / "out"})
    for second in (1, 6, 11):
        harness.source.append([row for k in range(20) for row in make_rows(second, k=k, n=second)])
        harness.kill_during(harness.session.advance, step)
        harness.open_session()
        if harness.session.find("total") is None:  # the query was not logged before the crash
            harness.session.add(BY_KEY, name="total", sink={kind: tmp_path / "out"})
        harness.session.advance()
    harness.session.drain()
    assert sorted(read_totals(tmp_path / "out")) == sorted(second for second in (1, 6, 11) for _ in range(20))


def read_totals(folder: Path) -> list[int]:
    totals: list[int] = []
    assert not list((folder / "_pending").iterdir()), "files that do not count"
    for path in folder.glob("[!_]*"):
        assert not path.name.startswith("."), f"unfinished file: {path.name}"
        table = pa.parquet.read_table(path) if path.suffix == ".parquet" else pa.json.read_json(path)
        totals += table["total"].to_pylist()
    return totals


@pytest.mark.parametrize("step", STEPS)
def test_a_callback_gets_every_row_after_a_crash_at_any_step(harness: SessionHarness, step: str):
    listener = Listener()
    harness.session.add(TOTAL, name="total", sink=listener)
    harness.tick(1, n=1)
    harness.append_rows(6, n=2)
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    harness.session.add(TOTAL, name="total", sink=listener)
    for second, n in ((11, 4), (16, 8)):
        harness.tick(second, n=n)
    harness.session.drain()
    assert sorted(set(listener.totals)) == [1, 2, 4, 8]
    assert listener.totals == [1, 2, 4, 8], "no crash occurred during a delivery: no duplicates"


def test_a_batch_is_redelivered_after_a_crash_inside_the_callback(harness: SessionHarness):
    #   [0, 5) is committed, then the process dies inside the callback
    listener = Listener()
    harness.session.add(TOTAL, name="total", sink=listener)
    harness.tick(1, n=1)
    listener.dies = True
    with pytest.raises(Killed):
        harness.tick(6, n=2)
    listener.dies = False
    harness.restart()
    harness.session.add(TOTAL, name="total", sink=listener)
    assert listener.totals == [1]
    harness.tick(11, n=4)
    assert listener.totals == [1, 2]


def test_batches_wait_until_the_callback_is_registered_again(harness: SessionHarness):
    #   crash after a commit; the next sessions run batches before the callback is registered again
    listener = Listener()
    harness.session.add(TOTAL, name="total", sink=listener)
    harness.session.add("SELECT COUNT(*) AS total FROM TUMBLE(s, '5 seconds')", name="kept")
    harness.tick(1, n=1)
    harness.append_rows(6, n=2)
    harness.kill_during(harness.session.advance, "committed")
    harness.open_session()
    for second, n in ((11, 4), (16, 8), (21, 16)):
        harness.tick(second, n=n)
    harness.restart()
    harness.tick(26, n=32)
    assert listener.totals == []
    harness.session.add(TOTAL, name="total", sink=listener)
    assert listener.totals == [1, 2, 4, 8, 16]
    assert listener.tables == [[1], [2], [4], [8], [16]], "in order, one call a batch"
    harness.tick(31)
    assert listener.totals == [1, 2, 4, 8, 16, 32]
    assert read_columns(harness.session.query("kept"), "total") == [1] * 6


def test_a_callback_that_is_never_registered_again_does_not_block_others(harness: SessionHarness):
    """Callback b is not registered again after the restart; callback a still gets its rows."""
    totals: dict[str, list[Any]] = {"a": [], "b": []}
    for name, received in totals.items():
        harness.session.add(TOTAL, name=name, sink=lambda table, received=received: received.extend(table["total"].to_pylist()))
    harness.tick(1, n=1)
    harness.restart()
    harness.session.add(TOTAL, name="a", sink=lambda table: totals["a"].extend(table["total"].to_pylist()))
    harness.tick(6, n=2)
    harness.session.remove("b")
    harness.tick(11, n=4)
    harness.tick(16, n=8)
    assert totals["a"] == [1, 2, 4]
    assert set(totals["b"]) <= {1}


def test_a_crash_during_a_delivery_repeats_the_rows_of_all_partitions_together(open_harness):
    harness = open_harness(partitions=4)
    calls: list[list[int]] = []

    def listen(table: pa.Table) -> None:
        calls.append(sorted(table["k"].to_pylist()))
        if len(calls) == 1:
            raise Killed("within the callback")

    harness.session.add(BY_KEY, name="keys", sink=listen)
    harness.source.append([row for k in range(40) for row in make_rows(1, k=k)])
    harness.session.advance()
    with pytest.raises(Killed):
        harness.tick(9, k=99)
    harness.restart()
    harness.session.add(BY_KEY, name="keys", sink=listen)
    assert calls == [list(range(40))] * 2


# Adding a query again after a restart


def test_add_after_a_restart_returns_the_recovered_query(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.tick(1)
    harness.restart()
    query = harness.session.add(TOTAL, name="total")
    harness.tick(6)
    assert read_columns(query, "total") == [1]
    with pytest.raises(NameTakenError, match="'total' already exists"):
        harness.session.add(TOTAL, name="total")


def test_add_after_a_restart_refuses_another_text_under_the_same_name(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.tick(1)
    harness.restart()
    with pytest.raises(NameTakenError, match="already exists") as caught:
        harness.session.add(TOTAL + " WHERE n > 1", name="total")
    assert TOTAL in caught.value.detail
    assert harness.session.add(TOTAL, name="total").status == "live"


@pytest.mark.parametrize("step", ["logged", "planned", "stage one", "stage two", "commit"])
def test_add_returns_the_query_if_the_crash_hit_the_batch_that_adds_it(harness: SessionHarness, step: str):
    harness.session.add(TOTAL, name="total")
    harness.append_rows(1)
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    with pytest.raises(NameTakenError):
        harness.session.add("SELECT n FROM s", name="total")
    query = harness.session.add(TOTAL, name="total")
    harness.tick(6)
    assert query.status == "live"
    assert read_columns(query, "total") == [1]
    assert len(harness.session.queries()) == 1


def test_a_logged_query_gets_its_callback_although_its_batch_has_run_before(harness: SessionHarness):
    harness.session.add("SELECT n FROM s", name="rows", sink=lambda _: None)
    harness.append_rows(1)
    harness.kill_during(harness.session.advance, "logged")
    harness.open_session()
    harness.session.advance()
    received: list[pa.Table] = []
    query = harness.session.add("SELECT n FROM s", name="rows", sink=received.append)
    harness.tick(2)
    assert query.status == "live"
    assert sum(table.num_rows for table in received) == 2
    with pytest.raises(NameTakenError):
        harness.session.add("SELECT n FROM s", name="rows", sink=received.append)


def test_the_deleted_log_entry_of_a_query_is_noticed_before_workers_wrote_anything(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.kill_during(harness.session.advance, "planned")
    (entry,) = (harness.directory / "log").glob("*.json")
    entry.unlink()
    with pytest.raises(CheckpointError, match=rf"{entry.name}' of the checkpoint is missing"):
        harness.open_session()


def test_a_query_that_was_not_logged_is_lost(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.append_rows(1)
    harness.kill_during(harness.session.advance, "log")
    harness.open_session()
    assert harness.session.find("total") is None
    query = harness.session.add(TOTAL, name="total")
    harness.tick(6)
    assert read_columns(query, "total") == [1]


@pytest.mark.parametrize("step", ["logged", "stage two", "commit"])
def test_a_logged_removal_survives_a_crash(harness: SessionHarness, step: str):
    harness.session.add(TOTAL, name="total")
    harness.tick(1)
    harness.session.remove("total")
    harness.append_rows(6)
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    assert harness.session.queries() == []
    harness.tick(11)
    assert read_columns(harness.session.find("total"), "total") == []
    assert harness.session.find("total").status == "removed"


def test_a_removed_query_keeps_its_results_after_a_restart(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.tick(1)
    harness.tick(6)
    harness.session.remove("total")
    harness.tick(11)
    query = harness.restart().find("total")
    assert query.status == "removed"
    assert read_columns(query, "total") == [1]


def test_query_ids_are_not_reused_after_a_restart(harness: SessionHarness):
    """A query added after a restart must not return results of an older query."""
    first = harness.session.add("SELECT n FROM s", name="first")
    harness.tick(1, n=1)
    harness.session.remove("first")
    harness.session.advance()
    harness.restart()
    second = harness.session.add("SELECT n FROM s", name="second")
    harness.tick(2, n=2)
    assert read_columns(second, "n") == [2]
    assert read_columns(harness.session.find("first"), "n") == [1]
    assert first.name == "first"


# Partitions, sources, sessions, late rows, drains


@pytest.mark.parametrize("partition_counts", [(3, 1), (1, 4), (2, 5)])
def test_state_is_repartitioned_if_the_partition_count_changes(open_harness, partition_counts: tuple[int, int]):
    harness = open_harness(partitions=partition_counts[0])
    harness.session.add(BY_KEY, name="keys")
    harness.source.append([row for k in range(30) for row in make_rows(1, k=k)])
    harness.session.advance()
    harness.restart(partitions=partition_counts[1])
    harness.source.append([row for k in range(30) for row in make_rows(2, k=k)])
    harness.session.advance()
    harness.session.drain()
    assert read_columns(harness.session.query("keys"), "k", "total") == [(k, 2) for k in range(30)]


def test_an_unfinished_batch_is_repeated_with_another_partition_count(open_harness):
    harness = open_harness(partitions=3)
    harness.session.add(BY_KEY, name="keys")
    harness.source.append([row for k in range(30) for row in make_rows(1, k=k)])
    harness.kill_during(harness.session.advance, "stage two", 2)
    harness.open_session(partitions=1)
    harness.session.advance()
    harness.session.drain()
    assert read_columns(harness.session.query("keys"), "k", "total") == [(k, 1) for k in range(30)]


def test_rows_appended_before_a_crash_are_not_lost(harness: SessionHarness):
    query_text = "SELECT n FROM s"
    harness.session.add(query_text, name="q")
    harness.session.advance()
    harness.append_rows(1, n=1)
    harness.restart()
    harness.append_rows(2, n=2)
    harness.restart()
    harness.session.advance()
    assert read_columns(harness.session.query("q"), "n") == [1, 2]


def test_session_windows_survive_a_restart(harness: SessionHarness):
    #   rows   1 | 3 | 5       gap 2: one session window over three processes
    sql = "SELECT COUNT(*) AS n, MIN(n) AS low, COUNT(DISTINCT n) AS kinds FROM SESSION(s, '2 seconds')"
    harness.session.add(sql, name="visits")
    harness.tick(1, n=4)
    harness.restart()
    harness.tick(3, n=2)
    harness.restart()
    harness.tick(5, n=2)
    harness.restart()
    harness.session.drain()
    assert read_columns(harness.session.query("visits"), "n", "low", "kinds") == [(3, 2, 2)]


def test_late_row_counts_survive_a_restart(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.tick(9)
    harness.tick(1)
    harness.restart()
    harness.tick(2)
    assert harness.session.query("total").late == {"s": 2}


def test_a_drain_can_be_repeated_after_a_crash(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.tick(1)
    harness.kill_during(harness.session.drain, "stage two")
    harness.open_session()
    harness.session.drain()
    assert read_columns(harness.session.query("total"), "total") == [1]
    assert read_columns(harness.restart().query("total"), "total") == [1]


def test_leaving_the_context_closes_the_session_and_releases_the_checkpoint(tmp_path: Path):
    with hr.Session(tmp_path / "c", backend="local") as session:
        assert not session.is_closed
    with pytest.raises(hr.HeadraceError, match="closed"):
        session.advance()
    hr.Session(tmp_path / "c", backend="local").close()
