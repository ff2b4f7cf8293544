"""The example: its data equals the output of its script, its results equal those of the reference engine."""

from __future__ import annotations

import runpy
from pathlib import Path

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from headrace.backends.reference import ReferenceEngine
from headrace.cli.session_file import SessionFile
from headrace.connectors import read_range
from headrace.sql import Catalog, bind_query
from headrace.storage.posix import PosixStore
from support.compare import assert_same_rows

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run_reference(file: SessionFile, scratch: Path) -> ReferenceEngine:
    """Run the reference engine over the micro-batches of the session file."""
    engine, streams, sources = ReferenceEngine(), {}, {}
    for entry in file.streams:
        streams[entry.name], sources[entry.name] = entry.to_stream(), entry.open()
        (scratch / entry.name).mkdir(parents=True)
        sources[entry.name].attach(entry.name, PosixStore(scratch / entry.name))
        engine.add_stream(streams[entry.name])
    for query in file.queries:
        engine.add(query.name, bind_query(query.sql, Catalog.of(streams.values())))
    positions = dict.fromkeys(sources)
    while any(source.pending(positions[name]) for name, source in sources.items()):
        rows = {}
        for name, source in sources.items():
            ranges, positions[name] = source.plan(positions[name], file.rows_per_batch)
            schema = streams[name].schema
            rows[name] = [row for range_ in ranges for row in read_range(range_, schema, schema.names).to_pylist()]
        engine.advance(rows)
    engine.drain()
    return engine


def read_results(path: Path, schema: pa.Schema) -> list[dict[str, object]]:
    if any(path.glob("*.parquet")):
        return pq.read_table(path).to_pylist()
    options = pyarrow.json.ParseOptions(explicit_schema=schema)
    return [
        row for part in sorted(path.glob("*.jsonl")) for row in pyarrow.json.read_json(part, parse_options=options).to_pylist()
    ]


def test_results_equal_the_reference(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = headrace("run", EXAMPLES / "purchases.toml", "--once", "--json", "--out", "results", "--backend", "local")
    assert result.code == 0, result.err
    file = SessionFile.load(EXAMPLES / "purchases.toml")
    engine = run_reference(file, tmp_path / "sources")
    catalog = Catalog.of(entry.to_stream() for entry in file.streams)
    assert list(result.document["queries"]) == [query.name for query in file.queries]
    late = 0
    for query in file.queries:
        summary = result.document["queries"][query.name]
        schema = bind_query(query.sql, catalog).schema.to_arrow()
        rows = read_results(Path(summary["path"]), schema)
        assert len(rows) == summary["rows"] > 0
        assert_same_rows(rows, engine.get_results(query.name))
        assert {k: v for k, v in summary["late"].items() if v} == {
            k: v for k, v in engine.get_late_counts(query.name).items() if v
        }
        late += sum(summary["late"].values())
    assert late
    assert result.document["streams"]["purchases"]["untimed"] == engine.dropped["purchases"] > 0


def test_the_data_equals_the_output_of_the_script(tmp_path):
    script = runpy.run_path(str(EXAMPLES / "make_data.py"))
    script["main"].__globals__["HERE"] = tmp_path
    script["main"]()
    committed = {path.name: path.read_bytes() for path in (EXAMPLES / "data").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == committed
