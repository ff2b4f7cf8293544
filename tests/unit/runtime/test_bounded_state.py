"""What a session keeps does not grow with the rows, nor with the queries that came and went."""

from __future__ import annotations

from collections import Counter

import pytest
from lives import Life, columns

from headrace.engine.batch_job import _FILE_CACHE

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"


def epochs(life: Life) -> int:
    return len(life.session._coordinator.state.streams["s"].epochs)


def loaded(life: Life) -> dict[str, object]:
    return next(files for (directory, _), files in _FILE_CACHE.items() if directory == str(life.directory.absolute()))


def size(life: Life, folder: str) -> int:
    return len([name for name in life.files(folder) if not name.startswith(".")])


@pytest.mark.parametrize("partitions", [1, 3])
def test_state_is_deleted_when_windows_close(begin, partitions: int):
    #   a row a second, windows of 5 s: at most one window is open
    life = begin(partitions=partitions)
    life.session.add("SELECT k, SUM(n) AS total FROM TUMBLE(s, '5 seconds') GROUP BY k", sink="noop")
    most = 0
    for second in range(50):
        life.tick(second, k=second)
        most = max(most, size(life, "state"))
    assert most <= 7 * partitions
    life.session.drain()
    assert size(life, "state") == 0
    assert size(life, "log") + size(life, "manifest") <= 6
    assert size(life, "exchange") == 0
    assert len(list((life.directory / "sources" / "s").glob("*.arrow"))) <= 2


def test_files_that_nobody_refers_to_are_not_held(begin):
    #   a deleted file that is still mapped takes memory
    life = begin(partitions=2)
    life.session.add(
        "SELECT l.n AS a, r.n AS b FROM HOP(s, '4 seconds', '2 seconds') l JOIN HOP(s, '4 seconds', '2 seconds') r ON l.k = r.k"
    )
    life.session.add("SELECT k, MAX(n) AS n FROM HOP(s, '4 seconds', '1 second') GROUP BY k")
    for second in range(40):
        life.tick(second, k=second % 5, n=second)
    held = loaded(life)
    assert held
    assert len([file for file in held if file.startswith("state/")]) <= 2 * len(life.files("state"))


def test_queries_and_plans_that_are_over_are_not_held(begin):
    #   s:  a a a a …  a query comes with every row and goes with the next: each time another epoch
    life = begin(partitions=2)
    life.session.add(TOTAL, name="stays")
    for second in range(60):
        life.session.add(f"SELECT window_start, SUM(n) AS t FROM TUMBLE(s, '2 seconds') WHERE n > {second}", name=f"q{second}")
        life.tick(second, n=100)
        life.session.remove(f"q{second}")
    assert epochs(life) < 20
    kinds = Counter(file.split("/")[0] for file in loaded(life))
    assert 0 < kinds["queries"] < 10
    assert 0 < kinds["plans"] < 25
    assert 0 < len(life.session._coordinator.state.plans) < 25


def test_a_window_of_joins_that_takes_rows_for_long_stays_few_files(begin):
    #   sixty batches into one window of a day; a query that comes in between needs one more word of query-sets, or none
    life = begin(partitions=2)
    text = "SELECT l.n AS a, r.n AS b FROM TUMBLE(s, '1 day') l JOIN TUMBLE(s, '1 day') r ON l.k = r.k AND l.n < r.n"
    query = life.session.add(text)
    for second in range(60):
        life.tick(second, k=second % 5, n=second)
        if second == 30:
            life.session.add("SELECT l.n AS a, r.n AS b FROM TUMBLE(s, '1 hour') l JOIN TUMBLE(s, '1 hour') r ON l.k = r.k")
    slices = {ref.slice_key for ref in life.session._coordinator.state.join_buffer_refs}
    assert len(life.session._coordinator.state.join_buffer_refs) <= 17 * 2 * len(slices)
    assert size(life, "state") <= 17 * 2 * len(slices)
    life.session.drain()
    assert columns(query, "a", "b") == [(a, b) for a in range(60) for b in range(a + 5, 60, 5)]
    assert size(life, "state") == 0


def test_a_slice_that_takes_rows_for_long_stays_few_files(life: Life):
    #   fifty batches into one window of a day
    query = life.session.add("SELECT SUM(n) AS total, COUNT(DISTINCT n) AS kinds FROM TUMBLE(s, '1 day')")
    for second in range(50):
        life.tick(second, n=second % 7)
    assert size(life, "state") <= 20
    life.session.drain()
    assert columns(query, "total", "kinds") == [(sum(second % 7 for second in range(50)), 7)]
    assert size(life, "state") == 0


def test_sessions_that_end_leave_nothing(life: Life):
    life.session.add("SELECT COUNT(*) AS n FROM SESSION(s, '1 second') GROUP BY k", sink="noop")
    for second in range(0, 100, 2):
        life.tick(second, k=second)
        assert size(life, "state") <= 4
    life.session.drain()
    assert size(life, "state") == 0


def test_removing_the_last_query_lets_go_of_its_state(life: Life):
    life.session.add("SELECT SUM(n) AS total FROM TUMBLE(s, '1 day')", name="q")
    for second in range(10):
        life.tick(second)
    life.session.remove("q")
    life.tick(11)
    life.tick(12)
    assert size(life, "state") == 0
    assert epochs(life) <= 2
    assert size(life, "queries") == 0


def test_old_epochs_are_retired(life: Life):
    #   one query more or less a batch, windows of 5 s, a row a second: epochs older than a window go
    steady = life.session.add(TOTAL, name="steady")
    most = 0
    for second in range(60):
        life.session.add(
            f"SELECT SUM(n) AS total FROM TUMBLE(s, '2 seconds') WHERE n > {second % 5}", name=f"q{second}", sink="noop"
        )
        if second > 1:
            life.session.remove(f"q{second - 2}")
        life.tick(second)
        most = max(most, epochs(life))
    assert most <= 10
    assert size(life, "plans") <= 12
    life.session.drain()
    assert columns(steady, "total") == [5] * 12


def test_a_long_window_keeps_the_epochs_it_spans_exactly(life: Life):
    """Epochs that an open window needs may not be retired, however many there are; then they go."""
    long = life.session.add("SELECT SUM(n) AS total, MAX(n) AS top FROM TUMBLE(s, '30 seconds')", name="long")
    for second in range(30):
        life.session.add(f"SELECT COUNT(*) AS c FROM TUMBLE(s, '1 second') WHERE n > {second}", name=f"q{second}", sink="noop")
        if second > 0:
            life.session.remove(f"q{second - 1}")
        life.tick(second, n=second)
    life.tick(31)
    assert columns(long, "total", "top") == [(sum(range(30)), 29)]
    life.tick(32)
    assert epochs(life) <= 3


def test_churn_of_two_hundred_queries(life: Life):
    steady = life.session.add(TOTAL, name="steady")
    texts = (
        "SELECT SUM(n) AS v FROM TUMBLE(s, '2 seconds') WHERE n > {} GROUP BY k",
        "SELECT COUNT(*) AS v FROM HOP(s, '3 seconds', '1 second') WHERE k = {}",
        "SELECT COUNT(*) AS v FROM SESSION(s, '1 second') WHERE n <> {}",
        "SELECT n FROM s WHERE n < {}",
    )
    for number in range(200):
        life.session.add(texts[number % 4].format(number % 3), name=f"q{number}", sink="noop")
        if number >= 4:
            life.session.remove(f"q{number - 4}")
        if number % 5 == 0:
            life.tick(number / 5)
    for number in range(196, 200):
        life.session.remove(f"q{number}")
    life.session.advance()
    assert [query.name for query in life.session.queries()] == ["steady"]
    assert "1 live query" in life.session.explain()
    assert size(life, "queries") == 1
    assert epochs(life) <= 10
    assert max(query.bit for query in life.session._coordinator.live_queries.values()) == 0
    life.session.drain()
    assert columns(steady, "total") == [5] * 8


def test_add_and_remove_between_batches_leaves_no_trace(life: Life):
    life.session.add(TOTAL, name="steady")
    life.tick(1)
    before = life.session.explain()
    for number in range(200):
        life.session.add(f"SELECT n FROM s WHERE n > {number}", name="brief")
        life.session.remove("brief")
    life.tick(2)
    assert life.session.explain() == before
    assert size(life, "queries") == 1
    assert epochs(life) == 1


def test_batches_with_nothing_to_do_leave_no_trace(life: Life):
    life.session.add(TOTAL, name="q")
    life.tick(1)
    batch = life.session.last_batch
    for _ in range(20):
        assert life.session.advance().rows == 0
    assert life.session.last_batch == batch
