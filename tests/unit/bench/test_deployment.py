"""Figures of queries that come and go."""

from __future__ import annotations

import pytest

from headrace.bench.measure.latency import (
    DeploymentRequest,
    compute_data_throughput,
    compute_query_throughput,
    summarize_deployment,
)

S = 1_000_000


def test_latency_runs_from_the_request_to_the_first_batch_and_to_the_acknowledgement():
    #  0        1        2        3
    #  a asked ─ live ── told
    #           b asked ───────── live, told at 3.5
    found = summarize_deployment([DeploymentRequest("a", 0, 1 * S, 2 * S), DeploymentRequest("b", 1 * S, 3 * S, 3_500_000)])
    assert found.live_s is not None
    assert found.acknowledged_s is not None
    assert (found.live_s.lowest, found.live_s.highest, found.live_s.mean) == (1.0, 2.0, 1.5)
    assert (found.acknowledged_s.lowest, found.acknowledged_s.highest) == (2.0, 2.5)
    assert (found.requests, found.unanswered) == (2, 0)


def test_a_request_without_an_answer_is_counted_and_not_averaged():
    found = summarize_deployment(
        [DeploymentRequest("a", 0, 1 * S, 1 * S), DeploymentRequest("b", 0, 9 * S), DeploymentRequest("c", 0)]
    )
    assert (found.requests, found.unanswered) == (3, 2)
    assert found.live_s is not None
    assert found.acknowledged_s is not None
    assert (found.live_s.count, found.acknowledged_s.count, found.acknowledged_s.highest) == (2, 1, 1.0)


def test_no_answers_no_latency():
    found = summarize_deployment([DeploymentRequest("a", 0)])
    assert (found.live_s, found.acknowledged_s, found.requests_per_second) == (None, None, None)
    assert summarize_deployment([]).requests == 0


def test_query_throughput_counts_what_was_served_until_the_last_answer():
    asked = [DeploymentRequest(str(number), number * S // 10, None, number * S // 10 + 100_000) for number in range(20)]
    assert compute_query_throughput(asked) == pytest.approx(10.0)
    assert compute_query_throughput([*asked, DeploymentRequest("never", 0)]) == pytest.approx(10.0)


def test_answers_in_no_time_have_no_rate():
    assert compute_query_throughput([DeploymentRequest("a", 5, 5, 5)]) is None


def test_slowest_and_overall():
    found = compute_data_throughput({"a": 300.0, "b": 100.0, "c": 200.0})
    assert found is not None
    assert (found.slowest, found.slowest_query, found.overall) == (100.0, "b", 600.0)
    assert compute_data_throughput({}) is None
