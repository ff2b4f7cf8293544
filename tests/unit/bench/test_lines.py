"""Rows as text: a CSV reader parses the lines back to the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from headrace.bench.driver.generator import RowPool, build_pools
from headrace.bench.driver.serving import LineRenderer
from headrace.bench.driver.streams import STREAM_SCHEMAS
from headrace.model.types import TIMESTAMP
from support.in_process_driver import small_stream

NOON = 1_767_268_800_000_000  # 2026-01-01T12:00Z


@pytest.mark.parametrize("generator", STREAM_SCHEMAS)
@pytest.mark.parametrize("passes", [0, 3])
def test_lines_parse_back_to_the_rows(generator, passes):
    spec = small_stream(generator=generator)
    pool = build_pools(spec)[1]
    start = pool.rows * passes + 17
    times = NOON + np.cumsum(np.random.default_rng(0).integers(0, 100_000, 200))  # across several seconds
    text = LineRenderer(pool).render(start, times)
    kinds = {field.name: pa.timestamp("us") if field.type == TIMESTAMP else field.type for field in spec.schema}
    options = pa.csv.ReadOptions(column_names=list(kinds))
    table = pa.csv.read_csv(pa.BufferReader(bytes(text)), options, convert_options=pa.csv.ConvertOptions(column_types=kinds))
    assert table["time"].combine_chunks().view(pa.int64()).to_pylist() == times.tolist()
    for name in pool.columns:
        assert table[name].combine_chunks() == pool.slice_column(name, start, start + 200)


def test_a_line_has_values_and_a_timestamp():
    pool = RowPool({"n": pa.array([7, 12, -3]), "t": pa.array(["a", "", "c"])}, 3)
    times = np.array([NOON, NOON - 1, NOON + 1_002_003])  # two different seconds, out of order
    assert LineRenderer(pool).render(3, times).decode().splitlines() == [
        "7,a,2026-01-01 12:00:00.000000",
        "12,,2026-01-01 11:59:59.999999",
        "-3,c,2026-01-01 12:00:01.002003",
    ]
    assert LineRenderer(pool).render(1, times[:1]) == b"12,,2026-01-01 12:00:00.000000\n"


def test_columns_with_increments_advance_with_each_pass():
    pool = RowPool({"n": pa.array([1, 2])}, 2, {"n": 10})
    assert LineRenderer(pool).render(4, np.array([NOON, NOON])).decode().split("\n")[1] == "22,2026-01-01 12:00:00.000000"
