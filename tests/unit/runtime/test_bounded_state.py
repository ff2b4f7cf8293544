"""State, files and caches of a session do not grow with the number of rows read or of queries removed."""

from __future__ import annotations

from collections import Counter

import pytest
from lives import Killed, SessionHarness, read_columns

from headrace.engine.batch_job import query_file_name
from headrace.engine.worker_cache import _CACHES

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"


def count_epochs(harness: SessionHarness) -> int:
    return len(harness.session._coordinator.state.streams["s"].epochs)


def cached_files(harness: SessionHarness) -> list[str]:
    """Return the names of the cached files; queries are cached by their number."""
    caches = (cache for (directory, _), cache in _CACHES.items() if directory == str(harness.directory.absolute()))
    return [query_file_name(key) if isinstance(key, int) else key for key in next(caches)._loaded]


def count_files(harness: SessionHarness, folder: str) -> int:
    return len([name for name in harness.list_files(folder) if not name.startswith(".")])


@pytest.mark.parametrize("partitions", [1, 3])
def test_state_is_deleted_when_windows_close(open_harness, partitions: int):
    #   a row a second, windows of 5 s: at most one window is open
    harness = open_harness(partitions=partitions)
    harness.session.add("SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k", sink="noop")
    most = 0
    for second in range(40):
        harness.tick(second, k=second)
        most = max(most, count_files(harness, "state"))
    assert most <= 7 * partitions
    harness.session.drain()
    assert count_files(harness, "state") == 0
    assert count_files(harness, "log") + count_files(harness, "manifest") <= 6
    assert count_files(harness, "shuffle") == 0
    assert len(list((harness.directory / "sources" / "s").glob("*.arrow"))) <= 2


def test_unreferenced_files_leave_the_cache(open_harness):
    #   a deleted file that is still mapped occupies memory
    harness = open_harness(partitions=2)
    harness.session.add(
        "SELECT l.n AS a, r.n AS b FROM HOP(s, '4 seconds', '2 seconds') l JOIN HOP(s, '4 seconds', '2 seconds') r ON l.k = r.k"
    )
    harness.session.add("SELECT k, MAX(n) AS n FROM HOP(s, '4 seconds', '1 second') GROUP BY k")
    for second in range(25):
        harness.tick(second, k=second % 5, n=second)
    cached = cached_files(harness)
    assert cached
    assert len([file for file in cached if file.startswith("state/")]) <= 2 * len(harness.list_files("state"))


def test_removed_queries_and_old_plans_leave_the_cache(open_harness):
    #   each batch adds a query and removes the previous one: a new epoch every batch
    harness = open_harness(partitions=2)
    harness.session.add(TOTAL, name="stays")
    for second in range(40):
        harness.session.add(f"SELECT window_start, SUM(n) AS t FROM TUMBLE(s, '2 seconds') WHERE n > {second}", name=f"q{second}")
        harness.tick(second, n=100)
        harness.session.remove(f"q{second}")
    assert count_epochs(harness) < 20
    kinds = Counter(file.split("/")[0] for file in cached_files(harness))
    assert 0 < kinds["queries"] < 10
    assert 0 < kinds["plans"] < 25
    assert 0 < len(harness.session._coordinator.state.plans) < 25


def test_the_join_buffer_of_a_long_window_is_compacted_to_few_files(open_harness):
    #   sixty batches in one window of a day; a second query is added after half of them
    harness = open_harness(partitions=2)
    text = "SELECT l.n AS a, r.n AS b FROM TUMBLE(s, '1 day') l JOIN TUMBLE(s, '1 day') r ON l.k = r.k AND l.n < r.n"
    query = harness.session.add(text)
    for second in range(60):
        harness.tick(second, k=second % 5, n=second)
        if second == 30:
            harness.session.add("SELECT l.n AS a, r.n AS b FROM TUMBLE(s, '1 hour') l JOIN TUMBLE(s, '1 hour') r ON l.k = r.k")
    slices = {ref.slice_key for ref in harness.session._coordinator.state.join_buffer_refs}
    assert len(harness.session._coordinator.state.join_buffer_refs) <= 17 * 2 * len(slices)
    assert count_files(harness, "state") <= 17 * 2 * len(slices)
    harness.session.drain()
    assert read_columns(query, "a", "b") == [(a, b) for a in range(60) for b in range(a + 5, 60, 5)]
    assert count_files(harness, "state") == 0


def test_the_slice_of_a_long_window_is_compacted_to_few_files(harness: SessionHarness):
    #   fifty batches in one window of a day
    query = harness.session.add("SELECT SUM(n) AS total, COUNT(DISTINCT n) AS kinds FROM TUMBLE(s, '1 day')")
    for second in range(50):
        harness.tick(second, n=second % 7)
    assert count_files(harness, "state") <= 20
    harness.session.drain()
    assert read_columns(query, "total", "kinds") == [(sum(second % 7 for second in range(50)), 7)]
    assert count_files(harness, "state") == 0


def test_closed_session_windows_leave_no_state(harness: SessionHarness):
    harness.session.add("SELECT COUNT(*) AS n FROM SESSION(s, '1 second') GROUP BY k", sink="noop")
    for second in range(0, 50, 2):
        harness.tick(second, k=second)
        assert count_files(harness, "state") <= 4
    harness.session.drain()
    assert count_files(harness, "state") == 0


def test_removing_the_last_query_deletes_its_state(harness: SessionHarness):
    harness.session.add("SELECT SUM(n) AS total FROM TUMBLE(s, '1 day')", name="q")
    for second in range(10):
        harness.tick(second)
    harness.session.remove("q")
    harness.tick(11)
    harness.tick(12)
    assert count_files(harness, "state") == 0
    assert count_epochs(harness) <= 2
    assert count_files(harness, "queries") == 0


def test_old_epochs_are_retired(harness: SessionHarness):
    #   every batch adds a query and removes one; windows of 5 s, one row a second: epochs older than a window are retired
    steady = harness.session.add(TOTAL, name="steady")
    most = 0
    for second in range(40):
        harness.session.add(
            f"SELECT SUM(n) AS total FROM TUMBLE(s, '2 seconds') WHERE n > {second % 5}", name=f"q{second}", sink="noop"
        )
        if second > 1:
            harness.session.remove(f"q{second - 2}")
        harness.tick(second)
        most = max(most, count_epochs(harness))
    assert most <= 10
    assert count_files(harness, "plans") <= 12
    harness.session.drain()
    assert read_columns(steady, "total") == [5] * 8


def test_epochs_are_kept_until_the_windows_that_span_them_close(harness: SessionHarness):
    """All epochs of an open window are kept, however many; they are retired after the window has closed."""
    long = harness.session.add("SELECT SUM(n) AS total, MAX(n) AS top FROM TUMBLE(s, '30 seconds')", name="long")
    for second in range(30):
        harness.session.add(f"SELECT COUNT(*) AS c FROM TUMBLE(s, '1 second') WHERE n > {second}", name=f"q{second}", sink="noop")
        if second > 0:
            harness.session.remove(f"q{second - 1}")
        harness.tick(second, n=second)
    harness.tick(31)
    assert read_columns(long, "total", "top") == [(sum(range(30)), 29)]
    harness.tick(32)
    assert count_epochs(harness) <= 3


def test_adding_and_removing_two_hundred_queries_leaves_no_state(harness: SessionHarness):
    steady = harness.session.add(TOTAL, name="steady")
    texts = (
        "SELECT SUM(n) AS v FROM TUMBLE(s, '2 seconds') WHERE n > {} GROUP BY k",
        "SELECT COUNT(*) AS v FROM HOP(s, '3 seconds', '1 second') WHERE k = {}",
        "SELECT COUNT(*) AS v FROM SESSION(s, '1 second') WHERE n <> {}",
        "SELECT n FROM s WHERE n < {}",
    )
    for number in range(200):
        harness.session.add(texts[number % 4].format(number % 3), name=f"q{number}", sink="noop")
        if number >= 4:
            harness.session.remove(f"q{number - 4}")
        if number % 5 == 0:
            harness.tick(number / 5)
    for number in range(196, 200):
        harness.session.remove(f"q{number}")
    harness.session.advance()
    assert [query.name for query in harness.session.queries()] == ["steady"]
    assert "1 live query" in harness.session.explain()
    assert count_files(harness, "queries") == 1
    assert count_epochs(harness) <= 10
    assert max(query.bit for query in harness.session._coordinator.live_queries.values()) == 0
    harness.session.drain()
    assert read_columns(steady, "total") == [5] * 8


def test_a_query_added_and_removed_between_batches_leaves_no_state(harness: SessionHarness):
    harness.session.add(TOTAL, name="steady")
    harness.tick(1)
    before = harness.session.explain()
    for number in range(200):
        harness.session.add(f"SELECT n FROM s WHERE n > {number}", name="brief")
        harness.session.remove("brief")
    harness.tick(2)
    assert harness.session.explain() == before
    assert count_files(harness, "queries") == 1
    assert count_epochs(harness) == 1


def test_advance_without_new_rows_commits_no_batch(harness: SessionHarness):
    harness.session.add(TOTAL, name="q")
    harness.tick(1)
    batch = harness.session.last_batch
    for _ in range(20):
        assert harness.session.advance().rows == 0
    assert harness.session.last_batch == batch


def test_files_of_failed_attempts_are_deleted_after_the_commit(harness: SessionHarness):
    """Results have a new name in every attempt; a batch that fails again and again must not fill the disk."""
    query = harness.session.add("SELECT n FROM s", name="rows")
    harness.tick(1, n=1)
    harness.append_rows(2, n=2)
    for _ in range(5):
        harness.fault.at("commit")
        with pytest.raises(Killed):
            harness.session.advance()
    assert count_files(harness, "results") > 3
    harness.session.advance()
    assert query.results()["n"].to_pylist() == [1, 2]
    assert count_files(harness, "results") == 2
