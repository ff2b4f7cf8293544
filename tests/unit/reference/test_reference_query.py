"""One reference query, batch by batch. Times are seconds; tests pass the watermarks `w(b)` and `w(b+1)`.

In the diagrams a digit is a row, `|` a window bound, `w` a watermark.
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


def make_row(seconds: float, x: int | None = 1, **others: object) -> dict[str, object]:
    return {"t": EPOCH + timedelta(seconds=seconds), "x": x, **others}


def make_query(
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


def make_window(window: str, size: float, slide: float | None = None) -> Window:
    if window == "session":
        return SessionWindow(int(size * SECOND))
    return HopWindow(int(size * SECOND), int((slide or size) * SECOND))


def simplify_rows(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Return the values of each row, with times as seconds."""
    return [tuple((v - EPOCH).total_seconds() if isinstance(v, datetime) else v for v in row.values()) for row in rows]


def run_batch(
    query: ReferenceQuery, rows: list[dict[str, object]], w: float | None, w_next: float | None, stream: str = "s"
) -> list[tuple[object, ...]]:
    return simplify_rows(query.run_batch({stream: rows}, *(None if v is None else v * SECOND for v in (w, w_next))))


def test_tumbling_windows_close_in_order():
    # 0    5    10   15
    # | 1 2|  3 |4   |
    #           w         → the first two windows are final, the third is open
    query = ReferenceQuery(make_query(make_window("tumble", 5)), None, TIMES)
    assert run_batch(query, [make_row(10, 4), make_row(1), make_row(8, 3), make_row(3, 2)], None, 10) == [
        (0, 5, 2, 3),
        (5, 10, 1, 3),
    ]
    assert run_batch(query, [], 10, math.inf) == [(10, 15, 1, 4)]


def test_a_window_is_final_when_the_watermark_reaches_its_end():
    # 0    5
    # |1   |
    #      w
    query = ReferenceQuery(make_query(make_window("tumble", 5)), None, TIMES)
    assert run_batch(query, [make_row(1)], None, 5 - 1e-6) == []
    assert run_batch(query, [], 5 - 1e-6, 5) == [(0, 5, 1, 1)]


def test_hop_windows_whose_size_is_no_multiple_of_the_slide():
    # -4   -1   2    5          size 7, slide 3: a row at 1 is in [-6, 1)? no; [-3, 4), [0, 7)
    #  |    |   |    |
    #          1
    query = ReferenceQuery(make_query(make_window("hop", 7, 3)), None, TIMES)
    assert run_batch(query, [make_row(1)], None, math.inf) == [(-3, 4, 1, 1), (0, 7, 1, 1)]


def test_a_row_between_hop_windows_is_not_late():
    # 0  2   5  7   10
    # |1 |   |  |   |       size 2, slide 5
    #      3      4
    query = ReferenceQuery(make_query(make_window("hop", 2, 5)), None, TIMES)
    assert run_batch(query, [make_row(1), make_row(3, 3), make_row(8, 4)], 100, None) == []
    assert query.late_rows == {"s": 1}
    assert run_batch(query, [make_row(101), make_row(103)], 100, math.inf) == [(100, 102, 1, 1)]
    assert query.late_rows == {"s": 1}


def test_a_late_row_counts_only_in_open_windows():
    # 0    4    8    12       size 8, slide 4
    # |    |    |    |
    #       5  w=8           → [0, 8) is final, [4, 12) counts the row
    query = ReferenceQuery(make_query(make_window("hop", 8, 4)), None, TIMES)
    assert run_batch(query, [make_row(6)], None, 8) == [(0, 8, 1, 1)]
    assert run_batch(query, [make_row(5)], 8, 12) == [(4, 12, 2, 2)]
    assert query.late_rows == {"s": 0}


def test_a_row_without_an_open_window_is_dropped_and_counted():
    # 0    4    8    12       size 8, slide 4
    # |    |    |    |
    #       5       w=12
    query = ReferenceQuery(make_query(make_window("hop", 8, 4)), None, TIMES)
    assert run_batch(query, [make_row(5)], 12, math.inf) == []
    assert query.late_rows == {"s": 1}


def test_only_rows_that_pass_the_predicate_count_as_late():
    # 0    5
    # | 1 2|
    #            w=10
    predicate = Call("gt", (X, Literal(1, INT)), pa.bool_())
    query = ReferenceQuery(make_query(make_window("tumble", 5), predicate=predicate), None, TIMES)
    assert run_batch(query, [make_row(1, 1), make_row(2, 2), make_row(3, None)], 10, math.inf) == []
    assert query.late_rows == {"s": 1}


def test_lateness_in_a_batch_uses_the_previous_watermark():
    # 0    5    10
    # |    |    |
    #   2     9w     w(b) = −∞: the row at 9 does not make the row at 2 late in the same batch
    query = ReferenceQuery(make_query(make_window("tumble", 5)), None, TIMES)
    assert run_batch(query, [make_row(9), make_row(2)], None, 9) == [(0, 5, 1, 1)]
    assert query.late_rows == {"s": 0}


def test_a_query_added_later_emits_no_partial_window():
    # 0    5    10   15
    # |    |    |    |
    #     T=3.000001: the query skips the row at 2, the row at 4 has no window, [5, 10) is the first window
    query = ReferenceQuery(make_query(make_window("tumble", 5)), 3 * SECOND + 1, TIMES)
    assert run_batch(query, [make_row(2), make_row(4), make_row(6)], 3, math.inf) == [(5, 10, 1, 1)]
    assert query.late_rows == {"s": 0}


def test_a_window_that_starts_at_the_start_time_is_emitted():
    # 0    5    10
    # |    |6   |
    #      T=5
    query = ReferenceQuery(make_query(make_window("tumble", 5)), 5 * SECOND, TIMES)
    assert run_batch(query, [make_row(5), make_row(6)], None, math.inf) == [(5, 10, 2, 2)]


def test_a_row_before_the_start_time_is_not_late():
    # 0    5    10   15
    # |  3 |    | 12 |
    #        T=7     w=15     the query skips the row at 3, [5, 10) with the row at 8 is not emitted, 12 is late
    query = ReferenceQuery(make_query(make_window("tumble", 5)), 7 * SECOND, TIMES)
    assert run_batch(query, [make_row(3), make_row(8), make_row(12)], 15, math.inf) == []
    assert query.late_rows == {"s": 1}


def test_rows_within_the_gap_form_one_session():
    # 0  2    5    8.000001
    # 1  1    1    1              gap 3: 5 touches 2, 8.000001 does not touch 5
    # |  |    |    |
    query = ReferenceQuery(make_query(make_window("session", 3)), None, TIMES)
    assert run_batch(query, [make_row(5), make_row(0), make_row(8.000001), make_row(2)], None, math.inf) == [
        (0, 8, 3, 3),
        (8.000001, 11.000001, 1, 1),
    ]


def test_a_later_batch_merges_sessions():
    # 0    2    4
    # 1         1        batch 1
    #      1             batch 2, gap 2: merges both
    query = ReferenceQuery(make_query(make_window("session", 2)), None, TIMES)
    assert run_batch(query, [make_row(0), make_row(4)], None, 1) == []
    assert run_batch(query, [make_row(2)], 1, 6) == [(0, 6, 3, 3)]


def test_sessions_are_per_key():
    # 0  1  2  3  4
    # a     a     a      one session of a, two of b (gap 2)
    # b        b
    query = ReferenceQuery(make_query(make_window("session", 2), K), None, TIMES)
    rows = [make_row(0, k=1), make_row(2, k=1), make_row(4, k=1), make_row(0, k=2), make_row(3, k=2)]
    assert run_batch(query, rows, None, math.inf) == [(0, 2, 2, 1, 1), (0, 6, 1, 3, 3), (3, 5, 2, 1, 1)]


def test_an_emitted_session_does_not_change():
    # 0    3w   5
    # 1         |         gap 3: [0, 3) is emitted at w = 3
    #   1  1              1 + 3 > 3: not late, although the row belongs to the emitted session
    query = ReferenceQuery(make_query(make_window("session", 3)), None, TIMES)
    assert run_batch(query, [make_row(0)], None, 3) == [(0, 3, 1, 1)]
    assert run_batch(query, [make_row(0), make_row(1), make_row(3)], 3, math.inf) == [(1, 6, 2, 2)]
    assert query.late_rows == {"s": 1}


def test_sessions_of_a_query_added_later_skip_earlier_rows():
    # 0    2    4
    # 1    1    1         T=1: the query skips the row at 0
    # |T
    query = ReferenceQuery(make_query(make_window("session", 3)), 1 * SECOND, TIMES)
    assert run_batch(query, [make_row(0), make_row(2), make_row(4)], None, math.inf) == [(2, 7, 2, 2)]
    assert query.late_rows == {"s": 0}


def test_null_nan_and_zero_keys_form_one_group_each():
    # 0         10
    # |nnn 00   |         all NaN form one group, -0.0 and 0.0 one group, NULL one group
    # |NN       |
    query = ReferenceQuery(make_query(make_window("tumble", 10), Y), None, TIMES)
    rows = [make_row(1, y=y) for y in (math.nan, -0.0, None, -math.nan, 0.0, None, None)]
    emitted = run_batch(query, rows, None, math.inf)
    assert [(repr(group[2]), group[3]) for group in emitted] == [("nan", 2), ("0.0", 2), ("None", 3)]


def test_an_empty_window_emits_no_result():
    # 0    5    10   15
    # |1   |    |  1 |     no rows in [5, 10)
    #                w
    query = ReferenceQuery(make_query(make_window("tumble", 5)), None, TIMES)
    assert run_batch(query, [make_row(1), make_row(13)], None, 15) == [(0, 5, 1, 1), (10, 15, 1, 1)]


def test_having_drops_false_and_null():
    # 0    5    10   15
    # |1 1 |1   |N   |     SUM(x) > 1: true, false, NULL
    #                w
    having = Call("gt", (agg_column(1, BIGINT), Literal(1, BIGINT)), pa.bool_())
    query = ReferenceQuery(make_query(make_window("tumble", 5), having=having), None, TIMES)
    assert run_batch(query, [make_row(0), make_row(1), make_row(5), make_row(10, None)], None, 15) == [(0, 5, 2, 2)]


def test_rows_of_two_streams_share_a_window():
    # 0    5
    # |s u |
    #      w
    query = ReferenceQuery(make_query(make_window("tumble", 5), streams="su"), None, TIMES)
    assert simplify_rows(query.run_batch({"s": [make_row(1)], "u": [make_row(2, 5)]}, None, 5 * SECOND)) == [(0, 5, 2, 6)]
    assert run_batch(query, [make_row(1)], 5, 5, stream="u") == []
    assert query.late_rows == {"s": 0, "u": 1}


def test_stateless_queries_emit_rows_in_arrival_order():
    # 0    5    10
    #  3 1        w=10     late rows are emitted; rows before T = 1 are skipped
    #  T
    schema = Schema.parse("double_x INT")
    outputs = (Call("mul", (X, Literal(2, INT)), INT),)
    predicate = Call("gt", (X, Literal(0, INT)), pa.bool_())
    plan = StatelessQuery(tuple(SelectBranch(stream, outputs, predicate) for stream in "us"), schema)
    query = ReferenceQuery(plan, 1 * SECOND, TIMES)
    rows = {"s": [make_row(3, 1), make_row(1, 2), make_row(0, 9), make_row(2, -1), make_row(2, None)], "u": [make_row(9, 7)]}
    assert query.run_batch(rows, 10 * SECOND, 10 * SECOND) == [{"double_x": 14}, {"double_x": 2}, {"double_x": 4}]
    assert query.late_rows == {"s": 0, "u": 0}


def test_only_rows_that_are_not_late_raise_errors():
    # 0    5    10
    # |!   |!   |          `!`: the key overflows
    #      w=5             late: its key is never evaluated
    plan = make_query(make_window("tumble", 5))
    key = Call("neg", (X,), INT)
    branch = AggregateBranch("s", (key,), plan.branches[0].aggregates)
    query = ReferenceQuery(AggregateQuery(plan.window, (branch,), plan.output, plan.schema), None, TIMES)
    assert run_batch(query, [make_row(1, -(2**31))], 5, 5) == []
    with pytest.raises(EvaluationError):
        run_batch(query, [make_row(6, -(2**31))], 5, 5)


def test_times_are_exact_to_the_microsecond():
    # …123456         a window of 1 µs
    # |1|
    #   |
    moment = datetime(9000, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    query = ReferenceQuery(make_query(HopWindow(1, 1)), None, TIMES)
    (emitted,) = query.run_batch({"s": [{"t": moment, "x": 1}]}, None, math.inf)
    assert (emitted["start"], emitted["end"]) == (moment, moment + timedelta(microseconds=1))
    assert pa.scalar(emitted["start"], TIMESTAMP).as_py() == moment
