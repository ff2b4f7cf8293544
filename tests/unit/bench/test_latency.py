"""Event-time and processing-time latency over a handmade driver log."""

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
    """Rows have event times every `gap` and are pulled a fixed delay later, which differs by stream."""

    gap: int = S // 10
    delays: tuple[tuple[str, int], ...] = (("bids", S // 2), ("asks", 2 * S))
    first: int = 0

    def event_time_before(self, stream: str, window_end_us: Integers) -> Integers:
        last = (window_end_us - 1) // self.gap * self.gap
        return np.where(last < self.first, UNKNOWN_TIME, last)

    def pulled_at(self, stream: str, event_time_us: Integers) -> Integers:
        return event_time_us + dict(self.delays)[stream]


def make_emissions(*lines: tuple[float, str, float, int, float | None]) -> Emissions:
    """Return emissions of (arrival, query, window end, rows, event time), in seconds."""
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


def test_latency_starts_at_the_newest_row_of_the_window():
    #  window [4, 8)     last row stamped at 7.9, pulled at 8.4          result at 9.0
    #  event time   4 ────────────────── 7.9 │ 8 ── 8.4 ──── 9
    #                                     └────────── 1.1 ──┘   event-time latency
    #                                               └─ 0.6 ─┘   processing-time latency
    latencies = measure_latencies(make_emissions((9.0, "one", 8.0, 10, None)), QUERIES, Log(), ALL)
    assert (latencies.event_time.lowest, latencies.event_time.highest, latencies.event_time.count) == (1_100_000, 1_100_000, 10)
    assert (latencies.processing_time.lowest, latencies.processing_time.highest) == (600_000, 600_000)


def test_a_reported_event_time_is_used():
    latencies = measure_latencies(make_emissions((9.0, "one", 8.0, 1, 6.5)), QUERIES, Log(), ALL)
    assert (latencies.event_time.highest, latencies.processing_time.highest) == (2_500_000, 2_000_000)


def test_join_latency_starts_at_the_newest_row_and_the_later_pull():
    latencies = measure_latencies(make_emissions((12.0, "join", 8.0, 1, None)), QUERIES, Log(), ALL)
    assert latencies.event_time.highest == 4_100_000  # 12 − 7.9
    assert latencies.processing_time.highest == 2_100_000  # 12 − (7.9 + 2)


def test_latencies_are_weighted_by_rows():
    latencies = measure_latencies(make_emissions((9.0, "one", 8.0, 99, None), (11.0, "one", 8.0, 1, None)), QUERIES, Log(), ALL)
    assert latencies.event_time.get_percentiles([0.5, 0.99, 1.0]) == pytest.approx([1_100_000, 1_100_000, 3_100_000], rel=0.01)


@pytest.mark.parametrize(
    ("window_end", "inside"),
    [(13.0, False), (13.9, False), (14.0, True), (20.0, True), (20.1, False)],
)
def test_windows_with_warm_up_rows_are_excluded(window_end: float, inside: bool):
    #  run from 0, measured from 10 to 20, windows of 4 s: the first that counts is [10, 14), the last [16, 20)
    latencies = measure_latencies(
        make_emissions((21.0, "one", window_end, 3, None)), QUERIES, Log(), MeasurementPeriod(0, 10 * S, 20 * S)
    )
    assert (latencies.event_time.count, latencies.excluded) == ((3, 0) if inside else (0, 3))
    assert latencies.event_time_series.count == (3,)  # the series includes excluded windows


def test_results_of_unknown_queries_and_empty_windows_have_unknown_latency():
    lines = make_emissions((9.0, "one", 8.0, 1, None), (9.0, "stranger", 8.0, 5, None), (9.0, "one", 0.0, 2, None))
    latencies = measure_latencies(lines, QUERIES, Log(), ALL)
    assert (latencies.event_time.count, latencies.unknown, latencies.excluded) == (1, 7, 0)
    assert latencies.event_time_series.count == (1,)


def test_rows_without_a_pull_time_count_only_for_event_time_latency():
    latencies = measure_latencies(make_emissions((9.0, "one", 8.0, 3, None)), QUERIES, Log(delays=(("bids", -100 * S),)), ALL)
    assert (latencies.event_time.count, latencies.processing_time.count, latencies.unknown) == (3, 0, 0)
    assert (latencies.event_time_series.count, latencies.processing_time_series.count) == ((3,), ())


def test_a_row_pulled_at_time_zero_has_a_processing_time_latency():
    log = Log(delays=(("bids", -7_900_000),))  # the row of 7.9 s
    latencies = measure_latencies(make_emissions((9.0, "one", 8.0, 3, None)), QUERIES, log, ALL)
    assert (latencies.processing_time.count, latencies.processing_time.highest) == (3, 9 * S)


@pytest.mark.parametrize(("silent", "ingestion"), [("asks", 600_000), ("bids", -900_000)])
def test_join_latency_ignores_a_stream_without_rows(silent: str, ingestion: int):
    class HalfEmptyLog(Log):
        def event_time_before(self, stream: str, window_end_us: Integers) -> Integers:
            before = super().event_time_before(stream, window_end_us)
            return np.full_like(before, UNKNOWN_TIME) if stream == silent else before

    latencies = measure_latencies(make_emissions((9.0, "join", 8.0, 1, None)), QUERIES, HalfEmptyLog(), ALL)
    assert latencies.event_time.highest == 1_100_000
    assert latencies.processing_time.total == max(0, ingestion)
    assert latencies.processing_time.negative == (ingestion < 0)


def test_a_negative_latency_is_zero_and_counted():
    latencies = measure_latencies(make_emissions((7.8999, "one", 8.0, 4, None)), QUERIES, Log(), ALL)
    assert (latencies.event_time.highest, latencies.event_time.negative, latencies.event_time.count) == (0, 4, 4)


def test_no_emissions_give_no_latencies():
    latencies = measure_latencies(Emissions.empty(), QUERIES, Log(), ALL)
    assert (latencies.event_time.summarize(), latencies.event_time_series.second, latencies.unknown) == (None, (), 0)


def test_a_measurement_period_out_of_order_is_refused():
    with pytest.raises(ValueError, match="not in order"):
        MeasurementPeriod(0, 20, 10)


def test_the_series_groups_latencies_by_second():
    second = np.array([1, 1, 1, 4, 4], np.int64)
    series = build_series(second, np.array([1, 2, 9, 5, -3], np.int64) * S, np.array([1, 1, 1, 19, 1], np.int64))
    assert series.second == (1, 4)
    assert (series.p50, series.p95) == ((2.0, 5.0), (9.0, 5.0))
    assert (series.highest, series.count) == ((9.0, 5.0), (3, 20))
    assert series.to_json()["p95"] == [9.0, 5.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 5)), max_size=30))
def test_the_series_matches_a_simple_count(lines: list[tuple[int, int, int]]):
    columns = [np.array(column, np.int64) for column in zip(*lines, strict=True)] or [np.zeros(0, np.int64)] * 3
    series = build_series(columns[0], columns[1] * S, columns[2])
    values_by_second = {s: sorted(value for second, value, rows in lines if second == s for _ in range(rows)) for s in range(4)}
    expected = [(s, v[(len(v) + 1) // 2 - 1], v[-1], len(v)) for s, v in values_by_second.items() if v]
    assert list(zip(series.second, series.p50, series.highest, series.count, strict=True)) == expected
