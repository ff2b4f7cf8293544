"""Rows that are too far in the future are dropped and counted; they make no other rows late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lives import Killed, read_columns

import headrace as hr
from headrace.storage.fault_points import install_fault_hook

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def open_session(folder: Path, backend: str, now: datetime = NOW) -> tuple[hr.Session, hr.MemorySource]:
    session = hr.Session(folder, backend=backend)
    session._coordinator.read_clock = lambda: int(now.timestamp() * 1e6)
    source = hr.MemorySource("n INT, time TIMESTAMP")
    session.create_stream("s", source, time="time", max_ahead="1 hour")
    return session, source


#   now ────────── + 1 hour │ + 1 hour 1 µs: dropped
@pytest.mark.parametrize("backend", ["local", "reference"])
def test_a_row_of_a_wrong_clock_makes_no_others_late(tmp_path: Path, backend: str):
    session, source = open_session(tmp_path, backend)
    query = session.add("SELECT SUM(n) AS n FROM TUMBLE(s, '1 hour')")
    source.append([{"n": 1, "time": NOW}, {"n": 100, "time": NOW + timedelta(hours=1, microseconds=1)}])
    session.advance()
    source.append([{"n": 2, "time": NOW + timedelta(minutes=1)}, {"n": 4, "time": NOW + timedelta(hours=1)}])
    session.advance()
    assert read_columns(query, "n") == [3]
    assert (session.streams()["s"]["ahead"], query.late) == (1, {})
    session.close()


def test_a_replay_uses_the_clock_of_the_log(tmp_path: Path):
    session, source = open_session(tmp_path, "local")
    query = session.add("SELECT n FROM s", name="q")
    source.append([{"n": 1, "time": NOW}, {"n": 2, "time": NOW + timedelta(hours=2)}])

    def crash(step: str) -> None:
        if step == "stage two":
            raise Killed(step)

    install_fault_hook(tmp_path, crash)
    with pytest.raises(Killed):
        session.advance()
    install_fault_hook(tmp_path, None)
    session._checkpoint.close()
    session, _ = open_session(tmp_path, "local", NOW + timedelta(days=1))
    session.advance()
    query = session.query("q")
    assert read_columns(query, "n") == [1]
    session.close()


def test_sources_without_a_clock_have_no_limit(tmp_path: Path):
    with hr.Session(tmp_path, backend="local") as session:
        source = hr.MemorySource("n INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        query = session.add("SELECT n FROM s")
        source.append([{"n": 1, "time": datetime(9000, 1, 1, tzinfo=UTC)}])
        session.advance()
        assert read_columns(query, "n") == [1]
    assert hr.TcpSource.default_max_ahead == timedelta(days=1) // timedelta(microseconds=1)
