"""Streams over HTTP: declared, filled, looked into; they are there again after a restart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from support.in_process_service import COLUMNS, Service, timestamp

RATE = {"source": "rate", "name": "ads", "rows_per_second": 1000, "generator": "ads", "time": "time"}


def test_a_stream_tells_its_columns(service: Service):
    found = service.http.get("/v1/streams/purchases").json()
    assert [(one["name"], one["type"]) for one in found["columns"]] == [
        ("user_id", "INT"), ("gem_pack", "INT"), ("price", "DOUBLE"), ("time", "TIMESTAMP"),
    ]  # fmt: skip
    assert (found["time"], found["rows"], found["latest"], found["lag_seconds"]) == ("time", 0, None, None)


def test_rows_are_counted_and_can_be_looked_at(service: Service):
    service.add()
    service.append(1.0, 2.5)
    until = time.monotonic() + 20
    while service.http.get("/v1/streams/purchases").json()["rows"] < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert service.http.get("/v1/streams/purchases").json()["latest"] == "2026-01-01T00:00:02.500000Z"
    sample = service.http.get("/v1/streams/purchases/sample", params={"rows": 1}).json()
    assert sample["rows"] == [[1, 1, 10.0, "2026-01-01T00:00:02.500000Z"]]


def test_rows_that_do_not_fit_are_refused_all_of_them(service: Service):
    rows = [{"price": 1.0, "time": timestamp(1)}, {"price": "much", "time": timestamp(2)}]
    answer = service.http.post("/v1/streams/purchases/rows", json=rows)
    assert answer.status_code == 422
    assert "'much'" in answer.json()["error"]
    assert service.http.post("/v1/streams/purchases/rows", json={"price": 1.0}).status_code == 422
    assert service.http.post("/v1/streams/nowhere/rows", json=[]).status_code == 404
    service.http.post("/v1/streams", json=RATE)
    assert service.http.post("/v1/streams/ads/rows", json=[]).status_code == 409


def test_rows_that_are_too_late_are_told_with_the_queries_that_missed_them(service: Service):
    # watermark:  0        →  5
    # windows:    [0, 1) is emitted when 5 is read; what comes for it then is late, but not for rows by themselves
    service.add(name="counts")
    service.add("SELECT price FROM purchases", name="each")
    service.append_and_wait(0.5, 5, 6, 0.7)
    assert service.http.get("/v1/streams/purchases").json()["late"] == {"counts": 1}


def test_streams_are_there_again_after_a_restart(service: Service):
    assert service.http.post("/v1/streams", json=RATE).status_code == 201
    before = service.http.get("/v1/streams").json()
    service.restart()
    after = service.http.get("/v1/streams").json()
    assert {one["name"]: one["source"] for one in after} == {one["name"]: one["source"] for one in before}


def test_a_stream_that_cannot_be_is_refused_and_leaves_nothing(service: Service):
    bad = [
        {"source": "memory", "name": "purchases", "columns": COLUMNS, "time": "time"},  # taken
        {"source": "memory", "name": "a", "columns": "x NOTYPE", "time": "x"},
        {"source": "memory", "name": "a", "columns": COLUMNS, "time": "nope"},
        {"source": "memory", "name": "a b", "columns": COLUMNS, "time": "time"},
        {"source": "memory", "name": "a", "columns": COLUMNS, "time": "time", "watermark": "soon"},
        {"source": "files", "name": "a", "path": "/nowhere/at/all.csv", "time": "time"},
        {"source": "rate", "name": "a", "rows_per_second": 0, "time": "time"},
        {"source": "tcp", "name": "a", "address": "127.0.0.1:1", "stream": "s", "time": "time"},
        {"source": "kafka", "name": "a", "time": "time"},
    ]
    for one in bad:
        answer = service.http.post("/v1/streams", json=one)
        assert answer.status_code in (409, 422), (one, answer.text)
        assert answer.json()["error"]
    assert [one["name"] for one in service.http.get("/v1/streams").json()] == ["purchases"]
    service.restart()
    assert [one["name"] for one in service.http.get("/v1/streams").json()] == ["purchases"]


def test_a_stream_is_written_down_before_a_batch_knows_of_it(service: Service, monkeypatch):
    path = service.session.coordinator.checkpoint.path / "service-streams.json"
    seen, create = [path.read_text()], service.session.create_stream

    def created(*given, **options):
        seen.append(path.read_text())
        create(*given, **options)

    monkeypatch.setattr(service.session, "create_stream", created)
    service.declare("other")
    assert ['"other"' in text for text in seen] == [False, True]


def test_a_source_that_is_gone_at_the_start_is_named(serve, tmp_path: Path):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "one.csv").write_text("k,time\n1,2026-01-01T00:00:00Z\n")
    service = serve()
    made = {"source": "files", "name": "rows", "path": str(folder), "format": "csv", "time": "time"}
    answer = service.http.post("/v1/streams", json={**made, "columns": "k INT, time TIMESTAMP"})
    assert answer.status_code == 201, answer.text
    service.close()
    (folder / "one.csv").unlink()
    folder.rmdir()
    with pytest.raises(HeadraceError, match="cannot open stream 'rows', which was declared by a request"):
        service.restart()
    folder.mkdir()
    service.restart()
    assert service.http.get("/v1/streams/rows").status_code == 200
