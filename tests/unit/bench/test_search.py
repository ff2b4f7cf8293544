"""The search, over simulated systems whose true limit is known."""

from __future__ import annotations

import pytest
from consumers import Consumer, steady
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.measure.sustainable import RateSearchBounds, RateSearchResult, TrialVerdict, failed_verdict, search_rate
from support.examples import scale_examples

PRECISION = 0.05
TOLERANCE = 0.04  # what a trial of a minute can tell apart


def find(consumer: Consumer, start: float, **bounds: float) -> RateSearchResult:
    return search_rate(
        consumer.trial, start, RateSearchBounds(**{"floor": 10.0, "ceiling": 1e7, "precision": PRECISION, **bounds})
    )


def limit(rate: float, *, hint: float | None = None, reason: str = "too fast"):
    """A system that sustains up to `rate` and tells nothing else."""

    def trial(offered: float) -> TrialVerdict:
        good = offered <= rate
        return TrialVerdict(offered, good, "" if good else reason, drained=hint if not good else offered)

    return trial


def near(found: RateSearchResult, rate: float) -> bool:
    return (
        found.complete and found.rate is not None and (1 - PRECISION - TOLERANCE) * rate <= found.rate <= (1 + TOLERANCE) * rate
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
    found = find(consumer, start)
    assert near(found, 3000), (found.rate, [(t.rate, t.reason) for t in found.trials])


def test_a_leaking_system_is_held_to_what_it_keeps_up_until_the_end():
    found = find(Consumer(lambda second: 3000.0 - 20.0 * second), 10_000)
    assert found.complete
    assert found.rate is not None
    assert 1800 * (1 - PRECISION) <= found.rate <= 2100  # 1,800 in the last second; a queue of seconds is allowed


def test_one_flooded_trial_shows_where_to_look():
    rates = [verdict.rate for verdict in search_rate(limit(1000, hint=1000), 100_000, RateSearchBounds(1, 1e9)).trials]
    assert rates[:3] == pytest.approx([100_000, 100_000 / 30, 950])
    assert len(rates) <= 6


def test_a_hint_that_was_too_low_is_left_behind_ever_faster():
    rates = [verdict.rate for verdict in search_rate(limit(3000, hint=1000), 10_000, RateSearchBounds(1, 1e9)).trials]
    assert rates[1:5] == pytest.approx([950, 950 * 1.1, 950 * 1.1 * 1.1**2, 950 * 1.1 * 1.1**2 * 1.1**4])


def test_without_a_hint_it_comes_down_ever_faster():
    found = search_rate(limit(1000), 100_000, RateSearchBounds(1, 1e9))
    falls = [verdict.rate for verdict in found.trials if not verdict.sustainable]
    assert falls[:3] == pytest.approx([100_000, 50_000, 12_500])
    assert found.complete
    assert found.rate is not None
    assert 950 <= found.rate <= 1000


def test_it_goes_up_by_doubling_until_something_fails():
    found = search_rate(limit(1000), 100, RateSearchBounds(1, 1e9))
    assert [verdict.rate for verdict in found.trials[:5]] == [100, 200, 400, 800, 1600]
    assert (found.failed_reason, found.reason) == ("too fast", "")


def test_what_is_never_exhausted_is_said_to_be_the_bound_of_the_search():
    found = search_rate(limit(1e12), 100, RateSearchBounds(1, 1000))
    assert (found.rate, found.failed_rate, found.complete) == (1000, None, False)
    assert found.reason == "1,000 rows/s, the ceiling of the search, was sustained"


def test_nothing_sustained_is_no_rate_and_a_reason():
    found = find(Consumer(steady(2000), dies=3.0), 1000)
    assert (found.rate, found.complete, found.failed_rate) == (None, False, 10.0)
    assert found.reason == "no rate was sustained, down to 10 rows/s: the process died"
    assert found.trials[-1].rate == 10.0


def test_a_crash_in_one_trial_does_not_end_the_search():
    found = search_rate(
        lambda rate: failed_verdict(rate, "out of memory") if rate > 1000 else limit(600)(rate), 4000, RateSearchBounds(1, 1e9)
    )
    assert found.complete
    assert found.rate == pytest.approx(600, rel=PRECISION)
    assert [verdict.reason for verdict in found.trials[:2]] == ["out of memory", "out of memory"]


def test_a_system_that_cannot_go_on_ends_it():
    found = search_rate(lambda rate: failed_verdict(rate, "licence expired", final=True), 1000, RateSearchBounds(1, 1e9))
    assert (found.rate, found.complete, found.reason, len(found.trials)) == (None, False, "licence expired", 1)


def test_what_was_sustained_before_the_end_is_kept():
    found = search_rate(
        lambda rate: limit(1e12)(rate) if rate < 350 else failed_verdict(rate, "gone", final=True), 100, RateSearchBounds(1, 1e9)
    )
    assert (found.rate, found.failed_rate, found.complete, found.reason) == (200, 400, False, "gone")


def test_an_end_without_a_reason_is_still_no_complete_search():
    found = search_rate(lambda rate: TrialVerdict(rate, sustainable=True, final=True), 100, RateSearchBounds(1, 1e9))
    assert (found.rate, found.complete, found.reason) == (100, False, "the system cannot run another trial")


def test_the_number_of_trials_is_bounded():
    found = search_rate(limit(1000), 1e4, RateSearchBounds(1, 1e9, precision=0.001, trials=7))
    assert (len(found.trials), found.complete) == (7, False)
    assert found.reason == "7 trials did not reach the precision of 0.1%"


def test_the_start_is_kept_within_the_bounds():
    assert search_rate(limit(1), 1e9, RateSearchBounds(1, 500)).trials[0].rate == 500
    assert search_rate(limit(100), 0.1, RateSearchBounds(50, 500)).trials[0].rate == 50


def test_everything_is_plain_data():
    document = search_rate(limit(1000), 4000, RateSearchBounds(1, 1e9)).to_json()
    assert document["trials"][0]["rate"] == 4000
    assert set(document) == {"rate", "failed_rate", "failed_reason", "complete", "reason", "trials"}


@pytest.mark.parametrize("wrong", [{"floor": 0.0}, {"floor": 1e8}, {"precision": 0.5}, {"trials": 0}])
def test_bounds_that_leave_nothing_are_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match="invalid search bounds"):
        RateSearchBounds(**{"floor": 1.0, "ceiling": 1e7, **wrong})


@settings(deadline=None, max_examples=scale_examples(40))
@given(
    capacity=st.floats(500, 50_000),
    batch=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.9, 2.5, 4.0]),
    greedy=st.booleans(),
    start=st.floats(200, 500_000),
)
def test_whatever_the_capacity_and_the_batch_it_is_found(capacity: float, batch: float, greedy: bool, start: float):
    found = find(Consumer(steady(capacity), batch=batch, greedy=greedy and 0 < batch < 3), start)
    assert near(found, capacity), (found.rate, [(t.rate, t.reason) for t in found.trials])


@settings(deadline=None)
@given(rate=st.floats(10, 1e6), start=st.floats(1, 1e7), hint=st.one_of(st.none(), st.floats(0, 2e6)))
def test_a_wrong_hint_costs_trials_and_not_the_truth(rate: float, start: float, hint: float | None):
    found = search_rate(limit(rate, hint=hint), start, RateSearchBounds(1, 1e8, PRECISION, 200))
    assert found.complete
    assert found.rate is not None
    assert found.failed_rate is not None
    assert found.rate <= rate < found.failed_rate <= found.rate * (1 + PRECISION)
