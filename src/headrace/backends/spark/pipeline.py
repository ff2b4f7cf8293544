"""The path of a row on Spark, on one screen: source → selection → slicing → aggregation → exchange → windows → routing → sink.

The stream that Spark schedules carries *ranges*; workers read them and run stage one, the exchange moves partial aggregates
to their key partition, stage two merges, evaluates and gives out. One Spark job a micro-batch, with one exchange more
wherever a join goes on by other keys.

Spark's shuffle decides who gets which parcel and when stage two may start. A large parcel itself does not pass through the
JVM: it lies in the checkpoint, which every worker sees, and Spark moves its name (docs/decisions/0008).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors import Range
from headrace.errors import HeadraceError
from headrace.execution.job import Job, Outcome, Parcel
from headrace.execution.onward import Onward
from headrace.execution.stage_one import stage_one
from headrace.execution.stage_two import stage_later, stage_two
from headrace.kernels import pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARCELS = pa.schema([("partition", pa.int32()), ("kind", pa.string()), ("parcel", pa.binary())])
_COLUMNS = "partition int, kind string, parcel binary"
Row = tuple[int, str, bytes]
_INLINE = 1 << 16  # bytes


def run(ranges: DataFrame, job: Job) -> list[Outcome]:
    """Run a micro-batch over the ranges Spark hands us; raises what a worker raised on purpose."""
    frame = ranges.mapInArrow(lambda batches: read_select_slice_aggregate(job, batches), _COLUMNS)
    frame = frame.repartitionById(job.partitions, "partition").mapInArrow(partial(merge_evaluate_route, job), _COLUMNS)
    for level in range(1, job.levels + 1):
        frame = frame.repartitionById(job.partitions, "partition").mapInArrow(partial(go_on, job, level), _COLUMNS)
    answers = [pickle.loads(bytes(row["parcel"])) for row in frame.collect() if row["kind"] in ("outcome", "error")]
    for answer in answers:
        if isinstance(answer, HeadraceError):
            raise answer
    return answers


def read_select_slice_aggregate(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage one, in a worker: a task is a list of ranges; what leaves are parcels, one for each partition."""
    for batch in batches:
        for row in batch.to_pylist():
            try:
                parcels = stage_one(job, row["task"], [Range.from_json(one) for one in json.loads(row["ranges"])])
                sent = [(place, *_sent(job, f"{parcel.task:05d}", place, parcel)) for place, parcel in parcels]
            except HeadraceError as error:
                sent = [(place, "error", pickle.dumps(error)) for place in range(job.partitions)]  # nobody goes on
            yield _batch(sent)


def merge_evaluate_route(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage two, in a worker: the parcels of one partition; what leaves is an account of what was done, and rows that go on."""
    received = [row for batch in batches for row in batch.to_pylist()]
    if received:
        parcels = [row for row in received if row["kind"] != "error"]
        yield _batch(_done(job, received, 0, lambda p: stage_two(job, p, [_received(job, row) for row in parcels])))


def go_on(job: Job, level: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a later level, in a worker: joins by other keys, groups of joined rows; accounts of levels before pass through."""
    received = [row for batch in batches for row in batch.to_pylist()]
    passing = [(row["partition"], row["kind"], row["parcel"]) for row in received if row["kind"] in ("outcome", "error")]
    arrived = [row for row in received if row["kind"] not in ("outcome", "error")]
    if passing:
        yield _batch(passing)
    if arrived:
        yield _batch(_done(job, arrived, level, lambda p: stage_later(job, level, p, [_received(job, row) for row in arrived])))


def _done(
    job: Job, received: Sequence[dict[str, Any]], level: int, work: Callable[[int], tuple[Outcome, dict[int, Onward]]]
) -> list[Row]:
    partition = int(received[0]["partition"])
    failed = next((row["parcel"] for row in received if row["kind"] == "error"), None)
    if failed is not None:
        return [(partition, "error", failed)]
    try:
        outcome, onward = work(partition)
    except HeadraceError as error:
        return [(partition, "error", pickle.dumps(error))]
    sent = [(place, *_sent(job, f"{partition:05d}-{level + 1}", place, one)) for place, one in onward.items()]
    return [(partition, "outcome", pickle.dumps(outcome)), *(sent if level < job.levels else [])]


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), _PARCELS, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_PARCELS)


def _sent(job: Job, sender: str, partition: int, parcel: Parcel | Onward) -> tuple[str, bytes]:
    """Lay a parcel down if it is large, and send its name; else send it whole."""
    if parcel.weight() <= _INLINE:
        return "parcel", pack.pack(parcel)
    name = f"{job.batch:010d}-{sender}-{partition:05d}.parcel"
    pack.write(Path(job.directory) / "exchange" / name, parcel, sync=False)
    return "file", name.encode()


def _received(job: Job, row: dict[str, Any]) -> Any:
    value = row["parcel"]
    if row["kind"] == "parcel":
        return pack.unpack(value)
    file = f"exchange/{value.decode()}"
    found = pack.read(Path(job.directory) / file)
    if isinstance(found, Parcel):
        found.file = file
    return found
