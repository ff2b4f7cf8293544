"""Reference engine with several queries: adding, removing, failing, and watermarks."""

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


def make_rows(*seconds: float, x: int = 1) -> list[dict[str, object]]:
    return [{"T": EPOCH + timedelta(seconds=second), "x": x} for second in seconds]


def make_sum_query(*streams: str, argument: Expression = X) -> AggregateQuery:
    """SELECT window_start, SUM(x) … in tumbling windows of five seconds."""
    branches = tuple(AggregateBranch(stream, (), (AggregateCall("sum", (argument,), BIGINT),)) for stream in streams)
    return AggregateQuery(
        HopWindow(5 * SECOND, 5 * SECOND),
        branches,
        (WINDOW_START, agg_column(0, BIGINT)),
        Schema.parse("start TIMESTAMP, total BIGINT"),
    )


def read_results(engine: ReferenceEngine, name: str) -> list[tuple[float, int]]:
    return [((row["start"] - EPOCH).total_seconds(), row["total"]) for row in engine.get_results(name)]


@pytest.fixture
def engine() -> ReferenceEngine:
    engine = ReferenceEngine()
    engine.add_stream(Stream("s", SCHEMA, "t", 2 * SECOND))
    engine.add_stream(Stream("u", SCHEMA, "t", 0))
    return engine


def test_the_watermark_lags_by_the_delay(engine):
    # 0    5    10
    # |1   |6 7 |        delay 2: w = 4 after the row at 6, w = 5 after the row at 7
    #     w w
    engine.add("q", make_sum_query("s"))
    assert engine.advance({"s": make_rows(1, 6)}) == {"q": []}
    assert [row["total"] for row in engine.advance({"s": make_rows(7)})["q"]] == [1]
    engine.advance({"s": make_rows(4.9)})
    assert engine.get_late_counts("q") == {"s": 1}
    engine.drain()
    assert read_results(engine, "q") == [(0, 1), (5, 2)]


def test_the_watermark_never_decreases(engine):
    # 0    5    10
    # |    |  9 |      w = 7
    #   2              late, and the watermark stays
    engine.add("q", make_sum_query("s"))
    engine.advance({"s": make_rows(9)})
    engine.advance({"s": make_rows(2)})
    engine.advance({"s": make_rows(3)})
    assert engine.get_late_counts("q") == {"s": 2}


def test_a_query_over_two_streams_uses_the_lower_watermark(engine):
    # 0    5    10
    # |s   |   s|  s at 20: no window is final until the watermark of u reaches 5
    # |  u |u
    engine.add("both", make_sum_query("s", "u"))
    engine.advance({"s": make_rows(1, 20)})
    assert read_results(engine, "both") == []
    engine.advance({"u": make_rows(2, 5)})
    assert read_results(engine, "both") == [(0, 2)]


def test_a_query_reads_only_rows_newer_than_its_start_time(engine):
    # 0    5    10   15
    # |  3 |    |           T = 3.000001
    #      |6 4 |           the row at 4 has no complete window
    engine.advance({"s": make_rows(3)})
    engine.add("q", make_sum_query("s"))
    engine.advance({"s": make_rows(6, 4, 2)})
    engine.drain()
    assert read_results(engine, "q") == [(5, 1)]
    assert engine.get_late_counts("q") == {"s": 0}


def test_the_start_time_follows_the_newest_row_of_all_streams(engine):
    # 0    5    10   15
    # s 3        u 8         T = 8.000001 for both: [10, 15) is the first window
    #      6     9    11
    engine.advance({"s": make_rows(3), "u": make_rows(8)})
    engine.add("both", make_sum_query("s", "u"))
    engine.advance({"s": make_rows(6, 9, 11)})
    engine.drain()
    assert read_results(engine, "both") == [(10, 1)]


def test_removed_queries_keep_emitted_results(engine):
    # 0    5    10
    # |1   |7   |         removed before [5, 10) closes
    #      w
    engine.add("q", make_sum_query("s"))
    engine.advance({"s": make_rows(1, 7)})
    engine.remove("q")
    assert engine.advance({"s": make_rows(30)}) == {}
    assert engine.drain() == {}
    assert read_results(engine, "q") == [(0, 1)]


def test_the_name_of_a_removed_query_can_be_reused(engine):
    # 0    5    10   15
    # |1   |7   |          the first q
    #           |   13|    the second q starts empty
    engine.add("q", make_sum_query("s"))
    engine.advance({"s": make_rows(1, 7)})
    engine.remove("q")
    engine.add("q", make_sum_query("s"))
    assert read_results(engine, "q") == []
    engine.advance({"s": make_rows(13)})
    engine.drain()
    assert read_results(engine, "q") == [(10, 1)]


def test_a_failing_query_does_not_affect_other_queries(engine):
    # 0    5    10   15
    # |1   |!   |            -x overflows in batch 2
    # batch 1, batch 2
    engine.add("good", make_sum_query("s"))
    engine.add("bad", make_sum_query("s", argument=Call("neg", (X,), INT)))
    engine.advance({"s": make_rows(1, 7)})
    assert engine.advance({"s": make_rows(12, x=-(2**31))})["bad"] == []
    engine.drain()
    assert read_results(engine, "bad") == [(0, -1)]
    assert read_results(engine, "good") == [(0, 1), (5, 1), (10, -(2**31))]
    assert list(engine.errors) == ["bad"]
    engine.remove("bad")


def test_rows_without_event_time_are_dropped_and_counted(engine):
    engine.add("all", StatelessQuery((SelectBranch("s", (X,)),), Schema.parse("x INT")))
    assert engine.advance({"s": [{"x": 1, "T": None}, {"x": 2}, *make_rows(0, x=3)]}) == {"all": [{"x": 3}]}
    assert engine.dropped == {"s": 2, "u": 0}


def test_duplicate_and_unknown_names_are_refused(engine):
    engine.add("q", make_sum_query("s"))
    with pytest.raises(NameTakenError, match="query 'q'"):
        engine.add("q", make_sum_query("s"))
    with pytest.raises(NameTakenError, match="stream 's'"):
        engine.add_stream(Stream("s", SCHEMA, "t"))
    for attempt in (
        lambda: engine.remove("p"),
        lambda: engine.get_results("p"),
        lambda: engine.advance({"v": []}),
        lambda: engine.add("r", make_sum_query("v")),
    ):
        with pytest.raises(NotFoundError):
            attempt()
