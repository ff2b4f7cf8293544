"""How it goes: health, overview, plan, events, metrics."""

from __future__ import annotations

import json
import re
import time

import pytest

from headrace.errors import CheckpointError
from support.in_process_service import Service


def busy(service: Service) -> None:
    service.add(name="one")
    service.add("SELECT gem_pack, COUNT(*) AS n FROM TUMBLE(purchases, '1 second') WHERE price > 5 GROUP BY gem_pack", name="two")
    service.append_and_wait(0.5, 1.5, 2.5, 3.5)


def test_health_needs_nothing(service: Service):
    found = service.http.get("/v1/health").json()
    assert (found["status"], found["queries"], found["tokens"]) == ("ok", 0, False)


def test_a_session_that_stopped_is_told_of(service: Service, monkeypatch):
    service.add(name="one")

    def damaged(*_):
        raise CheckpointError("a state file is damaged")

    monkeypatch.setattr(service.session.coordinator, "_execute", damaged)
    service.append(1.0)
    until = time.monotonic() + 20
    while (answer := service.http.get("/v1/health")).status_code == 200:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert (answer.status_code, answer.json()["status"]) == (503, "stopped")
    assert answer.json()["detail"]
    with pytest.raises(CheckpointError):
        service.close()


def test_the_overview_has_rates_and_watermark(service: Service):
    busy(service)
    found = service.http.get("/v1/overview").json()
    assert found["live"] == 2
    assert found["rows_per_second"] > 0
    assert found["watermark"] == "2026-01-01T00:00:03.500000Z"
    assert sum(one["rows_per_second"] for one in found["history"]) == 4
    assert found["latency_seconds"]["p50"] <= found["latency_seconds"]["p95"]


def test_the_plan_is_text_and_a_picture(service: Service):
    busy(service)
    found = service.http.get("/v1/plan").json()
    assert "2 live queries, one shared pipeline" in found["text"]
    boxes = {one["id"]: one for one in found["operators"]}
    assert {one["kind"] for one in boxes.values()} == {"stream", "aggregation", "query"}
    assert all(begin in boxes and end in boxes for begin, end in found["edges"])
    assert sorted(boxes["stream purchases"]["queries"]) == ["one", "two"]
    ends = {boxes[end]["label"] for _, end in found["edges"] if boxes[end]["kind"] == "query"}
    assert ends == {"one", "two"}


def test_what_happened_is_told_in_order(service: Service):
    busy(service)
    service.http.delete("/v1/queries/one")
    until = time.monotonic() + 20
    while not (found := [one for one in service.http.get("/v1/events").json() if one["kind"] == "removed"]):
        assert time.monotonic() < until
        time.sleep(0.02)
    told = service.http.get("/v1/events").json()
    assert [one["text"] for one in told if one["kind"] == "added"] == ["query one is live", "query two is live"]
    assert found[0]["text"] == "query one was removed"
    assert any(one["kind"] == "epoch" for one in told)
    assert told == sorted(told, key=lambda one: one["batch"])


def test_metrics_are_those_of_prometheus(service: Service):
    busy(service)
    text = service.http.get("/metrics").text
    assert 'headrace_stream_rows_total{stream="purchases"} 4.0' in text
    assert 'headrace_query_rows_total{query="one"}' in text
    assert "headrace_queries_live 2.0" in text
    assert "headrace_queries_waiting 0.0" in text
    assert "headrace_up 1.0" in text
    until = time.monotonic() + 20
    while not re.search(r'headrace_query_cost\{as="shared",query="one"\} \S*[1-9]', text := service.http.get("/metrics").text):
        assert time.monotonic() < until, text  # costs are reckoned anew every other second
        time.sleep(0.1)


def test_what_happened_is_known_after_a_restart(service: Service):
    service.add(name="counts")
    before = service.http.get("/v1/events").json()
    assert {"added", "epoch"} <= {one["kind"] for one in before}
    service.restart()
    service.http.delete("/v1/queries/counts")
    until = time.monotonic() + 20
    while (after := service.http.get("/v1/events").json())[-1]["kind"] not in {"removed", "epoch"} or len(after) == len(before):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert after[: len(before)] == before
    assert any(one["text"] == "query counts was removed" for one in after)


def test_what_happened_is_bounded(service: Service, monkeypatch):
    monkeypatch.setattr("headrace.service.event_log._MAX_FILE_LINES", 3)
    path = service.session.coordinator.checkpoint.path / "service-events.jsonl"
    for number in range(4):
        service.add(name=f"q{number}")
    assert service.http.get("/v1/events").json()[-1]["batch"] >= 3
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == service.http.get("/v1/events").json()


def test_a_line_that_was_cut_off_is_left_out_and_nothing_else(service: Service):
    path = service.session.coordinator.checkpoint.path / "service-events.jsonl"
    service.add(name="before")
    before = service.http.get("/v1/events").json()
    service.close()
    path.write_text(path.read_text() + '{"at": 1, "ba')
    service.restart()
    assert service.http.get("/v1/events").json() == before
    service.add(name="after")
    after = service.http.get("/v1/events").json()
    assert len(after) > len(before)
    service.restart()
    assert service.http.get("/v1/events").json() == after


def test_what_cannot_be_written_down_is_told_all_the_same(service: Service):
    path = service.session.coordinator.checkpoint.path / "service-events.jsonl"
    path.unlink(missing_ok=True)
    path.mkdir()  # as a disk that is full: nothing can be written there
    assert service.add(name="counts").status_code == 201
    assert any(one["text"] == "query counts is live" for one in service.http.get("/v1/events").json())
    path.rmdir()
