"""Join orders of window joins follow the rates; they change at a window start, and results stay exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import headrace as hr
from headrace.model.time import MIN_TIME
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime.engine_state import EngineState
from headrace.runtime.epochs import derive_join_orders
from headrace.runtime.replanning import WindowJoinOptimizer
from headrace.sql import bind_query
from support.compare import assert_same_rows

SQL = (
    "SELECT window_end, a.n AS an, b.n AS bn, c.n AS cn FROM HOP(a, '2 s', '1 s') a JOIN HOP(b, '2 s', '1 s') b ON a.k = b.k "
    "JOIN HOP(c, '2 s', '1 s') c ON b.x = c.x"
)
BASE = datetime(2024, 1, 1, tzinfo=UTC)


def run_session(backend: str, seconds: int, flip: int, path) -> tuple[hr.Session, list[dict], list[tuple[int, ...]]]:
    """Run a join; of streams a and c, one is 100 times faster, from second `flip` on the other; return results and orders."""
    session = hr.Session(path, backend=backend, window_joins={"order_gain": 0.1})  # what moves is little beside the rounds
    sources = {name: hr.MemorySource("k INT, x INT, n INT, time TIMESTAMP") for name in "abc"}
    for name, source in sources.items():
        session.create_stream(name, source, time="time")
    query = session.add(SQL, name="q")
    orders = []
    for second in range(seconds):
        fast, slow = ("a", "c") if second < flip else ("c", "a")
        for name, rows in ((fast, 200), (slow, 2), ("b", 4)):
            step = timedelta(seconds=1) / rows
            sources[name].append([
                {"k": n % 2, "x": n % 2, "n": second * 1000 + n, "time": BASE + timedelta(seconds=second) + n * step}
                for n in range(rows)
            ])  # fmt: skip
        session.advance()
        if backend != "reference":
            live = next(iter(session._coordinator.live_queries.values()))
            orders.append(live.order_versions[-1].order if live.order_versions else ())
    session.drain()
    return session, query.results().to_pylist(), orders


def test_the_join_order_follows_a_change_of_rates_within_five_batches(tmp_path) -> None:
    session, actual, orders = run_session("local", 16, 8, tmp_path / "one")
    session.close()
    reference, expected, _ = run_session("reference", 16, 8, tmp_path / "two")
    reference.close()
    assert len(expected) > 50
    assert_same_rows(actual, expected)
    assert orders[7] != orders[-1]
    assert orders[7][-1] == 0  # a was faster, and is joined last
    assert orders[-1][-1] == 2  # now c is faster
    changed_at = next(i for i, order in enumerate(orders) if i > 7 and order != orders[7])
    assert changed_at <= 8 + 5


def test_the_join_order_survives_a_restart(tmp_path) -> None:
    session, _, orders = run_session("local", 6, 8, tmp_path)
    session.close()
    again = hr.Session(tmp_path, backend="local")
    live = next(iter(again._coordinator.live_queries.values()))
    assert live.order_versions[-1].order == orders[-1]
    again.close()


@pytest.fixture
def query() -> LiveQuery:
    session = hr.Session(backend="local")
    for name in "abc":
        session.create_stream(name, hr.MemorySource("k INT, x INT, n INT, time TIMESTAMP"), time="time")
    plan = bind_query(SQL, session._coordinator.build_catalog())
    session.close()
    assert isinstance(plan, WindowJoinQuery)
    return LiveQuery(1, "q", plan)


def test_open_windows_keep_the_old_join_order_until_they_close(query: LiveQuery) -> None:
    new = JoinOrderVersion((2, 1, 0), 1)
    changed = replace(query, order_versions=derive_join_orders(query, new, 10_000_000, 9_000_000))
    assert changed.order_versions == (JoinOrderVersion((0, 1, 2)), JoinOrderVersion((2, 1, 0), 1, 10_000_001))
    assert derive_join_orders(changed, None, 11_000_000, 11_999_999) == changed.order_versions
    assert derive_join_orders(changed, None, 12_000_000, 12_000_001) == (changed.order_versions[1],)


def test_the_join_order_is_replaced_before_the_first_row(query: LiveQuery) -> None:
    assert derive_join_orders(query, JoinOrderVersion((2, 1, 0)), MIN_TIME, MIN_TIME) == (JoinOrderVersion((2, 1, 0)),)


def test_a_join_order_version_without_rows_is_replaced(query: LiveQuery) -> None:
    once = replace(query, order_versions=derive_join_orders(query, JoinOrderVersion((2, 1, 0)), 10, 5))
    twice = derive_join_orders(once, JoinOrderVersion((1, 0, 2)), 10, 5)
    assert [version.order for version in twice] == [(0, 1, 2), (1, 0, 2)]


def test_distinct_join_keys_are_counted_per_column_and_combined() -> None:
    with hr.Session(backend="local", partitions=1) as session:
        sources = {name: hr.MemorySource("k INT, x INT, time TIMESTAMP") for name in "ab"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        session.add("SELECT a.k FROM TUMBLE(a, '1 day') a JOIN TUMBLE(b, '1 day') b ON a.k = b.k AND a.x = b.x")
        for source in sources.values():
            source.append([{"k": n % 3, "x": n % 7, "time": "2024-01-01T00:00:00Z"} for n in range(2000)])
        session.advance()
        assert session._coordinator.state.streams["a"].keys == {"k": 3, "x": 7, "k, x": 21}


class ForcedOrder(WindowJoinOptimizer):
    """Gives every join the same order from a batch on; with `apart`, each join is in its own group."""

    def __init__(self, batch: int, order: tuple[int, ...], *, apart: bool = False) -> None:
        super().__init__()
        self._batch, self._order, self._apart = batch, order, apart

    def choose_join_orders(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[int, JoinOrderVersion]:
        joins = [number for number, query in live.items() if isinstance(query.plan, WindowJoinQuery)]
        due = joins if state.batch + 1 == self._batch else []
        return {number: JoinOrderVersion(self._order, number if self._apart else 0) for number in due}


@pytest.mark.parametrize("apart", [False, True])
def test_joins_are_computed_once_per_group(*, apart: bool) -> None:
    with hr.Session(backend="local", partitions=2) as session:
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        texts = [f"SELECT l.x FROM TUMBLE(a, '5 s') l JOIN TUMBLE(a, '5 s') r ON l.k = r.k WHERE l.x < {n}" for n in (5, 9)]
        queries = [session.add(text) for text in texts]
        session.advance()
        session._coordinator.optimizers.window_joins = ForcedOrder(1, (0, 1), apart=apart)
        for second in range(30):
            source.append([{"k": 1, "x": second % 10, "time": BASE + timedelta(seconds=second)}])
            session.advance()
        measured = session._coordinator.collect_join_statistics().measured_rows
        pairs = {query: rows for (query, length), rows in measured.items() if length == 2}  # of the window from 20 to 25
        assert pairs == ({0: 25, 1: 25} if apart else {0: 25})
        session.drain()
        assert [query.results().num_rows for query in queries] == [5 * 15, 5 * 27]


def test_a_nested_query_reads_all_results_of_a_join_whose_order_changes() -> None:
    #   a join needs one or two extra shuffles, depending on its order; open windows keep the old order
    window = "TUMBLE(a, '10 s')"
    sides = f"JOIN {window} t1 ON t0.k = t1.k JOIN {window} t2 ON t1.x = t2.x JOIN {window} t3 ON t0.k = t3.k"
    text = f"SELECT window_end, COUNT(*) AS n FROM (SELECT t0.x FROM {window} t0 {sides})"
    orders = [(0, 1, 2, 3), (0, 1, 3, 2), (2, 1, 0, 3)]
    with hr.Session(backend="local", partitions=2) as session:
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        query = session.add(text)
        shuffles = set()
        for second in range(60):
            if second % 7 == 0:
                session._coordinator.optimizers.window_joins = ForcedOrder(second, orders[second // 7 % 3])
                shuffles |= {live.extra_shuffles for live in session._coordinator.live_queries.values() if live.output_stream}
            source.append([{"k": second % 2, "x": second % 3, "time": BASE + timedelta(seconds=second)}])
            session.advance()
        session.drain()
        assert shuffles >= {1, 2}
        results = {row["window_end"]: row["n"] for row in query.results().to_pylist()}
    for end in range(10, 70, 10):
        rows = [(second % 2, second % 3) for second in range(end - 10, end)]
        pairs = [(a, b) for a in rows for b in rows if a[0] == b[0]]
        expected = sum(sum(b[1] == c[1] for c in rows) * sum(a[0] == d[0] for d in rows) for a, b in pairs)
        assert results[BASE + timedelta(seconds=end)] == expected


class ForcedVersions(WindowJoinOptimizer):
    """Gives each join a version of its own in the first batch."""

    def __init__(self, versions: Mapping[int, JoinOrderVersion]) -> None:
        super().__init__()
        self._versions = versions

    def choose_join_orders(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[int, JoinOrderVersion]:
        return {number: self._versions[number] for number in live} if state.batch == 0 else {}


SHARED_PAIRS = {
    "the join that both have in common is shared": ({0: JoinOrderVersion((0, 1)), 1: JoinOrderVersion((1, 2, 0))}, {0: 32}),
    "other groups share nothing": ({0: JoinOrderVersion((0, 1)), 1: JoinOrderVersion((1, 2, 0), 1)}, {0: 12, 1: 32}),
    "a later step may be in another group": (
        {0: JoinOrderVersion((0, 1)), 1: JoinOrderVersion((1, 2, 0), 0, later_groups=(5,))},
        {0: 32},
    ),
}


@pytest.mark.parametrize("title", SHARED_PAIRS)
def test_a_join_within_a_larger_join_is_shared_whatever_its_inputs_are_called(title: str) -> None:
    versions, expected = SHARED_PAIRS[title]
    b, c = "TUMBLE(b, '5 s') b", "TUMBLE(c, '5 s') c"
    with hr.Session(backend="local", partitions=2) as session:
        sources = {name: hr.MemorySource("k INT, x INT, time TIMESTAMP") for name in "abc"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        small = session.add(f"SELECT b.x AS bx, c.x AS cx FROM {b} JOIN {c} ON b.k = c.k AND b.x < c.x")
        large = session.add(f"SELECT a.x AS ax, c.x AS cx FROM TUMBLE(a, '5 s') a JOIN {b} ON a.k = b.k JOIN {c} ON b.k = c.k")
        session.advance()
        session._coordinator.optimizers.window_joins = ForcedVersions(versions)
        rows = [{"k": n % 2, "x": n, "time": BASE + timedelta(seconds=n / 2)} for n in range(8)]
        for start in (BASE, BASE + timedelta(seconds=5)):
            for source in sources.values():
                source.append([{**row, "time": row["time"] + (start - BASE)} for row in rows])
            session.advance()
        session.drain()
        measured = session._coordinator.collect_join_statistics().measured_rows
        assert {query: round(count) for (query, length), count in measured.items() if length == 2} == expected, title
        assert small.results().num_rows == 2 * sum(b["k"] == c["k"] and b["x"] < c["x"] for b in rows for c in rows)
        assert large.results().num_rows == 2 * sum(a["k"] == b["k"] == c["k"] for a in rows for b in rows for c in rows)
