"""The path of a row on Spark, on one screen: source → selection → slicing → aggregation → exchange → windows → routing → sink.

The stream that Spark schedules carries *ranges*; workers read them and run stage one, the exchange moves partial aggregates
to their key partition, stage two merges, evaluates and gives out. One Spark job a micro-batch.

Spark's shuffle decides who gets which parcel and when stage two may start. A large parcel itself does not pass through the
JVM: it lies in the checkpoint, which every worker sees, and Spark moves its name (docs/decisions/0008).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors import Range
from headrace.errors import HeadraceError
from headrace.execution.job import Job, Outcome, Parcel
from headrace.execution.stage_one import stage_one
from headrace.execution.stage_two import stage_two
from headrace.kernels import pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARCELS = pa.schema([("partition", pa.int32()), ("kind", pa.string()), ("parcel", pa.binary())])
_OUTCOMES = pa.schema([("kind", pa.string()), ("outcome", pa.binary())])
_INLINE = 1 << 16  # bytes


def run(ranges: DataFrame, job: Job) -> list[Outcome]:
    """Run a micro-batch over the ranges Spark hands us; raises what a worker raised on purpose."""
    rows = (
        ranges.mapInArrow(lambda batches: read_select_slice_aggregate(job, batches), "partition int, kind string, parcel binary")
        .repartitionById(job.partitions, "partition")
        .mapInArrow(lambda batches: merge_evaluate_route(job, batches), "kind string, outcome binary")
        .collect()
    )
    answers = [pickle.loads(bytes(row["outcome"])) for row in rows]
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
                sent = [(partition, *_sent(job, partition, parcel)) for partition, parcel in parcels]
            except HeadraceError as error:
                sent = [(partition, "error", pickle.dumps(error)) for partition in range(job.partitions)]  # nobody goes on
            columns = [
                pa.array(list(column), field.type) for column, field in zip(zip(*sent, strict=True), _PARCELS, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_PARCELS)


def merge_evaluate_route(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage two, in a worker: the parcels of one partition; what leaves is a small account of what was done."""
    received = [row for batch in batches for row in batch.to_pylist()]
    if received:
        yield pa.RecordBatch.from_arrays(
            [pa.array(["outcome"]), pa.array([_account(job, received)], pa.binary())], schema=_OUTCOMES
        )


def _account(job: Job, received: Sequence[dict[str, object]]) -> bytes:
    failed = next((row["parcel"] for row in received if row["kind"] == "error"), None)
    if isinstance(failed, bytes):
        return failed
    try:
        parcels = [_received(job, str(row["kind"]), row["parcel"]) for row in received]
        return pickle.dumps(stage_two(job, int(str(received[0]["partition"])), parcels))
    except HeadraceError as error:
        return pickle.dumps(error)


def _sent(job: Job, partition: int, parcel: Parcel) -> tuple[str, bytes]:
    """Lay a parcel down if it is large, and send its name; else send it whole."""
    if parcel.weight() <= _INLINE:
        return "parcel", pack.pack(parcel)
    name = f"{job.batch:010d}-{parcel.task:05d}-{partition:05d}.parcel"
    pack.write(Path(job.directory) / "exchange" / name, parcel, sync=False)
    return "file", name.encode()


def _received(job: Job, kind: str, value: object) -> Parcel:
    assert isinstance(value, bytes)
    found: Parcel = pack.unpack(value) if kind == "parcel" else pack.read(Path(job.directory) / "exchange" / value.decode())
    return found
