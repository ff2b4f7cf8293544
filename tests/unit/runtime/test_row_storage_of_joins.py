"""State of window joins over several attributes: counted bytes, changes of the storage, and results that do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import headrace as hr
from headrace.planner.join.row_storage import RECONSIDER_INTERVAL

_SCHEMA = "x BIGINT, y BIGINT, z BIGINT, c DOUBLE, d DOUBLE, e BIGINT, t STRING, time TIMESTAMP"
_ROWS = 400  # per second


@contextmanager
def _open(**options: object) -> Iterator[hr.Session]:
    with hr.Session(backend="local", partitions=3, **options) as session:  # type: ignore[arg-type]
        for name, schema in (("a", _SCHEMA), ("b", "k BIGINT, w STRING, time TIMESTAMP")):
            session.create_stream(name, hr.MemorySource(schema), time="time")
        yield session


def _add_join(session: hr.Session, key: str, name: str = "") -> hr.Query:
    return session.add(
        "SELECT window_start, l.x, l.y, l.z, l.c, l.d, l.e, l.t, r.w "
        f"FROM TUMBLE(a, '4 seconds') l JOIN TUMBLE(b, '4 seconds') r ON l.{key} = r.k",
        name=name or f"by_{key}",
    )


def _advance(session: hr.Session, seconds: range) -> int:
    """Run a micro-batch for each second; return the greatest number of stored bytes."""
    peak = 0
    for second in seconds:
        time = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
        keys = range(second * _ROWS, (second + 1) * _ROWS)
        rows = [
            {
                "x": n,
                "y": n * 7 % 9001,
                "z": n * 5 % 8009,
                "c": n / 2,
                "d": 1.5,
                "e": -n,
                "t": f"row {n} ".ljust(160, "."),
                "time": time,
            }
            for n in keys
        ]
        session._coordinator.sources["a"].append(rows)  # type: ignore[attr-defined]
        session._coordinator.sources["b"].append([{"k": n, "w": f"w{n}", "time": time} for n in keys if n % 10 == 0])  # type: ignore[attr-defined]
        session.advance()
        refs = session._coordinator.state.join_buffer_refs
        peak = max(peak, sum(ref.bytes for ref in refs if ref.stream == "a"))
    return peak


def _has_references(session: hr.Session) -> bool:
    state = session._coordinator.state
    return any(buffer.has_row_ids for buffer in state.plans[state.streams["a"].plan].join_buffers)


def _measure_bytes(keys: str, setting: str) -> int:
    with _open(late_materialization=setting) as session:
        for number, key in enumerate(keys):
            _add_join(session, key, f"q{number}")
        return _advance(session, range(4))


def test_three_join_attributes_store_little_more_than_one() -> None:
    one, in_full, shared = _measure_bytes("xxx", "never"), _measure_bytes("xyz", "never"), _measure_bytes("xyz", "always")
    assert in_full > 2.9 * one
    assert shared <= 1.4 * one


def test_wide_rows_are_stored_once_as_soon_as_that_is_known_to_cost_less() -> None:
    batches = 2 * RECONSIDER_INTERVAL
    with _open() as session, _open(late_materialization="never") as reference:
        queries = [[_add_join(each, key) for key in "xyz"] for each in (session, reference)]
        for each in (session, reference):
            _advance(each, range(batches))
        assert _has_references(session)
        assert not _has_references(reference)
        peaks = [_advance(each, range(batches, batches + 8)) for each in (session, reference)]
        assert peaks[0] < 0.5 * peaks[1]
        for each in (session, reference):
            each.drain()
        for own, expected in zip(*queries, strict=True):
            rows = [sorted(map(str, query.results().to_pylist())) for query in (own, expected)]
            assert rows[0] == rows[1]
            assert rows[0]


def test_state_is_dropped_when_windows_close_although_the_query_of_the_home_has_ended() -> None:
    with _open(late_materialization="always") as session:
        _add_join(session, "x")
        others = [_add_join(session, key) for key in "yz"]
        _advance(session, range(2))
        session.remove("by_x")
        _advance(session, range(2, 5))
        session.drain()
        assert not session._coordinator.state.join_buffer_refs
        assert all(query.results().num_rows for query in others)


@pytest.mark.parametrize(("before", "after"), [("never", "always"), ("always", "never")])
def test_a_session_that_is_opened_with_another_setting_continues(tmp_path: object, before: str, after: str) -> None:
    with _open() as expected:
        _add_join(expected, "x")
        by_y = _add_join(expected, "y")
        _advance(expected, range(6))
        expected.drain()
        rows = sorted(map(str, by_y.results().to_pylist()))
    with _open(checkpoint=tmp_path, late_materialization=before) as session:
        _add_join(session, "x")
        _add_join(session, "y")
        _advance(session, range(2))
        assert _has_references(session) == (before == "always")
    with _open(checkpoint=tmp_path, late_materialization=after) as session:
        _advance(session, range(2, 6))
        assert _has_references(session) == (after == "always")
        session.drain()
        query = session.find("by_y")
        assert query is not None
        assert sorted(map(str, query.results().to_pylist())) == rows


def test_a_group_whose_rows_are_fetched_from_several_partitions_is_one_result() -> None:
    results = []
    for setting in ("never", "always"):
        with _open(late_materialization=setting) as session:
            for key in "xx":
                _add_join(session, key, f"by_x_{len(session.queries())}")
            grouped = session.add(
                "SELECT l.e % 2 AS g, COUNT(*) AS n, SUM(l.x) AS s, MAX(r.w) AS w FROM TUMBLE(a, '4 seconds') l "
                "LEFT JOIN TUMBLE(b, '4 seconds') r ON l.y = r.k GROUP BY l.e % 2",
                name="grouped",
            )
            _advance(session, range(5))
            session.drain()
            results.append(sorted(map(str, grouped.results().to_pylist())))
    assert len(results[0]) == 2 * 2
    assert results[0] == results[1]


def test_explain_says_where_the_rows_are_and_what_it_costs() -> None:
    with _open(late_materialization="always") as session:
        for key in "xyz":
            _add_join(session, key)
        _advance(session, range(1))
        text = session.explain()
    assert "; the rows of the join buffers by y, by z, too" in text
    assert text.count("; references to the rows by x") == 2
    assert "rows by x, references by y, by z: " in text
