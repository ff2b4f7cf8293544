"""All stages of a micro-batch as plain calls, one after the other: for the local back-end, and for small batches on Spark.

A stage of Spark costs some 50 ms, whatever it does. Where the work of a batch is less than what its stages would cost, one task
that does all of it is faster than tasks that share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.connectors import Range
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.map_stage import run_map_task
from headrace.engine.reduce_stage import run_later_level, run_reduce_task
from headrace.engine.stage_messages import LevelMessage
from headrace.storage import container
from headrace.storage.fault_points import reach_fault_point


def is_small_batch(job: BatchJob, tasks: Sequence[Sequence[Range]], max_rows: int, max_state_bytes: int) -> bool:
    """Return whether a batch has few rows to read and little state, so that little is to be done by any of its stages."""
    if sum(item.rows for task in tasks for item in task) + sum(ref.row_count for ref in job.segment_refs) > max_rows:
        return False
    return (
        sum(ref.bytes for refs in (job.aggregation_refs, job.session_refs, job.join_buffer_refs) for ref in refs)
        <= max_state_bytes
    )


def run_all_stages(job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
    """Run map → shuffle → reduce; return one report for each partition and level."""
    blocks: list[list[bytes]] = [[] for _ in range(job.partitions)]
    for number, task in enumerate(tasks):
        reach_fault_point(job.directory, "stage one")
        for partition, block in run_map_task(job, number, task):
            blocks[partition].append(container.pack(block))  # the shuffle passes bytes only, as between tasks
    reports = []
    following: list[list[bytes]] = [[] for _ in range(job.partitions)]
    for partition, blobs in enumerate(blocks):
        reach_fault_point(job.directory, "stage two")
        report, messages = run_reduce_task(job, partition, [container.unpack(blob) for blob in blobs])
        reports.append(report)
        _send_blocks(messages, following)
    for level in range(1, job.extra_shuffles + 1):
        arrived, following = following, [[] for _ in range(job.partitions)]
        for partition, blobs in enumerate(arrived):
            reach_fault_point(job.directory, "stage two")
            report, messages = run_later_level(job, level, partition, [container.unpack(blob) for blob in blobs])
            reports.append(report)
            _send_blocks(messages, following)
    return reports


def _send_blocks(messages: dict[int, LevelMessage], blocks: list[list[bytes]]) -> None:
    for partition, message in messages.items():
        blocks[partition].append(container.pack(message))
