"""The local back-end: runs the map and reduce stages in this process, for tests and for small workloads without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.connectors import Range
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.map_stage import run_map_task
from headrace.engine.reduce_stage import run_later_level, run_reduce_task
from headrace.engine.stage_messages import LevelMessage
from headrace.engine.worker_limits import limit_seconds
from headrace.storage import container
from headrace.storage.fault_points import reach_fault_point


class LocalBackend:
    """Runs map → shuffle → reduce as plain calls."""

    def __init__(self, parallelism: int = 2) -> None:
        """Create a back-end; `parallelism` is the maximum number of map tasks in a batch."""
        self.parallelism = parallelism

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run all stages of a micro-batch; return one report for each partition and stage."""
        with limit_seconds(job.max_seconds):
            return self._run_stages(job, tasks)

    @staticmethod
    def _run_stages(job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        blocks: list[list[bytes]] = [[] for _ in range(job.partitions)]
        for number, task in enumerate(tasks):
            reach_fault_point(job.directory, "stage one")
            for partition, block in run_map_task(job, number, task):
                blocks[partition].append(container.pack(block))  # the shuffle passes bytes only, as on Spark
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

    def close(self) -> None:
        """Do nothing: the back-end holds no resources."""


def _send_blocks(messages: dict[int, LevelMessage], blocks: list[list[bytes]]) -> None:
    for partition, message in messages.items():
        blocks[partition].append(container.pack(message))


def create(**_: object) -> LocalBackend:
    """Create the back-end; it ignores the settings of other back-ends."""
    return LocalBackend()
