"""Another query in the place of one: with the same micro-batch, or not at all."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import NotFoundError, SqlError

ROWS = "SELECT price FROM purchases"
#   batch        0      1      2
#   rows         1.0    2.0    3.0
#   first        ------------|          price
#   second                   |-------   price * 10


@pytest.fixture
def session():
    with hr.Session(backend="local") as session:
        session.create_stream("purchases", hr.MemorySource("price DOUBLE, time TIMESTAMP"), time="time")
        yield session


def append(session: hr.Session, *prices: float) -> None:
    rows = [{"price": price, "time": f"2026-01-01T00:00:{int(price):02d}Z"} for price in prices]
    session.coordinator.sources["purchases"].append(rows)


def test_the_old_ends_where_the_new_begins(session: hr.Session):
    first = session.add(ROWS, name="q")
    session.advance()
    append(session, 1.0, 2.0)
    session.advance()
    second = session.replace("q", "SELECT price * 10 AS price FROM purchases")
    append(session, 3.0)
    report = session.advance()
    assert (report.added, report.removed) == ((second.id,), (first.id,))
    assert (first.status, second.status, session.query("q").id) == ("removed", "live", second.id)
    assert first.results()["price"].to_pylist() == [1.0, 2.0]
    assert second.results()["price"].to_pylist() == [30.0]


def test_one_that_never_was_live_is_replaced_too(session: hr.Session):
    session.add(ROWS, name="q")
    session.replace("q", "SELECT price + 1 AS price FROM purchases")
    append(session, 1.0)
    session.advance()
    append(session, 2.0)
    session.advance()
    assert session.query("q").results()["price"].to_pylist()[-1] == 3.0


def test_what_is_wrong_with_the_new_leaves_the_old_alone(session: hr.Session):
    first = session.add(ROWS, name="q")
    session.advance()
    with pytest.raises(SqlError):
        session.replace("q", "SELECT nope FROM purchases")
    with pytest.raises(NotFoundError):
        session.replace("other", ROWS)
    with pytest.raises(hr.HeadraceError):
        session.replace("q", ROWS, sink="nowhere")
    assert session.query("q").id == first.id
    assert first.status == "live"
