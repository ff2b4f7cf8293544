"""Deployment latency and throughput of ad-hoc queries."""

from __future__ import annotations

import pytest

from headrace.bench.measure.latency import (
    DeploymentRequest,
    compute_query_throughput,
    summarize_deployment,
)

S = 1_000_000


def test_deployment_latency_is_measured_to_live_and_to_acknowledgement():
    #  0        1        2        3
    #  a requested ─ live ── acknowledged
    #           b requested ───────── live, acknowledged at 3.5
    summary = summarize_deployment([DeploymentRequest("a", 0, 1 * S, 2 * S), DeploymentRequest("b", 1 * S, 3 * S, 3_500_000)])
    assert summary.live_s is not None
    assert summary.acknowledged_s is not None
    assert (summary.live_s.lowest, summary.live_s.highest, summary.live_s.mean) == (1.0, 2.0, 1.5)
    assert (summary.acknowledged_s.lowest, summary.acknowledged_s.highest) == (2.0, 2.5)
    assert (summary.requests, summary.unanswered) == (2, 0)


def test_unanswered_requests_are_counted_and_not_averaged():
    summary = summarize_deployment(
        [DeploymentRequest("a", 0, 1 * S, 1 * S), DeploymentRequest("b", 0, 9 * S), DeploymentRequest("c", 0)]
    )
    assert (summary.requests, summary.unanswered) == (3, 2)
    assert summary.live_s is not None
    assert summary.acknowledged_s is not None
    assert (summary.live_s.count, summary.acknowledged_s.count, summary.acknowledged_s.highest) == (2, 1, 1.0)


def test_unanswered_requests_have_no_latency():
    summary = summarize_deployment([DeploymentRequest("a", 0)])
    assert (summary.live_s, summary.acknowledged_s, summary.requests_per_second) == (None, None, None)
    assert summarize_deployment([]).requests == 0


def test_query_throughput_counts_acknowledged_requests():
    requests = [DeploymentRequest(str(number), number * S // 10, None, number * S // 10 + 100_000) for number in range(20)]
    assert compute_query_throughput(requests) == pytest.approx(10.0)
    assert compute_query_throughput([*requests, DeploymentRequest("never", 0)]) == pytest.approx(10.0)


def test_query_throughput_of_zero_duration_is_none():
    assert compute_query_throughput([DeploymentRequest("a", 5, 5, 5)]) is None
