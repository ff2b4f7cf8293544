"""The rate search over simulated systems with a known limit."""

from __future__ import annotations

import pytest
from consumers import Consumer, steady
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.measure.sustainable import RateSearchBounds, RateSearchResult, TrialVerdict, failed_verdict, search_rate
from support.examples import scale_examples

PRECISION = 0.05
TOLERANCE = 0.04  # the resolution of a trial of one minute


def run_search(consumer: Consumer, start: float, **bounds: float) -> RateSearchResult:
    return search_rate(
        consumer.trial, start, RateSearchBounds(**{"floor": 10.0, "ceiling": 1e7, "precision": PRECISION, **bounds})
    )


def make_trial(rate: float, *, hint: float | None = None, reason: str = "too fast"):
    """Return a trial function of a system that sustains up to `rate`."""

    def trial(offered: float) -> TrialVerdict:
        good = offered <= rate
        return TrialVerdict(offered, good, "" if good else reason, drained=hint if not good else offered)

    return trial


def is_near(result: RateSearchResult, rate: float) -> bool:
    return (
        result.complete
        and result.rate is not None
        and (1 - PRECISION - TOLERANCE) * rate <= result.rate <= (1 + TOLERANCE) * rate
    )


@pytest.mark.parametrize(
    "consumer",
    [
        Consumer(steady(3000)),
        Consumer(steady(3000), batch=1.0),
        Consumer(steady(3000), batch=4.0),
        Consumer(steady(3000), batch=0.5, greedy=True),
        Consumer(steady(3000), hoards=True),
        Consumer(steady(3000), stalls=((5.0, 9.0),)),
        Consumer(lambda second: 1500.0 if second < 8 else 3000.0),
    ],
    ids=["steady", "batches", "long batches", "greedy", "hoarding", "stalling", "recovering"],
)
@pytest.mark.parametrize("start", [100.0, 3000.0, 1e6])
def test_the_limit_is_found_from_above_and_from_below(consumer: Consumer, start: float):
    result = run_search(consumer, start)
    assert is_near(result, 3000), (result.rate, [(t.rate, t.reason) for t in result.trials])


def test_the_rate_of_a_slowing_system_is_limited_by_its_final_capacity():
    result = run_search(Consumer(lambda second: 3000.0 - 20.0 * second), 10_000)
    assert result.complete
    assert result.rate is not None
    assert 1800 * (1 - PRECISION) <= result.rate <= 2100  # 1,800 in the last second; a queue of seconds is allowed


def test_the_drained_rate_of_a_failed_trial_guides_the_search():
    rates = [verdict.rate for verdict in search_rate(make_trial(1000, hint=1000), 100_000, RateSearchBounds(1, 1e9)).trials]
    assert rates[:3] == pytest.approx([100_000, 100_000 / 30, 950])
    assert len(rates) <= 6


def test_the_search_accelerates_above_a_low_hint():
    rates = [verdict.rate for verdict in search_rate(make_trial(3000, hint=1000), 10_000, RateSearchBounds(1, 1e9)).trials]
    assert rates[1:5] == pytest.approx([950, 950 * 1.1, 950 * 1.1 * 1.1**2, 950 * 1.1 * 1.1**2 * 1.1**4])


def test_the_search_without_a_hint_accelerates_downwards():
    result = search_rate(make_trial(1000), 100_000, RateSearchBounds(1, 1e9))
    failed_rates = [verdict.rate for verdict in result.trials if not verdict.sustainable]
    assert failed_rates[:3] == pytest.approx([100_000, 50_000, 12_500])
    assert result.complete
    assert result.rate is not None
    assert 950 <= result.rate <= 1000


def test_the_search_doubles_the_rate_until_a_trial_fails():
    result = search_rate(make_trial(1000), 100, RateSearchBounds(1, 1e9))
    assert [verdict.rate for verdict in result.trials[:5]] == [100, 200, 400, 800, 1600]
    assert (result.failed_reason, result.reason) == ("too fast", "")


def test_a_sustained_ceiling_is_reported_as_the_bound_of_the_search():
    result = search_rate(make_trial(1e12), 100, RateSearchBounds(1, 1000))
    assert (result.rate, result.failed_rate, result.complete) == (1000, None, False)
    assert result.reason == "1,000 rows/s, the ceiling of the search, was sustained"


def test_a_search_without_a_sustained_rate_gives_a_reason():
    result = run_search(Consumer(steady(2000), dies=3.0), 1000)
    assert (result.rate, result.complete, result.failed_rate) == (None, False, 10.0)
    assert result.reason == "no rate was sustained, down to 10 rows/s: the process died"
    assert result.trials[-1].rate == 10.0


def test_a_crash_in_one_trial_does_not_end_the_search():
    result = search_rate(
        lambda rate: failed_verdict(rate, "out of memory") if rate > 1000 else make_trial(600)(rate),
        4000,
        RateSearchBounds(1, 1e9),
    )
    assert result.complete
    assert result.rate == pytest.approx(600, rel=PRECISION)
    assert [verdict.reason for verdict in result.trials[:2]] == ["out of memory", "out of memory"]


def test_a_final_failure_ends_the_search():
    result = search_rate(lambda rate: failed_verdict(rate, "licence expired", final=True), 1000, RateSearchBounds(1, 1e9))
    assert (result.rate, result.complete, result.reason, len(result.trials)) == (None, False, "licence expired", 1)


def test_a_final_failure_keeps_the_sustained_rate():
    result = search_rate(
        lambda rate: make_trial(1e12)(rate) if rate < 350 else failed_verdict(rate, "gone", final=True),
        100,
        RateSearchBounds(1, 1e9),
    )
    assert (result.rate, result.failed_rate, result.complete, result.reason) == (200, 400, False, "gone")


def test_a_final_trial_without_a_reason_gives_an_incomplete_search():
    result = search_rate(lambda rate: TrialVerdict(rate, sustainable=True, final=True), 100, RateSearchBounds(1, 1e9))
    assert (result.rate, result.complete, result.reason) == (100, False, "the system cannot run another trial")


def test_the_number_of_trials_is_bounded():
    result = search_rate(make_trial(1000), 1e4, RateSearchBounds(1, 1e9, precision=0.001, trials=7))
    assert (len(result.trials), result.complete) == (7, False)
    assert result.reason == "7 trials did not reach the precision of 0.1%"


def test_the_start_rate_is_clamped_to_the_bounds():
    assert search_rate(make_trial(1), 1e9, RateSearchBounds(1, 500)).trials[0].rate == 500
    assert search_rate(make_trial(100), 0.1, RateSearchBounds(50, 500)).trials[0].rate == 50


def test_the_result_converts_to_json():
    document = search_rate(make_trial(1000), 4000, RateSearchBounds(1, 1e9)).to_json()
    assert document["trials"][0]["rate"] == 4000
    assert set(document) == {"rate", "failed_rate", "failed_reason", "complete", "reason", "trials"}


@pytest.mark.parametrize("bounds", [{"floor": 0.0}, {"floor": 1e8}, {"precision": 0.5}, {"trials": 0}])
def test_invalid_bounds_are_refused(bounds: dict[str, float]):
    with pytest.raises(ValueError, match="invalid search bounds"):
        RateSearchBounds(**{"floor": 1.0, "ceiling": 1e7, **bounds})


@settings(deadline=None, max_examples=scale_examples(40))
@given(
    capacity=st.floats(500, 50_000),
    batch=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.9, 2.5, 4.0]),
    greedy=st.booleans(),
    start=st.floats(200, 500_000),
)
def test_the_search_finds_any_capacity_with_any_batch(capacity: float, batch: float, greedy: bool, start: float):
    result = run_search(Consumer(steady(capacity), batch=batch, greedy=greedy and 0 < batch < 3), start)
    assert is_near(result, capacity), (result.rate, [(t.rate, t.reason) for t in result.trials])


@settings(deadline=None)
@given(rate=st.floats(10, 1e6), start=st.floats(1, 1e7), hint=st.one_of(st.none(), st.floats(0, 2e6)))
def test_a_wrong_hint_does_not_change_the_rate(rate: float, start: float, hint: float | None):
    result = search_rate(make_trial(rate, hint=hint), start, RateSearchBounds(1, 1e8, PRECISION, 200))
    assert result.complete
    assert result.rate is not None
    assert result.failed_rate is not None
    assert result.rate <= rate < result.failed_rate <= result.rate * (1 + PRECISION)
