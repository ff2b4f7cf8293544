"""`Session.replace` removes a query and adds another under its name in the same micro-batch, or changes nothing."""

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


def append_prices(session: hr.Session, *prices: float) -> None:
    rows = [{"price": price, "time": f"2026-01-01T00:00:{int(price):02d}Z"} for price in prices]
    session._coordinator.sources["purchases"].append(rows)


def test_the_old_query_ends_in_the_batch_in_which_the_new_query_begins(session: hr.Session):
    first = session.add(ROWS, name="q")
    session.advance()
    append_prices(session, 1.0, 2.0)
    session.advance()
    second = session.replace("q", "SELECT price * 10 AS price FROM purchases")
    append_prices(session, 3.0)
    report = session.advance()
    assert (report.added, report.removed) == ((second.id,), (first.id,))
    assert (first.status, second.status, session.query("q").id) == ("removed", "live", second.id)
    assert first.results()["price"].to_pylist() == [1.0, 2.0]
    assert second.results()["price"].to_pylist() == [30.0]


def test_a_query_that_is_not_live_yet_can_be_replaced(session: hr.Session):
    session.add(ROWS, name="q")
    session.replace("q", "SELECT price + 1 AS price FROM purchases")
    append_prices(session, 1.0)
    session.advance()
    append_prices(session, 2.0)
    session.advance()
    assert session.query("q").results()["price"].to_pylist()[-1] == 3.0


def test_a_refused_replacement_leaves_the_old_query_live(session: hr.Session):
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
