"""Planning by difference: a plan made, stored or loaded as a difference is the plan made anew, for less work."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.worker_cache import LoadedPlan
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.derived import AnyQuery
from headrace.planner import group_members, predicate_index, shared_plan
from headrace.planner.plan_change import PlanBase, choose_base, describe_change, find_source, list_plan_files
from headrace.planner.predicate_index import CellLayout, compute_grid_spans
from headrace.planner.shared_plan import LiveQuery, PlanMemo, StreamPlan, plan_stream
from headrace.planner.statistics import StreamStatistics
from headrace.sql import Catalog, bind_query
from headrace.storage.records import decode_records, encode_records

CATALOG = Catalog((
    Stream("p", Schema.parse("k INT, x INT, y INT, s STRING, price DOUBLE, time TIMESTAMP"), "time"),
    Stream("q", Schema.parse("k INT, price DOUBLE, time TIMESTAMP"), "time"),
))  # fmt: skip
PREDICATES = (
    "x > {0}", "x < {0}", "x = {0}", "x <> {0}", "x IN ({0}, {1})", "x IS NULL OR x > {0}",
    "NOT (x > {0} AND x < {1})", "x >= {0} OR y < {1}",
    "price > {0}.5", "price <= {0}", "s = '{0}'", "s LIKE 'a{0}%'", "x > {0} AND y = {1}", "x > {0} AND s LIKE 'b%'", "TRUE",
)  # fmt: skip
SHAPES = (
    "SELECT k, SUM(price) a FROM TUMBLE(p, '5 seconds') WHERE {} GROUP BY k",
    "SELECT k, MAX(price) a, COUNT(x) n FROM HOP(p, '8 seconds', '2 seconds') WHERE {} GROUP BY k",
    "SELECT COUNT(*) a FROM TUMBLE(p, '700 milliseconds') WHERE {}",
    "SELECT k, MAX(price) a FROM SESSION(p, '2 seconds') WHERE {} GROUP BY k",
    "SELECT k, price FROM p WHERE {}",
    "SELECT k, SUM(price) a FROM TUMBLE((SELECT k, price FROM p WHERE {} UNION ALL SELECT k, price FROM q), '5s') GROUP BY k",
    "SELECT a.k FROM TUMBLE(p, '5 seconds') a JOIN TUMBLE(q, '5 seconds') b ON a.k = b.k WHERE a.x > 3",
)
TEXTS = st.builds(
    lambda shape, predicate, low, high: shape.format(predicate.format(low, high)),
    st.sampled_from(SHAPES),
    st.sampled_from(PREDICATES),
    st.integers(0, 9),
    st.integers(10, 14),
)
STATISTICS = (StreamStatistics(), StreamStatistics(rate=64), StreamStatistics(key_counts=(("k", 2),)))
Constants = tuple[str, int, int]
Step = tuple[list[str], list[int], StreamStatistics]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.lists(TEXTS, max_size=3), st.lists(st.integers(0, 30), max_size=3), st.sampled_from(STATISTICS)), max_size=8
)


def bind(text: str) -> AnyQuery:
    return bind_query(text, CATALOG)


def store(value: Any) -> Any:
    """Return a value as it is after it has been written and read."""
    return decode_records(json.loads(encode_records(value)))


def apply_step(live: dict[int, LiveQuery], number: int, step: Step) -> dict[int, LiveQuery]:
    added, removed, _ = step
    gone = {sorted(live)[place % len(live)] for place in removed} if live else set()
    new = {number * 10 + n: LiveQuery(number * 10 + n, "", bind(text), number, number * 10 + n) for n, text in enumerate(added)}
    return {key: query for key, query in live.items() if key not in gone} | new


def check_assigners(loaded: LoadedPlan) -> None:
    for operator in loaded.plan.operators:
        if operator.predicate_index.layout is not CellLayout.SIGNATURES:
            spans, expected = loaded.get_cell_assigner(operator).spans, compute_grid_spans(operator.predicate_index)
            assert spans.cell_count == expected.cell_count
            for name in ("offsets", "lows", "highs"):
                assert getattr(spans, name).tolist() == getattr(expected, name).tolist()


@given(STEPS, st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_plan_by_difference_is_the_plan_made_anew(steps: list[Step], is_loaded: list[bool]) -> None:
    """The driver plans with a memo; a worker applies stored changes, of several plans at a time if it has missed some."""
    memo, live = PlanMemo(), dict[int, LiveQuery]()
    plan = plan_stream("p", [], memo=memo)
    worker, missed = LoadedPlan(store(plan)), []
    for number, step in enumerate(steps, 1):
        live = apply_step(live, number, step)
        before, plan = plan, plan_stream("p", live.values(), step[2], memo)
        assert plan == plan_stream("p", live.values(), step[2])
        missed.append(store(describe_change(before, plan)))
        if is_loaded[number - 1]:
            worker, missed = worker.change(missed), []
            assert worker.plan == plan
            check_assigners(worker)


OF_ONE_COLUMN = st.tuples(st.sampled_from(PREDICATES[:7]), st.integers(0, 99), st.integers(100, 140))


@given(st.lists(OF_ONE_COLUMN, min_size=1), st.lists(st.tuples(OF_ONE_COLUMN, st.integers(0, 9)), min_size=1, max_size=4))
def test_spans_of_known_predicates_are_translated(first: list[Constants], steps: list[tuple[Constants, int]]) -> None:
    """One dimension, whose segments come and go with the constants of its predicates."""
    queries = [LiveQuery(n, "", bind_predicate(constants)) for n, constants in enumerate(first)]
    memo = PlanMemo()
    plan = plan_stream("p", queries, memo=memo)
    worker = LoadedPlan(store(plan))
    check_assigners(worker)
    for number, (constants, removed) in enumerate(steps, len(first)):
        new = LiveQuery(number, "", bind_predicate(constants))
        queries = [*queries[: removed % len(queries)], *queries[removed % len(queries) + 1 :], new]
        before, plan = plan, plan_stream("p", queries, memo=memo)
        worker = worker.change([store(describe_change(before, plan))])
        check_assigners(worker)


def bind_predicate(constants: Constants) -> AnyQuery:
    predicate, low, high = constants
    return bind(SHAPES[0].format(predicate.format(low, high)))


def make_fields_queries(count: int) -> list[LiveQuery]:
    """Return queries with float constants that are all different."""
    text = "SELECT k, SUM(price) a FROM TUMBLE(p, '{} seconds') WHERE price > {}.{} GROUP BY k"
    return [LiveQuery(n, f"q{n}", bind(text.format(1 + n % 7, n % 10, n + 1))) for n in range(count)]


class WorkCounts:
    """Calls of the functions that are expensive for each query."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, int] = {}
        for module, name in (
            (predicate_index, "to_atom"),
            (predicate_index, "_find_single_span"),
            (group_members, "_find_columns"),
            (shared_plan, "derive_branch_components"),
        ):
            monkeypatch.setattr(module, name, self.count(name, getattr(module, name)))

    def count(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return function(*arguments)

        return counted

    def take(self) -> dict[str, int]:
        calls, self.calls = self.calls, {}
        return calls


def count_work_of_one_query(live: int, counts: WorkCounts) -> tuple[dict[str, int], int]:
    """Return the calls, and the bytes to store, for one query more than `live` and one fewer."""
    queries = make_fields_queries(live + 2)
    memo = PlanMemo()
    first = plan_stream("p", queries[: live + 1], memo=memo)
    worker = LoadedPlan(store(first))
    second = plan_stream("p", queries[1 : live + 1], memo=memo)
    worker = worker.change([store(describe_change(first, second))])
    check_assigners(worker)
    counts.take()
    third = plan_stream("p", queries[2:], memo=memo)
    text = encode_records(describe_change(second, third))
    worker = worker.change([decode_records(json.loads(text))])
    spans = [worker.get_cell_assigner(operator).spans for operator in worker.plan.operators]
    work = counts.take()
    assert worker.plan == third
    check_assigners(worker)
    assert [len(each.offsets) for each in spans] == [len(each.predicate_index.predicates) + 1 for each in third.operators]
    return work, len(text)


def test_the_work_for_one_query_does_not_grow_with_the_live_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = WorkCounts(monkeypatch)
    few, few_bytes = count_work_of_one_query(20, counts)
    many, many_bytes = count_work_of_one_query(1_000, counts)
    assert many == few
    assert max(few.values()) <= 4
    assert many_bytes < few_bytes + 40  # a number with more digits
    assert 500 < few_bytes < 2_500


def test_an_operator_without_changes_is_the_same_object_in_all_processes() -> None:
    texts = (SHAPES[0].format("x > 1"), SHAPES[3].format("x > 1"), SHAPES[4].format("x > 1"), SHAPES[3].format("x > 2"))
    queries = [LiveQuery(number, "", bind(text)) for number, text in enumerate(texts)]
    memo = PlanMemo()
    before = plan_stream("p", queries[:3], memo=memo)
    after = plan_stream("p", queries, memo=memo)
    assert [new is old for old, new in zip(before.operators, after.operators, strict=True)] == [True, False, True]
    worker = LoadedPlan(store(before))
    assigners = [worker.get_cell_assigner(operator) for operator in worker.plan.operators]
    changed = worker.change([store(describe_change(before, after))])
    kept = [new is old for old, new in zip(worker.plan.operators, changed.plan.operators, strict=True)]
    assert kept == [True, False, True]
    same_assigner = [changed.get_cell_assigner(o) is a for o, a in zip(changed.plan.operators, assigners, strict=True)]
    assert same_assigner == [True, False, True]


def make_chain(changes: Sequence[tuple[int, int]]) -> dict[str, PlanBase]:
    """Return the bases of plans with so many queries each, of which so many are new; the first plan has no base."""
    memo, bases, number, live = PlanMemo(), dict[str, PlanBase](), 0, list[LiveQuery]()
    plan: StreamPlan | None = None
    for version, (total, new) in enumerate(changes):
        live = [*live[: total - new], *(LiveQuery(number + n, "", bind(SHAPES[0].format("x > 1"))) for n in range(new))]
        number += new
        before, plan = plan, plan_stream("p", live, memo=memo)
        if before is not None:
            earlier = bases.get(f"{version - 1}")
            base = choose_base(f"{version - 1}", describe_change(before, plan), plan, earlier, lambda v=version: f"{v}-full")
            bases |= {} if base is None else {f"{version}": base}
    return bases


def test_full_forms_bound_what_a_process_without_a_plan_reads() -> None:
    bases = make_chain([(400, 400)] + [(400, 1)] * 90)
    assert bases.keys() == {f"{version}" for version in range(1, 91)}, "no plan is stored in its full form alone"
    assert max(len(list_plan_files(file, bases)) for file in bases) == 33
    assert [file for file, base in bases.items() if base.full_file] == ["32", "64"]
    assert list_plan_files("34", bases) == ["34", "33", "32", "32-full"]
    assert find_source("34", bases, lambda _: False) == ("32-full", ["33", "34"])
    assert find_source("34", bases, {"30"}.__contains__) == ("32-full", ["33", "34"])
    assert find_source("34", bases, {"31"}.__contains__) == ("31", ["32", "33", "34"])
    assert find_source("34", bases, {"34", "33"}.__contains__) == ("34", [])
    assert find_source("32", bases, lambda _: False) == ("32-full", [])


def test_a_large_change_is_stored_in_full_form() -> None:
    bases = make_chain([(40, 40), (40, 8), (40, 8), (40, 2), (40, 20), (40, 1)])
    assert list(bases) == ["3", "5"]
    bases = make_chain([(400, 400), *[(400, 18)] * 5])
    assert [file for file, base in bases.items() if base.full_file] == ["3"], "differences of 3 x 37 subscribers, of 400"
