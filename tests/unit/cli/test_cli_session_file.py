"""Session files: refusals and their messages, paths and sinks."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headrace.cli import session_file
from headrace.cli.session_file import SessionFile
from headrace.connectors import FileSource, Sink
from headrace.errors import HeadraceError

STREAM = '[streams.t]\npath = "data"\ntime = "time"\n'
QUERY = '[queries.q]\nsql = "SELECT 1"\n'


def load_sinks(path: Path) -> list[Sink]:
    file = SessionFile.load(path)
    return [file.make_sinks(query, None)[0] for query in file.queries]


def load_refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(HeadraceError) as error:
        load_sinks(path)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "is not TOML"),
        ("", "has no streams"),
        (STREAM, "has no queries"),
        (STREAM + QUERY + "[other]\n", "unknown key 'other'"),
        (
            "checkpoints = 'x'\n" + STREAM + QUERY,
            "keys: checkpoint, rows_per_batch, master, partitions, functions, changes_per_batch, change_delay, ",
        ),
        ("join_slices = 'some'\n" + STREAM + QUERY, "'join_slices' in .* is 'some'\nhint: choose one of: auto, kept, found"),
        ("join_slices_bytes = -1\n" + STREAM + QUERY, "'join_slices_bytes' in .* is -1"),
        ("[sliding_joins]\nplans = 3\n" + STREAM + QUERY, "unknown key 'sliding_joins.plans'"),
        ("[window_joins]\nblocks = 3\n" + STREAM + QUERY, "unknown setting 'blocks' of window_joins"),
        ("[window_joins]\nblock_inputs = 1\n" + STREAM + QUERY, "invalid setting block_inputs=1 of window_joins"),
        (
            "[sliding_joins]\nplan = 'best'\n" + STREAM + QUERY,
            "'sliding_joins.plan' in .* is 'best'\nhint: choose one of: auto, ",
        ),
        ("[sliding_joins]\nbudget = -3\n" + STREAM + QUERY, "'sliding_joins.budget' in .* is -3"),
        ("[sliding_joins]\nsharing = 'no'\n" + STREAM + QUERY, "'sliding_joins.sharing' in .* is a string"),
        ("rows_per_batch = 'x'\n" + STREAM + QUERY, "'rows_per_batch' in .* is a string, but must be an integer"),
        ("partitions = 'many'\n" + STREAM + QUERY, "'partitions' in .* is 'many'"),
        ("changes_per_batch = 0\n" + STREAM + QUERY, "invalid changes_per_batch 0"),
        ("change_delay = '2 s'\n" + STREAM + QUERY, "'change_delay' in .* is a string"),
        ("change_delay = -1.0\n" + STREAM + QUERY, "invalid change_delay -1.0"),
        ("partitions = 0\n" + STREAM + QUERY, "'partitions' in .* is 0"),
        ("rows_per_batch = 0\n" + STREAM + QUERY, "is 0, but must be positive"),
        ("rows_per_batch = true\n" + STREAM + QUERY, "is true or false, but must be an integer"),
        ("streams = 3\n" + QUERY, "'streams' in .* is an integer, but must be a table"),
        ("[streams]\nt = 3\n" + QUERY, "'streams.t' in .* is not a table"),
        ('[streams.t]\npath = "x"\n' + QUERY, "key 'streams.t.time' is missing"),
        ('[streams.t]\ntime = "x"\n' + QUERY, "key 'streams.t.path' is missing"),
        (STREAM + 'source = "kavka"\n' + QUERY, "is 'kavka', which is not a source\ndetail: sources: files, rate"),
        (STREAM + "rows_per_second = 3\n" + QUERY, "unknown key 'streams.t.rows_per_second'"),
        (STREAM + 'watermark = "3 apples"\n' + QUERY, "'streams.t.watermark' .*invalid duration '3 apples'"),
        (STREAM + 'max_ahead = "soon"\n' + QUERY, "'streams.t.max_ahead' .*invalid duration 'soon'"),
        (STREAM + "max_ahead = 3\n" + QUERY, "'streams.t.max_ahead' .*is an integer, but must be a string"),
        (STREAM + QUERY + "budget = 5\n", "'queries.q.budget' .*is an integer, but must be a table"),
        (
            STREAM + QUERY + "budget = {rows = 5}\n",
            "'queries.q.budget' .*unknown budget 'rows'(.|\n)*budgets: output_rows, output_b",
        ),
        (STREAM + QUERY + "budget = {output_rows = 0}\n", "'queries.q.budget' .*budget output_rows is 0"),
        (STREAM + QUERY + "budget = {output_rows = true}\n", "'queries.q.budget' .*budget output_rows is True"),
        (STREAM + 'header = "yes"\n' + QUERY, "must be true or false"),
        (STREAM + "[queries.q]\n", "key 'queries.q.sql' is missing"),
        (STREAM + QUERY + 'sink = "kafka:x"\n', "is 'kafka:x', which is not a sink\ndetail: sinks: memory, console"),
        (STREAM + QUERY + 'sink = "parquet"\n', "which is not a sink"),
        (STREAM + QUERY + 'sink = "memory:x"\n', "which is not a sink"),
        ('[streams.t]\npath = "hdfs://nn/in"\ntime = "time"\n' + QUERY, "'streams.t.path' .*unsupported scheme 'hdfs'"),
        (STREAM + 'on_error = "skip_row"\ndead_letter = "jsonl:s3n://b/x"\n' + QUERY, "'streams.t.dead_letter' .*scheme 's3n'"),
        (STREAM + QUERY + 'sink = "parquet:hdfs://nn/out"\n', "'queries.q.sink' .*unsupported scheme 'hdfs'"),
        (STREAM + QUERY + 'sink = {kind = "jsonl", path = "s3n://b/out"}\n', "'queries.q.sink' .*unsupported scheme 's3n'"),
        ("checkpoint = 'hdfs://nn/ck'\n" + STREAM + QUERY, "'checkpoint' .*unsupported scheme 'hdfs'"),
        (STREAM + QUERY + 'name = "x"\n', "unknown key 'queries.q.name' .*\ndetail: keys: sql, sink, sinks, budget"),
    ],
)
def test_invalid_session_files_are_refused(tmp_path, text, message):
    assert re.search(message, load_refused(tmp_path, text))


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    path = tmp_path / "s.toml"
    path.write_text('checkpoint = "state"\n' + STREAM + QUERY + 'sink = "jsonl:out/q"\n')
    monkeypatch.chdir("/")
    file = SessionFile.load(path)
    assert file.checkpoint == str(tmp_path / "state")
    assert file.streams[0].options["path"] == str(tmp_path / "data")
    assert file.make_sinks(file.queries[0], None)[0].path == str(tmp_path / "out" / "q")
    assert file.make_sinks(file.queries[0], "/elsewhere")[0].path == "/elsewhere/out/q"


def test_options_of_the_format_of_files(tmp_path):
    path = tmp_path / "s.toml"
    options = '[streams.t.format_options]\n"field.v" = "payload.v"\n'
    path.write_text(STREAM + 'format = "json"\nschema = "v INT, time TIMESTAMP"\n' + options + QUERY)
    (stream,) = SessionFile.load(path).streams
    assert stream.options["format_options"] == {"field.v": "payload.v"}
    assert FileSource(**stream.options).definition()["format_options"] == '{"field.v": "payload.v"}'


@pytest.mark.parametrize(("target", "expected"), [("kafka:letters", "kafka:letters"), ("jsonl:letters", "jsonl:{}/letters")])
def test_dead_letters_of_a_topic_go_to_a_folder_or_a_topic(tmp_path, target, expected):
    path = tmp_path / "s.toml"
    stream = '[streams.k]\nsource = "kafka"\ntopic = "t"\nbrokers = "127.0.0.1:1"\nschema = "time TIMESTAMP"\ntime = "time"\n'
    path.write_text(f'{stream}on_error = "skip_row"\ndead_letter = "{target}"\n{QUERY}')
    assert SessionFile.load(path).streams[0].options["dead_letter"] == expected.format(tmp_path)


def test_out_makes_json_lines_sinks_in_its_folder(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(STREAM + '[queries."../x"]\nsql = "SELECT 1"\n[queries.y]\nsql = "SELECT 1"\n')
    file = SessionFile.load(path)
    sinks = [file.make_sinks(query, str(tmp_path))[0] for query in file.queries]
    assert [sink.kind for sink in sinks] == ["jsonl", "jsonl"]
    assert all(Path(sink.path).parent == tmp_path for sink in sinks)


def test_urls_stay_urls_and_file_urls_are_paths(tmp_path):
    path = tmp_path / "s.toml"
    stream = STREAM.replace('"data"', '"file:data/*.csv"') + 'on_error = "skip_row"\ndead_letter = "jsonl:s3a://b/bad"\n'
    path.write_text('checkpoint = "file:state"\n' + stream + QUERY + 'sinks = ["jsonl:file:/data/out", "parquet:s3a://b/out"]\n')
    file = SessionFile.load(path)
    assert file.checkpoint == str(tmp_path / "state")
    assert file.streams[0].options["path"] == str(tmp_path / "data" / "*.csv")
    assert file.streams[0].options["dead_letter"] == "jsonl:s3://b/bad"
    assert [sink.path for sink in file.make_sinks(file.queries[0], None)] == ["/data/out", "s3://b/out"]
    path.write_text(STREAM + QUERY + 'sink = "jsonl:out/q"\n[queries.r]\nsql = "SELECT 1"\n')
    file = SessionFile.load(path)
    sinks = [file.make_sinks(query, "s3://b/results")[0] for query in file.queries]
    assert [sink.path for sink in sinks] == ["s3://b/results/out/q", "s3://b/results/r"]


def test_the_example_in_the_docstring_is_valid(tmp_path):
    text = session_file.__doc__.split("TOML.\n", 1)[1].split("Unknown keys", 1)[0]
    path = tmp_path / "s.toml"
    path.write_text(inspect.cleandoc(text).replace("    # also: ", "").replace("# also: ", ""))
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("format =", "rows = "))]
    path.write_text("\n".join(lines))
    file = SessionFile.load(path)
    assert [stream.kind for stream in file.streams] == ["files", "rate", "kafka"]
    assert file.queries[0].sinks == ("parquet:out/revenue",)
