"""Physical plans of window joins: steps, keys, and where rows are repartitioned."""

from __future__ import annotations

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.explain.text import explain
from headrace.planner.join.window_join_plan import build_chain, count_extra_shuffles, find_needed_columns
from headrace.planner.shared_plan import LiveQuery, plan_stream
from headrace.sql import Catalog, bind_query

COLUMNS = Schema.parse("k INT, x INT, s STRING, unused INT, time TIMESTAMP")
CATALOG = Catalog.of([Stream(name, COLUMNS, "time") for name in ("a", "b", "c")])
A, B, C = (f"TUMBLE({name}, '5 s') {name}" for name in "abc")


def bind_join(text: str) -> WindowJoinQuery:
    plan = bind_query(text, CATALOG)
    assert isinstance(plan, WindowJoinQuery)
    return plan


def list_repartitions(text: str) -> list[bool]:
    plan = bind_join(text)
    return [step.repartitions for step in build_chain(plan, plan.tree).steps]


def test_rows_are_repartitioned_only_where_the_keys_change() -> None:
    assert list_repartitions(f"SELECT a.x FROM {A} JOIN {B} ON a.k = b.k JOIN {C} ON a.k = c.k") == [False, False]
    assert list_repartitions(f"SELECT a.x FROM {A} JOIN {B} ON a.k = b.k JOIN {C} ON b.k = c.k") == [False, False]
    assert list_repartitions(f"SELECT a.x FROM {A} JOIN {B} ON a.k = b.k JOIN {C} ON b.x = c.x") == [False, True]
    assert list_repartitions(f"SELECT a.x FROM {A} JOIN {B} ON a.k = b.k AND a.x = b.x JOIN {C} ON a.k = c.k") == [False, True]


def test_after_an_outer_join_only_keys_of_the_preserved_side_determine_the_partition() -> None:
    assert list_repartitions(f"SELECT a.x FROM {A} LEFT JOIN {B} ON a.k = b.k JOIN {C} ON a.k = c.k") == [False, False]
    assert list_repartitions(f"SELECT a.x FROM {A} LEFT JOIN {B} ON a.k = b.k JOIN {C} ON b.k = c.k") == [False, True]
    assert list_repartitions(f"SELECT a.x FROM {A} RIGHT JOIN {B} ON a.k = b.k JOIN {C} ON b.k = c.k") == [False, False]
    assert list_repartitions(f"SELECT a.x FROM {A} FULL JOIN {B} ON a.k = b.k JOIN {C} ON b.k = c.k") == [False, True]


def list_exchanges(text: str) -> list[tuple[str, int]]:
    plan = bind_join(text)
    chain = build_chain(plan, plan.tree)
    return [(step.exchange.name, level) for step, level in zip(chain.steps, chain.step_levels, strict=True)]


def test_a_step_without_keys_copies_one_side_to_all_partitions() -> None:
    less, more = "a.x < b.x", "b.x > c.x"
    assert list_exchanges(f"SELECT a.x FROM {A} JOIN {B} ON {less}") == [("COPY_LEAF", 1)]
    for kind, exchange in (("LEFT", "COPY_LEAF"), ("SEMI", "COPY_LEAF"), ("ANTI", "COPY_LEAF")):
        assert list_exchanges(f"SELECT a.x FROM {A} {kind} JOIN {B} ON {less}") == [(exchange, 1)]
    assert list_exchanges(f"SELECT a.x FROM {A} RIGHT JOIN {B} ON {less}") == [("COPY_ROWS", 1)]
    assert list_exchanges(f"SELECT a.x FROM {A} FULL JOIN {B} ON {less}") == [("GATHER", 1)]
    # the shuffle before an earlier step copies the leaf of a later one, too
    assert list_exchanges(f"SELECT a.x FROM {A} JOIN {B} ON {less} JOIN {C} ON {more}") == [("COPY_LEAF", 1), ("COPY_LEAF", 1)]
    assert list_exchanges(f"SELECT a.x FROM {A} JOIN {B} ON a.k = b.k JOIN {C} ON {more}") == [("KEYS", 0), ("COPY_LEAF", 1)]
    assert list_exchanges(f"SELECT a.x FROM {A} RIGHT JOIN {B} ON {less} JOIN {C} ON {more}") == [
        ("COPY_ROWS", 1),
        ("COPY_LEAF", 1),
    ]
    assert list_exchanges(f"SELECT a.x FROM {A} JOIN {B} ON {less} RIGHT JOIN {C} ON {more}") == [
        ("COPY_LEAF", 1),
        ("COPY_ROWS", 2),
    ]


def test_rows_that_meet_a_copied_leaf_stay_in_their_partition() -> None:
    less, more, d = "a.x < b.x", "b.x > c.x", "TUMBLE(a, '5 s') d"
    assert list_repartitions(f"SELECT a.x FROM {A} LEFT JOIN {B} ON {less} LEFT JOIN {C} ON a.k = c.k") == [True, True]
    by_key = f"{A} LEFT JOIN {B} ON a.k = b.k"
    assert list_repartitions(f"SELECT a.x FROM {by_key} LEFT JOIN {C} ON {more} LEFT JOIN {d} ON a.k = d.k") == [
        False,
        True,
        False,
    ]
    assert list_repartitions(f"SELECT a.x FROM {by_key} RIGHT JOIN {C} ON {more} LEFT JOIN {d} ON a.k = d.k") == [
        False,
        True,
        True,
    ]


def test_joins_without_keys_share_join_buffers_and_steps() -> None:
    texts = [f"SELECT a.x FROM {A} JOIN {B} ON a.x < b.x", f"SELECT COUNT(*) AS n FROM {A} CROSS JOIN {B}"]
    live = [LiveQuery(number, f"q{number}", bind_join(text), bit=number) for number, text in enumerate(texts)]
    (buffer,) = plan_stream("a", live).join_buffers
    assert (buffer.keys, buffer.query_bits, buffer.columns) == ((), (0, 1), ("x",))
    first, second = (build_chain(plan, plan.tree) for plan in map(bind_join, texts))
    assert first == second
    text = explain(live, [plan_stream(name, live) for name in "ab"])
    assert "join buffer spread evenly · used by 2 queries: q0, q1" in text
    assert "inner join with b without an equality (b copied to all partitions) · used by 2 queries: q0, q1" in text


def test_shuffles_after_the_first_are_counted() -> None:
    plain = bind_join(f"SELECT a.x FROM {A} JOIN {B} ON a.k = b.k")
    grouped = bind_join(f"SELECT COUNT(*) AS n FROM {A} JOIN {B} ON a.k = b.k JOIN {C} ON b.x = c.x")
    assert count_extra_shuffles(plain, ()) == 0
    assert count_extra_shuffles(grouped, ()) == 2


def test_unneeded_columns_are_not_buffered() -> None:
    plan = bind_join(f"SELECT a.s FROM {A} JOIN {B} ON a.k = b.k AND a.x < b.x WHERE a.unused = 1")
    assert find_needed_columns(plan, 0) == {"k", "x", "s"}  # columns of pushed-down predicates are not needed
    assert find_needed_columns(plan, 1) == {"k", "x"}


def test_joins_with_equal_keys_share_a_join_buffer_and_a_self_join_has_two() -> None:
    texts = [
        f"SELECT a.x FROM {A} JOIN {B} ON a.k = b.k WHERE a.x > 3",
        "SELECT a.s FROM HOP(a, '8 s', '4 s') a JOIN HOP(b, '8 s', '4 s') b ON a.k = b.k",
        f"SELECT a.x FROM {A} JOIN {B} ON a.x = b.k",
        "SELECT one.x FROM TUMBLE(a, '5 s') one JOIN TUMBLE(a, '5 s') two ON one.k = two.k",
    ]
    live = [LiveQuery(number, f"q{number}", bind_join(text), bit=number) for number, text in enumerate(texts)]
    plan = plan_stream("a", live)
    assert [([str(key) for key in buffer.keys], buffer.slot, buffer.query_bits) for buffer in plan.join_buffers] == [
        (["k"], 0, (0, 1, 3)),
        (["x"], 0, (2,)),
        (["k"], 1, (3,)),
    ]
    assert plan.join_buffers[0].columns == ("k", "s", "x")
    assert "unused" not in plan.columns
