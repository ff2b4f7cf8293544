"""Frames and mappings as appended rows: conversions, and the message of each refusal."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.connectors import MemorySource, read_range
from headrace.errors import SchemaError
from headrace.storage.posix import PosixStore

DDL = "id INT, name STRING, price DOUBLE, paid DECIMAL(10, 2), ok BOOLEAN, day DATE, time TIMESTAMP"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ROWS = [
    {"id": 1, "name": "a", "price": 1.5, "paid": Decimal("1.25"), "ok": True, "day": date(2026, 1, 2), "time": NOON},
    {"id": 2, "name": None, "price": None, "paid": None, "ok": None, "day": None, "time": NOON + timedelta(microseconds=1)},
]


class Exporter:
    """A frame of an unknown library: it has the Arrow PyCapsule interface, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def append_and_read(frame: Any, directory: Path, ddl: str = DDL) -> list[dict[str, Any]]:
    source = MemorySource(ddl)
    source.attach("s", PosixStore(directory))
    source.append(frame)
    ranges, _ = source.plan(None, 10**9)
    return [row for range_ in ranges for row in read_range(range_, source.schema, source.schema.names).to_pylist()]


@pytest.mark.parametrize(
    "frame",
    [
        ROWS,
        (row for row in ROWS),
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        pa.Table.from_pylist(ROWS).to_reader(),
        Exporter(pa.Table.from_pylist(ROWS)),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).astype({"name": "category"}),
        pd.DataFrame(ROWS).convert_dtypes(dtype_backend="pyarrow"),
        pl.DataFrame(ROWS),
        pl.DataFrame(ROWS).with_columns(pl.col("name").cast(pl.Categorical)),
        pl.DataFrame(ROWS).with_columns(pl.col("name").cast(pl.Enum(["a"]))),
    ],
    ids=lambda frame: f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}",
)
def test_frames_of_every_library_give_the_same_rows(frame, tmp_path: Path):
    assert append_and_read(frame, tmp_path) == ROWS


def test_columns_are_matched_by_name_and_missing_ones_are_null(tmp_path: Path):
    frame = pl.DataFrame({"TIME": [NOON.replace(tzinfo=None)], "id": pl.Series([7], dtype=pl.UInt8)})
    assert append_and_read(frame, tmp_path, "id INT, name STRING, time TIMESTAMP") == [{"id": 7, "name": None, "time": NOON}]


def test_a_named_pandas_index_becomes_a_column(tmp_path: Path):
    frame = pd.DataFrame({"id": [1, 2, 3], "time": pd.to_datetime(["2026-01-02T12:00"] * 3)})
    expected = [{"id": n, "time": NOON} for n in (2, 3)]
    assert append_and_read(frame[frame.id > 1], tmp_path, "id INT, time TIMESTAMP") == expected
    assert append_and_read(frame[frame.id > 1].set_index("time"), tmp_path, "id INT, time TIMESTAMP") == 2 * expected


def test_nan_and_nat_of_pandas_are_null_and_other_times_are_converted(tmp_path: Path):
    frame = pd.DataFrame({"id": [1.0, np.nan], "time": pd.Series([pd.Timestamp("2026-01-02T13:00", tz="Europe/Berlin"), pd.NaT])})
    assert append_and_read(frame, tmp_path, "id INT, time TIMESTAMP") == [{"id": 1, "time": NOON}, {"id": None, "time": None}]


@pytest.mark.parametrize(
    ("rows", "message", "hint"),
    [
        (pl.DataFrame({"id": [2**40]}), "column 'id' does not fit INT\ndetail: Integer value 1099511627776", "column of int64"),
        (pd.DataFrame({"id": [1.5]}), "column 'id' does not fit INT\ndetail: Float value 1.5", "column of double"),
        (
            pd.DataFrame({"time": [5]}),
            "column 'time' does not fit TIMESTAMP\ndetail: BIGINT is not converted",
            "stream 's' declares",
        ),
        (pl.DataFrame({"id": [[1]]}), "column 'id' does not fit INT", "column of large_list"),
        (pl.DataFrame({"x": [1]}), "column 'x' is not a column of stream 's'\ndetail: columns: id, name", "rename or drop"),
        (pd.DataFrame([[1, 2]]), "column '0' is not a column of stream 's'", "rename or drop"),
        (pd.DataFrame({"id": [1]}, index=pd.Index([1], name="key")), "column 'key' is not a column", "rename or drop"),
        (pl.DataFrame({"id": [1], "ID": [2]}), "column 'id' is given twice", "drop one of the two"),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), "'pandas.DataFrame' cannot be converted to an Arrow table", "one name"),
        (pd.DataFrame({"id": [1, "x"]}), "detail: Could not convert 'x' with type str", "values of one type"),
        (pl.Series("id", [1]), "'polars.Series' cannot be converted to an Arrow table", "list of mappings"),
        (pl.LazyFrame({"id": [1]}), "'polars.LazyFrame' is not a list of rows", "pandas or polars DataFrame"),
        (pd.Series([1]), "row 0 is a int, not a mapping", "pandas or polars DataFrame"),
        ({"id": 1}, "a value of type 'dict' is not a list of rows", "list of mappings"),
        ("id", "a value of type 'str' is not a list of rows", "list of mappings"),
        (5, "a value of type 'int' is not a list of rows", "list of mappings"),
        ([{1: 1}], "column '1' is not a column of stream 's'", "rename or drop"),
    ],
    ids=str,
)
def test_refusals_have_a_message_and_a_hint(rows, message, hint, tmp_path: Path):
    source = MemorySource(DDL)
    source.attach("s", PosixStore(tmp_path))
    with pytest.raises(SchemaError) as caught:
        source.append(rows)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert not source.pending(None)


def test_a_frame_may_be_modified_after_it_was_appended(tmp_path: Path):
    values = np.array([1, 2, 3])
    frame = pd.DataFrame({"n": values}, copy=False)
    source = MemorySource("n BIGINT")
    source.append(frame)
    frame.loc[:, "n"] = 0
    values[:] = 0
    source.attach("s", PosixStore(tmp_path))
    ranges, _ = source.plan(None, 10)
    assert read_range(ranges[0], source.schema, ["n"])["n"].to_pylist() == [1, 2, 3]


def test_frames_without_rows_append_nothing(tmp_path: Path):
    assert append_and_read(pd.DataFrame(), tmp_path) == []
    assert append_and_read(pl.DataFrame({"id": []}), tmp_path) == []
