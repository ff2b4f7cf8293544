"""The path of a row on Spark: source → selection → slicing → aggregation → shuffle → windows → routing → sink.

Spark assigns input ranges to workers. The map stage reads them and computes partial aggregates; the shuffle moves these to their
key partition; the reduce stage merges them, evaluates windows and writes results. A micro-batch is one Spark job, with one more
shuffle wherever a join continues by other keys.

Spark's shuffle routes the shuffle blocks and decides when the reduce stage can start. With the exchange "files", a large block
does not pass through the JVM: it is a file in the checkpoint directory, which every worker can read, and Spark moves its name
(docs/decisions/0008). With the exchange "shuffle", Spark moves its bytes, in pieces, and no folder is shared (0019). The job
uses RDDs, not DataFrames: there is nothing for Spark's query planner to plan, and planning took longer than the shuffle
(0013). A batch with little to do has one stage, whose only task runs all of them (0025).
"""

from __future__ import annotations

import gc
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.traceback_utils import SCCallSiteSync as untyped  # noqa: N813

from headrace.connectors import Range
from headrace.engine.all_stages import run_all_stages
from headrace.engine.batch_job import BatchJob, ReduceReport, ShuffleBlock
from headrace.engine.map_stage import run_map_task
from headrace.engine.reduce_stage import run_later_level, run_reduce_task
from headrace.engine.stage_messages import LevelMessage
from headrace.engine.worker_limits import limit_memory
from headrace.errors import HeadraceError
from headrace.storage import container
from headrace.storage.store import make_attempt_key

if TYPE_CHECKING:
    from pyspark import SparkContext


SCCallSiteSync: Any = untyped
MapTask = tuple[int, Sequence[Range]]
ShufflePayload = tuple[str, bytes]
"""A kind and its content: a shuffle block, a piece of one, the name of a file with a block, a report, or an error."""
ShuffleRow = tuple[int, ShufflePayload]
_MAX_INLINE_BYTES = 1 << 16
_PIECE_BYTES = 4 << 20  # Spark copies each row several times, and refuses rows of 2 GiB
_FULL_GC_INTERVAL = 512  # tasks
_TASK_COUNTER = count(1)
"""Counts the tasks of this worker process."""


def run(spark: SparkContext, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
    """Run a micro-batch and return the reports of the reduce tasks; raises the first HeadraceError of a worker."""
    rows: Any = spark.parallelize(list(enumerate(tasks)), len(tasks)).mapPartitions(partial(read_select_slice_aggregate, job))
    for level in range(job.extra_shuffles + 1):
        with name_stage(spark, f"joins, level {level}" if level else "map: read, select, aggregate"):
            rows = rows.partitionBy(job.partitions, int)
        rows = rows.mapPartitions(partial(merge_evaluate_route, job, level))
    with name_stage(spark, "reduce: merge, evaluate windows, write results"):
        return collect_reports(rows.collect())


def run_in_one_task(spark: SparkContext, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
    """Run all stages of a micro-batch in one task; the same contract as `run`."""
    with name_stage(spark, "small batch: map and reduce in one task"):
        rows: Any = spark.parallelize([tasks], 1).mapPartitions(partial(run_small_batch, job))
        return collect_reports(rows.collect())


def name_stage(spark: SparkContext, name: str) -> AbstractContextManager[None]:
    """Return a context in which the stages that PySpark creates have this name in Spark's UI, not that of a line of headrace."""
    site: AbstractContextManager[None] = SCCallSiteSync(spark)
    site._call_site = name  # type: ignore[attr-defined]  # noqa: SLF001  there is no public way to name a stage
    return site


def collect_reports(rows: Iterable[ShuffleRow]) -> list[ReduceReport]:
    """Return the reports among the rows of the last stage; raises the first HeadraceError of a worker."""
    reports = [pickle.loads(content) for _, (kind, content) in rows if kind in ("outcome", "error")]
    for report in reports:
        if isinstance(report, HeadraceError):
            raise report
    return reports


def run_small_batch(job: BatchJob, batches: Iterable[Sequence[Sequence[Range]]]) -> Iterator[ShuffleRow]:
    """Run all stages of a micro-batch in a worker, and yield the reports."""
    _freeze_gc()
    limit_memory(job.worker_memory)
    for tasks in batches:
        try:
            reports = run_all_stages(job, tasks)
        except HeadraceError as error:
            yield 0, ("error", pickle.dumps(error))
            return
        yield from ((report.partition, ("outcome", pickle.dumps(report))) for report in reports)


def read_select_slice_aggregate(job: BatchJob, tasks: Iterable[MapTask]) -> Iterator[ShuffleRow]:
    """Run the map stage in a worker: read the ranges of each task, and yield one shuffle block for each partition."""
    _freeze_gc()
    limit_memory(job.worker_memory)
    for number, ranges in tasks:
        try:
            blocks = run_map_task(job, number, ranges)
            payloads = [
                (partition, payload)
                for partition, block in blocks
                for payload in _encode_block(job, f"{block.task:05d}", partition, block)
            ]
        except HeadraceError as error:  # sent to all partitions, to stop them
            payloads = [(partition, ("error", pickle.dumps(error))) for partition in range(job.partitions)]
        yield from payloads


def merge_evaluate_route(job: BatchJob, level: int, rows: Iterable[ShuffleRow]) -> Iterator[ShuffleRow]:
    """Run the reduce stage in a worker on the shuffle blocks of one partition; yield its report, and blocks for the next level.

    Later levels are for joins by other keys, and for groups of joined rows; reports of earlier levels pass through.
    """
    _freeze_gc()
    limit_memory(job.worker_memory)
    received = list(rows)
    finished = ("outcome", "error") if level else ()
    blocks = [row for row in received if row[1][0] not in finished]
    yield from (row for row in received if row[1][0] in finished)
    if blocks:
        yield from _run_reduce(job, blocks, level)


def _freeze_gc() -> None:
    """Exclude the long-lived objects of this worker – modules, kernels, plans – from garbage collection.

    Spark's daemon runs a full collection after every task, which took 50 ms of each task, and hundreds of milliseconds while
    queries were added and removed. Objects that exist when a task starts have just survived a collection; reference counting
    still frees them. Unfreeze every 512 tasks so that cycles are collected.
    """
    if next(_TASK_COUNTER) % _FULL_GC_INTERVAL:
        gc.freeze()
    else:
        gc.unfreeze()


def _run_reduce(job: BatchJob, received: Sequence[ShuffleRow], level: int) -> Iterator[ShuffleRow]:
    partition = received[0][0]
    failed = next((payload for _, payload in received if payload[0] == "error"), None)
    if failed is not None:
        yield partition, failed
        return
    try:
        blocks = [_decode_block(job, payload) for payload in _join_pieces(payload for _, payload in received)]
        report, messages = run_later_level(job, level, partition, blocks) if level else run_reduce_task(job, partition, blocks)
    except HeadraceError as error:
        yield partition, ("error", pickle.dumps(error))
        return
    yield partition, ("outcome", pickle.dumps(report))
    if level < job.extra_shuffles:
        for target, message in messages.items():
            yield from ((target, payload) for payload in _encode_block(job, f"{partition:05d}-{level + 1}", target, message))


def _encode_block(job: BatchJob, sender: str, partition: int, block: ShuffleBlock | LevelMessage) -> list[ShufflePayload]:
    """Return a small shuffle block inline; a large one as the name of a file that has it, or in pieces."""
    if job.exchange == "files" and block.estimate_bytes() > _MAX_INLINE_BYTES:
        key = make_attempt_key("shuffle", f"{job.batch:010d}-{sender}-{partition:05d}", ".block")
        container.write(job.store, key, block, sync=False)
        return [("file", key.encode())]
    content = container.pack(block)
    if len(content) <= _PIECE_BYTES:
        return [("block", content)]
    starts = range(0, len(content), _PIECE_BYTES)
    return [(f"piece {sender} {start:020d}", content[start : start + _PIECE_BYTES]) for start in starts]


def _join_pieces(payloads: Iterable[ShufflePayload]) -> Iterator[ShufflePayload]:
    """Yield payloads, with the pieces of each block joined; Spark may deliver them in any order."""
    pieces: dict[str, list[ShufflePayload]] = defaultdict(list)
    for payload in payloads:
        kind = payload[0]
        if kind.startswith("piece "):
            pieces[kind.split(" ")[1]].append(payload)
        else:
            yield payload
    for parts in pieces.values():
        yield "block", b"".join(content for _, content in sorted(parts))


def _decode_block(job: BatchJob, payload: ShufflePayload) -> Any:
    kind, content = payload
    if kind == "block":
        return container.unpack(content)
    block = container.read(job.store, content.decode())
    if isinstance(block, ShuffleBlock):
        block.file = content.decode()
    return block
