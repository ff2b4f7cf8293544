"""The queue of query requests over the time of a trial, which is judged like the backlog of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.bench.measure.latency import DeploymentRequest
from headrace.bench.measure.sustainable import TrialObservation

_SAMPLE_SECONDS = 0.1


def observe_requests(
    requests: Sequence[DeploymentRequest], rate: float, start_us: int, seconds: float, failure: str = ""
) -> TrialObservation:
    """Return the queue of requests over the time of a trial, offered at a rate in requests/s: made, and acknowledged until then.

    The latency of a request is that until its acknowledgement, at that time.
    """
    answered = sorted(
        (request.acknowledged_at_us, request.requested_at_us) for request in requests if request.acknowledged_at_us is not None
    )
    acknowledged = np.array([at for at, _ in answered], np.float64)
    latency = (acknowledged - np.array([at for _, at in answered], np.float64)) / 1e6
    acknowledged = (acknowledged - start_us) / 1e6
    made = np.sort(np.array([request.requested_at_us - start_us for request in requests], np.float64)) / 1e6
    time = np.arange(_SAMPLE_SECONDS, seconds, _SAMPLE_SECONDS)
    return TrialObservation(
        rate,
        time,
        np.searchsorted(made, time, side="right"),
        np.searchsorted(acknowledged, time, side="right"),
        acknowledged[acknowledged < seconds],
        latency[acknowledged < seconds],
        failure,
        "requests/s",
    )
