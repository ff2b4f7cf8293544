"""Sinks: files are written once and atomically, rows are delivered, specifications are parsed."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors import (
    CallbackSink,
    ConsoleSink,
    JsonLinesSink,
    MemorySink,
    NoopSink,
    ParquetSink,
    discard_sink_output,
    parse_sink,
    sink_from_json,
)
from headrace.errors import HeadraceError, SinkError
from headrace.model.types import TIMESTAMP

TABLE = pa.table({"id": [1, 2, 3]})
FILE_SINKS = [ParquetSink, JsonLinesSink]


def list_names(path):
    return sorted(os.listdir(path))  # noqa: PTH208


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_a_replay_overwrites_its_files(tmp_path, kind):
    sink = kind(tmp_path / "out")
    file = sink.write(TABLE, 7, 1)
    assert file == str(tmp_path / "out" / f"part-0000000007-00001{sink.suffix}")
    assert sink.write(TABLE, 7, 0)
    assert sink.write(TABLE.slice(1), 7, 1) == file
    assert list_names(tmp_path / "out") == [f"part-0000000007-0000{i}{sink.suffix}" for i in (0, 1)]
    assert sink.write(TABLE.slice(3), 7, 1) is None  # the replay has no rows in this partition
    assert list_names(tmp_path / "out") == [f"part-0000000007-00000{sink.suffix}"]


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_no_file_is_written_without_rows(tmp_path, kind):
    assert kind(tmp_path / "out").write(TABLE.slice(3), 0, 0) is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_discard_removes_the_files_of_a_single_batch(tmp_path, kind):
    sink = kind(tmp_path)
    sink.write(TABLE, 1, 0)
    sink.write(TABLE, 2, 0)
    sink.write(TABLE, 2, 1)
    (tmp_path / f".part-0000000002-00002{sink.suffix}.77.tmp").write_bytes(b"half")
    sink.discard(2)
    sink.discard(3)
    assert list_names(tmp_path) == [f"part-0000000001-00000{sink.suffix}"]
    kind(tmp_path / "nowhere").discard(1)


def test_the_output_of_an_earlier_attempt_is_removed_from_all_sinks(tmp_path):
    """A batch that is planned again may have rows in other partitions, and fewer parts, than its first attempt."""
    files = {number: kind(tmp_path / str(number)) for number, kind in enumerate(FILE_SINKS)}
    for sink in files.values():
        sink.write(TABLE, 1, 0)
        for partition in range(3):
            sink.write(TABLE, 2, partition, part=partition)
    others = {7: MemorySink(), 8: NoopSink(), 9: CallbackSink(print)}
    assert discard_sink_output({**files, **others}, 2) == {}
    for number, sink in files.items():
        sink.write(TABLE, 2, 1)
        assert list_names(tmp_path / str(number)) == [f"part-000000000{b}-0000{p}{sink.suffix}" for b, p in ((1, 0), (2, 1))]


def test_a_sink_whose_output_cannot_be_removed_fails_alone(tmp_path):
    broken, sound = ParquetSink(tmp_path / "broken"), ParquetSink(tmp_path / "sound")
    (tmp_path / "broken" / "part-0000000002-00000.parquet").mkdir(parents=True)  # a folder cannot be removed like a file
    sound.write(TABLE, 2, 0)
    failed = discard_sink_output({3: broken, 4: sound}, 2)
    assert list(failed) == [3]
    assert "files of batch 2" in failed[3]
    assert list_names(tmp_path / "sound") == []


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_a_failed_write_leaves_no_partial_file(tmp_path, kind, monkeypatch):
    sink = kind(tmp_path)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(SinkError, match="disk full") as caught:
        sink.write(TABLE, 0, 0)
    assert str(tmp_path / "part-0000000000-00000") in str(caught.value)
    assert list_names(tmp_path) == []


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_an_invalid_directory_is_refused(tmp_path, kind):
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="file"):
        kind(tmp_path / "file").write(TABLE, 0, 0)


def test_a_crash_during_a_write_leaves_only_a_hidden_file(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.write(TABLE, 0, 0)
    script = (
        "import os, sys, pyarrow as pa, pyarrow.parquet as pq, headrace.connectors as c\n"
        "pq.write_table = lambda _, path: (path.write_bytes(b'PAR1'), os.kill(os.getpid(), 9))\n"
        "c.ParquetSink(sys.argv[1]).write(pa.table({'id': [4]}), 0, 0)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    assert len(list_names(tmp_path)) == 2
    assert [name for name in list_names(tmp_path) if not name.startswith(".")] == ["part-0000000000-00000.parquet"]
    assert pq.read_table(tmp_path).num_rows == 3
    sink.discard(0)
    assert list_names(tmp_path) == []


def test_parquet_keeps_types(tmp_path):
    table = pa.table({"t": pa.array([1, None], TIMESTAMP), "d": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2))})
    assert pq.read_table(ParquetSink(tmp_path).write(table, 0, 0)).equals(table)


def test_json_lines_values(tmp_path):
    table = pa.table(
        {
            "t": pa.array([datetime(2026, 1, 2, 12, tzinfo=UTC), datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC), None], TIMESTAMP),
            "d": pa.array([Decimal("1.50"), Decimal("0.00"), None], pa.decimal128(10, 2)),
            "x": [float("nan"), float("-inf"), 0.1],
            "day": [date(2026, 1, 2), None, None],
            "s": ['ü"\n', "", None],
            "b": [True, False, None],
        }
    )
    lines = Path(JsonLinesSink(tmp_path).write(table, 0, 0)).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"t": "2026-01-02T12:00:00Z", "d": "1.50", "x": "NaN", "day": "2026-01-02", "s": 'ü"\n', "b": True},
        {"t": "2026-01-02T12:00:00.000005Z", "d": "0.00", "x": "-Infinity", "day": None, "s": "", "b": False},
        {"t": None, "d": None, "x": 0.1, "day": None, "s": None, "b": None},
    ]


def test_console_output(capsys):
    sink = ConsoleSink(2)
    sink.deliver("revenue", pa.table({"pack": ["a", "long one", "c"], "total": [1.5, None, 3]}))
    sink.deliver("nothing", TABLE.slice(3))
    assert capsys.readouterr().out == (
        "revenue: 3 rows\npack      total\n--------  -----\na           1.5\nlong one   NULL\n… 1 more\n"
    )


def test_a_callback_receives_rows_and_its_errors_propagate():
    delivered = []
    sink = parse_sink(delivered.append)
    sink.deliver("q", TABLE)
    sink.deliver("q", TABLE.slice(3))
    assert delivered == [TABLE]
    with pytest.raises(ZeroDivisionError):
        CallbackSink(lambda _: 1 / 0).deliver("q", TABLE)
    with pytest.raises(SinkError, match="cannot be saved"):
        sink.to_json()


def test_sinks_survive_json_and_pickle(tmp_path):
    for sink in (MemorySink(), NoopSink(), ConsoleSink(5), ParquetSink(tmp_path), JsonLinesSink(tmp_path)):
        assert sink_from_json(json.loads(json.dumps(sink.to_json()))) == sink
        assert parse_sink(sink.to_json()) == sink
        assert pickle.loads(pickle.dumps(sink)) == sink


def test_file_sinks_are_written_by_workers():
    assert [kind.written_by_workers for kind in (MemorySink, ConsoleSink, CallbackSink)] == [False] * 3
    assert [kind.written_by_workers for kind in (NoopSink, ParquetSink, JsonLinesSink)] == [True] * 3
    assert NoopSink().write(TABLE, 0, 0) is None
    MemorySink().deliver("q", TABLE)


def test_sinks_are_parsed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parquet_sink = ParquetSink(tmp_path / "out")
    assert parquet_sink.path == str(tmp_path / "out")
    assert parse_sink(None) == parse_sink("memory") == MemorySink()
    assert parse_sink("noop") == NoopSink()
    assert parse_sink("console") == ConsoleSink()
    assert parse_sink(parquet_sink) is parquet_sink
    assert parse_sink({"parquet": "out"}) == parse_sink("parquet:out") == parquet_sink
    assert parse_sink({"jsonl": Path("out")}) == parse_sink("jsonl:out") == JsonLinesSink("out")
    assert parse_sink("out.parquet") == ParquetSink("out.parquet")
    assert parse_sink("out.jsonl") == JsonLinesSink("out.jsonl")


@pytest.mark.parametrize("spec", ["kafka", "parquet:", "", {"parquet": 5}, {"xml": "x"}, {}, {"kind": "xml"}, 5])
def test_unknown_sinks_are_refused(spec):
    with pytest.raises(HeadraceError, match=r"unknown sink .*\ndetail: known: memory"):
        parse_sink(spec)
