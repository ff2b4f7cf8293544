"""The path of a row on Spark, on one screen: source → selection → slicing → aggregation → exchange → windows → routing → sink.

What Spark deals out to workers are *ranges*; they read them and run stage one, the exchange moves partial aggregates to
their key partition, stage two merges, evaluates and gives out. One Spark job a micro-batch, with one exchange more wherever
a join goes on by other keys.

Spark's shuffle decides who gets which parcel and when stage two may start. A large parcel itself does not pass through the
JVM: it lies in the checkpoint, which every worker sees, and Spark moves its name (docs/decisions/0008). The job is one of
RDDs, not of DataFrames: there is nothing for a query planner to plan, and it took longer than the exchange (0013).
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors import Range
from headrace.errors import HeadraceError
from headrace.execution.job import Job, Outcome, Parcel
from headrace.execution.onward import Onward
from headrace.execution.stage_one import stage_one
from headrace.execution.stage_two import stage_later, stage_two
from headrace.kernels import pack

if TYPE_CHECKING:
    from pyspark import SparkContext

Task = tuple[int, Sequence[Range]]
Sent = tuple[str, bytes]
"""A parcel, the name of a file with one, an outcome, or an error."""
Row = tuple[int, Sent]
_INLINE = 1 << 16  # bytes
_LOOKED_AT_ALL = 512  # once in so many tasks
_TASKS = count(1)
"""The tasks of this worker."""


def run(spark: SparkContext, job: Job, tasks: Sequence[Sequence[Range]]) -> list[Outcome]:
    """Run a micro-batch; raises what a worker raised on purpose."""
    rows: Any = spark.parallelize(list(enumerate(tasks)), len(tasks)).mapPartitions(partial(read_select_slice_aggregate, job))
    for level in range(job.levels + 1):
        rows = rows.partitionBy(job.partitions, int).mapPartitions(partial(merge_evaluate_route, job, level))
    answers = [pickle.loads(content) for _, (kind, content) in rows.collect() if kind in ("outcome", "error")]
    for answer in answers:
        if isinstance(answer, HeadraceError):
            raise answer
    return answers


def read_select_slice_aggregate(job: Job, tasks: Iterable[Task]) -> Iterator[Row]:
    """Stage one, in a worker: a task is a list of ranges; what leaves are parcels, one for each partition."""
    _settle()
    for number, ranges in tasks:
        try:
            parcels = stage_one(job, number, ranges)
            sent = [(place, _sent(job, f"{parcel.task:05d}", place, parcel)) for place, parcel in parcels]
        except HeadraceError as error:
            sent = [(place, ("error", pickle.dumps(error))) for place in range(job.partitions)]  # nobody goes on
        yield from sent


def merge_evaluate_route(job: Job, level: int, rows: Iterable[Row]) -> Iterator[Row]:
    """Stage two, in a worker: the parcels of one partition; what leaves is an account of what was done, and rows that go on.

    Later levels are for joins by other keys, and groups of joined rows; accounts of levels before pass through.
    """
    _settle()
    received = list(rows)
    done = ("outcome", "error") if level else ()
    arrived = [row for row in received if row[1][0] not in done]
    yield from (row for row in received if row[1][0] in done)
    if arrived:
        yield from _done(job, arrived, level)


def _settle() -> None:
    """Let the garbage collector pass over what lives in this worker: modules, kernels, plans.

    Spark's daemon has it look through all objects after every task, which took 50 ms of each, and hundreds where queries come
    and go. What is there when a task begins has just survived that; it still goes when nothing refers to it any more. Now and
    then everything is looked at once, for the sake of what refers to itself.
    """
    if next(_TASKS) % _LOOKED_AT_ALL:
        gc.freeze()
    else:
        gc.unfreeze()


def _done(job: Job, arrived: Sequence[Row], level: int) -> Iterator[Row]:
    partition = arrived[0][0]
    failed = next((sent for _, sent in arrived if sent[0] == "error"), None)
    if failed is not None:
        yield partition, failed
        return
    try:
        parcels = [_received(job, sent) for _, sent in arrived]
        outcome, onward = stage_later(job, level, partition, parcels) if level else stage_two(job, partition, parcels)
    except HeadraceError as error:
        yield partition, ("error", pickle.dumps(error))
        return
    yield partition, ("outcome", pickle.dumps(outcome))
    if level < job.levels:
        for place, one in onward.items():
            yield place, _sent(job, f"{partition:05d}-{level + 1}", place, one)


def _sent(job: Job, sender: str, partition: int, parcel: Parcel | Onward) -> Sent:
    """Lay a parcel down if it is large, and send its name; else send it whole."""
    if parcel.weight() <= _INLINE:
        return "parcel", pack.pack(parcel)
    name = f"{job.batch:010d}-{sender}-{partition:05d}.parcel"
    pack.write(Path(job.directory) / "exchange" / name, parcel, sync=False)
    return "file", name.encode()


def _received(job: Job, sent: Sent) -> Any:
    kind, content = sent
    if kind == "parcel":
        return pack.unpack(content)
    file = f"exchange/{content.decode()}"
    found = pack.read(Path(job.directory) / file)
    if isinstance(found, Parcel):
        found.file = file
    return found
