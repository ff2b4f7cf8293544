"""Operations over HTTP: health, overview, plan, events, metrics."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.errors import CheckpointError
from headrace.runtime.partition_scaling import Partitioning
from headrace.service.metrics import build_overview
from support.in_process_service import Service, wait_until

ROOT = Path(__file__).parents[3]


def add_queries_and_rows(service: Service) -> None:
    service.add(name="one")
    service.add("SELECT gem_pack, COUNT(*) AS n FROM TUMBLE(purchases, '1 second') WHERE price > 5 GROUP BY gem_pack", name="two")
    service.append_and_wait(0.5, 1.5, 2.5, 3.5)


def test_health_of_a_service_without_queries(service: Service):
    health = service.http.get("/v1/health").json()
    assert (health["status"], health["queries"], health["streams"], health["tokens"]) == ("ok", 0, 1, False)


def test_health_reports_a_failed_session(service: Service, monkeypatch):
    service.add(name="one")

    def raise_damaged(*_):
        raise CheckpointError("a state file is damaged")

    monkeypatch.setattr(service.session._coordinator, "_run_job", raise_damaged)
    service.append(1.0)
    wait_until(lambda: service.http.get("/v1/health").status_code != 200)
    answer = service.http.get("/v1/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "failing")
    assert answer.json()["detail"]
    with pytest.raises(CheckpointError):
        service.close()


def test_the_overview_has_rates_and_watermark(service: Service):
    add_queries_and_rows(service)
    overview = service.http.get("/v1/overview").json()
    assert overview["live"] == 2
    assert overview["rows_per_second"] > 0
    assert overview["watermark"] == "2026-01-01T00:00:03.500000Z"
    assert sum(entry["rows_per_second"] for entry in overview["history"]) == 4
    assert overview["latency_seconds"]["p50"] <= overview["latency_seconds"]["p95"]


def test_the_plan_has_text_and_a_graph(service: Service):
    add_queries_and_rows(service)
    plan = service.http.get("/v1/plan").json()
    assert "2 live queries, one shared pipeline" in plan["text"]
    boxes = {box["id"]: box for box in plan["operators"]}
    assert {box["kind"] for box in boxes.values()} == {"stream", "aggregation", "query"}
    assert all(begin in boxes and end in boxes for begin, end in plan["edges"])
    assert sorted(boxes["stream purchases"]["queries"]) == ["one", "two"]
    ends = {boxes[end]["label"] for _, end in plan["edges"] if boxes[end]["kind"] == "query"}
    assert ends == {"one", "two"}
    assert {place["id"] for place in plan["drawing"]["boxes"]} == set(boxes)
    assert all(set(wire["queries"]) <= {"one", "two"} and wire["path"].startswith("M") for wire in plan["drawing"]["wires"])


def test_events_are_listed_in_batch_order(service: Service):
    add_queries_and_rows(service)
    one = service.session.query("one")
    service.http.delete("/v1/queries/one")
    service.wait_until(lambda: one.status == "removed")
    events = service.http.get("/v1/events").json()
    assert [event["text"] for event in events if event["kind"] == "added"] == ["query one is live", "query two is live"]
    assert [event["text"] for event in events if event["kind"] == "removed"] == ["query one was removed"]
    assert any(event["kind"] == "epoch" for event in events)
    assert events == sorted(events, key=lambda event: event["batch"])


def test_metrics_have_the_prometheus_format(service: Service):
    add_queries_and_rows(service)
    before = service.session.last_batch
    text = service.http.get("/metrics").text
    assert 'headrace_stream_rows_total{stream="purchases"} 4.0' in text
    assert 'headrace_query_rows_total{query="one"}' in text
    assert "headrace_queries_live 2.0" in text
    assert "headrace_queries_waiting 0.0" in text
    assert "headrace_changes_waiting 0.0" in text
    assert "headrace_changes_limit 10000.0" in text
    assert "headrace_changes_waiting_seconds 0.0" in text
    assert "headrace_changes_refused_total 0.0" in text
    assert "headrace_up 1.0" in text
    batches = re.search(r"^headrace_batches_total (\S+)", text, re.MULTILINE)
    assert batches is not None
    assert before < float(batches[1]) <= service.session.last_batch + 1
    assert re.search(r'headrace_query_cost\{as="shared",query="one"\} \S*[1-9]', text)


def test_events_survive_a_restart(service: Service):
    service.add(name="counts")
    before = service.http.get("/v1/events").json()
    assert {"added", "epoch"} <= {event["kind"] for event in before}
    service.restart()
    counts = service.session.query("counts")
    service.http.delete("/v1/queries/counts")
    service.wait_until(lambda: counts.status == "removed")
    after = service.http.get("/v1/events").json()
    assert after[: len(before)] == before
    assert any(event["text"] == "query counts was removed" for event in after)


def test_the_event_log_is_bounded(service: Service, monkeypatch):
    monkeypatch.setattr("headrace.service.event_log._MAX_FILE_LINES", 3)
    path = service.session.checkpoint_path / "service-events.jsonl"
    for number in range(4):
        service.add(name=f"q{number}")
    assert service.http.get("/v1/events").json()[-1]["batch"] >= 3
    lines = path.read_text().splitlines()
    assert [json.loads(line.partition(" ")[2]) for line in lines] == service.http.get("/v1/events").json()


def test_a_torn_line_of_the_event_log_is_skipped(service: Service):
    path = service.session.checkpoint_path / "service-events.jsonl"
    service.add(name="before")
    before = service.http.get("/v1/events").json()
    service.close()
    path.write_text(path.read_text() + '0123456789abcdef {"at": 1, "ba')
    service.restart()
    assert service.http.get("/v1/events").json() == before
    service.add(name="after")
    after = service.http.get("/v1/events").json()
    assert len(after) > len(before)
    service.restart()
    assert service.http.get("/v1/events").json() == after


def test_events_are_served_if_the_log_cannot_be_written(service: Service):
    path = service.session.checkpoint_path / "service-events.jsonl"
    path.unlink(missing_ok=True)
    path.mkdir()  # stands for a full disk: writing fails
    assert service.add(name="counts").status_code == 201
    assert any(event["text"] == "query counts is live" for event in service.http.get("/v1/events").json())
    path.rmdir()


def test_the_number_of_partitions_is_shown_and_changed(service: Service):
    assert service.http.get("/v1/overview").json()["partitions"] == {
        "partitions": 2, "next": 2, "auto": False, "parallelism": 2, "least_share": 0.5, "greatest_share": 0.5,
    }  # fmt: skip
    answer = service.http.post("/v1/rescale", json={"partitions": 3})
    assert (answer.status_code, answer.json()["next"]) == (200, 3)
    add_queries_and_rows(service)
    assert service.http.get("/v1/overview").json()["partitions"]["partitions"] == 3
    assert "headrace_partitions 3.0" in service.http.get("/metrics").text
    texts = [event["text"] for event in service.http.get("/v1/events").json()]
    assert "partitions 2 → 3: as requested" in texts
    assert service.http.post("/v1/rescale", json={"partitions": "auto"}).json()["auto"] is True


@pytest.mark.parametrize("partitions", [0, -1, 10_001, 2.5, True, "many", None])
def test_an_invalid_number_of_partitions_is_refused(unchanged_service: Service, partitions: object):
    assert unchanged_service.http.post("/v1/rescale", json={"partitions": partitions}).status_code == 422


def test_the_progress_of_the_last_batches_is_listed(service: Service):
    assert service.http.get("/v1/progress").json() == []
    add_queries_and_rows(service)
    documents = service.http.get("/v1/progress?most=60").json()
    with_rows = [document for document in documents if document["input_rows"]]
    assert sum(document["streams"]["purchases"]["input_rows"] for document in with_rows) == 4
    assert {"planning", "run", "commit", "total"} <= with_rows[-1]["duration_ms"].keys()
    assert len(service.http.get("/v1/progress").json()) == 1
    assert service.http.get("/v1/progress?most=0").status_code == 422


def test_metrics_have_tasks_and_operators_by_partition(service: Service):
    add_queries_and_rows(service)
    text = service.http.get("/metrics").text
    series = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert series['headrace_reduce_task_seconds_total{partition="1"}'] > 0
    assert series['headrace_map_task_seconds_total{task="0"}'] > 0
    assert series['headrace_step_seconds_total{step="commit"}'] > 0
    kinds = [f'{{operator="aggregation",partition="{partition}"}}' for partition in range(2)]
    assert sum(series.get(f"headrace_operator_input_rows_total{kind}", 0) for kind in kinds) >= 4
    assert sum(series.get(f"headrace_operator_output_rows_total{kind}", 0) for kind in kinds) >= 3
    assert sum(series.get(f"headrace_operator_state_bytes{kind}", 0) for kind in kinds) > 0
    assert 'partition="2"' not in text


def test_metrics_have_the_lag_of_sources_that_know_it(service: Service):
    stream = {"source": "rate", "name": "generated", "rows_per_second": 5, "time": "time"}
    assert service.http.post("/v1/streams", json=stream).status_code == 201
    wait_until(lambda: 'headrace_stream_lag_rows{stream="generated"}' in service.http.get("/metrics").text)
    assert 'headrace_stream_lag_rows{stream="purchases"}' not in service.http.get("/metrics").text


def test_documents_and_dashboard_name_metrics_that_exist(service: Service):
    add_queries_and_rows(service)
    served = set(re.findall(r"^# TYPE (\w+)", service.http.get("/metrics").text, re.MULTILINE))
    document = (ROOT / "docs" / "observability.md").read_text()
    documented = set(re.findall(r"`(headrace_\w+)`", document))
    assert documented == served
    monitoring = ROOT / "examples" / "monitoring"
    dashboard = (monitoring / "grafana-dashboard.json").read_text()
    panels = json.loads(dashboard)["panels"]
    assert {target["refId"] for panel in panels for target in panel["targets"]} == {"A", "B"}
    used = set(re.findall(r"headrace_\w+", dashboard + (monitoring / "prometheus.yml").read_text()))
    assert len(used) > 10
    assert used <= served


@pytest.mark.parametrize(
    ("ended", "rate"),
    [
        ((95.0, 98.0), 20 / 5),  # the session is five seconds old: its first micro-batch is the first of all
        ((50.0, 95.0, 98.0), 20 / 10),
        ((99.9,), 10 / 1),  # at least a second
        ((50.0,), 0.0),
        ((), 0.0),
    ],
)
def test_rates_are_over_ten_seconds_or_since_the_first_batch(ended: tuple[float, ...], rate: float):
    report = SimpleNamespace(rows=10, emitted=10, live=0)
    session = SimpleNamespace(
        done=lambda: [SimpleNamespace(at=at, report=report, seconds=0.1) for at in ended],
        queries=list,
        streams=dict,
        last_batch=0,
        partitioning=Partitioning(2, 2, is_auto=False, parallelism=2, shares=(0.5, 0.5)),
    )
    overview = build_overview(SimpleNamespace(session=session, now=lambda: datetime.fromtimestamp(100, UTC)))
    assert (overview["rows_per_second"], overview["emitted_per_second"]) == (rate, rate)
