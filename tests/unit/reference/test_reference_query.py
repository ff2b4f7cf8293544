"""One query, batch by batch. Times are whole seconds; `w(b)` and `w(b+1)` are given by hand.

In the drawings a digit is a row, `|` an edge of a window, `w` a watermark.
"""

import math
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.backends.reference import ReferenceQuery
from headrace.errors import EvaluationError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Call, Column, Expression, Literal
from headrace.model.types import TIMESTAMP, Schema
from headrace.model.window import HopWindow, SessionWindow, Window
from headrace.plan.logical import (
    WINDOW_END,
    WINDOW_START,
    AggregateBranch,
    AggregateQuery,
    SelectBranch,
    StatelessQuery,
    agg_column,
    key_column,
)

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT, BIGINT, DOUBLE = pa.int32(), pa.int64(), pa.float64()
X, K, Y = Column("x", INT), Column("k", INT), Column("y", DOUBLE)
TIMES = {"s": "t", "u": "t"}


def row(seconds: float, x: int | None = 1, **others: object) -> dict[str, object]:
    return {"t": EPOCH + timedelta(seconds=seconds), "x": x, **others}


def counting(
    window: Window, *keys: Column, predicate: Expression = TRUE, having: Expression = TRUE, streams: str = "s"
) -> AggregateQuery:
    """SELECT window_start, window_end, keys, COUNT(*) AS n, SUM(x) AS total."""
    calls = (AggregateCall("count", (), BIGINT), AggregateCall("sum", (X,), BIGINT))
    outputs: list[Expression] = [WINDOW_START, WINDOW_END, *(key_column(i, key.type) for i, key in enumerate(keys))]
    outputs += [agg_column(0, BIGINT), agg_column(1, BIGINT)]
    names = ["start", "end", *(key.name for key in keys), "n", "total"]
    schema = Schema.from_arrow(pa.schema([pa.field(name, output.type) for name, output in zip(names, outputs, strict=True)]))
    branches = tuple(AggregateBranch(stream, keys, calls, predicate) for stream in streams)
    return AggregateQuery(window, branches, tuple(outputs), schema, having)


def seconds(window: str, size: float, slide: float | None = None) -> Window:
    if window == "session":
        return SessionWindow(int(size * SECOND))
    return HopWindow(int(size * SECOND), int((slide or size) * SECOND))


def brief(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Times as seconds, values only."""
    return [tuple((v - EPOCH).total_seconds() if isinstance(v, datetime) else v for v in row.values()) for row in rows]


def run(
    query: ReferenceQuery, rows: list[dict[str, object]], w: float | None, w_next: float | None, stream: str = "s"
) -> list[tuple[object, ...]]:
    return brief(query.run_batch({stream: rows}, *(None if v is None else v * SECOND for v in (w, w_next))))


def test_tumbling_windows_close_in_order():
    # 0    5    10   15
    # | 1 2|  3 |4   |
    #           w         → the first two are final, the third is open
    query = ReferenceQuery(counting(seconds("tumble", 5)), None, TIMES)
    assert run(query, [row(10, 4), row(1), row(8, 3), row(3, 2)], None, 10) == [(0, 5, 2, 3), (5, 10, 1, 3)]
    assert run(query, [], 10, math.inf) == [(10, 15, 1, 4)]


def test_an_end_equal_to_the_watermark_is_final_and_one_microsecond_less_is_not():
    # 0    5
    # |1   |
    #      w
    query = ReferenceQuery(counting(seconds("tumble", 5)), None, TIMES)
    assert run(query, [row(1)], None, 5 - 1e-6) == []
    assert run(query, [], 5 - 1e-6, 5) == [(0, 5, 1, 1)]


def test_sliding_windows_of_an_odd_ratio():
    # -4   -1   2    5          size 7, slide 3: a row at 1 is in [-6, 1)? no; [-3, 4), [0, 7)
    #  |    |   |    |
    #          1
    query = ReferenceQuery(counting(seconds("hop", 7, 3)), None, TIMES)
    assert run(query, [row(1)], None, math.inf) == [(-3, 4, 1, 1), (0, 7, 1, 1)]


def test_a_row_in_a_gap_has_no_window_and_is_not_late():
    # 0  2   5  7   10
    # |1 |   |  |   |       size 2, slide 5
    #      3      4
    query = ReferenceQuery(counting(seconds("hop", 2, 5)), None, TIMES)
    assert run(query, [row(1), row(3, 3), row(8, 4)], 100, None) == []
    assert query.late_rows == {"s": 1}
    assert run(query, [row(101), row(103)], 100, math.inf) == [(100, 102, 1, 1)]
    assert query.late_rows == {"s": 1}


def test_a_late_row_counts_in_exactly_the_windows_still_open():
    # 0    4    8    12       size 8, slide 4
    # |    |    |    |
    #       5  w=8           → [0, 8) is final, [4, 12) takes the row
    query = ReferenceQuery(counting(seconds("hop", 8, 4)), None, TIMES)
    assert run(query, [row(6)], None, 8) == [(0, 8, 1, 1)]
    assert run(query, [row(5)], 8, 12) == [(4, 12, 2, 2)]
    assert query.late_rows == {"s": 0}


def test_a_row_all_of_whose_windows_are_final_is_dropped_and_counted():
    # 0    4    8    12       size 8, slide 4
    # |    |    |    |
    #       5       w=12
    query = ReferenceQuery(counting(seconds("hop", 8, 4)), None, TIMES)
    assert run(query, [row(5)], 12, math.inf) == []
    assert query.late_rows == {"s": 1}


def test_only_rows_that_pass_the_predicate_are_late():
    # 0    5
    # | 1 2|
    #            w=10
    predicate = Call("gt", (X, Literal(1, INT)), pa.bool_())
    query = ReferenceQuery(counting(seconds("tumble", 5), predicate=predicate), None, TIMES)
    assert run(query, [row(1, 1), row(2, 2), row(3, None)], 10, math.inf) == []
    assert query.late_rows == {"s": 1}


def test_late_in_one_batch_uses_the_watermark_before_it():
    # 0    5    10
    # |    |    |
    #   2     9w     w(b) = −∞: the row at 9 does not make the row at 2 late in the same batch
    query = ReferenceQuery(counting(seconds("tumble", 5)), None, TIMES)
    assert run(query, [row(9), row(2)], None, 9) == [(0, 5, 1, 1)]
    assert query.late_rows == {"s": 0}


def test_a_query_added_later_reports_no_half_window():
    # 0    5    10   15
    # |    |    |    |
    #     T=3.000001: the row at 2 is not seen, the row at 4 has no window, [5, 10) is the first
    query = ReferenceQuery(counting(seconds("tumble", 5)), 3 * SECOND + 1, TIMES)
    assert run(query, [row(2), row(4), row(6)], 3, math.inf) == [(5, 10, 1, 1)]
    assert query.late_rows == {"s": 0}


def test_a_window_that_starts_exactly_at_t_counts():
    # 0    5    10
    # |    |6   |
    #      T=5
    query = ReferenceQuery(counting(seconds("tumble", 5)), 5 * SECOND, TIMES)
    assert run(query, [row(5), row(6)], None, math.inf) == [(5, 10, 2, 2)]


def test_a_row_before_t_is_not_late():
    # 0    5    10   15
    # |  3 |    | 12 |
    #        T=7     w=15     the row at 3 is not seen, the row at 8 is in [5, 10) which does not exist, 12 is late
    query = ReferenceQuery(counting(seconds("tumble", 5)), 7 * SECOND, TIMES)
    assert run(query, [row(3), row(8), row(12)], 15, math.inf) == []
    assert query.late_rows == {"s": 1}


def test_rows_at_most_the_gap_apart_are_one_session():
    # 0  2    5    8.000001
    # 1  1    1    1              gap 3: 5 touches 2, 8.000001 does not touch 5
    # |  |    |    |
    query = ReferenceQuery(counting(seconds("session", 3)), None, TIMES)
    assert run(query, [row(5), row(0), row(8.000001), row(2)], None, math.inf) == [(0, 8, 3, 3), (8.000001, 11.000001, 1, 1)]


def test_a_session_bridged_by_a_later_batch():
    # 0    2    4
    # 1         1        batch 1
    #      1             batch 2, gap 2: bridges both
    query = ReferenceQuery(counting(seconds("session", 2)), None, TIMES)
    assert run(query, [row(0), row(4)], None, 1) == []
    assert run(query, [row(2)], 1, 6) == [(0, 6, 3, 3)]


def test_sessions_are_per_key():
    # 0  1  2  3  4
    # a     a     a      one session of a, two of b (gap 2)
    # b        b
    query = ReferenceQuery(counting(seconds("session", 2), K), None, TIMES)
    rows = [row(0, k=1), row(2, k=1), row(4, k=1), row(0, k=2), row(3, k=2)]
    assert run(query, rows, None, math.inf) == [(0, 2, 2, 1, 1), (0, 6, 1, 3, 3), (3, 5, 2, 1, 1)]


def test_an_emitted_session_is_never_touched_again():
    # 0    3w   5
    # 1         |         gap 3: [0, 3) is emitted at w = 3
    #   1  1              1 + 3 > 3: not late, though it would have belonged to the emitted one
    query = ReferenceQuery(counting(seconds("session", 3)), None, TIMES)
    assert run(query, [row(0)], None, 3) == [(0, 3, 1, 1)]
    assert run(query, [row(0), row(1), row(3)], 3, math.inf) == [(1, 6, 2, 2)]
    assert query.late_rows == {"s": 1}


def test_sessions_of_a_query_added_later():
    # 0    2    4
    # 1    1    1         T=1: the row at 0 is not seen
    # |T
    query = ReferenceQuery(counting(seconds("session", 3)), 1 * SECOND, TIMES)
    assert run(query, [row(0), row(2), row(4)], None, math.inf) == [(2, 7, 2, 2)]
    assert query.late_rows == {"s": 0}


def test_null_nan_and_zero_keys():
    # 0         10
    # |nnn 00   |         all NaN are one group, -0.0 and 0.0 are one, NULL is one
    # |NN       |
    query = ReferenceQuery(counting(seconds("tumble", 10), Y), None, TIMES)
    rows = [row(1, y=y) for y in (math.nan, -0.0, None, -math.nan, 0.0, None, None)]
    emitted = run(query, rows, None, math.inf)
    assert [(repr(group[2]), group[3]) for group in emitted] == [("nan", 2), ("0.0", 2), ("None", 3)]


def test_no_rows_no_result_not_even_for_a_global_aggregate():
    # 0    5    10   15
    # |1   |    |  1 |     nothing in [5, 10)
    #                w
    query = ReferenceQuery(counting(seconds("tumble", 5)), None, TIMES)
    assert run(query, [row(1), row(13)], None, 15) == [(0, 5, 1, 1), (10, 15, 1, 1)]


def test_having_must_be_true():
    # 0    5    10   15
    # |1 1 |1   |N   |     SUM(x) > 1: true, false, NULL
    #                w
    having = Call("gt", (agg_column(1, BIGINT), Literal(1, BIGINT)), pa.bool_())
    query = ReferenceQuery(counting(seconds("tumble", 5), having=having), None, TIMES)
    assert run(query, [row(0), row(1), row(5), row(10, None)], None, 15) == [(0, 5, 2, 2)]


def test_two_streams_meet_in_one_window():
    # 0    5
    # |s u |
    #      w
    query = ReferenceQuery(counting(seconds("tumble", 5), streams="su"), None, TIMES)
    assert brief(query.run_batch({"s": [row(1)], "u": [row(2, 5)]}, None, 5 * SECOND)) == [(0, 5, 2, 6)]
    assert run(query, [row(1)], 5, 5, stream="u") == []
    assert query.late_rows == {"s": 0, "u": 1}


def test_stateless_queries_see_every_row_in_order_of_arrival():
    # 0    5    10
    #  3 1        w=10     late for windows, not here; before T = 1 it is not seen
    #  T
    schema = Schema.parse("double_x INT")
    outputs = (Call("mul", (X, Literal(2, INT)), INT),)
    predicate = Call("gt", (X, Literal(0, INT)), pa.bool_())
    plan = StatelessQuery(tuple(SelectBranch(stream, outputs, predicate) for stream in "us"), schema)
    query = ReferenceQuery(plan, 1 * SECOND, TIMES)
    rows = {"s": [row(3, 1), row(1, 2), row(0, 9), row(2, -1), row(2, None)], "u": [row(9, 7)]}
    assert query.run_batch(rows, 10 * SECOND, 10 * SECOND) == [{"double_x": 14}, {"double_x": 2}, {"double_x": 4}]
    assert query.late_rows == {"s": 0, "u": 0}


def test_errors_reach_the_caller_only_for_rows_that_count():
    # 0    5    10
    # |!   |!   |          `!`: the key overflows
    #      w=5             late: its key is never evaluated
    plan = counting(seconds("tumble", 5))
    key = Call("neg", (X,), INT)
    branch = AggregateBranch("s", (key,), plan.branches[0].aggregates)
    query = ReferenceQuery(AggregateQuery(plan.window, (branch,), plan.output, plan.schema), None, TIMES)
    assert run(query, [row(1, -(2**31))], 5, 5) == []
    with pytest.raises(EvaluationError):
        run(query, [row(6, -(2**31))], 5, 5)


def test_times_are_exact_to_the_microsecond():
    # …123456         a window of 1 µs
    # |1|
    #   |
    moment = datetime(9000, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    query = ReferenceQuery(counting(HopWindow(1, 1)), None, TIMES)
    (emitted,) = query.run_batch({"s": [{"t": moment, "x": 1}]}, None, math.inf)
    assert (emitted["start"], emitted["end"]) == (moment, moment + timedelta(microseconds=1))
    assert pa.scalar(emitted["start"], TIMESTAMP).as_py() == moment
