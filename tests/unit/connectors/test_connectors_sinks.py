"""Sinks: files are written hidden and published atomically, rows are delivered, specifications are parsed."""

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
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from headrace.connectors import (
    CallbackSink,
    ConsoleSink,
    JsonLinesSink,
    MemorySink,
    NoopSink,
    OutputPlace,
    ParquetSink,
    parse_sink,
    sink_from_json,
)
from headrace.connectors.pending_files import publish_files, sweep_pending_files
from headrace.errors import HeadraceError, SinkError
from headrace.model.types import TIMESTAMP

TABLE = pa.table({"id": [1, 2, 3]})
FILE_SINKS = [ParquetSink, JsonLinesSink]


def list_names(path):
    return sorted(os.listdir(path))  # noqa: PTH208


def write_and_publish(sink, table, batch=0, partition=0, part=0):
    file = sink.write(table, OutputPlace(batch, partition, part, "abcdefghij"))
    assert publish_files([file]) == []
    return Path(file.folder) / file.name


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_every_attempt_writes_a_hidden_file_of_its_own(tmp_path, kind):
    sink = kind(tmp_path / "out")
    files = [sink.write(TABLE, OutputPlace(7, 1, part, "abcdefghij")) for part in (0, 0, 2)]
    assert [file.name for file in files] == [f"part-0000000007-00001{end}{sink.suffix}" for end in ("", "", "-00002")]
    assert len({file.key for file in files}) == 3
    assert all(file.key.startswith("_pending/abcdefgh-part-0000000007-00001") for file in files)
    assert all((tmp_path / "out" / file.key).stat().st_size == file.bytes for file in files)
    assert list_names(tmp_path / "out") == ["_pending"]
    assert pa.dataset.dataset(tmp_path / "out", format=kind.kind.replace("jsonl", "json")).files == []


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_publication_is_repeatable_and_replaces_files_of_other_runs(tmp_path, kind):
    sink = kind(tmp_path / "out")
    first, other = (sink.write(TABLE.slice(0, count), OutputPlace(7, 1)) for count in (1, 2))
    assert publish_files([other]) == []
    for _ in range(2):
        assert publish_files([first]) == []
        assert list_names(tmp_path / "out") == ["_pending", f"part-0000000007-00001{sink.suffix}"]
        assert (tmp_path / "out" / first.name).stat().st_size == first.bytes
    assert list_names(tmp_path / "out" / "_pending") == []
    assert publish_files([other, first]) == [other], "its name belongs to another file now"
    (tmp_path / "out" / first.name).unlink()
    assert publish_files([first]) == [first]


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_no_file_is_written_without_rows(tmp_path, kind):
    assert kind(tmp_path / "out").write(TABLE.slice(3), OutputPlace(0, 0)) is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_a_sweep_deletes_what_its_checkpoint_wrote_and_does_not_keep(tmp_path, kind):
    sink = kind(tmp_path)
    mine = [sink.write(TABLE, OutputPlace(batch, 0, 0, "mine")) for batch in range(3)]
    other = sink.write(TABLE, OutputPlace(0, 0, 0, "other"))
    write_and_publish(sink, TABLE)
    scratch = [f".{owner}-part-0000000002-00002{sink.suffix}.{7:032x}.tmp" for owner in ("mine", "other")]
    for name in scratch:
        (tmp_path / "_pending" / name).write_bytes(b"half")
    sweep_pending_files(str(tmp_path), "mine", {mine[1].key}, check_owner=lambda: None)
    kept = [scratch[1], *(Path(file.key).name for file in (mine[1], other))]
    assert list_names(tmp_path / "_pending") == sorted(kept)
    assert list_names(tmp_path) == ["_pending", f"part-0000000000-00000{sink.suffix}"]
    sweep_pending_files(str(tmp_path / "nowhere"), "mine", (), check_owner=lambda: None)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_a_failed_write_leaves_no_partial_file(tmp_path, kind, monkeypatch):
    sink = kind(tmp_path)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(SinkError, match="disk full") as caught:
        sink.write(TABLE, OutputPlace(0, 0))
    assert str(tmp_path / "part-0000000000-00000") in str(caught.value)
    assert list_names(tmp_path / "_pending") == []


@pytest.mark.parametrize("kind", FILE_SINKS)
def test_an_invalid_directory_is_refused(tmp_path, kind):
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="file"):
        kind(tmp_path / "file").write(TABLE, OutputPlace(0, 0))


def test_a_crash_during_a_write_leaves_only_a_hidden_file(tmp_path):
    sink = ParquetSink(tmp_path)
    write_and_publish(sink, TABLE)
    script = (
        "import os, sys, pyarrow as pa, headrace.connectors as c, headrace.storage.posix as posix\n"
        "posix._write_chunks = lambda path, _: (path.write_bytes(b'PAR1'), os.kill(os.getpid(), 9))\n"
        "c.ParquetSink(sys.argv[1]).write(pa.table({'id': [4]}), c.OutputPlace(0, 0))\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    assert len(list_names(tmp_path / "_pending")) == 1
    assert pq.read_table(tmp_path).num_rows == 3
    sweep_pending_files(str(tmp_path), "", (), check_owner=lambda: None)
    assert list_names(tmp_path / "_pending") == []


def test_parquet_keeps_types(tmp_path):
    table = pa.table({"t": pa.array([1, None], TIMESTAMP), "d": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2))})
    assert pq.read_table(write_and_publish(ParquetSink(tmp_path), table)).equals(table)


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
    lines = write_and_publish(JsonLinesSink(tmp_path), table).read_text().splitlines()
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
    assert NoopSink().write(TABLE, OutputPlace(0, 0)) is None
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
