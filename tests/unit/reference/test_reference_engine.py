"""Many queries, each alone: when they come, when they go, what becomes of the others."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.backends.reference import ReferenceEngine
from headrace.errors import NameTakenError, NotFoundError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import Call, Column, Expression
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.model.window import HopWindow
from headrace.plan.logical import WINDOW_START, AggregateBranch, AggregateQuery, SelectBranch, StatelessQuery, agg_column

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT, BIGINT = pa.int32(), pa.int64()
X = Column("x", INT)
SCHEMA = Schema.parse("x INT, T TIMESTAMP")


def at(*seconds: float, x: int = 1) -> list[dict[str, object]]:
    return [{"T": EPOCH + timedelta(seconds=second), "x": x} for second in seconds]


def counting(*streams: str, argument: Expression = X) -> AggregateQuery:
    """SELECT window_start, SUM(x) … in tumbling windows of five seconds."""
    branches = tuple(AggregateBranch(stream, (), (AggregateCall("sum", (argument,), BIGINT),)) for stream in streams)
    return AggregateQuery(
        HopWindow(5 * SECOND, 5 * SECOND),
        branches,
        (WINDOW_START, agg_column(0, BIGINT)),
        Schema.parse("start TIMESTAMP, total BIGINT"),
    )


def results(engine: ReferenceEngine, name: str) -> list[tuple[float, int]]:
    return [((row["start"] - EPOCH).total_seconds(), row["total"]) for row in engine.get_results(name)]


@pytest.fixture
def engine() -> ReferenceEngine:
    engine = ReferenceEngine()
    engine.add_stream(Stream("s", SCHEMA, "t", 2 * SECOND))
    engine.add_stream(Stream("u", SCHEMA, "t", 0))
    return engine


def test_watermark_trails_by_the_delay(engine):
    # 0    5    10
    # |1   |6 7 |        delay 2: w = 4 after the row at 6, w = 5 after the row at 7
    #     w w
    engine.add("q", counting("s"))
    assert engine.advance({"s": at(1, 6)}) == {"q": []}
    assert [row["total"] for row in engine.advance({"s": at(7)})["q"]] == [1]
    engine.advance({"s": at(4.9)})
    assert engine.get_late_counts("q") == {"s": 1}
    engine.drain()
    assert results(engine, "q") == [(0, 1), (5, 2)]


def test_the_watermark_never_goes_back(engine):
    # 0    5    10
    # |    |  9 |      w = 7
    #   2              late, and the watermark stays
    engine.add("q", counting("s"))
    engine.advance({"s": at(9)})
    engine.advance({"s": at(2)})
    engine.advance({"s": at(3)})
    assert engine.get_late_counts("q") == {"s": 2}


def test_a_query_over_two_streams_waits_for_the_slower(engine):
    # 0    5    10
    # |s   |   s|  s at 20: nothing is final until u has been seen past 5
    # |  u |u
    engine.add("both", counting("s", "u"))
    engine.advance({"s": at(1, 20)})
    assert results(engine, "both") == []
    engine.advance({"u": at(2, 5)})
    assert results(engine, "both") == [(0, 2)]


def test_a_query_sees_only_rows_newer_than_all_before_it(engine):
    # 0    5    10   15
    # |  3 |    |           T = 3.000001
    #      |6 4 |           4 has no whole window
    engine.advance({"s": at(3)})
    engine.add("q", counting("s"))
    engine.advance({"s": at(6, 4, 2)})
    engine.drain()
    assert results(engine, "q") == [(5, 1)]
    assert engine.get_late_counts("q") == {"s": 0}


def test_t_is_the_newest_of_any_of_its_streams(engine):
    # 0    5    10   15
    # s 3        u 8         T = 8.000001 for both: [10, 15) is the first
    #      6     9    11
    engine.advance({"s": at(3), "u": at(8)})
    engine.add("both", counting("s", "u"))
    engine.advance({"s": at(6, 9, 11)})
    engine.drain()
    assert results(engine, "both") == [(10, 1)]


def test_removed_queries_keep_what_they_emitted(engine):
    # 0    5    10
    # |1   |7   |         removed before [5, 10) closes
    #      w
    engine.add("q", counting("s"))
    engine.advance({"s": at(1, 7)})
    engine.remove("q")
    assert engine.advance({"s": at(30)}) == {}
    assert engine.drain() == {}
    assert results(engine, "q") == [(0, 1)]


def test_a_name_can_be_used_again(engine):
    # 0    5    10   15
    # |1   |7   |          the first q
    #           |   13|    the second q begins with nothing
    engine.add("q", counting("s"))
    engine.advance({"s": at(1, 7)})
    engine.remove("q")
    engine.add("q", counting("s"))
    assert results(engine, "q") == []
    engine.advance({"s": at(13)})
    engine.drain()
    assert results(engine, "q") == [(10, 1)]


def test_a_failing_query_fails_alone(engine):
    # 0    5    10   15
    # |1   |!   |            -x overflows in batch 2
    # batch 1, batch 2
    engine.add("good", counting("s"))
    engine.add("bad", counting("s", argument=Call("neg", (X,), INT)))
    engine.advance({"s": at(1, 7)})
    assert engine.advance({"s": at(12, x=-(2**31))})["bad"] == []
    engine.drain()
    assert results(engine, "bad") == [(0, -1)]
    assert results(engine, "good") == [(0, 1), (5, 1), (10, -(2**31))]
    assert list(engine.errors) == ["bad"]
    engine.remove("bad")


def test_rows_without_event_time_are_dropped_and_counted(engine):
    engine.add("all", StatelessQuery((SelectBranch("s", (X,)),), Schema.parse("x INT")))
    assert engine.advance({"s": [{"x": 1, "T": None}, {"x": 2}, *at(0, x=3)]}) == {"all": [{"x": 3}]}
    assert engine.dropped == {"s": 2, "u": 0}


def test_names_must_fit(engine):
    engine.add("q", counting("s"))
    with pytest.raises(NameTakenError, match="query 'q'"):
        engine.add("q", counting("s"))
    with pytest.raises(NameTakenError, match="stream 's'"):
        engine.add_stream(Stream("s", SCHEMA, "t"))
    for attempt in (
        lambda: engine.remove("p"),
        lambda: engine.get_results("p"),
        lambda: engine.advance({"v": []}),
        lambda: engine.add("r", counting("v")),
    ):
        with pytest.raises(NotFoundError):
            attempt()
