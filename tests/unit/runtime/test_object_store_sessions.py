"""Sessions whose checkpoint and files are in an object store: the same results as in a folder, and bounded objects."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.errors import CheckpointError, SourceError
from headrace.storage import lease as lease_module
from headrace.storage.checkpoint import delete_checkpoint
from headrace.storage.locations import select_options
from headrace.storage.object_store import ObjectStore
from support.every_kind_session import BATCHES, BATCHES_BEFORE_STOP, EveryKindSession
from support.s3_server import BUCKET, run_s3_server


@pytest.fixture(scope="module")
def s3_options() -> Iterator[dict[str, str]]:
    with run_s3_server() as options:
        yield options


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in an object store, whose options are in the environment."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(lease_module.Lease.__init__, "__defaults__", (0.5, *lease_module.Lease.__init__.__defaults__[1:]))
    if request.param == "s3":
        options = request.getfixturevalue("s3_options")
        for name in ("access_key_id", "secret_access_key", "region"):
            monkeypatch.setenv(f"AWS_{name.upper()}", options[name])
        monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    return f"{request.param}://{BUCKET}/{uuid.uuid4().hex}"


def open_bucket(url: str) -> ObjectStore:
    return ObjectStore(url, {})


def list_keys(url: str) -> set[str]:
    return {
        entry["path"].removeprefix(f"{url.rpartition('/')[2]}/") for entry in open_bucket(url).list_entries("", recursive=True)
    }


def test_every_kind_of_query_gives_the_results_of_a_folder(url: str, tmp_path: Path):
    results, received = [], []
    for number, place in enumerate((str(tmp_path / "checkpoint"), url)):
        files = tmp_path / f"files-{number}"
        files.mkdir()
        first = EveryKindSession(place, files)  # type: ignore[arg-type]
        first.run(0, BATCHES_BEFORE_STOP)
        first.session._delivery.wait()
        if number:
            first.session._checkpoint._lock._ended.set()  # a killed process renews nothing
        else:
            first.session.close()
        second = EveryKindSession(place, files)  # type: ignore[arg-type]
        second.attach_callback()
        second.run(BATCHES_BEFORE_STOP, BATCHES)
        second.session.drain()
        results.append(second.read_results())
        received.append([first.received, second.received])
        second.session.close()
    assert results[1] == results[0]
    assert sum(table.num_rows for tables in received[1] for table in tables) == sum(
        table.num_rows for tables in received[0] for table in tables
    )


def test_the_objects_of_a_checkpoint_are_bounded(url: str):
    counts = []
    with hr.Session(url, backend="local", partitions=2) as session:
        source = hr.MemorySource("k INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        session.add("SELECT window_start, k, COUNT(*) AS c FROM HOP(s, '4 seconds', '2 seconds') GROUP BY k", sink="noop")
        for second in range(40):
            source.append([{"k": second % 3, "time": f"2026-01-01T00:00:{second:02d}Z"}])
            session.advance()
            counts.append(len(list_keys(url)))
    assert max(counts[20:]) <= max(counts[:20]) + 2
    assert not {key for key in list_keys(url) if key.startswith("shuffle/")}


def test_a_second_session_is_refused_and_a_closed_one_makes_way(url: str):
    first = hr.Session(url, backend="local")
    with pytest.raises(CheckpointError, match="is in use by another session"):
        hr.Session(url, backend="local")
    first.close()
    hr.Session(url, backend="local").close()


def test_a_place_with_other_objects_is_refused_and_not_deleted(url: str):
    open_bucket(url).put("data/x.csv", [b"a"])
    with pytest.raises(CheckpointError, match="is not a headrace checkpoint and not empty"):
        hr.Session(url, backend="local")
    with pytest.raises(CheckpointError, match="is not a headrace checkpoint"):
        delete_checkpoint(url)
    assert open_bucket(url).get("data/x.csv") == b"a"


def test_a_checkpoint_is_deleted_with_everything_in_it(url: str):
    with hr.Session(url, backend="local") as session:
        session.create_stream("s", hr.MemorySource("k INT, time TIMESTAMP"), time="time")
        with pytest.raises(CheckpointError, match="in use"):
            delete_checkpoint(url)
    delete_checkpoint(url)
    assert list_keys(url) <= {"lease.json"}
    hr.Session(url, backend="local").close()


def test_a_damaged_object_is_refused_by_name(url: str):
    with hr.Session(url, backend="local") as session:
        session.create_stream("s", hr.MemorySource("k INT, time TIMESTAMP"), time="time")
        session.add("SELECT k FROM s")
        session.advance()
    bucket = open_bucket(url)
    content = bucket.get("manifest/current.json")
    bucket.put("manifest/current.json", [content[:-20]])
    with pytest.raises(CheckpointError, match=r"manifest/current.json' of the checkpoint is damaged"):
        hr.Session(url, backend="local")
    bucket.delete("manifest/current.json")
    with pytest.raises(CheckpointError, match=r"manifest' of the checkpoint is missing"):
        hr.Session(url, backend="local")


def write_rows(bucket: ObjectStore, key: str, numbers: list[int]) -> None:
    """Write rows to an object in the format of its suffix."""
    table = pa.table(
        {"n": pa.array(numbers, pa.int64()), "time": pa.array([n * 1_000_000 for n in numbers], pa.timestamp("us", "UTC"))}
    )
    sink = pa.BufferOutputStream()
    if key.endswith(".parquet"):
        pa.parquet.write_table(table, sink, row_group_size=2)
    elif key.endswith(".csv"):
        pa.csv.write_csv(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    bucket.put(key, [sink.getvalue()])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_objects_are_rows_of_a_stream(url: str, suffix: str):
    bucket = open_bucket(url)
    write_rows(bucket, f"in/1.{suffix}", [1, 2, 3])
    write_rows(bucket, "in/_ignored.csv", [100])
    write_rows(bucket, f"elsewhere/1.{suffix}", [200])
    with hr.Session(f"{url}/checkpoint", backend="local") as session:
        session.create_stream("s", hr.FileSource(f"{url}/in"), time="time")
        session.create_stream("p", hr.FileSource(f"{url}/*/[0-9].{suffix}", schema="n BIGINT, time TIMESTAMP"), time="time")
        queries = [session.add(f"SELECT n FROM {name}") for name in "sp"]
        session.advance()
        write_rows(bucket, f"in/2.{suffix}", [4])
        session.drain()
        assert [sorted(query.results()["n"].to_pylist()) for query in queries] == [[1, 2, 3, 4], [1, 2, 3, 4, 200]]
    with hr.Session(f"{url}/checkpoint", backend="local") as session:  # known files are not read again
        session.create_stream("s", hr.FileSource(f"{url}/in"), time="time")
        assert not session.has_work()


def test_an_object_that_is_replaced_before_it_is_read_is_read_as_it_is_now(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bucket = open_bucket(url)
    write_rows(bucket, "in/1.arrow", [1])
    source = hr.FileSource(f"{url}/in")
    with hr.Session(f"{url}/checkpoint", backend="local") as session:
        session.create_stream("s", source, time="time")
        query = session.add("SELECT n FROM s")
        ranges, _ = source.plan(None, 10)
        write_rows(bucket, "in/1.arrow", [7])  # of the same size
        assert hr.connectors.read.read_range(ranges[0], source.schema, ["n"])["n"].to_pylist() == [1]  # kept by this machine
        monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "another-machine"))
        with pytest.raises(SourceError, match="was replaced after it was discovered"):
            hr.connectors.read.read_range(ranges[0], source.schema, ["n"])
        session.drain()
        assert query.results()["n"].to_pylist() == [7]


def test_a_missing_bucket_is_reported(s3_options: dict[str, str]):
    with pytest.raises(hr.HeadraceError, match=r"(.|\n)*NoSuchBucket"):
        hr.Session("s3://no-such-bucket/x", backend="local", storage_options=s3_options)


def test_every_session_has_its_own_storage_options(s3_options: dict[str, str], tmp_path: Path):
    """The second session reaches the server only below the URL of the table, and no request of the first one uses its options."""
    root = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    nowhere = {**s3_options, "endpoint": "http://127.0.0.1:1"}
    bucket = ObjectStore(root, s3_options)
    write_rows(bucket, "in/1.csv", [1])
    with (
        hr.Session(f"{root}/checkpoint", backend="local", storage_options=s3_options) as first,
        hr.Session(tmp_path, backend="local", storage_options={**nowhere, root: s3_options}) as second,
    ):
        for number, session in enumerate((first, second)):
            session.create_stream("s", hr.FileSource(f"{root}/in"), time="time")
            session.add("SELECT n FROM s", name="kept")
            session.add("SELECT n FROM s", name="written", sink=f"parquet:{root}/out-{number}")
        for number, session in enumerate((first, second)):
            session.advance()
            assert session.query("kept").results()["n"].to_pylist() == [1]
            assert len(bucket.list(f"out-{number}")) == 1


def test_options_of_the_nearest_url_win():
    options = {"region": "a", "s3://b": {"region": "b", "endpoint": "x"}, "s3://b/deep": {"region": "c"}}
    chosen = [select_options(options, url) for url in ("s3://bb/x", "s3://b/x", "s3://b/deep", "s3://b/deeper")]
    assert chosen == [
        {"region": "a"},
        {"region": "b", "endpoint": "x"},
        {"region": "c", "endpoint": "x"},
        {"region": "b", "endpoint": "x"},
    ]


def test_the_requests_of_a_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A log entry, a file of state and results for each partition, a manifest, a deletion: nothing else, nothing twice."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    requests = Counter[str]()
    for name in ("put", "get", "get_range", "head", "copy", "delete", "list", "list_with_delimiter"):
        original = getattr(obstore, name)

        def count(*args: object, name: str = name, original: Any = original, **options: object) -> Any:
            requests[name] += "lease.json" not in str(args[1:2])  # which is renewed by the clock
            return original(*args, **options)

        monkeypatch.setattr(obstore, name, count)
    with hr.Session(f"memory://{uuid.uuid4().hex}/ck", backend="local", partitions=2, rows_per_batch=1_000) as session:
        source = hr.RateSource(rows_per_second=1_000_000, rows=40_000, generator="fields", keys=50, seed=1)
        session.create_stream("fields", source, time="time", watermark="1 millisecond")
        hop = "HOP(fields, '3 milliseconds', '1 millisecond')"
        sums = session.add(f"SELECT window_start, key, SUM(f1) AS s FROM {hop} GROUP BY key")
        rows = []
        for batch in range(25):
            requests.clear()
            session.advance()
            if 5 < batch < 15:  # before the first 32 files are packed
                assert +requests == {"put": 4, "delete": 1}
            rows.append(sums.results().num_rows)
        assert rows[-1] > rows[10] > 0
        state = session._coordinator.state
        kept = {file.key for file in state.results.files} - {ref.file for ref in state.aggregation_refs}
        assert all(session._checkpoint.store.find_size(key) for key in kept), "a superseded state file has results"
