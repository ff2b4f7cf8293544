"""Data throughput of each query, from what it emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from test_latency import make_emissions

from headrace.bench.measure.data_throughput import DataThroughput, QueryLife, measure_data_throughput
from headrace.bench.measure.statistics import Integers

S = 1_000_000
LENGTH = 40 * S
WHOLE = QueryLife(10 * S, 50 * S)


@dataclass(frozen=True)
class Query:
    streams: tuple[str, ...] = ("a",)
    slide_us: int = 2 * S


@dataclass(frozen=True)
class Counts:
    """Each stream has a constant rate in rows/s."""

    rates: Mapping[str, int] = field(default_factory=lambda: {"a": 100, "b": 1_000})

    def rows_before(self, stream: str, time_us: Integers) -> Integers:
        return time_us * self.rates[stream] // S


def make_results(name: str, ends: range, delay: float = 0.5, speed: float = 1.0) -> list[tuple[float, str, float, int, None]]:
    """Return results of windows; with a speed below 1, each arrives later than the one before."""
    return [(end / speed + delay, name, end, 7, None) for end in ends]


def measure(
    *lines: tuple[float, str, float, int, None], lives: Mapping[str, QueryLife], queries: Mapping[str, Query]
) -> DataThroughput:
    throughput = measure_data_throughput(make_emissions(*lines), queries, lives, Counts(), LENGTH)
    assert throughput is not None
    return throughput


def test_queries_that_keep_up_have_the_rates_of_their_streams():
    lines = [*make_results("one", range(2, 60, 2)), *make_results("join", range(2, 60, 2))]
    throughput = measure(*lines, lives={"one": WHOLE, "join": WHOLE}, queries={"one": Query(), "join": Query(("a", "b"))})
    assert throughput.rates == pytest.approx({"one": 100.0, "join": 1100.0})
    assert (throughput.slowest_query, throughput.slowest) == ("one", pytest.approx(100.0))
    assert throughput.overall == pytest.approx(1200.0)


def test_a_query_whose_results_come_ever_later_is_the_slowest():
    lines = [*make_results("fast", range(2, 60, 2)), *make_results("slow", range(2, 60, 2), speed=0.5)]
    throughput = measure(*lines, lives={"fast": WHOLE, "slow": WHOLE}, queries={"fast": Query(), "slow": Query()})
    assert throughput.rates == pytest.approx({"fast": 100.0, "slow": 50.0})
    assert throughput.slowest_query == "slow"


def test_a_query_whose_results_stop_consumes_nothing_more():
    #  results at 10.5 … 20.5; waiting from one slide before the end, 48, on
    throughput = measure(*make_results("stopped", range(10, 21, 2)), lives={"stopped": WHOLE}, queries={"stopped": Query()})
    assert throughput.rates["stopped"] == pytest.approx(100 * 10 / 37.5)


def test_several_results_of_a_window_and_late_ones_count_once():
    lines = [*make_results("q", range(2, 60, 2)), *make_results("q", range(2, 40, 2), delay=3.0)]
    assert measure(*lines, lives={"q": WHOLE}, queries={"q": Query()}).rates["q"] == pytest.approx(100.0)


def test_overall_counts_a_query_while_it_is_live():
    lives = {"always": WHOLE, "quarter": QueryLife(30 * S, 40 * S), "before": QueryLife(10 * S, 5 * S)}
    lines = [line for name in lives for line in make_results(name, range(2, 60, 2))]
    throughput = measure(*lines, lives=lives, queries=dict.fromkeys(lives, Query()))
    assert throughput.rates == pytest.approx({"always": 100.0, "quarter": 100.0})
    assert throughput.overall == pytest.approx(100.0 + 100.0 / 4)


def test_a_query_with_one_result_is_silent():
    lives = {"none": WHOLE, "once": WHOLE}
    lines = make_results("once", range(20, 22, 2))
    throughput = measure(*lines, lives=lives, queries=dict.fromkeys(lives, Query()))
    assert (throughput.rates, throughput.silent, throughput.overall) == ({}, ("none", "once"), 0.0)
    assert (throughput.slowest, throughput.slowest_query) == (None, None)


def test_without_live_queries_there_is_no_throughput():
    assert measure_data_throughput(make_emissions(), {}, {}, Counts(), LENGTH) is None
    assert isinstance(Counts().rows_before("a", np.array([0])), np.ndarray)
