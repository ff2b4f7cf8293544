"""Shuffle blocks on their way through Spark: inline, in pieces of any order, or as files of the checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headrace.backends.spark import pipeline
from headrace.engine.batch_job import BatchJob, MapReport, ShuffleBlock
from headrace.model.partition_map import PartitionMap


def make_block(rows: int) -> ShuffleBlock:
    return ShuffleBlock(3, MapReport(), stateless_rows=[(1, 0, [pa.array(np.arange(rows))])])


def make_job(folder, exchange: str) -> BatchJob:
    return BatchJob(7, PartitionMap(2), PartitionMap(2), str(folder), {}, (), checkpoint_id="id", exchange=exchange)


@pytest.mark.parametrize("exchange", ["files", "shuffle"])
@pytest.mark.parametrize("rows", [10, 20_000, 3_000_000])
def test_a_block_arrives_as_it_was_sent(tmp_path, exchange, rows):
    job, sent = make_job(tmp_path, exchange), [make_block(rows), replace(make_block(rows + 1), task=4)]
    payloads = [payload for block in sent for payload in pipeline._encode_block(job, f"{block.task:05d}", 1, block)]
    assert all(len(content) <= pipeline._PIECE_BYTES for _, content in payloads)
    mixed = [*payloads[1::2], *payloads[::2]]
    arrived = [pipeline._decode_block(job, payload) for payload in pipeline._join_pieces(mixed)]
    arrived.sort(key=lambda block: block.task)
    assert [block.stateless_rows[0][2][0].to_pylist()[-1] for block in arrived] == [rows - 1, rows]
    files = list(tmp_path.glob("shuffle/*.block"))
    assert len(files) == (2 if exchange == "files" and rows > 10 else 0)
    assert [bool(block.file) for block in arrived] == [bool(files)] * 2  # state is written again if there is no file
