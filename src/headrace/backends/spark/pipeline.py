"""The path of a row on Spark, on one screen: source → selection → slicing → aggregation → exchange → windows → routing → sink.

The stream that Spark schedules carries *ranges*; workers read them and run stage one, the exchange moves partial aggregates
to their key partition, stage two merges, evaluates and gives out. One Spark job a micro-batch.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors import Range
from headrace.errors import HeadraceError
from headrace.execution.job import Job, Outcome
from headrace.execution.stage_one import stage_one
from headrace.execution.stage_two import stage_two

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARCELS = pa.schema([("partition", pa.int32()), ("parcel", pa.binary())])
_OUTCOMES = pa.schema([("outcome", pa.binary())])
_ERROR = b"HRERR"


def run(ranges: DataFrame, job: Job) -> list[Outcome]:
    """Run a micro-batch over the ranges Spark hands us; raises what a worker raised on purpose."""
    rows = (
        ranges.mapInArrow(lambda batches: read_select_slice_aggregate(job, batches), "partition int, parcel binary")
        .repartitionById(job.partitions, "partition")
        .mapInArrow(lambda batches: merge_evaluate_route(job, batches), "outcome binary")
        .collect()
    )
    return [_outcome(bytes(row[0])) for row in rows]


def read_select_slice_aggregate(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage one, in a worker: a task is a list of ranges; what leaves are parcels, one for each partition."""
    for batch in batches:
        for row in batch.to_pylist():
            try:
                parcels = stage_one(job, row["task"], [Range.from_json(one) for one in json.loads(row["ranges"])])
            except HeadraceError as error:
                parcels = [(0, _ERROR + pickle.dumps(error))]
            for partition, parcel in parcels:
                yield pa.RecordBatch.from_arrays([pa.array([partition], pa.int32()), pa.array([parcel], pa.binary())], schema=_PARCELS)


def merge_evaluate_route(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage two, in a worker: the parcels of one partition; what leaves is a small account of what was done."""
    partition, parcels = -1, []
    for batch in batches:
        for place, parcel in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            partition = place
            parcels.append(memoryview(parcel.as_buffer()))
    if partition >= 0:
        yield pa.RecordBatch.from_arrays([pa.array([_account(job, partition, parcels)], pa.binary())], schema=_OUTCOMES)


def _account(job: Job, partition: int, parcels: list[memoryview]) -> bytes:
    failed = next((bytes(p) for p in parcels if p[: len(_ERROR)] == _ERROR), None)
    if failed is not None:
        return failed
    try:
        return pickle.dumps(stage_two(job, partition, parcels))
    except HeadraceError as error:
        return _ERROR + pickle.dumps(error)


def _outcome(value: bytes) -> Outcome:
    if value.startswith(_ERROR):
        raise pickle.loads(value[len(_ERROR) :])
    found: Outcome = pickle.loads(value)
    return found
