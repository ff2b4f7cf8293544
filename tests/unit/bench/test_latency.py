"""Latency by its definitions, over a driver's log made by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.measure.collector import UNKNOWN_TIME, Emissions
from headrace.bench.measure.latency import MeasurementPeriod, build_series, measure_latencies
from headrace.bench.measure.statistics import Integers

S = 1_000_000
ALL = MeasurementPeriod(0, 0, 1_000 * S)


@dataclass(frozen=True)
class Query:
    streams: tuple[str, ...]
    size_us: int


@dataclass(frozen=True)
class Log:
    """Rows are stamped every `gap`, and pulled a fixed time later, different for each stream."""

    gap: int = S // 10
    delays: tuple[tuple[str, int], ...] = (("bids", S // 2), ("asks", 2 * S))
    first: int = 0

    def event_time_before(self, stream: str, window_end_us: Integers) -> Integers:
        last = (window_end_us - 1) // self.gap * self.gap
        return np.where(last < self.first, UNKNOWN_TIME, last)

    def pulled_at(self, stream: str, event_time_us: Integers) -> Integers:
        return event_time_us + dict(self.delays)[stream]


def emitted(*lines: tuple[float, str, float, int, float | None]) -> Emissions:
    """Lines of (arrival, query, window end, rows, event time), in seconds."""
    names = tuple(dict.fromkeys(line[1] for line in lines))
    event = [UNKNOWN_TIME if line[4] is None else round(line[4] * S) for line in lines]
    return Emissions(
        np.array([round(line[0] * S) for line in lines], np.int64),
        np.array([names.index(line[1]) for line in lines], np.int64),
        names,
        np.array([round(line[2] * S) for line in lines], np.int64),
        np.array([line[3] for line in lines], np.int64),
        np.array(event, np.int64),
    )


QUERIES = {"one": Query(("bids",), 4 * S), "join": Query(("bids", "asks"), 4 * S)}


def test_a_window_is_as_old_as_its_newest_row():
    #  window [4, 8)     last row stamped at 7.9, pulled at 8.4          result at 9.0
    #  event time   4 ────────────────── 7.9 │ 8 ── 8.4 ──── 9
    #                                     └────────── 1.1 ──┘   event-time latency
    #                                               └─ 0.6 ─┘   processing-time latency
    found = measure_latencies(emitted((9.0, "one", 8.0, 10, None)), QUERIES, Log(), ALL)
    assert (found.event_time.lowest, found.event_time.highest, found.event_time.count) == (1_100_000, 1_100_000, 10)
    assert (found.processing_time.lowest, found.processing_time.highest) == (600_000, 600_000)


def test_an_exact_event_time_is_used_where_it_is_told():
    found = measure_latencies(emitted((9.0, "one", 8.0, 1, 6.5)), QUERIES, Log(), ALL)
    assert (found.event_time.highest, found.processing_time.highest) == (2_500_000, 2_000_000)


def test_a_join_is_as_old_as_the_newest_of_both_and_ingested_with_the_later():
    found = measure_latencies(emitted((12.0, "join", 8.0, 1, None)), QUERIES, Log(), ALL)
    assert found.event_time.highest == 4_100_000  # 12 − 7.9
    assert found.processing_time.highest == 2_100_000  # 12 − (7.9 + 2)


def test_rows_are_weights():
    found = measure_latencies(emitted((9.0, "one", 8.0, 99, None), (11.0, "one", 8.0, 1, None)), QUERIES, Log(), ALL)
    assert found.event_time.get_percentiles([0.5, 0.99, 1.0]) == pytest.approx([1_100_000, 1_100_000, 3_100_000], rel=0.01)


@pytest.mark.parametrize(
    ("window_end", "inside"),
    [(13.0, False), (13.9, False), (14.0, True), (20.0, True), (20.1, False)],
)
def test_a_window_that_holds_rows_of_the_warm_up_is_out(window_end: float, inside: bool):
    #  run from 0, measured from 10 to 20, windows of 4 s: the first that counts is [10, 14), the last [16, 20)
    found = measure_latencies(emitted((21.0, "one", window_end, 3, None)), QUERIES, Log(), MeasurementPeriod(0, 10 * S, 20 * S))
    assert (found.event_time.count, found.excluded) == ((3, 0) if inside else (0, 3))
    assert found.event_time_series.count == (3,)  # the series shows it all the same


def test_nobody_knows_the_latency_of_a_strange_query_or_of_no_rows():
    lines = emitted((9.0, "one", 8.0, 1, None), (9.0, "stranger", 8.0, 5, None), (9.0, "one", 0.0, 2, None))
    found = measure_latencies(lines, QUERIES, Log(), ALL)
    assert (found.event_time.count, found.unknown, found.excluded) == (1, 7, 0)
    assert found.event_time_series.count == (1,)


def test_rows_that_nobody_saw_pulled_count_for_event_time_alone():
    found = measure_latencies(emitted((9.0, "one", 8.0, 3, None)), QUERIES, Log(delays=(("bids", -100 * S),)), ALL)
    assert (found.event_time.count, found.processing_time.count, found.unknown) == (3, 0, 0)
    assert (found.event_time_series.count, found.processing_time_series.count) == ((3,), ())


@pytest.mark.parametrize(("silent", "ingestion"), [("asks", 600_000), ("bids", -900_000)])
def test_one_stream_without_rows_leaves_the_other(silent: str, ingestion: int):
    class Half(Log):
        def event_time_before(self, stream: str, window_end_us: Integers) -> Integers:
            before = super().event_time_before(stream, window_end_us)
            return np.full_like(before, UNKNOWN_TIME) if stream == silent else before

    found = measure_latencies(emitted((9.0, "join", 8.0, 1, None)), QUERIES, Half(), ALL)
    assert found.event_time.highest == 1_100_000
    assert found.processing_time.total == max(0, ingestion)
    assert found.processing_time.negative == (ingestion < 0)


def test_a_clock_that_runs_behind_gives_zero_and_is_counted():
    found = measure_latencies(emitted((7.8999, "one", 8.0, 4, None)), QUERIES, Log(), ALL)
    assert (found.event_time.highest, found.event_time.negative, found.event_time.count) == (0, 4, 4)


def test_no_emissions_no_figures():
    found = measure_latencies(Emissions.empty(), QUERIES, Log(), ALL)
    assert (found.event_time.summarize(), found.event_time_series.second, found.unknown) == (None, (), 0)


def test_a_period_is_in_order():
    with pytest.raises(ValueError, match="not in order"):
        MeasurementPeriod(0, 20, 10)


def test_the_series_goes_by_the_second_of_emission():
    second = np.array([1, 1, 1, 4, 4], np.int64)
    found = build_series(second, np.array([1, 2, 9, 5, -3], np.int64) * S, np.array([1, 1, 1, 19, 1], np.int64))
    assert found.second == (1, 4)
    assert (found.p50, found.p95) == ((2.0, 5.0), (9.0, 5.0))
    assert (found.highest, found.count) == ((9.0, 5.0), (3, 20))
    assert found.to_json()["p95"] == [9.0, 5.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 5)), max_size=30))
def test_the_series_is_what_counting_by_hand_gives(lines: list[tuple[int, int, int]]):
    columns = [np.array(column, np.int64) for column in zip(*lines, strict=True)] or [np.zeros(0, np.int64)] * 3
    found = build_series(columns[0], columns[1] * S, columns[2])
    by_hand = {s: sorted(value for second, value, rows in lines if second == s for _ in range(rows)) for s in range(4)}
    expected = [(s, v[(len(v) + 1) // 2 - 1], v[-1], len(v)) for s, v in by_hand.items() if v]
    assert list(zip(found.second, found.p50, found.highest, found.count, strict=True)) == expected
