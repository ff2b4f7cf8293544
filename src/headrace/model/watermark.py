"""How far event time has come in a stream: by its newest row, or by the partition that is furthest behind."""

from __future__ import annotations

from collections.abc import Container, Mapping

from headrace.model.time import MIN_TIME

WATERMARKS_BY = ("stream", "partition")
DEFAULT_IDLE = 10_000_000  # µs without rows after which a partition holds back no watermark


def compute_reached_time(before: int, partition_times: Mapping[int, int], idle: Container[int]) -> int:
    """Return the least of the greatest event times of the partitions that are not idle, but not less than it was before."""
    active = (time for partition, time in partition_times.items() if partition not in idle)
    return max(before, min(active, default=MIN_TIME))
