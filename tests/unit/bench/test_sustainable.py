"""Verdicts of single trials over simulated systems, with their reasons."""

from __future__ import annotations

import math

import numpy as np
import pytest
from consumers import Consumer, steady

from headrace.bench.measure.sustainable import (
    SustainabilityLimits,
    TrialObservation,
    TrialVerdict,
    failed_verdict,
    judge_trial,
    judge_until_certain,
)


def test_a_fast_system_sustains_the_rate():
    verdict = Consumer(steady(2000)).trial(1000)
    assert (verdict.sustainable, verdict.reason) == (True, "")
    assert verdict.backlog_highest_s == pytest.approx(0)
    assert verdict.drained == pytest.approx(1000, rel=0.01)


def test_a_slow_system_fails_by_queue_length():
    verdict = Consumer(steady(500)).trial(1000)
    assert not verdict.sustainable
    assert verdict.reason == "the queue rose by 22.4 s of input, more than the tolerated 5 s"
    assert verdict.drained == pytest.approx(500, rel=0.01)
    assert verdict.backlog_growth == pytest.approx(0.5, abs=0.01)


def test_a_slightly_slow_system_fails_by_queue_growth():
    verdict = Consumer(steady(970)).trial(1000)
    assert verdict.reason == "the queue kept growing, by 3.0% of the offered rate"


@pytest.mark.parametrize("batch", [0.5, 1.0, 2.0, 4.0, 4.9])
def test_a_system_that_reads_in_batches_is_sustainable(batch: float):
    #   queue   /|  /|  /|  /|      each tooth is one batch of input; minima and maxima are steady
    #          / | / | / | / |
    verdict = Consumer(steady(1010), batch=batch).trial(1000)
    assert verdict.sustainable, verdict.reason
    assert verdict.backlog_highest_s == pytest.approx(batch, abs=0.25)


@pytest.mark.parametrize("batch", [0.5, 1.0, 2.0, 4.0])
def test_a_slow_system_that_reads_in_batches_fails(batch: float):
    verdict = Consumer(steady(950), batch=batch).trial(1000)
    assert not verdict.sustainable
    assert verdict.reason.startswith("the queue ")


def test_growing_batches_fail_although_each_batch_empties_the_queue():
    #   queue   /|   /|     /|
    #          / |  / |    / |      the minimum is always zero, the maximum rises
    #         /  |_/  |___/  |
    observed = Consumer(steady(960), batch=1.0, greedy=True).observe(1000)
    backlog = np.asarray(observed.produced) - np.asarray(observed.read)
    assert backlog[-100:].min() == 0
    assert judge_trial(observed).reason.startswith("the queue kept growing, by ")


def test_batches_larger_than_the_tolerated_queue_fail():
    verdict = Consumer(steady(2000), batch=8.0).trial(1000)
    assert verdict.reason == "the queue rose by 7.9 s of input, more than the tolerated 5 s"


def test_a_short_stall_is_tolerated():
    verdict = Consumer(steady(1500), stalls=((30.0, 33.0),)).trial(1000)
    assert verdict.sustainable, verdict.reason
    assert verdict.backlog_highest_s == pytest.approx(3.0, abs=0.2)
    assert verdict.back_pressure_s == pytest.approx(3.0, abs=0.3)  # above 2 s, and draining at half the speed


def test_a_long_stall_fails():
    verdict = Consumer(steady(3000), stalls=((30.0, 36.0),)).trial(1000)
    assert verdict.reason.startswith("the queue rose by 6.")


def test_long_back_pressure_fails():
    #  queue  4 s   ____________
    #  2 s - - - - / - - - - - - - -   stays between the acceptable and the tolerated limit
    time = np.arange(0.1, 60.0, 0.1)
    backlog = np.where(time < 20, 0.0, 4.0)
    produced = 1000 * time
    verdict = judge_trial(TrialObservation(1000, time, produced, produced - 1000 * backlog, time, np.ones(len(time))))
    assert verdict.reason == "the queue was up by more than 2 s of input for 39.9 s"


def test_the_warm_up_is_not_judged():
    verdict = Consumer(steady(5000), stalls=((0.0, 12.0),)).trial(1000)
    assert verdict.sustainable, verdict.reason
    assert not Consumer(steady(5000), stalls=((0.0, 12.0),)).trial(1000, limits=SustainabilityLimits(warm_up=0.1)).sustainable


def test_a_system_that_recovers_is_sustainable():
    verdict = Consumer(lambda second: 600.0 if second < 6 else 1400.0).trial(1000)
    assert verdict.sustainable, verdict.reason


def test_a_slowing_system_fails_when_its_queue_begins_to_grow():
    verdict = Consumer(lambda second: 1500.0 - 10.5 * second).trial(1000)
    assert verdict.reason.startswith("the queue began to grow, by ")


def test_a_system_with_an_internal_queue_fails_by_latency_growth():
    verdict = Consumer(steady(900), hoards=True).trial(1000)
    assert verdict.backlog_highest_s == 0
    assert verdict.reason == "the latency kept growing, by 0.10 s a second"


def test_a_dead_system_fails_in_spite_of_good_figures():
    verdict = Consumer(steady(2000), dies=50.0).trial(1000)
    assert (verdict.sustainable, verdict.reason) == (False, "the process died")
    assert verdict.drained == pytest.approx(1000, rel=0.01)


def test_a_failure_without_samples_is_a_failed_verdict():
    verdict = judge_trial(TrialObservation(1000, [], [], [], [], [], "the connection was dropped"))
    assert verdict == failed_verdict(1000, "the connection was dropped")
    assert verdict.drained is None


def test_a_trial_with_too_few_samples_fails():
    assert (
        judge_trial(TrialObservation(1000, [0.0, 0.1], [0, 100], [0, 100], [], [])).reason == "the trial was too short to judge"
    )


def test_a_system_without_reads_fails():
    time = np.arange(0.0, 4.0, 0.1)
    verdict = judge_trial(TrialObservation(1000, time, 1000 * time, 0 * time, [], []))
    assert verdict.reason == "nothing was read after the warm-up"


def test_a_system_without_results_fails():
    time = np.arange(0.0, 60.0, 0.1)
    verdict = judge_trial(TrialObservation(1000, time, 1000 * time, 1000 * time, [3.0, 9.0], [0.1, 0.1]))
    assert verdict.reason == "no result came after the warm-up"


def test_few_results_fail_if_late():
    time = np.arange(0.0, 60.0, 0.1)
    late = judge_trial(TrialObservation(1000, time, 1000 * time, 1000 * time, [20.0, 50.0], [4.0, 31.0]))
    assert late.reason == "results were up to 31.0 s late, and too few to tell whether that grows"
    assert judge_trial(TrialObservation(1000, time, 1000 * time, 1000 * time, [20.0, 50.0], [4.0, 4.5])).sustainable


def test_a_queue_from_the_warm_up_must_drain():
    #  queue  8 s \____________     never falls below 6 s
    #  2 s - - - - - - - - - - - -
    time = np.arange(0.1, 60.0, 0.1)
    backlog = np.maximum(6.0, 8.0 - 0.2 * time) + time % 1.0
    produced = 1000 * time
    stuck = judge_trial(TrialObservation(1000, time, produced, produced - 1000 * backlog, time, np.ones(len(time))))
    assert stuck.reason == "the queue never fell below 6.0 s of input after the warm-up"
    falling = judge_trial(TrialObservation(1000, time, produced, produced - 1000 * (8.0 - 0.05 * time), time, np.ones(len(time))))
    assert falling.sustainable, falling.reason


def test_a_trial_fails_if_the_driver_cannot_offer_the_rate():
    time = np.arange(0.0, 60.0, 0.1)
    verdict = judge_trial(TrialObservation(1000, time, 800 * time, 800 * time, time, 0 * time))
    assert verdict.reason == "the driver offered only 800 of 1,000 rows/s"


def test_uneven_latency_without_growth_is_sustainable():
    time = np.arange(0.0, 60.0, 0.1)
    when = np.arange(1.0, 60.0, 4.0)
    latency = 2 + np.tile([1.5, -1.5, 0.5, -0.5], 4)[: len(when)]
    verdict = judge_trial(TrialObservation(1000, time, 1000 * time, 1000 * time, when, latency))
    assert verdict.sustainable, verdict.reason


def test_a_doubtful_trial_is_repeated_for_longer():
    #  queue            .   /|
    #          .  /|   /|  / |     batches grow until they reach a balance
    #    /| /|/| / |  / | /  |
    durations: list[float] = []

    def observe(seconds: float) -> TrialObservation:
        durations.append(seconds)
        time = np.arange(0.1, seconds, 0.1)
        backlog = 3.0 * (1 - np.exp(-time / 15)) * (time % 1.0)
        return TrialObservation(1000, time, 1000 * time, 1000 * (time - backlog), time, np.ones(len(time)))

    short = judge_trial(observe(20.0))
    assert short.doubtful
    assert short.reason.startswith("the queue kept growing, by ")
    durations.clear()
    assert judge_until_certain(observe, 20.0).sustainable
    assert durations == [20.0, 40.0]


def test_the_trial_duration_is_bounded():
    durations: list[float] = []

    def observe(seconds: float) -> TrialObservation:
        durations.append(seconds)
        return Consumer(steady(970)).observe(1000, seconds)

    verdict = judge_until_certain(observe, 30.0, longest=3.0)
    assert (verdict.sustainable, durations) == (False, [30.0, 60.0, 90.0])


@pytest.mark.parametrize("consumer", [Consumer(steady(400)), Consumer(steady(2000)), Consumer(steady(970), dies=59.0)])
def test_a_clear_verdict_is_not_repeated(consumer: Consumer):
    verdict = judge_until_certain(lambda seconds: consumer.observe(1000, min(seconds, 60.0)), 60.0)
    assert not verdict.doubtful
    assert verdict == consumer.trial(1000)


@pytest.mark.parametrize("limits", [{"acceptable_s": 6.0}, {"acceptable_s": 0.0}, {"warm_up": 1.0}])
def test_limits_out_of_order_are_refused(limits: dict[str, float]):
    with pytest.raises(ValueError, match="not in order"):
        SustainabilityLimits(**limits)


@pytest.mark.parametrize(
    ("figures", "hint"),
    [
        ({}, None),  # died at once
        ({"drained": 700.0, "latency_growth": 0.0}, 700),
        ({"drained": 1000.0, "latency_growth": 0.4}, 600),  # reads more than it answers
        ({"drained": 700.0, "latency_growth": -0.4}, 700),
        ({"drained": 100.0}, 100),
        ({"drained": 900.0}, None),  # reads and answers nothing
        ({"drained": 900.0, "latency_growth": 1.2}, None),
    ],
)
def test_a_failed_trial_gives_a_rate_hint(figures: dict[str, float], hint: float | None):
    assert TrialVerdict(1000, sustainable=False, **figures).rate_hint == hint


def test_a_verdict_converts_to_json():
    document = Consumer(steady(970)).trial(1000).to_json()
    assert document["sustainable"] is False
    assert all(type(value) in {float, int, str, bool} for value in document.values())
    assert not math.isnan(document["backlog_growth"])
