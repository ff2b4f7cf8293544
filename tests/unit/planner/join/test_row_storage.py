"""Row storage of window joins: which join buffer has the rows of a stream, and which ones refer to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.cli.explain import bind_queries, plan_queries
from headrace.errors import SessionError
from headrace.model.late_materialization import LateMaterialization
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.join.row_storage import RowStoragePlanner, find_fetched_inputs, measure_text_bytes
from headrace.planner.join.window_join_cost import JoinStatistics
from headrace.planner.shared_plan import JoinBuffer, LiveQuery, StreamPlan, plan_stream

_WIDE = "l.c, l.d, l.t"
_SCHEMA = "x BIGINT, y BIGINT, z BIGINT, c DOUBLE, d DOUBLE, t STRING, time TIMESTAMP"
_STREAMS = [
    Stream("a", Schema.parse(_SCHEMA), "time", 0),
    Stream("b", Schema.parse("k BIGINT, w BIGINT, time TIMESTAMP"), "time", 0),
]


def _join(key: str, outputs: str = _WIDE, condition: str = "") -> str:
    window = "TUMBLE({}, '4 seconds')"
    return f"SELECT {outputs}, r.w FROM {window.format('a')} l JOIN {window.format('b')} r ON l.{key} = r.k{condition}"


def _plan(
    *queries: str, setting: str = "always", statistics: JoinStatistics | None = None, current: StreamPlan | None = None
) -> tuple[tuple[LiveQuery, ...], StreamPlan]:
    bound = bind_queries(_STREAMS, {f"q{i}": sql for i, sql in enumerate(queries)}, "test")
    live = plan_queries(_STREAMS, bound).queries
    planner = RowStoragePlanner(LateMaterialization(setting), lambda: statistics or JoinStatistics())
    return tuple(live), planner.plan_storage(plan_stream("a", live), live, current)


def _get_buffers(plan: StreamPlan) -> dict[str, JoinBuffer]:
    return {", ".join(map(str, buffer.keys)): buffer for buffer in plan.join_buffers}


def _measure(fetches_per_row: float, text_bytes: float) -> JoinStatistics:
    rate = 1000.0
    rows = {(query, 2): fetches_per_row * rate * 4 for query in range(10)}
    return JoinStatistics({"a": rate}, measured_rows=rows, text_bytes={"a": text_bytes})


def test_the_attribute_of_most_queries_has_the_rows_and_the_others_refer_to_them() -> None:
    live, plan = _plan(_join("x"), _join("y"), _join("y", "l.c"), _join("z", condition=" AND l.d > r.w"))
    buffers = _get_buffers(plan)
    assert buffers["y"].has_row_ids
    assert buffers["y"].columns == ("c", "d", "t", "x", "y", "z")
    assert {subscriber.query_id for subscriber in buffers["y"].subscribers} == {query.id for query in live}
    assert {key: plan.join_buffers[buffers[key].home or 0] for key in "xz"} == dict.fromkeys("xz", buffers["y"])
    assert buffers["x"].columns == ("x",)
    assert buffers["z"].columns == ("d", "z"), "the condition of a step is checked before the row is fetched"
    assert find_fetched_inputs(live, {"a": [plan]}) == {live[0].id: (0,), live[3].id: (0,)}


def test_the_home_keeps_rows_as_long_as_the_longest_window_of_any_query() -> None:
    longer = _join("x").replace("4 seconds", "60 seconds")
    _, plan = _plan(_join("y"), _join("y"), longer)
    assert _get_buffers(plan)["y"].retention == 60_000_000


def test_a_query_that_outputs_only_what_its_steps_read_needs_no_reference() -> None:
    live, plan = _plan(_join("x"), _join("y", "l.y"))
    assert plan == plan_stream("a", live)
    assert find_fetched_inputs(live, {"a": [plan]}) == {}


def test_results_of_windows_are_stored_in_full() -> None:
    live, plan = _plan(_join("x"), _join("y"), setting="never")
    nested = RowStoragePlanner(LateMaterialization.ALWAYS, nested_streams={"b"})
    assert nested.plan_storage(plan, live) == plan


@pytest.mark.parametrize(
    ("fetches_per_row", "text_bytes", "is_shared"),
    [(0.1, 200.0, True), (0.1, 0.0, False), (5.0, 200.0, False), (0.0, 100.0, True)],
)
def test_references_are_chosen_where_rows_are_wide_and_few_of_them_are_joined(
    fetches_per_row: float, text_bytes: float, *, is_shared: bool
) -> None:
    _, plan = _plan(_join("x"), _join("y"), _join("z"), setting="auto", statistics=_measure(fetches_per_row, text_bytes))
    assert any(buffer.has_row_ids for buffer in plan.join_buffers) == is_shared


def test_two_narrow_columns_are_not_worth_a_fetch() -> None:
    queries = [_join(key, "l.c") for key in "xyz"]
    _, plan = _plan(*queries, setting="auto", statistics=_measure(0.01, 0.0))
    assert not any(buffer.has_row_ids for buffer in plan.join_buffers)


def test_a_small_change_of_statistics_does_not_change_the_storage() -> None:
    queries = [_join(key) for key in "xyz"]
    texts = next(
        n
        for n in range(1000)
        if any(b.has_row_ids for b in _plan(*queries, setting="auto", statistics=_measure(1, n))[1].join_buffers)
    )
    _, shared = _plan(*queries, setting="auto", statistics=_measure(1, texts))
    _, in_full = _plan(*queries, setting="never")
    fewer = _measure(1, texts - 1)
    assert _plan(*queries, setting="auto", statistics=fewer, current=in_full)[1].join_buffers == in_full.join_buffers
    assert _plan(*queries, setting="auto", statistics=fewer, current=shared)[1].join_buffers == shared.join_buffers


def test_the_plan_of_one_query_alone_is_that_in_full() -> None:
    live, plan = _plan(_join("x"))
    assert plan == replace(plan_stream("a", live))


def test_text_lengths_follow_from_stored_bytes() -> None:
    types = [column.type for column in Schema.parse("x BIGINT, t STRING, u STRING")]
    assert measure_text_bytes(types, 10, 10 * (8 + 8 + 2 * (4 + 50))) == 50
    assert measure_text_bytes(types[:1], 10, 160) is None


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(SessionError, match="invalid setting late_materialization='sometimes'"):
        LateMaterialization.parse("sometimes")
